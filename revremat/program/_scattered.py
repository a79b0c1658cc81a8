"""Layers that do not follow one another: the same operations at several places.

The attention on a U-Net's way down comes again on its way up, between convolutions of
other widths. Where loops written out leave much of a program uncovered, stretches that
come several times anywhere are layers: first those whose rebuilding gives most back,
then the next ones of what is left. A stretch begins and ends where little goes in and
out.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

import numpy as np

from revremat.program._alike import layers_alike
from revremat.program._costs import num_bytes
from revremat.program._groups import layers_of_groups
from revremat.program._modules import find_modules, given_back
from revremat.program._ops import Op, Value
from revremat.program._repeats import (
    MOST_OPS,
    Repeat,
    find_repeats,
    is_heavy,
    loop_part,
    made_by,
    same_flow,
    tokens_of,
    used_by,
)
from revremat.program._substrings import repeated

_ENOUGH = 0.9
"""Of what a program makes: loops written out that cover it are all there is."""
_BETTER = 1.1
"""How much more other layers than loops written out have to cover or to give back."""
_MUCH_BETTER = 1.5
"""How much more the modules of a program have to give back than equal layers do."""
_LEAST_PART = 0.01
"""Of what a program makes: layers that give back less are not worth a unit."""
_MOST_TRIMMED = 0.2
"""Of what a stretch makes: at either end, to let less in and out."""
_MOST_LOOP = 0.5
"""Of what a stretch makes, by a loop written out within it."""
_ABOUT_AS_MUCH = 0.9
"""Of what the best layers give back: for that, more and smaller ones are better."""
_MOST_LOOKED_AT = 50

Stretch = Sequence[Op]


def find_layers(
    ops: Stretch, used_after: set[Value], made_bytes: float
) -> list[Repeat]:
    """Equal layers in a stretch of operations, one after the other or apart.

    Args:
      ops: A stretch without scans, blocks and checkpoints.
      used_after: What the rest of the program uses.
      made_bytes: Of all that the program makes.
    """
    in_a_row = find_repeats(ops, used_after, made_bytes)
    of_groups = [_of_groups(ops, one, used_after) for one in in_a_row]
    if any(of_groups):
        known = [a or [b] for a, b in zip(of_groups, in_a_row, strict=True)]
        return _find_anywhere(ops, used_after, made_bytes, chain.from_iterable(known))
    covered = _covered(in_a_row)
    if len(ops) > MOST_OPS or covered >= _ENOUGH * sum(map(made_by, ops)):
        return in_a_row
    anywhere = _find_anywhere(ops, used_after, made_bytes)
    found = anywhere if _covered(anywhere) > _BETTER * covered else in_a_row
    gain = lambda layers: sum(map(given_back, layers))
    alike = layers_alike(ops, used_after, _LEAST_PART * made_bytes)
    if gain(alike) > _BETTER * gain(found):
        found = alike
    modules = find_modules(ops, used_after, made_bytes)
    return modules if gain(modules) > _MUCH_BETTER * gain(found) else found


def _of_groups(ops: Stretch, groups: Repeat, used_after: set[Value]) -> list[Repeat]:
    """The layers of a loop whose turns are groups of layers, by their kinds."""
    layers = layers_of_groups(ops, groups, used_after)
    if layers is not None:
        return [layers]
    return layers_alike(ops, used_after, 0.0, groups)


def _covered(repeats: Iterable[Repeat]) -> int:
    """Bytes that layers make."""
    turns = [turn for repeat in repeats for turn in repeat.turns]
    return sum(made_by(op) for turn in turns for op in turn.ops)


def _find_anywhere(
    ops: Stretch,
    used_after: set[Value],
    made_bytes: float,
    known: Iterable[Repeat] = (),
) -> list[Repeat]:
    """Equal layers wherever they stand, beside those that are known."""
    found = list(known)
    inside = {op for repeat in found for turn in repeat.turns for op in turn.ops}
    pieces: list[Stretch] = list(_split(ops, inside))
    while (repeat := _best_apart(pieces, ops, used_after, made_bytes)) is not None:
        found.append(repeat)
        inside = {op for turn in repeat.turns for op in turn.ops}
        pieces = [rest for piece in pieces for rest in _split(piece, inside)]
    for piece in pieces:
        found += find_repeats(piece, _used_outside(piece, ops, used_after), made_bytes)
    return found


def _best_apart(
    pieces: Sequence[Stretch], ops: Stretch, used_after: set[Value], made_bytes: float
) -> Repeat | None:
    """The equal stretches that give most back, if values flow alike in all of them."""
    least_bytes = _LEAST_PART * made_bytes
    activations = {out for op in ops for out in op.outputs}
    options = []
    for turns in _equal_stretches(pieces, least_bytes):
        if loop_part(turns[0]) > _MOST_LOOP:
            continue  # its own layers come several times, too
        last = turns[-1]  # The first one may read the program's input.
        used = _used_outside(last, ops, used_after)
        gain, begin, end = _trim(last, activations, used)
        if len(turns) * gain >= least_bytes and any(map(is_heavy, last[begin:end])):
            options.append((len(turns) * gain, [turn[begin:end] for turn in turns]))
    most = max((gain for gain, _ in options), default=0.0)

    def order(option: tuple[float, list[Stretch]]) -> tuple[bool, int, float]:
        gain, turns = option
        return gain < _ABOUT_AS_MUCH * most, -len(turns), -gain

    # Of one layer and one and a half, the former: there is more to choose.
    for _, turns in sorted(options, key=order):
        covered = list(chain.from_iterable(turns))
        repeat = same_flow(turns, _used_outside(covered, ops, used_after))
        if repeat is not None:
            return repeat
    return None


def _equal_stretches(
    pieces: Sequence[Stretch], least_bytes: float
) -> list[list[Stretch]]:
    """Stretches that come several times, those first that make most."""
    row = [op for piece in pieces for op in [*piece, None]]
    made = np.cumsum([0, *(made_by(op) if op else 0 for op in row)])
    options = []
    for starts, length in repeated(_tokens(row)):
        size = made[starts[0] + length] - made[starts[0]]
        if len(starts) * size >= least_bytes:
            places = _without_overlap(starts, length)
            if len(places) > 1:
                options.append((-len(places) * size, places, length))
    options.sort(key=lambda option: option[0])
    return [
        [cast("Stretch", row[k : k + length]) for k in places]
        for _, places, length in options[:_MOST_LOOKED_AT]
    ]


def _tokens(row: Sequence[Op | None]) -> np.ndarray:
    """Operations as numbers; no two ends of pieces are equal."""
    tokens = np.empty(len(row), np.int64)
    is_op = np.array([op is not None for op in row], dtype=bool)
    tokens[is_op] = tokens_of([op for op in row if op is not None])
    tokens[~is_op] = -1 - np.arange(np.count_nonzero(~is_op))
    return tokens


def _without_overlap(starts: np.ndarray, length: int) -> list[int]:
    places, free = [], 0
    for start in starts.tolist():
        if start >= free:
            places.append(start)
            free = start + length
    return places


def _trim(
    turn: Stretch, activations: set[Value], used_outside: set[Value]
) -> tuple[float, int, int]:
    """Where a stretch lets least in and out, near its ends, and what it gives back.

    Args:
      turn: The stretch.
      activations: What is made, here or before.
      used_outside: What the rest of the program uses.

    Returns:
      Bytes made between the ends that do not pass them; the ends.
    """
    n = len(turn)
    last_use = {
        a: k for k, op in enumerate(turn) for a in op.inputs if a in activations
    }
    makers = {out: k for k, op in enumerate(turn) for out in op.outputs}
    comes_in, goes_out = np.zeros(n + 2), np.zeros(n + 2)
    for value, last in last_use.items():
        first = makers.get(value, -1) + 1  # the first place where it is passed on
        comes_in[first] += num_bytes(value.aval)
        comes_in[last + 1] -= num_bytes(value.aval)
    for value, made_at in makers.items():
        until = n if value in used_outside else last_use.get(value, made_at)
        goes_out[made_at + 1] += num_bytes(value.aval)
        goes_out[until + 1] -= num_bytes(value.aval)
    comes_in, goes_out = np.cumsum(comes_in), np.cumsum(goes_out)
    made = np.cumsum([0, *map(made_by, turn)])
    most = _MOST_TRIMMED * made[-1]
    begin = int(np.argmin(comes_in[: np.searchsorted(made, most, "right")]))
    least = int(np.searchsorted(made, made[-1] - most))
    end = n - int(np.argmin(goes_out[least : n + 1][::-1]))
    return made[end] - made[begin] - comes_in[begin] - goes_out[end], begin, end


def _used_outside(part: Stretch, ops: Stretch, used_after: set[Value]) -> set[Value]:
    inside = set(part)
    return used_after | used_by(op for op in ops if op not in inside)


def _split(piece: Stretch, inside: set[Op]) -> Iterator[Stretch]:
    """What is left of a piece, in pieces."""
    rest: list[Op] = []
    for op in piece:
        if op not in inside:
            rest.append(op)
        elif rest:
            yield rest
            rest = []
    if rest:
        yield rest
