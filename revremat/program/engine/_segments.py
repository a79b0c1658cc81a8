"""Runs of layers that one loop can serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from revremat._action import Action

LONGEST_PATTERN = 4


@dataclass(frozen=True)
class Segment:
    """Layers from `start` on: the pattern, repeated.

    With `group`, the pattern is one action, each iteration is so many of its layers,
    and only what the first one is given is kept.
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
    def num_layers(self) -> int:
        return self.repeats * self.iteration


def segments(actions: Sequence[Action], *, loops: bool = True) -> tuple[Segment, ...]:
    """The fewest layer bodies that write out a stack, as loops over patterns.

    Twelve SAVE and twelve RECOMPUTE are two loops; the two alternating are one loop
    over a pattern of two. Layers that hand something from one to the next in the
    backward pass (INVERT, `ahead`) only form patterns of one. Equal neighbours with
    `segment_length` are cut into groups of that size and a smaller one that runs last;
    those that are unrolled form no patterns, and without `loops` all are.
    """
    actions = tuple(actions)

    @cache
    def best(start: int) -> tuple[int, tuple[Segment, ...]]:
        if start == len(actions):
            return 0, ()
        if actions[start].segment_length > 1:
            grouped = _grouped(actions, start)
            cost, rest = best(start + sum(s.num_layers for s in grouped))
            return len(grouped) + cost, (*grouped, *rest)
        options = []
        for period in range(1, LONGEST_PATTERN + 1):
            pattern = actions[start : start + period]
            alone = not loops or any(map(_chained, pattern))
            if len(pattern) < period or (period > 1 and alone):
                break
            repeats = 1
            while _again(actions, pattern, start + repeats * period):
                repeats += 1
            if repeats == 1 < period:
                continue
            segment = Segment(start, repeats, pattern)
            cost, rest = best(start + segment.num_layers)
            options.append((period + cost, (segment, *rest)))
        return min(options, key=lambda option: (option[0], len(option[1])))

    chosen = best(0)[1]
    best.cache_clear()
    return chosen


def _again(actions: tuple[Action, ...], pattern: tuple[Action, ...], at: int) -> bool:
    return actions[at : at + len(pattern)] == pattern


def _grouped(actions: tuple[Action, ...], start: int) -> tuple[Segment, ...]:
    stop = start
    while stop < len(actions) and actions[stop] == actions[start]:
        stop += 1
    length, pattern = actions[start].segment_length, actions[start : start + 1]
    iterations, rest = divmod(stop - start, length)
    found = (
        Segment(start, iterations, pattern, length),
        Segment(stop - rest, 1, pattern, rest),
    )
    return tuple(s for s in found if s.repeats and s.group)


def _chained(action: Action) -> bool:
    linked = action.inverts or bool(action.ahead) or action.segment_length > 1
    return linked or bool(action.unroll)
