"""Schedules of segments as programs that are asked for."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat import RECOMPUTE
from revremat._search._schedules import products_kept, request_of, uniform
from revremat._search.passes._baseline import recompute_all
from revremat._search.passes._schedules import _is_same
from revremat.policies import Chain, Group, Segment, Way
from tests.search.world import unit_of

TAGGED = RECOMPUTE(save=["a"])
WAY = Way(RECOMPUTE, frozenset(), 0, 60, 5)
PARTS = [Segment(name, (WAY,), 5, 0) for name in "abc"]
ALONE = Chain(tuple(Group((part,)) for part in PARTS))
GROUPED = Chain((Group((PARTS[0],)), Group(tuple(PARTS[1:]), "g", (WAY,))))


def state_of(chain=None) -> Any:
    """A state of which only this is asked; a program is called by its actions."""
    units = [SimpleNamespace(name=name) for name in ("a", "g", "b", "c")]
    space = SimpleNamespace(chain=chain, graph=SimpleNamespace(units=units))
    whole = lambda: "everything"
    return SimpleNamespace(space=space, key_of=lambda key: key, all_recomputed=whole)


@pytest.mark.parametrize(
    ("chain", "found"),
    [(ALONE, ["abc", "abc", "abc", "a", "ab"]), (GROUPED, ["abc", "ag", "agbc", "a"])],
)
def test_everything_is_recomputed_first_in_every_way(chain, found):
    assert uniform(chain) == [dict.fromkeys(names, RECOMPUTE) for names in found]


@pytest.mark.parametrize(
    ("chain", "found"), [(ALONE, ["abc", "abc"]), (GROUPED, ["ag", "abc", "abc"])]
)
def test_products_are_kept_in_groups_and_in_segments(chain, found):
    graph: Any = {name: unit_of(name, 1, kind="segment") for name in "abcg"}
    schedules = products_kept(chain, graph)
    assert ["".join(sorted(few)) for few in schedules] == found


@pytest.mark.parametrize(
    ("actions", "label"),
    [
        ({"a": RECOMPUTE}, "1 x recompute all"),
        ({"c": TAGGED, "a": TAGGED}, "2 x recompute"),
        (
            {"b": RECOMPUTE, "a": TAGGED, "c": RECOMPUTE},
            "2 x recompute all, 1 x recompute",
        ),
    ],
)
def test_a_program_has_its_units_in_order_and_says_what_they_do(actions, label):
    found = request_of(state_of(), actions, 7.0)
    assert found.key == {name: (actions[name],) for name in "agbc" if name in actions}
    assert [*found.key] == [name for name in "agbc" if name in actions]
    assert (found.label, found.predicted_bytes) == (label, 7.0)
    assert request_of(state_of(), actions).predicted_bytes is None


def test_segments_within_recomputed_groups_keep_least():
    ask: Any = lambda state, requests: [request.key for request in requests]
    (key,) = recompute_all(state_of(GROUPED), ask)
    assert key == dict.fromkeys("agbc", (RECOMPUTE,))
    assert recompute_all(state_of(), lambda state, requests: requests) == ["everything"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((1000, 50.0), (1000, 50.0), True),
        ((10_000, 50.0), (10_009, 50.04), True),
        ((10_000, 50.0), (10_020, 50.0), False),
        ((10_000, 50.0), (10_000, 50.1), False),
    ],
)
def test_programs_that_take_as_much_and_as_long_are_the_same(one, other, same):
    row = lambda pair: SimpleNamespace(bytes=pair[0], time_us=pair[1])
    assert _is_same(row(one), row(other)) is same  # pyright: ignore
