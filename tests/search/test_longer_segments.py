"""Longer segments of layers are offered, and cost what those of shorter ones say."""

import pytest

import revremat as rr
from revremat._search._longer_segments import longer_segments
from tests.search.world import Cost, World

SHORT = rr.RECOMPUTE(segment_length=16)
ALONE = Cost(1 / 16, 120.0, base=10.0 + 16.0)


def offered(layers=256, costs=None):
    """From length to bytes kept, all else at the peak, and time."""
    world = World({"short": (SHORT, ALONE)} if costs is None else costs, layers=layers)
    state, _ = world.state(1000)
    return {
        candidate.action: pytest.approx((c.kept_bytes, c.base_bytes, c.time_us))
        for candidate, c in longer_segments(state.costs["u"])
    }


def test_fewer_inputs_are_kept_and_more_of_a_segment_is_there():
    assert offered() == {
        rr.RECOMPUTE(segment_length=32): (1 / 32, 10.0 + 32.0, 120.0),
        rr.RECOMPUTE(segment_length=64): (1 / 64, 10.0 + 64.0, 120.0),
    }


def test_those_that_have_a_cost_are_not_offered_again():
    longer = (rr.RECOMPUTE(segment_length=32), Cost(1 / 32, 130.0, base=42.0))
    found = offered(costs={"short": (SHORT, ALONE), "longer": longer})
    assert found == {rr.RECOMPUTE(segment_length=64): (1 / 64, 74.0, 130.0)}


@pytest.mark.parametrize("layers", [48, 100])
def test_loops_have_at_least_four_of_them(layers):
    assert offered(layers) == {}


def test_without_segments_there_are_no_longer_ones():
    assert offered(costs={}) == {}


def test_what_their_layers_keep_once_they_run_again_counts():
    saving = rr.SAVE(segment_length=16)
    found = offered(costs={"short": (saving, Cost(1 / 16, 110.0, base=170.0))})
    assert found[rr.SAVE(segment_length=32)] == (1 / 32, 170.0 + 16 * 10.0, 110.0)
