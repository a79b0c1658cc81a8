"""Layers that are alike but for a number: a dilation, a window, a shift.

A stack of convolutions whose dilation doubles from layer to layer, ten times and then
anew, repeats every ten layers; its layers are the convolutions. Those with one dilation
are one unit.
"""

from collections.abc import Sequence

import numpy as np

from revremat.program._fingerprint import describe_form
from revremat.program._modules import given_back
from revremat.program._ops import Op, Value
from revremat.program._repeats import (
    Repeat,
    find_loop,
    passed_on,
    same_flow,
    tokens_of,
    used_by,
)

_LEAST_TURNS = 3
_LEAST_PART = 0.5
"""Of what groups give back, by their layers."""


def layers_alike(
    ops: Sequence[Op],
    used_after: set[Value],
    least_bytes: float,
    within: Repeat | None = None,
) -> list[Repeat]:
    """Layers that do the same on the same shapes, the equal ones as one loop each.

    Args:
      ops: A stretch of a program.
      used_after: What the rest of the program uses.
      least_bytes: What they have to make without a product of matrices.
      within: A loop whose turns may be groups of such layers: these hand on no more
        than the groups do.

    Returns:
      For each kind of layers all of them; nothing where there are no two kinds.
    """
    where, period = ops, len(ops)
    if within is not None:
        place = {op: k for k, op in enumerate(ops)}
        start, stop = within.turns[0].ops[0], within.turns[-1].ops[-1]
        where = ops[place[start] : place[stop] + 1]
        period = len(within.body.ops) // 2
    after = used_after | used_by(set(ops).difference(where))
    found = find_loop(where, after, least_bytes, period, describe_form)
    if found is None or len(found.turns) < _LEAST_TURNS:
        return []
    turns = [turn.ops for turn in found.turns]
    if within is not None and not _hand_on_as_little(ops, turns, within, used_after):
        return []
    kinds: dict[tuple[int, ...], list[Sequence[Op]]] = {}
    inside = [op for turn in turns for op in turn]
    tokens = iter(tokens_of(inside).tolist())
    for turn in turns:
        kinds.setdefault(tuple(next(tokens) for _ in turn), []).append(turn)
    if len(kinds) < 2:
        return []
    layers = []
    for equal in kinds.values():
        mine = {op for turn in equal for op in turn}
        others = used_by(op for op in ops if op not in mine)
        layer = same_flow(equal, used_after | others)
        if layer is None:
            return []
        layers.append(layer)
    given = sum(map(given_back, layers))
    if within is not None and given < _LEAST_PART * given_back(within):
        return []
    return layers


def _hand_on_as_little(
    ops: Sequence[Op],
    turns: Sequence[Sequence[Op]],
    groups: Repeat,
    used_after: set[Value],
) -> bool:
    """Whether layers hand on what groups do, the first apart: it may read anything."""
    place = {op: k for k, op in enumerate(ops)}
    passed = passed_on(ops, used_after)
    most = passed[place[groups.turns[1].ops[0]]]
    return bool(np.median([passed[place[turn[0]]] for turn in turns[1:]]) <= most)
