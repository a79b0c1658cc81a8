"""Layers that are alike but for a number: a dilation, a window, a shift.

A stack of convolutions whose dilation doubles from layer to layer, ten times and then
anew, repeats every ten layers; its layers are the convolutions. Those with one dilation
are one unit.
"""

from collections.abc import Sequence

import numpy as np

from revremat.program.ir._fingerprint import describe_form
from revremat.program.ir._ops import Op
from revremat.program.units._modules import given_back
from revremat.program.units._repeats import Repeat, find_loop, same_flow
from revremat.program.units._stretch import Stretch

_LEAST_ITERATIONS = 3
_LEAST_PART = 0.5
"""Of what groups give back, by their layers."""


def layers_alike(
    stretch: Stretch, least_bytes: float, within: Repeat | None = None
) -> list[Repeat]:
    """Layers that do the same on the same shapes, the equal ones as one loop each.

    Args:
      stretch: Where.
      least_bytes: What they have to make without a product of matrices.
      within: A loop whose iterations may be groups of such layers: these carry no
        more than the groups do.

    Returns:
      For each kind of layers all of them; nothing where there are no two kinds.
    """
    where, period, place = stretch.ops, len(stretch), stretch.place
    if within is not None:
        start, stop = within.iterations[0].ops[0], within.iterations[-1].ops[-1]
        where = where[place[start] : place[stop] + 1]
        period = len(within.body.ops) // 2
    forms = Stretch(where, stretch.leaving(where), describe_form)
    found = find_loop(forms, least_bytes, period)
    if found is None or len(found.iterations) < _LEAST_ITERATIONS:
        return []
    iterations = [iteration.ops for iteration in found.iterations]
    if within is not None and not _carry_as_little(stretch, iterations, within):
        return []
    kinds: dict[tuple[int, ...], list[Sequence[Op]]] = {}
    for iteration in iterations:
        tokens = tuple(stretch.tokens[[place[op] for op in iteration]].tolist())
        kinds.setdefault(tokens, []).append(iteration)
    if len(kinds) < 2:
        return []
    layers = []
    for equal in kinds.values():
        layer = same_flow(
            equal, stretch.leaving(op for iteration in equal for op in iteration)
        )
        if layer is None:
            return []
        layers.append(layer)
    given = sum(map(given_back, layers))
    if within is not None and given < _LEAST_PART * given_back(within):
        return []
    return layers


def _carry_as_little(
    stretch: Stretch, iterations: Sequence[Sequence[Op]], groups: Repeat
) -> bool:
    """Whether layers carry what groups do, the first apart: it may read anything."""
    place, passed = stretch.place, stretch.passed_on
    most = passed[place[groups.iterations[1].ops[0]]]
    return bool(
        np.median([passed[place[iteration[0]]] for iteration in iterations[1:]]) <= most
    )
