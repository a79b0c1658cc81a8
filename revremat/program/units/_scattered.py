"""Layers that do not follow one another: the same operations at several places.

The attention on a U-Net's way down comes again on its way up, between convolutions of
other widths. Where loops unrolled leave much of a program uncovered, stretches that
come several times anywhere are layers: first those whose recomputing gives most back,
then the next ones of what is left. A stretch begins and ends where little goes in and
out.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Bool, Int

from revremat.program.ir._costs import num_bytes
from revremat.program.ir._ops import Op
from revremat.program.units._alike import layers_alike
from revremat.program.units._groups import layers_of_groups
from revremat.program.units._modules import find_modules, given_back
from revremat.program.units._repeats import (
    MOST_OPS,
    Repeat,
    find_repeats,
    loop_part,
    same_flow,
)
from revremat.program.units._stretch import Stretch, made_by
from revremat.program.units._substrings import repeated

_ENOUGH = 0.9
"""Of what a program makes: loops unrolled that cover it are all there is."""
_BETTER = 1.1
"""How much more other layers than loops unrolled have to cover or to give back."""
_MUCH_BETTER = 1.5
"""How much more the modules of a program have to give back than equal layers do."""
_LEAST_PART = 0.01
"""Of what a program makes: layers that give back less are not worth a unit."""
_MOST_TRIMMED = 0.2
"""Of what a stretch makes: at either end, to let less in and out."""
_MOST_LOOP = 0.5
"""Of what a stretch makes, by a loop unrolled within it."""
_ABOUT_AS_MUCH = 0.9
"""Of what the best layers give back: for that, more and smaller ones are better."""
_MOST_LOOKED_AT = 50

Iteration = Sequence[Op]
Part = tuple[int, int]
"""From which operation of a stretch on, up to which."""


def find_layers(stretch: Stretch, made_bytes: float) -> list[Repeat]:
    """Equal layers in a stretch of operations, one after the other or apart.

    Args:
      stretch: Where.
      made_bytes: Of all that the program makes.
    """
    in_a_row = find_repeats(stretch, made_bytes)
    of_groups = [_of_groups(stretch, one) for one in in_a_row]
    if any(of_groups):
        known = [a or [b] for a, b in zip(of_groups, in_a_row, strict=True)]
        return _find_anywhere(stretch, made_bytes, chain.from_iterable(known))
    covered = _covered(in_a_row)
    if len(stretch) > MOST_OPS or covered >= _ENOUGH * stretch.made[-1]:
        return in_a_row
    anywhere = _find_anywhere(stretch, made_bytes)
    found = anywhere if _covered(anywhere) > _BETTER * covered else in_a_row
    gain = lambda layers: sum(map(given_back, layers))
    alike = layers_alike(stretch, _LEAST_PART * made_bytes)
    if gain(alike) > _BETTER * gain(found):
        found = alike
    modules = find_modules(stretch, made_bytes)
    return modules if gain(modules) > _MUCH_BETTER * gain(found) else found


def _of_groups(stretch: Stretch, groups: Repeat) -> list[Repeat]:
    """The layers of a loop whose iterations are groups of layers, by their kinds."""
    layers = layers_of_groups(stretch, groups)
    if layers is not None:
        return [layers]
    return layers_alike(stretch, 0.0, groups)


def _covered(repeats: Iterable[Repeat]) -> int:
    """Bytes that layers make."""
    iterations = [iteration for repeat in repeats for iteration in repeat.iterations]
    return sum(made_by(op) for iteration in iterations for op in iteration.ops)


def _find_anywhere(
    stretch: Stretch, made_bytes: float, known: Iterable[Repeat] = ()
) -> list[Repeat]:
    """Equal layers wherever they stand, beside those that are known."""
    found = list(known)
    free = np.ones(len(stretch), bool)

    def take(repeat: Repeat) -> None:
        for iteration in repeat.iterations:
            free[[stretch.place[op] for op in iteration.ops]] = False

    for repeat in found:
        take(repeat)
    while (repeat := _best_apart(_parts(free), stretch, made_bytes)) is not None:
        found.append(repeat)
        take(repeat)
    for begin, end in _parts(free):
        found += find_repeats(stretch, made_bytes, begin, end)
    return found


def _parts(free: Bool[np.ndarray, " ops"]) -> list[Part]:
    """The parts of a stretch that are free."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _best_apart(
    parts: Sequence[Part], stretch: Stretch, made_bytes: float
) -> Repeat | None:
    """The equal stretches that give most back, if values flow alike in all of them."""
    least_bytes = _LEAST_PART * made_bytes
    options = []
    for places, length in _equal_parts(parts, stretch, least_bytes):
        if loop_part(stretch, places[0], places[0] + length) > _MOST_LOOP:
            continue  # its own layers come several times, too
        last = places[-1]  # The first one may read the program's input.
        gain, begin, end = _trim(stretch, last, last + length)
        is_heavy = stretch.heavy[last + end] > stretch.heavy[last + begin]
        if len(places) * gain >= least_bytes and is_heavy:
            iterations = [stretch.ops[k + begin : k + end] for k in places]
            options.append((len(places) * gain, iterations))
    most = max((gain for gain, _ in options), default=0.0)

    def order(option: tuple[float, list[Iteration]]) -> tuple[bool, int, float]:
        gain, iterations = option
        return gain < _ABOUT_AS_MUCH * most, -len(iterations), -gain

    # Of one layer and one and a half, the former: there is more to choose.
    for _, iterations in sorted(options, key=order):
        repeat = same_flow(iterations, stretch.leaving(chain.from_iterable(iterations)))
        if repeat is not None:
            return repeat
    return None


