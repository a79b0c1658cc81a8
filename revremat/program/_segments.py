"""Runs of layers that one loop can serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from revremat._plan import Action

LONGEST_PATTERN = 4


@dataclass(frozen=True)
class Segment:
    """Layers `start` to `start + repeats * len(pattern)`: the pattern, repeated."""

    start: int
    repeats: int
    pattern: tuple[Action, ...]

    @property
    def num_layers(self) -> int:
        return self.repeats * len(self.pattern)


def segments(actions: Sequence[Action]) -> tuple[Segment, ...]:
    """The fewest layer bodies that write out a stack, as loops over patterns.

    Twelve SAVE and twelve RECOMPUTE are two loops; the two alternating are one loop
    over a pattern of two. Layers that hand something from one to the next in the
    backward pass (INVERT, `ahead`) only form patterns of one.
    """
    actions = tuple(actions)

    @cache
    def best(start: int) -> tuple[int, tuple[Segment, ...]]:
        if start == len(actions):
            return 0, ()
        options = []
        for period in range(1, LONGEST_PATTERN + 1):
            pattern = actions[start : start + period]
            if len(pattern) < period or (period > 1 and any(map(_chained, pattern))):
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


def _chained(action: Action) -> bool:
    return action.kind == "invert" or bool(action.ahead)
