"""What is proposed for a unit."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE
from revremat.policies import (
    PRESETS,
    Joint,
    Pool,
    candidates,
    preset,
    sent_to_host,
)
from revremat.policies._shortlist import MOST_PROBED, shortlist
from tests.policies.units import made_by, transformer


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
    assert kept["recompute all"].saved == ("input",)
    assert "up" in kept["dots_no_batch"].saved
    assert set(kept["dots_no_batch"].saved) < set(kept["dots"].saved)
    assert "dot_general" not in kept["dots"].recomputed
    assert "dot_general" in kept["dots_no_batch"].recomputed
    assert "dot_general" not in kept["save all"].recomputed
    with pytest.raises(KeyError):
        preset(unit, "everything")


def test_no_two_candidates_keep_the_same():
    unit = mlp_graph().units[0]
    found = candidates(unit, offload=True, ahead=True)
    kept = [unit.kept(c.action) for c in found]
    assert len({(k.saved, k.offloaded, k.ahead) for k in kept}) == len(kept)
    assert len({c.name for c in found}) == len(found)
    assert {"save all", "recompute all"} <= {c.name for c in found}


@pytest.mark.parametrize("tag", [*PRESETS, "min-cut"])
def test_tags_that_are_called_as_what_there_is_take_no_name_away(tag):
    def layer(w, x):
        return x + jnp.sin(jnp.tanh(rr.name(x @ w, tag)) @ w) @ w

    ws = jax.ShapeDtypeStruct((6, 32, 32), jnp.float32)
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    graph = rr.trace(lambda ws, x: rr.stack(layer, ws, x).sum(), ws, x)
    (unit,) = graph.units
    found = {c.name: c.action for c in candidates(unit, offload=True, ahead=True)}
    assert len(found) == len(candidates(unit, offload=True, ahead=True))
    assert any(action.save == (tag,) for action in found.values())
    for name in PRESETS:
        if name in found:
            assert found[name] == preset(unit, name).action


def test_offload_is_proposed_only_where_there_is_a_host_to_go_to():
    unit = mlp_graph().units[0]
    assert not any(c.action.offload for c in candidates(unit))
    assert any(c.action.offload for c in candidates(unit, offload=True))


def test_layers_may_keep_nothing_on_the_device():
    unit = mlp_graph().units[0]
    (alone,) = [
        c.action
        for c in candidates(unit, offload=True)
        if not unit.kept(c.action).device_bytes
    ]
    assert alone == RECOMPUTE(offload=["input"])


def test_each_of_a_sets_values_is_sent_once_and_nothing_else_changes():
    unit = transformer()
    pool, num_sent = Pool(unit), 0
    for candidate in pool.sets:
        before, sent = pool.kept(candidate), sent_to_host(unit, candidate)
        for kept in map(pool.kept, sent):
            (name,) = kept.offloaded
            assert {*kept.saved, name} == {*before.saved}
            assert kept.recompute_flops == before.recompute_flops
            assert kept.device_bytes + kept.host_bytes == before.device_bytes
        names = [pool.kept(c).offloaded for c in sent]
        assert len(set(names)) == len(names)
        assert "input" not in before.saved or names[0] == ("input",)
        num_sent += len(sent)
    assert num_sent > 2 * len(pool.sets)


def test_what_is_sent_already_stays_so():
    unit = transformer()
    twice = [
        second.action
        for first in sent_to_host(unit, preset(unit, "dots"))
        for second in sent_to_host(unit, first)
    ]
    assert {len(action.offload) for action in twice} == {2}


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


TAGS = ("query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0")


@pytest.mark.parametrize("most", [2, 3, 4, 6, 9, 12, 20])
def test_so_many_and_no_more(most):
    unit = transformer()
    found = candidates(unit, offload=True, ahead=True, most=most)
    assert len(found) <= most
    presets = ["recompute all", "save all", "dots", "dots_no_batch"][
        : 2 if most < 8 else 4
    ]
    assert [c.name for c in found[: len(presets)]] == presets


@pytest.mark.parametrize("most", [-1, 0, 1])
def test_fewer_than_two_are_no_choice(most):
    with pytest.raises(rr.UserError, match=f"most={most} leaves no choice: .* 2 or mo"):
        candidates(transformer(), most=most)


def test_they_come_in_the_same_order_under_the_same_names():
    first, again = (candidates(transformer(tags=TAGS), offload=True) for _ in "12")
    assert first == again
    assert len({c.name for c in first}) == len(first)


def test_no_set_is_beaten_in_bytes_and_in_time():
    unit = transformer()
    joint = Joint(unit)
    sets = [c for c in candidates(unit, most=20) if c.name not in PRESETS]
    kept = [unit.kept(c.action) for c in sets]
    costs = [joint.cost(unit.position[n] for n in k.saved) for k in kept]
    assert len(sets) >= 6
    assert [c.bytes for c in costs] == sorted({c.bytes for c in costs})
    assert [c.traffic for c in costs] == sorted(
        (c.traffic for c in costs), reverse=True
    )


@pytest.mark.parametrize("byte_weight", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_without_tags_sets_are_as_good_as_with(byte_weight):
    def best(unit):
        joint = Joint(unit)
        kept = [unit.kept(c.action).saved for c in candidates(unit)]
        costs = [joint.cost(map(unit.position.get, names)) for names in kept]
        return min(c.traffic + byte_weight * c.bytes for c in costs)

    plain, tagged = best(transformer()), best(transformer(tags=TAGS))
    assert plain == pytest.approx(tagged, rel=0.05)


def test_some_sets_keep_a_few_products_and_recompute_others():
    unit = transformer()
    products = made_by(unit, "dot_general")
    counts = {
        unit.kept(c.action).recomputed.count("dot_general")
        for c in candidates(unit)
        if c.name not in PRESETS
    }
    assert len(counts) >= 3
    assert min(counts) < max(counts) < len(products)


def test_a_unit_without_any_product_has_sets_too():
    def layer(w, x):
        for _ in range(3):
            x = jax.nn.softmax(jnp.sin(x) * w) * jnp.exp(-x)
        return x

    w = jax.ShapeDtypeStruct((6, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    (unit,) = rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x).units
    found = [c for c in candidates(unit) if c.name not in PRESETS]
    assert found
    plain = unit.kept(preset(unit, "save all").action).device_bytes
    assert all(unit.kept(c.action).device_bytes < plain for c in found)


def test_one_value_may_take_the_place_of_an_input():
    def step(w, state):
        u, v = state
        force = jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)  # all that is needed of u
        v = v + jnp.tanh(force * w) * jnp.sin(v)
        return v * w, v

    w = jax.ShapeDtypeStruct((6,), jnp.float32)
    x = jax.ShapeDtypeStruct((512,), jnp.float32)
    (unit,) = rr.trace(lambda w, x: rr.stack(step, w, (x, x))[0].sum(), w, x).units
    full = unit.kept(RECOMPUTE)
    found = [unit.kept(c.action) for c in candidates(unit) if c.name not in PRESETS]
    assert any(
        k.device_bytes == full.device_bytes and k.recompute_flops < full.recompute_flops
        for k in found
    )


def test_a_head_that_can_be_split_is_proposed_in_chunks():
    hidden = jax.ShapeDtypeStruct((4, 1024, 64), jnp.float32)
    table = jax.ShapeDtypeStruct((64, 8192), jnp.float32)
    labels = jax.ShapeDtypeStruct((4, 1024), jnp.int32)
    graph = rr.trace(lambda t, h, y: rr.cross_entropy(h, t, y), table, hidden, labels)
    found = {c.name: c.action for c in candidates(graph["head"])}
    assert found["2 chunks"] == RECOMPUTE(chunks=2)
    assert found["8 chunks"] == RECOMPUTE(chunks=8)
    assert found["32 chunks"] == RECOMPUTE(chunks=32)


def test_recomputing_ahead_is_proposed_for_stacks():
    unit = transformer()
    ahead = [c for c in candidates(unit, ahead=True) if c.action.ahead]
    assert ahead
    assert unit.kept(ahead[0].action).ahead
    assert not any(c.action.ahead for c in candidates(unit))


class Small:
    """A unit whose actions are the bytes that they keep."""

    num_layers = 2

    def __init__(self, name):
        self.name = name

    def kept(self, action):
        return SimpleNamespace(device_bytes=action)


@pytest.mark.parametrize(
    ("unit_options", "left"),
    [
        ({"recompute all": 4, "some": 6, "save all": 9}, ["recompute all", "save all"]),
        ({"recompute all": 4, "more": 6, "less": 1}, ["recompute all", "less"]),
    ],
    ids=["all or nothing", "all is nothing"],
)
def test_units_beyond_the_six_largest_have_two_ways_back(unit_options, left):
    units: Any = [Small(f"unit {k}") for k in range(MOST_PROBED + 2)]
    few: Any = [
        SimpleNamespace(name=n, action=size) for n, size in unit_options.items()
    ]
    found = shortlist({u.name: few for u in units}, units)
    names = [[c.name for c in unit_options] for unit_options in found.values()]
    assert names == [[*unit_options]] * MOST_PROBED + [left] * 2
