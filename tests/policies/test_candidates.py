"""What is proposed for a unit."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat.policies import PRESETS, candidates, preset


def mlp_graph():
    def layer(ws, x):
        up, down = ws
        h = rr.name(x @ up, "up")
        scores = jnp.einsum("bi,bj->bij", h, h)  # a product of activations
        return x + jnp.tanh(h) @ down + jnp.sin(scores).mean((1, 2))[:, None]

    ws = (
        jax.ShapeDtypeStruct((6, 32, 64), jnp.float32),
        jax.ShapeDtypeStruct((6, 64, 32), jnp.float32),
    )
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    return rr.trace(lambda ws, x: rr.stack(layer, ws, x).sum(), ws, x)


def test_presets_keep_what_their_names_say():
    unit = mlp_graph().units[0]
    kept = {name: unit.kept(preset(unit, name).action) for name in PRESETS}
    assert kept["full"].saved == ("input",)
    assert "up" in kept["dots_no_batch"].saved
    assert set(kept["dots_no_batch"].saved) < set(kept["dots"].saved)
    assert "dot_general" not in kept["dots"].rebuilt
    assert "dot_general" in kept["dots_no_batch"].rebuilt
    assert "dot_general" not in kept["none"].rebuilt
    with pytest.raises(KeyError):
        preset(unit, "everything")


def test_no_two_candidates_keep_the_same():
    unit = mlp_graph().units[0]
    found = candidates(unit, offload=True, ahead=True)
    kept = [unit.kept(c.action) for c in found]
    assert len({(k.saved, k.offloaded, k.ahead) for k in kept}) == len(kept)
    assert len({c.name for c in found}) == len(found)
    assert {"none", "full"} <= {c.name for c in found}


def test_offload_is_proposed_only_where_there_is_a_host_to_go_to():
    unit = mlp_graph().units[0]
    assert not any(c.action.offload for c in candidates(unit))
    assert any(c.action.offload for c in candidates(unit, offload=True))


def test_an_invertible_unit_can_be_inverted():
    def layer(w, x):
        a, b = x
        b = b + jnp.tanh(a @ w)
        return a + jnp.tanh(b @ w), b

    def inverse(w, y):
        a, b = y
        a = a - jnp.tanh(b @ w)
        return a, b - jnp.tanh(a @ w)

    w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((2, 8), jnp.float32)

    def loss(w, x):
        y = rr.stack(layer, w, (x, x), inverse=inverse)
        return sum(part.sum() for part in y)

    (unit,) = rr.trace(loss, w, x).units
    assert "invert" in {c.name for c in candidates(unit)}
