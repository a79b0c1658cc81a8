"""What a search offers more where a stopwatch tells times: drops, and unrolled sets."""

import dataclasses
from types import SimpleNamespace

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._search import Heuristics, Request
from revremat._search._layer_costs import unrolled
from revremat._search._peeled import can_peel, peeled_cut
from revremat._search._probes import cuts
from revremat._search._start import another_of, first_of
from revremat._search.passes._ask import offer
from revremat._search.passes._candidates import candidates
from revremat._search.passes._keep_last import keep_last
from revremat._search.passes._near_sets import drops_of, near_drops, worth_unrolling
from revremat._search.passes._plain_unroll import plain_request
from revremat._search.passes._solve import unroll_chosen, unrolled_candidates
from revremat._search.passes._unroll import unroll
from revremat._search.passes._unrolled_sets import leave_timed_loops
from revremat.policies import Assignment, Candidate, drops, predict_bytes
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
        assert last == len(found) - 1
        assert SAVE(unroll=True) not in found  # which is left to the last layers


@pytest.mark.parametrize(
    ("heuristics", "chosen", "tried"),
    [
        (MEASURED, "recompute all", "set"),  # it would gain least
        (MEASURED, "save all", "save all"),
        (Heuristics(), "recompute all", "recompute all"),
    ],
)
def test_what_keeps_something_tells_whether_unrolling_gains(heuristics, chosen, tried):
    world = Offering({"set": (small("a"), Cost(5.0, 120.0))})
    state, ask = world.state(1000, heuristics=heuristics, unroll=True)
    runs = {"u": ((chosen, 8),)}
    leading = Assignment.of(state.options, runs)
    state = unroll_chosen(state.but(leading=leading), ask)
    assert probed(world)[0] == world.all[tried][0](unroll=True)


def test_presets_come_first_and_then_cuts_take_turns_with_sets_by_arithmetic():
    preset, other = Cost(9.0, 60.0), Cost(7.0, 70.0)
    costs = {"dots": (small("ab"), preset), "set": (small("a"), other)}
    state, _ = World(costs, layers=20).state(1000, heuristics=MEASURED)
    found = [one.name for one in worth_unrolling(state, state.units[0])]
    assert found[0] == "dots"
    are_cuts = [name.endswith("without a stack") for name in found]
    assert are_cuts[1:3] == [True, False]
    assert found[-2:] == ["recompute all", "save all"]
    assert "set" in found


@pytest.mark.parametrize(("us", "asks"), [(30.0, False), (50.0, True)])
def test_then_not_all_that_the_loop_was_offered_is_unrolled(us, asks):
    world, (state, ask) = unrolling(us)
    unroll(state, ask)
    assert bool(probed(world)) == asks


@pytest.mark.parametrize(("unroll", "names"), [(True, []), (False, ["u"])])
def test_of_a_loop_that_may_gain_so_no_other_set_is_tried_as_one(unroll, names):
    state, _ = World().state(70, heuristics=MEASURED, unroll=unroll)
    proposed = {"u": state.space.pools["u"].worth_compiling()}
    space = dataclasses.replace(state.space, proposed=proposed)
    first = {"u": first_of(space, state.units[0])}
    assert [*another_of(state.but(space=space, candidates=first))] == names


@pytest.mark.parametrize(
    ("us", "ends_unrolled", "leaves"),
    [(30.0, True, True), (30.0, False, False), (50.0, True, False)],
)
def test_a_search_with_a_limit_ends_there(us, ends_unrolled, leaves):
    """What stays in loops takes as many programs, and has hardly ever been faster."""
    world, (state, ask) = unrolling(us, ends_unrolled=ends_unrolled)
    proposed = {"u": (*state.space.proposed["u"], Candidate("new", small("b")))}
    state = state.but(space=dataclasses.replace(state.space, proposed=proposed))
    state = world.tried(state, ask, ("set (unrolled)", 8))
    state = leave_timed_loops(state, ask)
    assert state.is_settled == leaves
    assert [one.num_compiles for one in state.skipped] == [1] * leaves


@pytest.mark.parametrize(
    ("budget", "platform", "heuristics", "asks"),
    [
        (130, "cpu", MEASURED, False),  # it keeps 134 bytes or more
        (140, "cpu", MEASURED, True),
        (130, "cpu", Heuristics(), True),  # no kernels are made for it
        (130, "cuda", MEASURED, True),  # XLA's remat pass may make it fit
    ],
)
def test_plain_unrolled_loops_are_not_run_where_they_cannot_fit(
    budget, platform, heuristics, asks
):
    state, _ = World().state(budget, heuristics=heuristics, unroll=True)
    target = SimpleNamespace(**{**vars(state.space.target), "platform": platform})
    pools = {"u": SimpleNamespace(unrolled_sets=())}
    space = dataclasses.replace(state.space, target=target, pools=pools)
    state = state.but(space=space)
    assert (plain_request(state) is not None) == asks


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


