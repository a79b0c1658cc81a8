"""Layers of unrolled groups: four of one kind and one of another, several times over.

Such a group is a turn of a loop, but its layers are what a person would checkpoint:
computed again one at a time, they take less than all of them together. Equal layers of
all groups are one unit, wherever they stand.
"""

from collections.abc import Sequence

import numpy as np

from revremat.program._modules import given_back
from revremat.program._ops import Op, Value
from revremat.program._repeats import (
    Repeat,
    longest_loop,
    passed_on,
    same_flow,
    tokens_of,
    used_by,
)

_LEAST_PART = 0.25
"""Of what groups give back, by those of their layers that are equal."""


def layers_of_groups(
    ops: Sequence[Op], groups: Repeat, used_after: set[Value]
) -> Repeat | None:
    """The equal layers in a loop's turns, if these are groups of layers.

    What groups hand on, layers do, too. A loop over a layer's experts is none over
    layers: it passes on what they have in common, and a sum besides.

    Args:
      ops: A stretch of a program.
      groups: An unrolled loop in it.
      used_after: What the rest of the program uses.
    """
    place = {op: k for k, op in enumerate(ops)}
    # What the first group is given may be made before all of this, and not be seen.
    seen = groups.turns[min(1, len(groups.turns) - 2)]
    start, period = place[seen.ops[0]], len(groups.body.ops)
    # A row of equal layers may go on from one group to the next.
    two = ops[start : start + 2 * period]
    inner = longest_loop(two, 0.0, period // 2)
    if inner is None:
        return None
    begin, layer, covered = inner
    passed = passed_on(ops, used_after)
    most = passed[start + period]
    tokens = tokens_of(ops)
    options = []
    for k in range(start + begin, start + begin + min(layer, covered - layer + 1)):
        row = passed[k : start + begin + covered : layer]
        if np.median(row) <= most:
            places = _places(tokens, tokens[k : k + layer])
            options.append((-len(places), k, places))
    if not options:
        return None
    _, _, places = min(options)
    turns = [ops[k : k + layer] for k in places]
    inside = {op for turn in turns for op in turn}
    used_outside = used_after | used_by(op for op in ops if op not in inside)
    layers = same_flow(turns, used_outside)
    if layers is None or given_back(layers) < _LEAST_PART * given_back(groups):
        return None
    return layers


def _places(tokens: np.ndarray, layer: np.ndarray) -> list[int]:
    """Where a layer's operations come, one place after the other."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(layer))
    places: list[int] = []
    for k in np.flatnonzero((windows == layer).all(axis=1)).tolist():
        if not places or k >= places[-1] + len(layer):
            places.append(k)
    return places
