"""Numba is imported where it is needed first, and what does without it does."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from revremat import UserError
from revremat._numba import njit

ROOT = Path(__file__).parents[1]


@njit
def double(x):
    """Twice as much."""
    return 2 * x


@njit
def quadruple(x):
    return double(double(x))


def test_compiled_functions_call_one_another():
    assert quadruple(3) == 12
    assert quadruple(np.ones(2)).tolist() == [4, 4]
    assert double.__doc__ == "Twice as much."
    assert quadruple.compiled.signatures  # by Numba, and not as Python


def test_without_numba_a_call_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    lazy = njit(lambda x: x)
    with pytest.raises(UserError, match=r"run 'pip install numba'") as error:
        lazy(1)
    assert len(str(error.value)) <= 400


WITHOUT = """
import sys
sys.modules["numba"] = None
import jax.numpy as jnp, revremat as rr
w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
plan = rr.Plan.from_json(rr.trace(loss, w, x).plan({"stack": rr.RECOMPUTE}).to_json())
planned = rr.apply(loss, plan)
print(rr.measure(planned, w, x, target="cpu:1").memory.total_bytes > 0)
print(bool(planned(w, x) == loss(w, x)))
"""


def test_programs_are_traced_measured_and_planned_without_numba():
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "True"], done.stderr[-2000:]
