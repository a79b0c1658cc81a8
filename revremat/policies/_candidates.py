"""Candidates: the actions worth compiling for a unit, out of very many.

Minimum cuts, subsets of what is expensive to recompute or tagged, and sets that have
names elsewhere make a pool. A cheap model of bytes against time drops what another does
better in both, and thins out the rest; presets, offloading, inversion and chunks, of
which the model knows little, always stay.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from revremat._action import RECOMPUTE, Action
from revremat._errors import UserError
from revremat._graph import Kept, Unit
from revremat.policies._candidate import PRESETS, Candidate, preset
from revremat.policies._joint import Cost, Joint, Rates, work_again
from revremat.policies._mincut import Cut, front
from revremat.policies._named import named_sets
from revremat.policies._proposals import (
    cheap_names,
    compute_intensive_names,
    cuts,
    cuts_by_rules,
    cuts_without_stack,
    others_of,
)

_LEAST_GAIN = 0.01
_FEW = 8


class Pool:
    """All that is proposed for a unit, and what a cheap model says of it.

    Args:
      unit: From a graph.
      rates: Of the target, for the model.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import Pool
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> Pool(rr.trace(loss, w, x)["stack"]).unit.name
      'stack'
    """

    def __init__(self, unit: Unit, rates: Rates = Rates()):  # noqa: B008
        self.unit, self.joint = unit, Joint(unit, rates)
        self.unrolled = Joint(unit, rates, stacked=False)
        self._known: dict[Action, tuple[Kept, Cost]] = {}

    def cost(self, candidate: Candidate) -> Cost:
        """What the model says of one, as if nothing that it keeps were on the host."""
        return self._judged(candidate)[1]

    def kept(self, candidate: Candidate) -> Kept:
        """What a layer keeps by a candidate."""
        return self._judged(candidate)[0]

    def apart(self, one: Candidate, other: Candidate) -> int:
        """Bytes that only one of two keeps, and those it keeps more on the host."""
        mine, theirs = self.kept(one), self.kept(other)
        values, position = self.unit.values, self.unit.position
        names = {*mine.saved, *mine.offloaded} ^ {*theirs.saved, *theirs.offloaded}
        moved = sum(values[position[name]].num_bytes for name in names)
        return moved + abs(mine.host_bytes - theirs.host_bytes)

    def _judged(self, candidate: Candidate) -> tuple[Kept, Cost]:
        """What a candidate keeps, and its cost."""
        if candidate.action not in self._known:
            kept = self.unit.kept(candidate.action)
            names = (*kept.saved, *kept.offloaded)
            joint = self.unrolled if candidate.action.unroll is True else self.joint
            cost = joint.cost(self.unit.position[name] for name in names)
            self._known[candidate.action] = kept, cost
        return self._known[candidate.action]

    def worth_compiling(
        self, *, offload: bool = False, ahead: bool = False, most: int = 12
    ) -> tuple[Candidate, ...]:
        """As `candidates` says."""
        if most < 2:
            raise UserError(
                f"most={most} leaves no choice: `recompute all` and `save all` are "
                "always among the "
                "candidates, so write 2 or more"
            )
        unit, rates = self.unit, self.joint.rates
        presets = [preset(unit, "recompute all")]
        presets += [preset(unit, name) for name in PRESETS if name != "recompute all"]
        presets, judged = (presets[:2], presets[2:]) if most < _FEW else (presets, [])
        others = others_of(unit, self._names, self._beside, offload, ahead)
        sets = [c for c in self._named if offload or not c.action.offload]
        others += [c for c in sets if c.action.offload]
        # Of few, the first beside full and none is one that the model can judge.
        others = _distinct(unit, others, rates)[
            : (most - 2 if most < _FEW else most) // 3
        ]
        sets = judged + [c for c in sets if not c.action.offload] + self._cuts
        distinct = _distinct(unit, [*presets, *sets, *others], rates)
        fixed = [c for c in distinct if c in presets or c in others]
        found = _undominated([c for c in distinct if c not in fixed], self.cost)
        anchors = [c for c in fixed if c in presets]
        room, combines = max(0, most - len(fixed)), unit.num_layers > 1
        chosen = _spread(found, self.cost, anchors, room, combines=combines)
        chosen.sort(key=lambda c: (self.cost(c).bytes, c.name))
        rest = [c for c in fixed if c not in presets]
        return tuple(_with_unique_names(unit, [*anchors, *chosen, *rest]))

    @cached_property
    def sets(self) -> tuple[Candidate, ...]:
        """Every set of values to keep on the device."""
        named = [preset(self.unit, name) for name in PRESETS]
        named += [c for c in self._named if not c.action.offload]
        found = [*named, *self._cuts, *cuts_by_rules(self.joint)]
        return tuple(
            _with_unique_names(self.unit, _distinct(self.unit, found, self.joint.rates))
        )

    @cached_property
    def unrolled_sets(self) -> tuple[Candidate, ...]:
        """Sets of values to keep outside of loops: of what is written, without tags.

        Named apart from those of loops, which may keep the same values.
        """
        found = [
            Candidate(f"{one.name}, without a stack", one.action)
            for one in cuts_without_stack(self.unrolled)
        ]
        return tuple(_with_unique_names(self.unit, found))

    @cached_property
    def _named(self) -> list[Candidate]:
        named = named_sets(self.unit).items()
        return [
            Candidate(name, action)
            for name, action in named
            if not action.refused_by(self.unit.facts)
        ]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return compute_intensive_names(self.unit, self.joint.rates)

    @cached_property
    def _corners(self) -> tuple[Cut, ...]:
        return front(self.joint)

    @cached_property
    def _beside(self) -> list[str]:
        return cheap_names(self.unit, self._corners)

    @cached_property
    def _cuts(self) -> list[Candidate]:
        return cuts(self.joint, self._names, self._corners, self._beside)


def candidates(
    unit: Unit,
    *,
    offload: bool = False,
    ahead: bool = False,
    most: int = 12,
    rates: Rates = Rates(),  # noqa: B008
) -> tuple[Candidate, ...]:
    """What is worth compiling for a unit; no two keep and recompute as much.

    Args:
      unit: From a graph.
      offload: Whether the target has host memory to offload to.
      ahead: Whether to propose recomputing a layer early (it hides under collectives).
      most: How many, at most; 2 or more. Presets and ways that the cheap model cannot
        judge come first; of fewer than eight, only the presets `recompute all` and
        `save all`.
      rates: Of the target, for the cheap model.

    Returns:
      `recompute all` first, then the other presets, sets by bytes kept, and the others.

    Raises:
      UserError: `most` is below 2.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import candidates
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> len(candidates(rr.trace(loss, w, x)["stack"], most=2))
      2
    """
    pool = Pool(unit, rates)
    return pool.worth_compiling(offload=offload, ahead=ahead, most=most)


def _distinct(
    unit: Unit,
    found: Iterable[Candidate],
    rates: Rates = Rates(),  # noqa: B008
) -> list[Candidate]:
    """The first of those that keep as many bytes and recompute as much."""
    most_work = work_again(unit, unit.kept(RECOMPUTE), rates)
    seen, distinct = set(), []
    for candidate in found:
        action, kept = candidate.action, unit.kept(candidate.action)
        # Two names of one value keep the same, too.
        again = work_again(unit, kept, rates)
        size = (kept.device_bytes, kept.host_bytes)
        key = (
            *size,
            round(again / max(1.0, _LEAST_GAIN * most_work)),
            kept.ahead,
            action.inverts,
            action.chunks,
            action.segment_length,
            action.slots,
        )
        if key not in seen:
            seen.add(key)
            distinct.append(candidate)
    return distinct


def _undominated(
    found: Sequence[Candidate], cost: Callable[[Candidate], Cost]
) -> list[Candidate]:
    """Without those that another beats in time and, but for a percent, in bytes."""
    costs = [cost(c) for c in found]
    better = lambda a, b: (
        (a.bytes <= (1 + _LEAST_GAIN) * b.bytes and a.traffic < b.traffic)
        or (a.bytes <= b.bytes and a.traffic <= b.traffic and a != b)
    )
    return [
        c
        for c, mine in zip(found, costs, strict=True)
        if not any(better(other, mine) for other in costs)
    ]


def _spread(
    found: Sequence[Candidate],
    cost: Callable[[Candidate], Cost],
    anchors: Sequence[Candidate],
    most: int,
    *,
    combines: bool,
) -> list[Candidate]:
    """At most so many: each time the one goes that is missed least.

    Missed is the time lost over all budgets, equal where their ratios are. Where layers
    can be mixed, what lies between two candidates can be had from those, as far as the
    model is right: half of the loss is counted as if it could not. Anchors are there in
    any case.
    """
    fixed = [cost(c) for c in anchors]
    left = sorted(((cost(c), c) for c in found), key=lambda p: (p[0].bytes, p[1].name))
    while len(left) > most:

        def missed(k: int) -> float:
            others = [p for j, (p, _) in enumerate(left) if j != k]
            area = _area(fixed + others, combines=False)
            return area + _area(fixed + others, combines=True) if combines else area

        left.pop(min(range(len(left)), key=missed))
    return [c for _, c in left]


def _area(points: Sequence[Cost], *, combines: bool) -> float:
    """Traffic at the best, over the logarithm of the bytes it may keep.

    Where layers can be mixed, what lies on the line between two points can be had.
    """
    most = max(p.bytes for p in points)
    floor = 1 + most / 1000  # to keep next to nothing is worth no more than that
    staircase: list[Cost] = []
    for p in sorted(points, key=lambda p: (p.bytes, p.traffic)):
        if staircase and p.traffic >= staircase[-1].traffic:
            continue
        while combines and len(staircase) > 1 and not _below(p, *staircase[-2:]):
            staircase.pop()
        staircase.append(p)
    area = 0.0
    ends = [*staircase[1:], Cost(most, staircase[-1].traffic)]
    for a, b in zip(staircase, ends, strict=True):
        start, end = a.bytes + floor, b.bytes + floor
        slope = (
            (b.traffic - a.traffic) / (end - start) if combines and end > start else 0
        )
        area += (a.traffic - slope * start) * math.log(end / start)
        area += slope * (end - start)
    return area


def _below(c: Cost, a: Cost, b: Cost) -> bool:
    """Whether b lies below the line from a to c."""
    run, step = c.bytes - a.bytes, b.bytes - a.bytes
    return (a.traffic - b.traffic) * run > (a.traffic - c.traffic) * step


def _with_unique_names(unit: Unit, found: Sequence[Candidate]) -> list[Candidate]:
    """With the size where two would have one name, or a preset's: tags may have any."""
    count = Counter(c.name for c in found)
    taken = {name for name, number in count.items() if number == 1}
    unique = []
    for c in found:
        named = c.name in PRESETS
        if named and c.action == preset(unit, c.name).action:
            unique.append(c)
            continue
        name = c.name
        if named or count[name] > 1:
            size = unit.kept(c.action).device_bytes
            name = wanted = f"{c.name} ({size:,} bytes)"
            for k in itertools.count(2):
                if name not in taken:
                    break
                name = f"{wanted}, {k}"
            taken.add(name)
        unique.append(Candidate(name, c.action))
    return unique
