"""Layers of unrolled groups: four of one kind and one of another, several times over.

Such a group is an iteration of a loop, but its layers are what a person would
checkpoint: computed again one at a time, they take less than all of them together.
Equal layers of all groups are one unit, wherever they stand.
"""

import numpy as np
from jaxtyping import Int

from revremat.program.units._modules import given_back
from revremat.program.units._repeats import Repeat, longest_loop, same_flow
from revremat.program.units._stretch import Stretch

_LEAST_PART = 0.25
"""Of what groups give back, by those of their layers that are equal."""


def layers_of_groups(stretch: Stretch, groups: Repeat) -> Repeat | None:
    """The equal layers in a loop's iterations, if these are groups of layers.

    Layers carry what groups carry. A loop over a layer's experts is none over
    layers: it passes on what they have in common, and a sum besides.

    Args:
      stretch: Where.
      groups: An unrolled loop in it.
    """
    # What the first group is given may be made before all of this, and not be seen.
    seen = groups.iterations[min(1, len(groups.iterations) - 2)]
    start, period = stretch.place[seen.ops[0]], len(groups.body.ops)
    # A row of equal layers may go on from one group to the next.
    stop = min(start + 2 * period, len(stretch))
    inner = longest_loop(stretch, start, stop, 0.0, period // 2)
    if inner is None:
        return None
    begin, layer, covered = inner
    passed, tokens = stretch.passed_on, stretch.tokens
    most = passed[start + period]
    options = []
    for k in range(begin, begin + min(layer, covered - layer + 1)):
        row = passed[k : begin + covered : layer]
        if np.median(row) <= most:
            places = _places(tokens, tokens[k : k + layer])
            options.append((-len(places), k, places))
    if not options:
        return None
    _, _, places = min(options)
    iterations = [stretch.ops[k : k + layer] for k in places]
    layers = same_flow(
        iterations, stretch.leaving(op for iteration in iterations for op in iteration)
    )
    if layers is None or given_back(layers) < _LEAST_PART * given_back(groups):
        return None
    return layers


def _places(
    tokens: Int[np.ndarray, " ops"], layer: Int[np.ndarray, " period"]
) -> list[int]:
    """Where a layer's operations come, one place after the other."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(layer))
    places: list[int] = []
    for k in np.flatnonzero((windows == layer).all(axis=1)).tolist():
        if not places or k >= places[-1] + len(layer):
            places.append(k)
    return places
