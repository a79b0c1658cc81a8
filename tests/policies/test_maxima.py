"""What a softmax takes off its logits need not be kept beside its sums."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat.policies import Candidate, kept_maxima, without_maxima

LAYERS, ROWS, WIDTH = 3, 16, 8


def layer(w, x):
    chance = jax.nn.softmax(rr.name(x @ w, "logits"), axis=-1)
    return x + rr.name(chance @ x, "made")


@pytest.fixture(scope="module")
def unit():
    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, ROWS), jnp.float32)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x)["stack"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (rr.SAVE, None),
        (rr.RECOMPUTE, None),
        (rr.INVERT, None),
        (rr.RECOMPUTE(save=["made"]), None),
        (rr.RECOMPUTE(save=["reduce_max_0"]), rr.RECOMPUTE),
        (
            rr.RECOMPUTE(save=["made", "reduce_max_0", "reduce_sum_0"]),
            rr.RECOMPUTE(save=["made", "reduce_sum_0"]),
        ),
        (
            rr.RECOMPUTE(save=["reduce_max_0"], offload=["made"], unroll=True),
            rr.RECOMPUTE(offload=["made"], unroll=True),
        ),
    ],
)
def test_maxima_go_and_all_else_stays(unit, action, expected):
    candidate = Candidate("one", action)
    kept = kept_maxima(unit, candidate)
    assert kept == (("reduce_max_0",) if expected else ())
    found = without_maxima(candidate, kept)
    assert found == (
        Candidate("one, no reduce_max_0", expected) if expected else candidate
    )
