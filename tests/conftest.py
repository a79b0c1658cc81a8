"""Eight CPU devices, no accelerator, strict promotion: the same everywhere."""

import os

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")


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
    from revremat import _cli_progress

    before = _cli_progress.FIRST_LINE_SECONDS
    _cli_progress.FIRST_LINE_SECONDS = 3600.0
    yield
    _cli_progress.FIRST_LINE_SECONDS = before


@pytest.fixture(scope="module")
def quick_compiles():
    """Where values are compared and nothing is measured: compiling takes the time."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