def _equal_parts(
    parts: Sequence[Part], stretch: Stretch, least_bytes: float
) -> list[tuple[list[int], int]]:
    """Places and length of what comes several times, those first that make most."""
    order = [k for begin, end in parts for k in (*range(begin, end), -1)]
    row = np.array(order, np.int64)
    tokens = stretch.tokens[row]
    tokens[row < 0] = -1 - np.arange(len(parts))  # no two ends of parts are equal
    made, options = stretch.made, []
    for starts, length in repeated(tokens):
        first = row[starts[0]]
        size = made[first + length] - made[first]
        if len(starts) * size >= least_bytes:
            places = _without_overlap(np.sort(row[starts]), length)
            if len(places) > 1:
                options.append((-len(places) * size, places, length))
    options.sort(key=lambda option: option[0])
    return [(places, length) for _, places, length in options[:_MOST_LOOKED_AT]]


def _without_overlap(starts: Int[np.ndarray, " places"], length: int) -> list[int]:
    places, free = [], 0
    for start in starts.tolist():
        if start >= free:
            places.append(start)
            free = start + length
    return places


def _trim(stretch: Stretch, first: int, stop: int) -> tuple[float, int, int]:
    """Where a part lets least in and out, near its ends, and what it gives back.

    Args:
      stretch: Where.
      first: The part's first operation.
      stop: The one after its last.

    Returns:
      Bytes made between the ends that do not pass them; the ends, from `first` on.
    """
    iteration, n = stretch.ops[first:stop], stop - first
    last_use = {
        a: k for k, op in enumerate(iteration) for a in op.inputs if a in stretch.maker
    }
    makers = {out: k for k, op in enumerate(iteration) for out in op.outputs}
    leaving = stretch.leaving(iteration)
    comes_in, goes_out = np.zeros(n + 2), np.zeros(n + 2)
    for value, last in last_use.items():
        made_at = makers.get(value, -1) + 1  # the first place where it is passed on
        comes_in[made_at] += num_bytes(value.aval)
        comes_in[last + 1] -= num_bytes(value.aval)
    for value, made_at in makers.items():
        until = n if value in leaving else last_use.get(value, made_at)
        goes_out[made_at + 1] += num_bytes(value.aval)
        goes_out[until + 1] -= num_bytes(value.aval)
    comes_in, goes_out = np.cumsum(comes_in), np.cumsum(goes_out)
    made = stretch.made[first : stop + 1] - stretch.made[first]
    most = _MOST_TRIMMED * made[-1]
    begin = int(np.argmin(comes_in[: np.searchsorted(made, most, "right")]))
    least = int(np.searchsorted(made, made[-1] - most))
    end = n - int(np.argmin(goes_out[least : n + 1][::-1]))
    return made[end] - made[begin] - comes_in[begin] - goes_out[end], begin, end