# ---- The last layers -----------------------------------------------------------------


def kept_last(budget, *, error=lambda runs: 0.0, **how):
    """What is measured after eight layers that recompute everything."""
    full, none = Cost(1.0, 100.0, base=24.0), Cost(24.0, 50.0, base=0.0)
    world = World(full=full, none=none, kind="block", error=error)
    state, ask = world.state(budget, **{"heuristics": MEASURED, **how})
    state = world.tried(state, ask, ("recompute all", 8))
    return world, keep_last(state, ask)


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        (32, 1),  # which are taken anyway: it has its room
        (54, 1),
        (55, 2),  # 23 bytes more than what it recomputes from
        (78, 3),
        (150, 6),
    ],
)
def test_as_many_of_the_last_layers_are_kept_as_have_room(budget, number):
    world, state = kept_last(budget)
    few = [("recompute all", 8 - number), ("save all", number)]
    assert world.asked == [tuple((name, n) for name, n in few if n)]
    assert state.best.time_us == 100 * (8 - number) + 50 * number


def test_where_they_are_too_many_the_program_says_so_once():
    more = lambda runs: 30.0 if runs.get("save all", 0) > 1 else 0.0
    world, state = kept_last(80, error=more)
    assert [runs[-1][1] for runs in world.asked] == [3, 1]
    assert state.best.time_us == 750


@pytest.mark.parametrize(
    ("budget", "how"),
    [
        (150, {"heuristics": Heuristics()}),  # estimates have better ways
        (10, {}),  # nothing fits
    ],
)
def test_else_they_stay_as_they_are(budget, how):
    assert not kept_last(budget, **how)[0].asked


@pytest.mark.parametrize(("unroll", "asks"), [(True, True), (2, False), (False, False)])
def test_of_a_loop_none_is_kept_unless_it_is_unrolled(unroll, asks):
    one = Candidate("set", small("a")(unroll=unroll))
    world = Offering({one.name: (one.action, Cost(5.0, 40.0))})
    state, ask = world.state(1000, heuristics=MEASURED, unroll=True)
    state = world.tried(state, ask, ("set", 8))
    keep_last(state, ask)
    assert bool(world.asked) == asks


def test_before_a_last_unit_that_stays_a_loop_no_layer_has_its_room():
    """Its room is there at the end of the program alone."""
    one = Candidate("set", small("a")(unroll=True))
    world = Offering({one.name: (one.action, Cost(5.0, 40.0))}, unit_names=("u", "v"))
    state, ask = world.state(1000, heuristics=MEASURED, unroll=True)
    runs = {"u": (("set", 8),), "v": (("recompute all", 8),)}
    request = state.assignment_request(runs)
    assert request is not None
    state = ask(state, [request])
    size = state.rows[request.key].bytes
    world.asked.clear()
    state = keep_last(state.within(size), ask)
    assert not world.asked


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


@pytest.mark.parametrize(
    ("layers", "heuristics", "first", "second"),
    [
        (8, MEASURED, [8, 8], []),
        (16, MEASURED, [16, 16], []),
        (17, MEASURED, [4, 8, 8], [4]),
        (8, Heuristics(), [4, 8, 8], [4]),
    ],
)
def test_one_program_with_all_layers_tells_what_a_stopwatch_does(
    layers, heuristics, first, second
):
    world = World(layers=layers)
    state, _ = world.state(1000, heuristics=heuristics, are_exact=False)
    costs = state.costs["u"]
    assert [len(actions) for actions in costs.first_probes] == first
    assert [len(actions) for actions in costs.second_probes(["save all"])] == second


def test_between_two_such_programs_bytes_and_times_are_shared_out():
    world = World(full=Cost(1.0, 100.0, base=24.0), none=Cost(24.0, 50.0, base=0.0))
    state, _ = world.state(1000, heuristics=MEASURED, are_exact=False)
    whole = {key: one for key, one in state.probes.items() if len(key.actions) == 8}
    (options,) = state.but(probes=whole).options
    half = {"u": (("recompute all", 4), ("save all", 4))}
    assert predict_bytes([options], half) == (32 + 192) / 2
    assert Assignment.of([options], half).time_us == (800 + 400) / 2


def test_a_whole_program_answers_for_the_shortened_one_that_has_all_layers():
    world, (state, ask) = unrolling(30.0)
    before = state.but(probes={}, candidates={"u": state.candidates["u"]})
    request = before.assignment_request({"u": (("save all", 8),)})
    assert request is not None
    state = ask(before, [request])
    world.probed.clear()
    key = state.probe_key(state.units[0], (SAVE,) * 8)
    ask(state, [Request(key, "")])
    assert not world.probed
    assert state.probed(key) is not None


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
