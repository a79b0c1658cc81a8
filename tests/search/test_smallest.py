"""Where nothing fits, what needs least is measured, then what holds more surely."""

import pytest

import revremat as rr
from revremat._search.passes._smallest import smallest
from tests.search.world import Cost, World, small

COSTS = {
    "out": (rr.RECOMPUTE(unroll=True), Cost(0.1, 100.0, base=3.0)),
    "host": (rr.RECOMPUTE(offload=["a"]), Cost(0.1, 100.0, base=4.0)),
    "generated": (small(), Cost(0.1, 100.0, base=5.0)),
}
FULL = Cost(0.1, 100.0, base=6.0)


def tried(too_small=(), budget=7):
    """What is measured whole; some take forty bytes more than they cost."""
    error = lambda runs: 40.0 if runs.keys() & {*too_small} else 0.0
    world = World(COSTS, error, full=FULL, none=Cost(50.0, 1.0))
    state, ask = world.state(budget)
    smallest(state.but(generated=frozenset({("u", "generated")})), ask)
    return [name for runs in world.asked for name, _ in runs]


@pytest.mark.parametrize(
    ("too_small", "found"),
    [
        ((), ["out"]),
        (("out",), ["out", "host"]),
        (("out", "host"), ["out", "host", "generated"]),
        (("out", "host", "generated"), ["out", "host", "generated", "recompute all"]),
    ],
)
def test_what_needs_least_by_its_costs_and_then_what_holds_more_surely(
    too_small, found
):
    assert tried(too_small) == found


def test_nothing_is_compiled_where_something_fits():
    assert tried(budget=500) == []
