"""Segments of one length tell what those of all others cost, which need no probe."""

import pytest

import revremat as rr
from revremat._search._other_lengths import OtherLength
from revremat._search.passes._ask import refine, try_assignments
from tests.search.world import Cost, World, small

SHORT = rr.RECOMPUTE(segment_length=4)
ALONE = Cost(1 / 4, 120.0, base=10.0 + 3.0)


def derived(layers=23, costs=None):
    """From action to bytes kept, all else at the peak, and time."""
    world = World({"short": (SHORT, ALONE)} if costs is None else costs, layers=layers)
    state, _ = world.state(1000)
    unit = state.costs["u"]
    of = {c.name: c.action for c in unit.candidates.values() if type(c) is OtherLength}
    return {
        of[c.name]: pytest.approx((c.kept_bytes, c.base_bytes, c.time_us))
        for c in unit.options.costs
        if c.name in of
    }


def test_longer_ones_keep_fewer_inputs_and_more_of_a_segment_is_there():
    lengths = (2, 3, 5, 6, 8, 10, 12)
    assert derived() == {
        rr.RECOMPUTE(segment_length=k): (1 / k, 10.0 + k - 1, 120.0) for k in lengths
    }


def test_a_length_that_was_probed_has_the_cost_that_was_seen():
    longer = (rr.RECOMPUTE(segment_length=8), Cost(1 / 8, 130.0, base=20.0))
    found = derived(costs={"short": (SHORT, ALONE), "longer": longer})
    assert longer[0] not in found
    assert rr.RECOMPUTE(segment_length=6) in found


@pytest.mark.parametrize(("layers", "longest"), [(16, 8), (19, 10), (1000, 451)])
def test_a_segment_has_no_more_than_half_of_the_layers(layers, longest):
    assert max(action.segment_length for action in derived(layers)) == longest


def test_without_segments_there_are_no_others():
    assert derived(costs={}) == {}


def test_without_the_cost_of_such_layers_alone_none_is_told():
    saving = rr.RECOMPUTE(save=["a"], segment_length=4)
    assert derived(costs={"short": (saving, ALONE)}) == {}


def test_what_their_layers_keep_once_they_run_again_counts():
    saving = rr.SAVE(segment_length=4)
    found = derived(costs={"short": (saving, Cost(1 / 4, 110.0, base=40.0))})
    assert found[rr.SAVE(segment_length=8)] == (1 / 8, 40.0 + 4 * 10.0, 110.0)


def test_a_stack_is_cut_into_segments_that_grow_shorter():
    """With room for six inputs, 6 + 5 + 4 + 3 + 2 + 1 layers fit."""
    world = World({"short": (SHORT, ALONE)}, layers=21, kind="repeat")
    state, _ = world.state(1000)
    found = state.assign(state.options, 10.0 + 6.0)
    assert found is not None
    lengths = [
        (state.costs["u"].candidates[name].action.segment_length, n)
        for name, n in found.counts["u"]
    ]
    assert lengths == [(6, 6), (5, 5), (4, 4), (3, 3), (2, 2), (1, 1)]
    assert found.bytes == 16.0


def test_a_program_of_a_derived_length_is_asked_whole_and_no_probe_is():
    keeping = {
        "kept": (small("a"), Cost(2.0, 80.0, base=11.0)),
        "short": (small("a", segment_length=4), Cost(0.25, 90.0, base=17.0)),
        "kept, segments of 6": (
            small("a", segment_length=6),
            Cost(1 / 6, 90.0, base=21.0),
        ),
    }
    world = World({k: keeping[k] for k in ("kept", "short")}, layers=24)
    world.all |= keeping
    world.names = {action: name for name, (action, _) in world.all.items()}
    state, ask = world.state(1000)
    support = frozenset({("u", "kept, segments of 6")})
    state = refine(state, ask, support)
    assert all(
        action.segment_length != 6 for key in world.probed for action in key.actions
    )
    counts = {"u": (("kept, segments of 6", 24),)}
    state, (row,) = try_assignments(state, ask, [(counts, None)])
    assert row is not None
    assert state.is_costed(row)
