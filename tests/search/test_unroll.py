"""Which layers of a loop are offered unrolled."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search._layer_costs import LayerCosts
from revremat._search.passes._unroll import unroll, unroll_by_few, unroll_those
from revremat.policies import Assignment, Candidate, candidates
from tests.search.world import Cost, World, small


def costs_of(num_layers, products_of_a_layer):
    def layer(x, w):
        for _ in range(products_of_a_layer):
            x = x @ w
        return x, None

    w = jax.ShapeDtypeStruct((num_layers, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    (unit,) = rr.trace(lambda w, x: jax.lax.scan(layer, x, w)[0].sum(), w, x).units
    return LayerCosts(unit, candidates(unit), lambda _: None, lambda _: False)


@pytest.mark.parametrize(
    ("num_layers", "products_of_a_layer", "is_offered"),
    [
        (96, 100, True),
        (100, 2, True),
        (101, 2, False),  # too many layers
        pytest.param(16, 1000, False, marks=pytest.mark.slow),  # too many operations
    ],
)
def test_loops_too_long_to_compile_stay_loops(
    num_layers, products_of_a_layer, is_offered
):
    costs = costs_of(num_layers, products_of_a_layer)
    assert bool(costs.not_unrolled()) == is_offered
    assert all(candidate.action.unroll for candidate in costs.not_unrolled())


class Unrolling(World):
    """Unrolled layers cost what the others do."""

    def __post_init__(self):
        super().__post_init__()
        out = {action(unroll=True): name for action, name in self.names.items()}
        self.names = self.names | out


@pytest.mark.parametrize(
    ("chosen", "offered"),
    [
        (None, ["recompute all", "save all", "small"]),
        (["small"], ["small"]),
        (["save all", "recompute all"], ["recompute all", "save all"]),
        ([], []),
    ],
)
def test_all_or_what_was_chosen_is_unrolled(chosen, offered):
    costs = {"small": (small(), World().none)}
    state, ask = Unrolling(costs).state(60, unroll=True)
    support = None if chosen is None else frozenset(("u", name) for name in chosen)
    state = unroll_those(state, ask, support)
    names = [c.plain.name for c in state.candidates["u"] if c.action.unroll]
    assert names == offered
    before = state.num_compiles
    assert unroll_those(state, ask, support).num_compiles == before
    assert unroll(state, ask).num_compiles == before + 3 - len(offered)


LONG, SHORT = Cost(4.0, 501.0), Cost(4.0, 70.0)


@pytest.mark.parametrize(
    ("layers", "cost", "times_us", "offered"),
    [
        (15, SHORT, {4: 60.0}, []),  # four iterations of four are a loop, no fewer
        (16, SHORT, {4: 60.0}, [4]),
        (63, SHORT, {4: 60.0, 16: 50.0}, [4]),
        (64, SHORT, {4: 60.0, 16: 50.0}, [4, 16]),
        (64, SHORT, {4: 60.0, 16: 65.0}, [4, 16]),
        (64, SHORT, {4: 70.0, 16: 50.0}, [4]),  # four gained nothing
        (64, LONG, {4: 60.0, 16: 50.0}, []),  # it can be unrolled whole
        (101, LONG, {4: 60.0, 16: 50.0}, [4, 16]),  # it cannot
    ],
)
def test_loops_of_short_or_many_layers_get_several_to_an_iteration(
    layers, cost, times_us, offered
):
    by_few = {
        f"small (unrolled by {n})": (small(unroll=n), Cost(4.0, us))
        for n, us in times_us.items()
    }
    few = {"small": (small(), cost)}
    none = Cost(10.0, 2000.0)
    world = World(few, layers=layers, full=none, none=none)
    state, ask = world.state(60, unroll=True)
    world.names |= {action: name for name, (action, _) in by_few.items()}
    world.all |= by_few
    chosen = Assignment({"u": (("small", layers),)}, 0.0, 0.0, 0.0, 0.0)
    state = unroll_by_few(state.but(leading=chosen), ask)
    found = [c.action.unroll for c in state.candidates["u"] if c.action.unroll]
    assert found == offered
    assert unroll_by_few(state, ask).num_compiles == state.num_compiles


def test_what_goes_to_the_host_is_not_unrolled_by_a_few():
    costs = costs_of(16, 1)
    sent = Candidate("sent", rr.OFFLOAD)
    costs = replace(costs, offered=(*costs.offered, sent))
    found = costs.unrolled_by(4, ["sent", "recompute all"])
    assert [c.action for c in found] == [rr.RECOMPUTE(unroll=4)]


def test_nothing_is_unrolled_that_is_not_to_be():
    state, ask = Unrolling().state(60, unroll=False)
    assert unroll(state, ask) is state
