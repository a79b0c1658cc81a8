"""What a search offers more where a stopwatch tells times: drops, and unrolled sets."""

import dataclasses

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._search import Heuristics, Request
from revremat._search._layer_costs import unrolled
from revremat._search._peeled import can_peel, peeled_cut
from revremat._search._probes import cuts
from revremat._search.passes._ask import offer
from revremat._search.passes._candidates import candidates
from revremat._search.passes._drops import drops_of, near_drops
from revremat._search.passes._solve import unrolled_candidates
from revremat.policies import Candidate, drops
from tests.search.world import Cost, World, small, unit_of

MEASURED = Heuristics().for_measured_times()
NEW = Cost(5.0, 45.0)


class Offering(World):
    """Whatever is offered later costs what `NEW` says."""

    def counts(self, actions):
        for few in actions.values():
            for action in few:
                if action not in self.names:
                    self.names[action] = f"{action}"
                    self.all[f"{action}"] = (action, NEW)
        return super().counts(actions)


def probed(world):
    """The actions of shortened programs, each once, in order."""
    return list(dict.fromkeys(key.actions[-1] for key in world.probed))


# ---- Drops ---------------------------------------------------------------------------


def test_from_what_is_kept_one_value_after_the_other_is_dropped():
    found = drops(unit_of())
    assert [drop.action for drop in found] == [
        *(RECOMPUTE(save=list("abcdef"[k:])) for k in range(1, 6)),
        RECOMPUTE,
    ]
    ratios = [drop.bytes_per_flop for drop in found]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == 3 / 2  # four bytes, but for the input that is kept instead


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        (300, ["d+e+f", "e+f", "c+d+e+f"]),  # 13 and 9 bytes fit, 17 do not
        (30, ["nothing", "f"]),
        (1000, ["b+c+d+e+f", "c+d+e+f"]),
    ],
)
def test_two_that_fit_and_the_next_larger_one_are_offered(budget, names):
    world = World(layers=20, kind="block")
    state, _ = world.state(budget, heuristics=MEASURED)
    found = drops_of(state, state.units[0])
    assert [one.name for one in found] == names


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ({"heuristics": MEASURED}, 3),
        ({"heuristics": MEASURED, "unroll": True}, 0),  # if they gain, unrolled
        ({"heuristics": Heuristics()}, 0),  # paper tells more than arithmetic does
    ],
)
def test_they_are_offered_where_programs_are_timed(how, number):
    world = Offering(layers=20)
    near_drops(*world.state(300, **how))
    assert len(probed(world)) == number


# ---- Unrolled ------------------------------------------------------------------------


def unrolling(us, **how):
    """A loop whose set takes 40 us, and so many unrolled."""
    one = Candidate("set", small("a"))
    world = Offering({one.name: (one.action, Cost(5.0, 40.0))})
    alone = unrolled(one)
    state, ask = world.state(70, **{"heuristics": MEASURED, "unroll": True, **how})
    world.names[alone.action] = alone.name
    world.all[alone.name] = (alone.action, Cost(5.0, us))
    state = offer(state, ask, state.units[0], [alone])
    world.probed.clear()
    return world, (state, ask)


@pytest.mark.parametrize(
    ("us", "how", "offers"),
    [
        (30.0, {}, True),
        (39.5, {}, False),  # no more than a stopwatch is off
        (50.0, {}, False),
        (30.0, {"heuristics": Heuristics()}, False),
        (30.0, {"unroll": False}, False),
    ],
)
def test_where_unrolling_gained_all_else_is_offered_unrolled(us, how, offers):
    world, (state, ask) = unrolling(us, **how)
    unrolled_candidates(state, ask)
    found = probed(world)
    assert bool(found) == offers
    assert all(action.unroll for action in found)
    if offers:
        last = found.index(RECOMPUTE(unroll=True))  # which is hardly ever the fastest
        assert found.index(SAVE(unroll=True)) < last


def test_some_compiles_are_left_for_choices():
    world, (state, ask) = unrolling(30.0, most_compiles=100)
    room = MEASURED.num_choices + 2
    state = state.but(num_compiles=100 - room)
    state = unrolled_candidates(state, ask)
    assert len(probed(world)) >= 2
    assert state.room is not None


@pytest.mark.parametrize(("us", "offers"), [(30.0, False), (50.0, True)])
def test_then_nothing_more_is_offered_in_loops(us, offers):
    world, (state, ask) = unrolling(us)
    more = drops(state.units[0])[2].candidate
    proposed = {"u": (*state.space.proposed["u"], more)}
    space = dataclasses.replace(state.space, proposed=proposed)
    candidates(state.but(space=space), ask)
    assert (more.action in probed(world)) == offers


# ---- Costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "most_whole", "few"),
    [(12, 8, (4, 8)), (12, 16, (6, 12)), (16, 16, (8, 16)), (17, 16, (4, 8))],
)
def test_a_stopwatch_is_held_to_programs_with_all_layers(layers, most_whole, few):
    found = cuts(unit_of(layers=layers), SAVE, most_whole)
    assert [len(actions) for actions in found] == [*few]
    assert MEASURED.most_whole == 16
    assert Heuristics().most_whole == 8


@pytest.mark.parametrize(("layers", "peels"), [(8, False), (12, False), (17, True)])
def test_a_peeled_layer_is_held_to_a_program_as_long(layers, peels):
    """One of eight layers against one of twelve would seem to free four."""
    world = World(layers=layers)
    state, ask = world.state(10**6, heuristics=MEASURED)
    (unit,) = state.units
    assert can_peel(unit, MEASURED.most_whole) == peels
    key = state.probe_key(unit, peeled_cut(SAVE, RECOMPUTE, last=True))
    state = ask(state, [Request(key, "")])
    added = state.costs["u"].peeled.cost("save all", "recompute all", last=True)
    assert (added is not None) == peels
    if added is not None:
        assert (added.kept_bytes, added.time_us) == (9.0, -50.0)
