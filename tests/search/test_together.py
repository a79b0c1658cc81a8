"""What is asked in any case is asked at the same time, in the order of the passes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import BASELINE, Asking, Heuristics, begin, decide
from revremat._search.passes._together import together
from tests.search.world import World, unit_of

LAYERS = 6


class Counted:
    """An oracle that notes how many programs come at a time."""

    def __init__(self, world):
        self.world, self.batches = world, []

    def measure(self, requests):
        few = list(requests)
        self.batches.append([one.key for one in few])
        return self.world.measure(few)


def fresh(most_compiles=None, **fixed):
    """A state that knows nothing, and how it asks."""
    world = World(layers=LAYERS)
    state, _ = world.state(60, **fixed)
    space = dataclasses.replace(state.space, most_compiles=most_compiles)
    unknown = {"probes": {}, "trials": {}, "num_compiles": 0, "is_profiled": False}
    state = state.but(space=space, **unknown)
    oracle = Counted(world)
    return state, oracle, Asking(oracle)


def test_all_of_it_is_one_question_that_begins_with_the_baseline():
    state, oracle, ask = fresh()
    after = together(state, ask)
    (first,) = oracle.batches
    assert first[0] == BASELINE
    assert {*first[1:-1]} == {
        state.probe_key(state.units[0], cut) for cut in state.costs["u"].first_probes
    }
    assert first[-1] == state.reference_key
    assert after.num_compiles == len(first) == state.num_needed


MEASURED = Heuristics().for_measured_times()


def test_plain_unrolled_loops_come_last():
    """Where times are measured; else the best sets on paper come beside them."""
    state, oracle, ask = fresh(unroll=True, heuristics=MEASURED)
    world = oracle.world
    world.names[rr.SAVE(unroll=True)] = "save all (unrolled)"
    world.all["save all (unrolled)"] = (rr.SAVE(unroll=True), world.none)
    together(state, ask)
    (first,) = oracle.batches
    assert dict(first[-1].actions)["u"] == (rr.SAVE(unroll=True),) * LAYERS


def test_plain_unrolled_loops_wait_for_what_comes_beside_them():
    state, oracle, ask = fresh(unroll=True)
    together(state, ask)
    (first,) = oracle.batches
    assert first[-1] == state.reference_key


@pytest.mark.parametrize("most", [1, 3, 5])
def test_no_more_is_asked_than_is_allowed(most):
    state, oracle, ask = fresh(most_compiles=most)
    after = together(state, ask)
    assert [len(few) for few in oracle.batches] == [min(most, state.num_needed)]
    assert after.skipped == ()


@pytest.mark.parametrize(
    "fixed",
    [
        {"chain": "a chain"},
        {"small_units": frozenset({"u"})},
        {"enclosing": (unit_of("around"),)},
        {"argument_bytes": 61},
    ],
    ids=lambda fixed: next(iter(fixed)),
)
def test_what_depends_on_the_baseline_waits_for_it(fixed):
    state, oracle, ask = fresh()
    space = dataclasses.replace(state.space, **fixed)
    assert together(state.but(space=space), ask).num_compiles == 0
    assert oracle.batches == []


def test_layers_outside_of_loops_may_need_a_barrier_first():
    state, oracle, ask = fresh()
    loose = unit_of(layers=LAYERS, kind="repeat", chained=False)
    assert together(state.but(units=(loose,)), ask).num_compiles == 0
    assert oracle.batches == []


def test_a_search_that_knows_its_layers_asks_nothing_at_once():
    state, oracle, ask = fresh()
    together(state.but(is_profiled=True), ask)
    assert oracle.batches == []


def test_a_search_asks_the_same_with_and_without():
    """The passes ask for nothing else first."""
    w = jax.ShapeDtypeStruct((LAYERS, 16, 16), jnp.float32)
    layer = lambda w, x: jnp.sin(jnp.tanh(x @ w))
    loss = lambda w, x: rr.stack(layer, w, x).sum()
    problem = rr.Problem(loss, (w, jax.ShapeDtypeStruct((128, 16), jnp.float32)))
    asked = []
    for argument_bytes in (0, 10**9):
        labels = []
        state, ask = begin(
            problem,
            rr.target("cpu:1"),
            progress=lambda label, done, total, labels=labels: labels.append(label),
        )
        space = dataclasses.replace(state.space, argument_bytes=argument_bytes)
        decide(state.but(space=space).within(50_000), ask)
        asked.append(labels)
    assert asked[0] == asked[1]
