"""Sets with names from elsewhere, with tags and without."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE, UserError, sharding
from revremat import layers as parts
from revremat.policies import NAMED, candidates, layers, named, roles
from revremat.policies._named import Roles
from tests.policies.units import made_by, transformer

PROJECTIONS = ("query_proj", "key_proj", "value_proj")
TAGS = (*PROJECTIONS, "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")


def test_products_tell_what_tags_would():
    tagged, plain = transformer(tags=TAGS), transformer()
    assert roles(tagged).qkv == PROJECTIONS
    assert roles(tagged).mlp_in == ("mlpwi_0", "mlpwi_1")
    assert roles(tagged).mlp_out == ("mlpwo",)
    for name in NAMED:
        ways = [named(unit, name) for unit in (tagged, plain)]
        kept = [u.kept(way) for u, way in zip((tagged, plain), ways, strict=True)]
        assert kept[0].device_bytes == kept[1].device_bytes
        assert kept[0].host_bytes == kept[1].host_bytes
        again = [k.recomputed.count("dot_general") for k in kept]
        assert again[0] == again[1]


def test_maxtext_policies_keep_what_they_say():
    unit = transformer(tags=TAGS)
    save = lambda name: set(named(unit, name).save)
    assert save("save_qkv_proj") == set(PROJECTIONS)
    assert save("save_out_proj") == {"out_proj"}
    assert save("save_dot_except_mlp") == {*PROJECTIONS, "out_proj"}
    assert save("save_dot_except_mlpwi") == {*PROJECTIONS, "out_proj", "mlpwo"}
    assert save("minimal_with_context") == set(TAGS)
    assert save("minimal") == set(TAGS) - {"context"}
    assert set(named(unit, "qkv_proj_offloaded").offload) == set(PROJECTIONS)
    with pytest.raises(KeyError):
        named(unit, "save_everything")


def test_selective_recomputes_attention_and_nothing_else():
    unit = transformer()
    kept = unit.kept(named(unit, "selective"))
    assert kept.recomputed.count("dot_general") == 1  # the scores
    assert "exp" in kept.recomputed
    assert "logistic" not in kept.recomputed
    assert made_by(unit, "exp").isdisjoint(kept.saved)
    assert kept.device_bytes < unit.kept(SAVE).device_bytes


def spread(tagged, sequence=True):
    """A layer with tensor and sequence parallelism over four devices."""
    mesh = rr.target("cpu:4").mesh({"data": 1, "model": 4})
    layout = sharding.Layout(mesh, sharding.megatron(sequence=sequence))

    def layer(w, x):
        name = "norm1" if tagged else None
        whole = layout.gather(jnp.tanh(x * w["scale"]), name=name)
        heads = "batch", "length", "heads", "kv"
        qkv = jnp.einsum("bld,dxhk->xblhk", whole, w["qkv"])
        q, k, v = (layout(part, *heads) for part in qkv)
        ctx = parts.attention(q, k, v)
        return x + layout.scatter(jnp.einsum("blhk,hkd->bld", ctx, w["out"]))

    like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    w = {"scale": like(2, 16), "qkv": like(2, 16, 3, 4, 4), "out": like(2, 4, 4, 16)}
    loss = lambda w, x: rr.stack(layer, w, x).sum()
    return rr.trace(loss, w, like(2, 8, 16))["stack"]


@pytest.mark.parametrize("tagged", [True, False])
def test_selective_keeps_shards_of_what_is_gathered(tagged):
    """As the paper does: each device its own, and the gather runs again."""
    unit, shard = spread(tagged), 4 * 2 * 8 * 16 // 4
    action = named(unit, "selective")
    assert ("norm1" in action.save) is tagged
    kept = unit.kept(action)
    sizes = {unit.values[unit.position[n]].num_bytes for n in kept.saved}
    assert max(sizes) == shard
    assert kept.sent_bytes == 3 * shard  # of one gather
    assert unit.kept(SAVE).sent_bytes == 0


def test_selective_without_anything_gathered_keeps_what_the_program_keeps():
    unit = spread(tagged=True, sequence=False)
    kept = unit.kept(named(unit, "selective"))
    assert set(kept.saved) < set(unit.kept(SAVE).saved)
    assert kept.sent_bytes == 0


def test_selective_has_nothing_to_drop_where_attention_is_a_kernel():
    unit = transformer(flash=True)
    assert roles(unit).out
    assert len(roles(unit).qkv) == 3
    assert named(unit, "selective") is None
    assert "selective" not in {c.name for c in candidates(unit)}


def test_layers_by_megatrons_methods():
    unit = transformer(num_layers=4)
    assert layers(unit, "uniform", 1) == (RECOMPUTE,) * 4
    assert layers(unit, "block", 3) == (RECOMPUTE,) * 3 + (SAVE,)
    for method, number in (("uniform", 2), ("block", 5), ("rows", 1)):
        with pytest.raises(UserError):
            layers(unit, method, number)


def products_of(layer, *names):
    """Roles in a layer of square weights by name, on rows of 8."""
    ws = {name: jax.ShapeDtypeStruct((3, 8, 8), jnp.float32) for name in names}
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    graph = rr.trace(lambda ws, x: rr.stack(layer, ws, x).sum(), ws, x)
    return roles(graph["stack"])


def test_a_product_of_activations_without_weights_behind_it_is_no_attention():
    def layer(w, x):
        h = rr.name(x @ w["up"], "up")
        return x + jnp.tanh(rr.name(h @ h.T, "own")).sum() + h

    assert products_of(layer, "up") == Roles()


def test_tags_say_what_plays_which_part_where_there_is_no_attention():
    def layer(w, x):
        up = rr.name(x @ w["a"], "mlpwi")
        return x + rr.name(jnp.tanh(up) @ w["b"], "mlpwo")

    found = products_of(layer, "a", "b")
    assert (found.mlp_in, found.mlp_out) == (("mlpwi",), ("mlpwo",))
    assert found.qkv == found.out == found.inside == ()
