"""Eight CPU devices, no accelerator, strict promotion: the same everywhere."""

import functools
import os
import re
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
# Kernels that run here are made in half of the time. What is measured stays the same:
# measuring makes no kernels, or makes them like this.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

ROOT = Path(__file__).parents[1]


def _modules_with_shapes():
    """Those whose signatures say shapes; what Numba compiles takes no wrappers."""
    for path in (ROOT / "revremat").rglob("*.py"):
        text = path.read_text()
        if "from jaxtyping import" in text and "import njit" not in text:
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


install_import_hook([*_modules_with_shapes()], "checked_shapes.checked")


_SEARCHES = re.compile(r"\b(?:fit|search|Search|trainer\.run)\(")
_COMPILES = re.compile(r"\b(?:measure|jit|grad|vjp)\(")
_COMPILES_OF_A_SEARCH = 10


@functools.cache
def _num_compiles(path: Path) -> int:
    """A rough number, by what the file says."""
    text = path.read_text()
    searches = len(_SEARCHES.findall(text))
    return _COMPILES_OF_A_SEARCH * searches + len(_COMPILES.findall(text))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Which parameters are slow; and files that compile most come first.

    So no worker waits for a long last file. Of a test marked `every_commit("a", "b")`
    the parameters of these ids are not slow, and all others are.
    """
    for item in items:
        few = item.get_closest_marker("every_commit")
        if few is not None and item.callspec.id not in few.args:
            item.add_marker("slow")
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        # Workers would not agree on which tests there are.
        raise pytest.UsageError(f"a test's name holds an address: {unstable[0]}")
    items.sort(key=lambda item: -_num_compiles(item.path))


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory):
    """Compiles and measured cards of this session alone; set the variables to keep."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # one for all workers
    names = {"REVREMAT_CACHE": "compiles", "REVREMAT_CARDS": "cards"}
    fresh = {k: str(folder / v) for k, v in names.items() if k not in os.environ}
    os.environ.update(fresh)
    yield
    for name in fresh:
        del os.environ[name]


@pytest.fixture(scope="session", autouse=True)
def _silent_commands():
    """What a command prints must not depend on how busy the machine is."""
    from revremat._cli import _progress

    before = _progress.FIRST_LINE_SECONDS
    _progress.FIRST_LINE_SECONDS = 3600.0
    yield
    _progress.FIRST_LINE_SECONDS = before


@pytest.fixture(autouse=True)
def _remat_pass_as_it_was():
    """Jobs that measure a card switch XLA's remat pass off for all of their process."""
    import jax

    before = jax.config.jax_compiler_enable_remat_pass
    yield
    if jax.config.jax_compiler_enable_remat_pass != before:
        jax.config.update("jax_compiler_enable_remat_pass", before)


@pytest.fixture
def in_python(monkeypatch):
    """What Numba compiles runs as Python: small cases, and no compile.

    Its words of 64 bits overflow silently.
    """
    import numpy as np

    from revremat._numba import njit

    monkeypatch.setattr(njit, "__call__", lambda self, *args: self.__wrapped__(*args))
    with np.errstate(over="ignore"):
        yield
