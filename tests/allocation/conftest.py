"""Loops that a compiler takes, run as Python: small cases, and no compile."""

import numpy as np
import pytest

from revremat._numba import njit


@pytest.fixture
def in_python(monkeypatch):
    """What Numba compiles runs as it stands; its words of 64 bits overflow silently."""
    monkeypatch.setattr(njit, "__call__", lambda self, *args: self.__wrapped__(*args))
    with np.errstate(over="ignore"):
        yield
