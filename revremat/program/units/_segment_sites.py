"""Sites of segments: where a program has no equal layers, or they are little of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from revremat.program.ir._ops import Constant, Op, Program, Value
from revremat.program.units._alive import alive
from revremat.program.units._segments import Part, find_segments
from revremat.program.units._sites import (
    SEGMENT,
    Site,
    Survey,
    lift,
    moves_apart,
    stretches,
)
from revremat.program.units._stretch import Stretch, made_by, used_by

_LEAST_COVERED = 0.5
"""Of what is made outside of loops and blocks, by equal layers: with less than that
they are parts of layers that are not equal."""
_ENOUGH = 0.9
"""Of the same: equal layers that cover so much are all there is."""
_MUCH_LESS = 0.5
"""Of what is alive with equal layers recomputed one at a time, by segments for which
those are given up."""
_FEW = 2
"""Layers of each kind: what comes no more often tells little of how a program is built,
as convolutions on a U-Net's way down and up."""


def with_segments(found: Survey) -> Survey:
    """The survey with segments where nothing else is decided, if that is most of it.

    Args:
      found: Of a whole program.
    """
    if found.keeps_checkpoints or any(site.kind != "repeat" for site in found.sites):
        return found
    moves, others = moves_apart(found.program, found.weights)
    made = sum(map(made_by, others))
    covered = sum(made_by(op) for site in found.sites for op in site.ops)
    if covered >= (_ENOUGH if _comes_seldom(found) else _LEAST_COVERED) * made:
        return found
    sites: list[Site] = []
    for stretch in stretches(found.program, others, {*found.inner}):
        sites += _Sites(found, stretch, moves).all
    cut = replace(found, sites=tuple(sites)) if sites else found
    if covered >= _LEAST_COVERED * made and alive(cut) > _MUCH_LESS * alive(found):
        return found
    return cut


def _comes_seldom(found: Survey) -> bool:
    """Whether no layer has more than one that is equal."""
    kinds = Counter(id(site.body) for site in found.sites)
    return max(kinds.values(), default=0) <= _FEW


class _Sites:
    """The segments of one stretch.

    Args:
      found: The program.
      stretch: Where in it.
      moves: What gives its inputs another form.
    """

    def __init__(self, found: Survey, stretch: Stretch, moves: Sequence[Op]):
        self.found, self.stretch, self.moves = found, stretch, moves
        self.groups = find_segments(stretch, at_any_place=not found.sites)
        self.owners = self._owners()

    @property
    def all(self) -> list[Site]:
        """Sites of groups with their segments; of a single one, the segment."""
        sites = []
        for group in self.groups:
            parts = [site for part in group if (site := self._site([part]))]
            if len(group) > 1 and (whole := self._site(group)):
                sites.append(replace(whole, parts=tuple(parts)))
            else:
                sites += parts
        return sites

    def _owners(self) -> dict[Op, set[Part | None]]:
        """The segments that use each move, at once or by way of others."""
        home: dict[Op, Part] = {
            op: part
            for group in self.groups
            for part in group
            for op in self.stretch.ops[slice(*part)]
        }
        moved = {out: op for op in self.moves for out in op.outputs}
        owners: dict[Op, set[Part | None]] = {op: set() for op in self.moves}
        for out in self.found.program.outputs:
            if isinstance(out, Value) and out in moved:
                owners[moved[out]].add(None)
        for op in reversed(self.found.program.ops):
            mine = owners.get(op, {home.get(op)})
            for value in used_by([op]):
                if value in moved:
                    owners[moved[value]] |= mine
        return owners

    def _site(self, parts: Sequence[Part]) -> Site | None:
        """One site for parts that follow one another; None if none has a derivative."""
        ops = tuple(self.stretch.ops[parts[0][0] : parts[-1][1]])
        own = {*parts}
        moves = tuple(
            op for op in self.moves if self.owners[op] and self.owners[op] <= own
        )
        leaving = self.stretch.leaving(ops)
        outputs = tuple(out for op in ops for out in op.outputs if out in leaving)
        inputs = tuple(_taken((*moves, *ops)))
        body, constants = lift(Program(inputs, (*moves, *ops), outputs))
        mask = tuple(value in self.found.live for value in inputs)
        if not any(mask):
            return None
        extra = len(constants)
        return Site(
            kind=SEGMENT,
            label="",
            ops=ops,
            inputs=(*constants, *inputs),
            outputs=outputs,
            body=body,
            in_mask=(*[False] * extra, *mask),
            held=(*[True] * extra, *(v in self.found.weights for v in inputs)),
        )


def _taken(ops: Iterable[Op]) -> list[Value]:
    """What operations take that none of them makes, in order."""
    made: set[Value] = set()
    found: dict[Value, None] = {}
    for op in ops:
        found |= dict.fromkeys(
            a for a in op.inputs if not isinstance(a, Constant) and a not in made
        )
        made.update(op.outputs)
    return list(found)
