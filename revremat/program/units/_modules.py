"""Layers that are all different: what the user's library calls modules.

Stages of a network need not be equal, in width or in what they are made of, and then
only parts of them come twice. Their operations carry the names of the modules they come
from; a run of operations under one name is a layer.
"""

import re
from dataclasses import replace
from itertools import groupby

from revremat.program.ir._costs import num_bytes
from revremat.program.ir._ops import Op
from revremat.program.units._repeats import Repeat, same_flow
from revremat.program.units._stretch import Stretch, made_by

_DEEPEST = 6
_NUMBER = re.compile(r"_\d+$")
_TRANSFORMED = re.compile(r"\w+\((.*)\)")  # such as `vmap(stage_5)`
_LEAST_PART = 0.01
"""Of what a program makes: a module that gives back less is not worth a unit."""
_LARGEST = 0.5
"""Of what all modules give back: a larger one is to be taken apart."""


def given_back(layer: Repeat) -> float:
    """Bytes that layers make and do not output."""
    return sum(
        sum(map(made_by, iteration.ops))
        - sum(num_bytes(out.aval) for out in iteration.outputs)
        for iteration in layer.iterations
    )


def find_modules(stretch: Stretch, made_bytes: float) -> list[Repeat]:
    """The modules of a stretch, each a layer by itself, at the depth that gives most.

    Args:
      stretch: Where.
      made_bytes: Of all that the program makes.
    """
    best: list[Repeat] = []
    best_bytes = 0.0
    for depth in range(1, _DEEPEST + 1):
        found = _at(depth, stretch, _LEAST_PART * made_bytes)
        sizes = [given_back(one) for one in found]
        if sizes and max(sizes) <= _LARGEST * sum(sizes) and sum(sizes) > best_bytes:
            best, best_bytes = found, sum(sizes)
    return best


def _at(depth: int, stretch: Stretch, least_bytes: float) -> list[Repeat]:
    found = []
    end = 0
    for path, run in groupby(stretch.ops, lambda op: _path(op, depth)):
        iteration = list(run)
        begin, end = end, end + len(iteration)
        if len(path) < depth or stretch.made[end] - stretch.made[begin] < least_bytes:
            continue
        if stretch.heavy[end] == stretch.heavy[begin]:
            continue
        layer = same_flow([iteration], stretch.leaving(iteration))
        if layer is not None and given_back(layer) >= least_bytes:
            found.append(replace(layer, module=_label(path[-1])))
    return found


def _path(op: Op, depth: int) -> tuple[str, ...]:
    return tuple(str(op.scope).split("/")[:depth]) if str(op.scope) else ()


def _label(scope: str) -> str:
    """A module's name without its number, and without what it was run under."""
    while inner := _TRANSFORMED.fullmatch(scope):
        scope = inner[1]
    return _NUMBER.sub("", scope) or scope
