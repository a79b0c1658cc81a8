"""Schedules of segments: against every schedule there is."""

import itertools
import random

import pytest

from revremat import RECOMPUTE
from revremat.policies import Chain, Group, Segment, Way

TAGGED = RECOMPUTE(save=["a"])


def way(action=None, kept_bytes=0, working=0, us=0, kept=()):
    return Way(action, frozenset(kept), kept_bytes, working, us)


def drawn_chain(seed):
    """Two segments alone around a group of two or three; values that several keep."""
    draw = random.Random(seed)
    few = lambda: draw.sample(range(4), draw.randint(0, 2))

    def ways(first_us, *actions):
        return tuple(
            way(
                action,
                draw.randint(0, 30) if action is None else draw.randint(0, 9),
                draw.randint(0, 20),
                first_us if action is None else draw.randint(1, 20),
                few(),
            )
            for action in actions
        )

    def segment(name):
        own = ways(0, None, RECOMPUTE, TAGGED)
        return Segment(name, own, draw.randint(1, 9), draw.randint(0, 12))

    inner = tuple(segment(f"i{k}") for k in range(draw.randint(2, 3)))
    group = Group(inner, "g", ways(0, RECOMPUTE, TAGGED), frozenset(few()))
    groups = (Group((segment("a"),)), group, Group((segment("b"),)))
    sizes = {value: float(draw.randint(1, 25)) for value in range(4)}
    return Chain(groups, sizes)


def of(unit, action):
    return next(one for one in unit.ways if one.action == action)


def plain_model(chain, actions):
    """Bytes while each segment is differentiated, and time: by the definition."""
    moments, time_us, before = [], 0.0, []
    for group in chain.groups:
        names = [segment.name for segment in group.segments]
        around = actions.get(group.name)
        is_open = around == RECOMPUTE and any(name in actions for name in names)
        own = []  # what segments keep once their group is run again
        if around is not None and not is_open:
            before.append(of(group, around))
            time_us += before[-1].time_us
        if is_open:
            before.append(way(kept=group.given))
            time_us += sum(s.again_us for s in group.segments[:-1])
        for segment in group.segments:
            if around is None or is_open:
                taken = of(segment, actions.get(segment.name))
                (own if is_open else before).append(taken)
                time_us += taken.time_us
                last = segment is group.segments[-1]
                if is_open and last and taken.action is None:
                    time_us += segment.again_us
            else:
                taken = of(group, around)
            kept = frozenset().union(*(one.kept for one in (*before, *own)))
            moments.append(
                segment.waiting_bytes
                + sum(one.kept_bytes for one in (*before, *own))
                + sum(chain.sizes[value] for value in kept)
                + taken.working_bytes
            )
    return moments, time_us


def every_schedule(chain):
    parts = []
    for group in chain.groups:
        named = [
            {s.name: one.action for s, one in zip(group.segments, chosen, strict=True)}
            for chosen in itertools.product(*(s.ways for s in group.segments))
        ]
        named = [{n: a for n, a in one.items() if a is not None} for one in named]
        inside = [{group.name: RECOMPUTE, **one} for one in named if one]
        as_one = [{group.name: one.action} for one in group.ways]
        parts.append(named + (inside + as_one if group.ways else []))
    for chosen in itertools.product(*parts):
        yield {name: action for one in chosen for name, action in one.items()}


