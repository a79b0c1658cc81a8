"""A compile that is read before any kernel is made says what a whole one says."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat.xla._early import assign_buffers, totals
from tests.xla.programs import NO_TILING, enlarged


def step(w, x):
    return jax.grad(lambda w: jnp.tanh(x @ w).sum())(w), x.mean()


SPECS = (
    jax.ShapeDtypeStruct((64, 64), jnp.float32),
    jax.ShapeDtypeStruct((512, 64), jnp.float32),
)


def test_memory_is_that_of_the_whole_compile():
    target = rr.target("h100:1")
    whole = xla.compile_step(step, SPECS, target, cache=False)
    early = assign_buffers(step, SPECS, target, cache=False)
    assert {k: v for k, v in whole.stats.items() if "code" not in k} == {
        k: v for k, v in early.stats.items() if "code" not in k
    }
    assert totals(whole.hlo) == early.stats


def test_what_was_read_early_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path))
    target = rr.target("h100:1")
    early = assign_buffers(step, SPECS, target)
    again = assign_buffers(step, SPECS, target)
    assert (early.cached, again.cached) == (False, True)
    assert dict(again.stats) == dict(early.stats)


def test_a_machine_that_is_here_is_refused():
    with pytest.raises(rr.UserError, match="cpu:1 is no GPU that is elsewhere"):
        assign_buffers(step, SPECS, rr.target("cpu:1"))


def test_a_product_that_xla_tiles_in_no_way_is_the_librarys():
    step, target = jax.grad(enlarged, (0, 1, 2)), rr.target("h100:1")
    early = assign_buffers(step, NO_TILING, target, cache=False)
    whole = xla.compile_step(step, NO_TILING, target, cache=False)
    assert early.remarks == whole.remarks != ()
    assert early.stats["temp"] == whole.stats["temp"]
