"""Units that compute the same have the same costs, so one of them is asked about."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import ProbeKey, begin, profile
from tests.search.world import World


def stack(w, x):
    return rr.stack(lambda w, x: x + jnp.tanh(x @ w), w, x)


def narrow(w, x):
    return rr.stack(lambda w, x: x + jnp.tanh(x[:, :8] @ w), w, x)


def two_stacks(first, second):
    def loss(ws, x):
        return second(ws[1], jnp.sin(first(ws[0], x))).sum()

    return loss


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize(
    ("second", "shape", "alike"),
    [
        (stack, (12, 16, 16), True),
        (stack, (10, 16, 16), False),  # another number of layers
        (narrow, (12, 8, 16), False),  # another computation
    ],
    ids=["the same", "fewer layers", "narrow"],
)
def test_of_units_that_are_alike_the_first_is_asked_about(second, shape, alike):
    specs = ((array(12, 16, 16), array(*shape)), array(64, 16))
    problem = rr.Problem(two_stacks(stack, second), specs)
    state, _ = begin(problem, rr.target("cpu:1"))
    first, other = state.units
    found = state.space.first_alike
    assert found == {first.name: first, other.name: first if alike else other}


def test_two_units_that_are_alike_take_as_many_shortened_programs_as_one():
    probed = {}
    for names in (("u",), ("u", "v")):
        world = World(unit_names=names)
        state, ask = world.state(1000)
        bare = state.but(probes={}, calibration={}, is_profiled=False)
        profiled = profile(bare, ask)
        probed[names] = [key for key in profiled.probes if isinstance(key, ProbeKey)]
        for name in names:
            assert profiled.costs[name].cost("save all").time_us == 50.0
    one, two = probed.values()
    assert [key.actions for key in one] == [key.actions for key in two]
    assert {key.unit for key in two} == {"u"}