@pytest.mark.parametrize("seed", range(8))
def test_schedules_are_the_best_there_are(seed):
    chain = drawn_chain(seed)
    found = [(*plain_model(chain, one), one) for one in every_schedule(chain)]
    for moments, time_us, actions in found[:: 1 + len(found) // 50]:
        assert chain.predict(actions) == pytest.approx((max(moments), time_us))
    sizes = sorted(max(moments) for moments, *_ in found)
    for limit in (sizes[0] - 0.5, sizes[0], sizes[len(sizes) // 3], sizes[-1]):
        fitting = [us for moments, us, _ in found if max(moments) <= limit]
        chosen = chain.schedule(limit)
        assert (chosen is None) == (not fitting)
        if chosen is not None:
            assert chosen.bytes <= limit
            assert chosen.time_us == pytest.approx(min(fitting), abs=1e-3)
            moments, time_us = plain_model(chain, chosen.actions)
            assert (chosen.bytes, chosen.time_us) == (max(moments), time_us)
    smallest = chain.schedule(None)
    moments, _ = plain_model(chain, smallest.actions)
    worth = lambda moments: max(moments) + 0.3 * sum(moments) / len(moments)
    least = min(worth(moments) for moments, *_ in found)
    assert worth(moments) == pytest.approx(least, abs=0.02)


KEEP, AGAIN = way(None, 100, 10), way(RECOMPUTE, 0, 60, 5)
PARTS = [Segment(name, (KEEP, AGAIN), 5, 0) for name in "abc"]
CHAIN = Chain(tuple(Group((part,)) for part in PARTS))


@pytest.mark.parametrize(
    ("limit", "recomputed"),
    [(310, 0), (309, 1), (260, 1), (210, 1), (209, 2), (110, 2), (109, 3), (60, 3)],
)
def test_no_more_is_recomputed_than_has_to_be(limit, recomputed):
    found = CHAIN.schedule(limit)
    assert len(found.actions) == recomputed
    assert found.time_us == 5 * recomputed


def test_below_the_smallest_there_is_none():
    assert CHAIN.schedule(59) is None
    assert CHAIN.schedule(None).bytes == 60


def changes(one, other):
    return sum(one.get(name) != other.get(name) for name in "abc")


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_what_was_tried_comes_no_more_nor_what_is_too_like_it(apart):
    first = CHAIN.schedule(None)
    assert changes(CHAIN.schedule(None, [(first.actions, apart)]).actions, {}) < 3
    second = CHAIN.schedule(310, [({}, apart)])
    assert changes(second.actions, {}) == apart
    both = [({}, apart), (second.actions, 1)]
    third = CHAIN.schedule(310, both)
    assert third is None if apart == 3 else third.actions != second.actions


@pytest.mark.parametrize("most", [0, 1, 2])
def test_near_another_few_units_differ(most):
    everything = dict.fromkeys("abc", RECOMPUTE)
    found = CHAIN.schedule(310, near=(everything, most))
    assert changes(found.actions, everything) == most


EVERY = {"a": RECOMPUTE, "b": RECOMPUTE, "c": RECOMPUTE}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([({}, 310)], {"": 310, "a": 210}),
        ([({}, 155)], {"": 155, "a": 105, "abc": 33}),  # all is half as large
        ([({}, 155), (EVERY, 60)], {"": 155, "abc": 60}),
        ([({}, 310), ({"a": RECOMPUTE}, 310)], {"": 310, "a": 310}),  # not that one
    ],
)
def test_sizes_are_set_right_by_what_schedules_take(known, expected):
    chain = CHAIN.sized(known)
    for names, size in expected.items():
        found, _ = chain.predict(dict.fromkeys(names, RECOMPUTE))
        assert found == pytest.approx(size, rel=0.06)


def test_a_segment_that_was_found_small_is_so_under_its_other_actions():
    ways = (KEEP, AGAIN, way(TAGGED, 40, 20, 2))
    chain = Chain(tuple(Group((Segment(name, ways, 5, 0),)) for name in "abc"))
    known = [({}, 220), ({"a": RECOMPUTE}, 210)]
    sizes = chain.sized(known).sizes_of
    assert sizes["a", None][0] < 20 < 80 < sizes["b", None][0]
    assert sizes["a", TAGGED][0] < sizes["b", TAGGED][0]


def test_no_moment_takes_more_than_the_largest_is_known_to():
    ways = (KEEP, way(RECOMPUTE, 0, 0, 5))
    chain = Chain(tuple(Group((Segment(name, ways, 5, 0),)) for name in "abc"))
    # The last one took no more where the others were recomputed: it is the second.
    known = [({}, 315), ({"a": RECOMPUTE, "b": RECOMPUTE}, 60)]
    fitted = chain.sized(known)
    assert fitted.predict(known[0][0])[0] == pytest.approx(315, rel=0.05)
    assert fitted.predict(known[1][0])[0] == pytest.approx(60, abs=15)


def test_what_is_not_known_well_may_be_small():
    known = [({}, 310), (EVERY, 60)]
    likely, hoped = CHAIN.sized(known), CHAIN.sized(known, optimism=1.0)
    for key, (kept, working) in likely.sizes_of.items():
        assert 0 <= hoped.sizes_of[key][0] <= kept
        assert 0 <= hoped.sizes_of[key][1] <= working
    assert hoped.predict({"a": RECOMPUTE})[0] < likely.predict({"a": RECOMPUTE})[0]


def test_sizes_are_of_the_last_schedules_alone():
    once = CHAIN.sized([({}, 325)])
    assert once.sized([({}, 325)]).sizes_of == once.sizes_of
    assert once.sized([]).sizes_of == {}


@pytest.mark.parametrize("faster", [0, 1])
def test_of_schedules_as_small_it_is_the_faster(faster):
    actions = (RECOMPUTE, TAGGED)
    ways = tuple(
        way(action, 10, 10, 5 if k == faster else 7) for k, action in enumerate(actions)
    )
    chain = Chain((Group((Segment("a", ways, 5, 0),)),))
    assert chain.schedule(None).actions == {"a": actions[faster]}
    assert chain.schedule(1000).actions == {"a": actions[faster]}


def two_parts():
    """Two segments that may recompute, each for 2 and 6 us by what is expected."""
    keep = Way(None, frozenset(), 64.0, 0.0, 0.0)
    again = lambda us: Way(RECOMPUTE, frozenset(), 0.0, 0.0, us)
    parts = {"a": 2.0, "b": 6.0}
    segments = [Segment(k, (keep, again(us)), us, 0.0) for k, us in parts.items()]
    return Chain(tuple(Group((segment,)) for segment in segments))


A, B = {"a": RECOMPUTE}, {"b": RECOMPUTE}


@pytest.mark.parametrize(
    ("known", "times"),
    [
        ([], (2, 6)),
        ([(A, 4.0)], (4, 7.2)),  # others are likely to take longer, too
        ([(A | B, 4.0)], (1.1, 2.9)),  # what takes long can be further off
        ([(A | B, 4.0), (A, 3.0)], (2.98, 1.03)),  # until one of them is known
        ([({}, 7.0)], (2, 6)),
        (
            [(A, 0.0), (B, -1.0)],
            (0, -1),
        ),  # what is recomputed may cost nothing, or less
    ],
)
def test_times_are_set_right_by_what_schedules_take(known, times):
    chain = two_parts().timed(known)
    found = [chain.predict(actions)[1] for actions in (A, B)]
    assert found == pytest.approx(times, rel=0.05, abs=0.05)


def test_what_is_not_known_well_may_be_fast():
    known = [(A, 4.0)]
    likely, hoped = two_parts().timed(known), two_parts().timed(known, optimism=1.0)
    took = [
        [chain.predict(actions)[1] for actions in (A, B)] for chain in (likely, hoped)
    ]
    assert took[1][0] == pytest.approx(took[0][0], abs=0.5)  # it was measured
    assert took[1][1] < took[0][1] - 2


def test_what_takes_less_than_expected_is_chosen():
    chain = two_parts()
    assert chain.schedule(64.0).actions == A
    assert chain.timed([(A, 5.0), (B, 1.0)]).schedule(64.0).actions == B
