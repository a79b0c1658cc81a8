"""Schedules of segments as programs to be measured."""

from collections.abc import Mapping

from revremat._action import RECOMPUTE, Action
from revremat._graph import Graph
from revremat._search._chain import keeping_products, segments_of
from revremat._search._keys import Request
from revremat._search._state import State
from revremat.policies import Chain

_MOST_BEGINNINGS = 5
"""Of a program, of which all groups are recomputed: a model goes on from there."""

_MOST_APART = 3
"""Groups of which it is seen what their segments take in their stead."""


def recomputed_groups(chain: Chain) -> Mapping[str, Action]:
    """The schedule that recomputes every group as one."""
    return dict.fromkeys(_outermost(chain), RECOMPUTE)


def parts_waiting(graph: Graph) -> float:
    """Bytes of gradients that wait to be added up, at most, but for one of each value.

    Every segment that uses a value gives it a part of its gradient. A compiler may hold
    the parts, or what they are slices of, until the segment is differentiated that made
    the value.
    """
    segments = segments_of(graph)
    users: dict[int, list[int]] = {}
    sizes: dict[int, float] = {}
    for k, unit in enumerate(segments):
        for position, number in zip(unit.crossing, unit.crossing_ids, strict=True):
            sizes[number] = unit.values[position].num_bytes
            users.setdefault(number, []).append(k)
    return max(
        (
            sum(
                sizes[number] * (sum(user > k for user in where) - 1)
                for number, where in users.items()
                if where[0] <= k < where[-1]
            )
            for k in range(len(segments))
        ),
        default=0.0,
    )


def _outermost(chain: Chain) -> list[str]:
    """What its groups are called, or the one segment of a group that has no name."""
    return [g.name if g.ways else g.segments[0].name for g in chain.groups]


def uniform(chain: Chain) -> list[Mapping[str, Action]]:
    """Schedules that recompute everything: segments, groups, one in the other.

    And the first groups alone: what the others keep is there for a short time only.
    """
    segments = [s.name for group in chain.groups for s in group.segments]
    outer = _outermost(chain)
    found = [segments, outer, [*outer, *segments]]
    few = min(_MOST_BEGINNINGS, len(outer) - 1)
    found += [outer[: round(k * len(outer) / (few + 1))] for k in range(1, few + 1)]
    return [dict.fromkeys(names, RECOMPUTE) for names in found if names]


def products_kept(chain: Chain, graph: Graph) -> list[Mapping[str, Action]]:
    """Schedules that keep products: in groups, segments, or groups but for one."""
    whole = [[name] for name in _outermost(chain)]
    apart = [[s.name for s in g.segments] for g in chain.groups]
    large = sorted(range(len(apart)), key=lambda k: -len(apart[k]))
    few = [k for k in sorted(large[:_MOST_APART]) if len(apart[k]) > 1]
    mixed = [[*whole[:k], apart[k], *whole[k + 1 :]] for k in few]
    return [
        {name: keeping_products(graph[name]) for names in one for name in names}
        for one in (whole, apart, *mixed)
    ]


def request_of(
    state: State, actions: Mapping[str, Action], predicted_bytes: float | None = None
) -> Request:
    """The program whose units take these actions.

    Args:
      state: Knows the program.
      actions: From unit to its action; the others stay as they are.
      predicted_bytes: What is expected of it.
    """
    names = [u.name for u in state.space.graph.units if u.name in actions]
    key = state.key_of({name: (actions[name],) for name in names})
    return Request(key, _label(actions), predicted_bytes)


def _label(actions: Mapping[str, Action]) -> str:
    """What a schedule is called."""
    kinds: dict[str, int] = {}
    for action in actions.values():
        name = "recompute all" if action.recomputes_all else "recompute"
        kinds[name] = kinds.get(name, 0) + 1
    return ", ".join(f"{n} x {name}" for name, n in kinds.items()) or "all saved"
