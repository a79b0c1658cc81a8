"""Runs of layers that one loop can serve."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from revremat._action import Action

LONGEST_PATTERN = 4
_PERIODS = range(1, LONGEST_PATTERN + 1)


@dataclass(frozen=True)
class Segment:
    """Layers from `start` on: the pattern, repeated.

    With `group`, the pattern is one action, each iteration is so many of its layers,
    and only what the first one is given is kept. With `slots` there is one iteration.
    """

    start: int
    repeats: int
    pattern: tuple[Action, ...]
    group: int = 0

    @property
    def iteration(self) -> int:
        """How many layers an iteration has."""
        return self.group or len(self.pattern)

    @property
    def unroll(self) -> bool | int:
        """Whether its iterations are unrolled, or how many at a time."""
        return self.pattern[0].unroll

    @property
    def is_unrolled_in_part(self) -> bool:
        """Whether it is a loop with several layers to an iteration."""
        return not self.group and self.pattern[0].layers_per_iteration > 1

    @property
    def slots(self) -> int:
        """How many of its layers' inputs are kept at a time; 0 for all."""
        return self.pattern[0].slots if self.group else 0

    @property
    def num_layers(self) -> int:
        return self.repeats * self.iteration


def segments(actions: Sequence[Action], *, loops: bool = True) -> tuple[Segment, ...]:
    """The fewest layer bodies that write out a stack, as loops over patterns.

    Twelve SAVE and twelve RECOMPUTE are two loops; the two alternating are one loop
    over a pattern of two. Layers that hand something from one to the next in the
    backward pass (INVERT, `ahead`) only form patterns of one. Equal neighbours with
    `segment_length` are cut into groups of that size and a smaller one that runs last;
    those that are unrolled form no patterns, and without `loops` all are. Equal
    neighbours with `slots` are one group.
    """
    actions = tuple(actions)
    alike = {period: _alike(actions, period) for period in _PERIODS}
    # From a layer on: bodies and loops of the best way, and the loops it begins with.
    best: list[tuple[int, int, tuple[Segment, ...]]] = [(0, 0, ())]
    for start in reversed(range(len(actions))):
        ways = []
        for bodies, first in _first(actions, start, alike, loops):
            rest = best[len(actions) - _stop(first)]
            ways.append((bodies + rest[0], len(first) + rest[1], first))
        best.append(min(ways, key=lambda way: way[:2]))
    found, start = [], 0
    while start < len(actions):
        first = best[len(actions) - start][2]
        found += first
        start = _stop(first)
    return tuple(found)


def _alike(actions: tuple[Action, ...], period: int) -> list[int]:
    """From each layer on, how many in a row are as the layer a period after them."""
    found = [0] * (len(actions) + 1)
    for k in reversed(range(len(actions) - period)):
        found[k] = found[k + 1] + 1 if actions[k] == actions[k + period] else 0
    return found


def _first(
    actions: tuple[Action, ...], start: int, alike: dict[int, list[int]], loops: bool
) -> Iterator[tuple[int, tuple[Segment, ...]]]:
    """What can begin at a layer, and how many layer bodies that takes."""
    if actions[start].segment_length > 1:
        grouped = _grouped(actions[start], start, 1 + alike[1][start])
        yield len(grouped), grouped
        return
    if actions[start].slots:
        number = 1 + alike[1][start]
        group = number if number > 1 else 0
        yield 2, (Segment(start, 1, actions[start : start + 1], group),)
        return
    for period in _PERIODS:
        pattern = actions[start : start + period]
        alone = not loops or any(map(_chained, pattern))
        if len(pattern) < period or (period > 1 and alone):
            return
        repeats = 1 + alike[period][start] // period
        if repeats > 1 or period == 1:
            yield period, (Segment(start, repeats, pattern),)


def _stop(few: Sequence[Segment]) -> int:
    """The layer after these segments."""
    return few[-1].start + few[-1].num_layers


def _grouped(action: Action, start: int, number: int) -> tuple[Segment, ...]:
    length, stop = action.segment_length, start + number
    iterations, rest = divmod(number, length)
    found = (
        Segment(start, iterations, (action,), length),
        Segment(stop - rest, 1, (action,), rest),
    )
    return tuple(s for s in found if s.repeats and s.group)


def _chained(action: Action) -> bool:
    linked = action.inverts or bool(action.ahead) or action.segment_length > 1
    return linked or bool(action.unroll) or bool(action.slots)
