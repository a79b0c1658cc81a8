"""Layer costs: what one layer costs under each candidate, told from probes.

A program's bytes are linear in the layers that keep something, with a constant for all
else. Two compiles of the program cut to a few of its layers, at full width and batch,
give both. Measured on GPT at 24 layers, cuts to 4 and 8 predict the compiled bytes to
0.1 %; cuts to 2 and 4 were up to 3.6 % low.

One compile gives a candidate a rough cost, with the constant of one that has two; the
second is only spent on candidates that an assignment really uses.

A unit that is a small part of a large program is compiled without the rest of it. What
its layers take and save, against recomputing everything, is the same unless they are
cheap or the step runs the loss many times, which compiles of the whole program tell;
where the peak stands is set right by one of them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._graph import Unit
from revremat._search._heuristics import Heuristics
from revremat._search._other_lengths import OtherLength, other_lengths
from revremat._search._peeled import PeeledCosts, can_peel
from revremat._search._probes import Probe, cuts, first_cuts, is_loop
from revremat.policies import (
    Candidate,
    Counts,
    Joint,
    LayerCost,
    Runs,
    UnitOptions,
    keep_written,
)

RECOMPUTE_ALL, SAVE_ALL = "recompute all", "save all"
"""Names of the presets that the others are held to."""


@dataclass(frozen=True)
class Unrolled(Candidate):
    """A candidate whose layers are unrolled.

    Attributes:
      plain: The same in a loop.
    """

    plain: Candidate


def unrolled(
    candidate: Candidate, unroll: bool | int = True, joint: Joint | None = None
) -> Unrolled:
    """The same candidate, its layers unrolled, or so many to an iteration.

    Args:
      candidate: Of a loop.
      unroll: True, or how many layers an iteration has.
      joint: The unit's graph without a stack, for what it writes in any case.
    """
    how = "unrolled" if unroll is True else f"unrolled by {unroll}"
    name, action = f"{candidate.name} ({how})", candidate.action(unroll=unroll)
    if unroll is True and joint is not None:
        action = keep_written(joint, action)
    return Unrolled(name, action, candidate)


SAVE_ALL_UNROLLED = unrolled(Candidate(SAVE_ALL, SAVE))
"""Unrolled layers that keep all."""


def plain_of(candidate: Candidate) -> Candidate:
    """The same candidate in a loop."""
    if isinstance(candidate, Unrolled):
        return candidate.plain
    return Candidate(candidate.name, candidate.action(unroll=False))


def summary(counts: Counts) -> str:
    """What a program is called, by the runs of each of its units.

    >>> summary({"scan_0": [("save all", 1), ("recompute all", 23)]})
    'save all + 23 x recompute all'
    >>> summary({"encoder": [("recompute all", 12)], "decoder": [("save all", 12)]})
    'encoder: 12 x recompute all; decoder: 12 x save all'
    """
    parts = []
    for unit, runs in counts.items():
        text = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in runs)
        parts.append(f"{unit}: {text}" if len(counts) > 1 else text)
    return "; ".join(parts)


@dataclass(frozen=True)
class LayerCosts:
    """The costs of one unit's candidates, every other unit recomputing everything.

    Attributes:
      unit: The unit.
      offered: All of its candidates so far; one is called `recompute all` and keeps
        nothing but the input.
      probe: From the first layers' actions to what was measured; None for what was not,
        or could not be compiled.
      has_failed: Whether such a shortened program could not be compiled.
      is_isolated: Whether probes are of the unit without the rest of the program.
      kept_by_others: Bytes that other units' layers keep in a probe, per device.
      correction: Bytes that all else takes more than the probes say.
      dominated: Names of candidates that are not worth unrolling: a variant is faster.
      heuristics: Numbers that decide.
    """

    unit: Unit
    offered: tuple[Candidate, ...]
    probe: Callable[[tuple[Action, ...]], Probe | None]
    has_failed: Callable[[tuple[Action, ...]], bool]
    is_isolated: bool = False
    kept_by_others: float = 0.0
    correction: float = 0.0
    dominated: Collection[str] = ()
    heuristics: Heuristics = field(default_factory=Heuristics)

    @cached_property
    def probed(self) -> Mapping[str, Candidate]:
        """What was offered by name, without those that do not compile."""
        fails = lambda c: any(map(self.has_failed, self._cuts(c.action)))
        return {
            c.name: c for c in self.offered if c.name == RECOMPUTE_ALL or not fails(c)
        }

    @cached_property
    def candidates(self) -> Mapping[str, Candidate]:
        """The same, and segments of other lengths, whose costs those of one tell."""

        def is_known(candidate: Candidate) -> bool:
            few = self._cuts(candidate.action)
            needed = few if candidate.action.segment_length > 1 else few[-1:]
            return all(self.probe(actions) is not None for actions in needed)

        more = other_lengths(self.unit, self.probed, is_known)
        return {**self.probed, **{c.name: c for c in more}}

    @cached_property
    def names(self) -> Mapping[Action, str]:
        """What candidates are called, by what they do."""
        return {c.action: c.name for c in self.candidates.values()}

    @property
    def known_actions(self) -> set[Action]:
        """What need not be offered again: it has a cost, or does not compile."""
        return {c.action for c in (*self.offered, *self.candidates.values())}

    @property
    def has_reference(self) -> bool:
        """Whether there is the cost of recomputing everything."""
        return self._deep(RECOMPUTE_ALL) is not None and self._held_to is not None

    @cached_property
    def _held_to(self) -> str | None:
        """With which candidate's constant rough costs are told: one with two probes.

        Or one whose program has all layers, where that is enough.
        """

        def has_enough(name: str) -> bool:
            is_whole = self._is_whole(self.probed[name].action)
            has_second = is_whole or self._shallow(name) is not None
            return has_second and self._deep(name) is not None

        return next(filter(has_enough, (RECOMPUTE_ALL, *self.probed)), None)

    @cached_property
    def _plain_unrolled(self) -> str | None:
        """The candidate that is unrolled and keeps all, if it has two probes."""
        name = self.names.get(SAVE(unroll=True))
        if name is None or None in (self._deep(name), self._shallow(name)):
            return None
        return name

    @property
    def _can_peel(self) -> bool:
        return can_peel(self.unit, self.heuristics.most_whole)

    def _cuts(self, action: Action) -> list[tuple[Action, ...]]:
        return cuts(self.unit, action, self.heuristics.most_whole)

    def _deep(self, name: str) -> Probe | None:
        return self.probe(self._cuts(self.candidates[name].action)[-1])

    def _shallow(self, name: str) -> Probe | None:
        return self.probe(self._cuts(self.candidates[name].action)[0])

    def _sources(self, name: str) -> list[str]:
        """Whose probes tell what a candidate costs."""
        one = self.candidates[name]
        is_derived = isinstance(one, OtherLength)
        return [one.probed.name, one.alone.name] if is_derived else [name]

    def has_costs(self, actions: Iterable[Action]) -> bool:
        """Whether all of these have one: what was offered may not be measured yet."""
        return all(self.options.has(self.names.get(one, "")) for one in set(actions))

    # ---- What to ask for -------------------------------------------------------------

    @property
    def first_probes(self) -> list[tuple[Action, ...]]:
        """One cut for each candidate, two for one that all others are held to."""
        reference = self._first_reference
        few = self._cuts(reference.action)
        found = few[:1] if len(few) > 1 and not self._is_whole(reference.action) else []
        more = first_cuts(self.unit, self.probed.values(), self.heuristics.most_whole)
        return [*found, *more]

    @property
    def _first_reference(self) -> Candidate:
        """The candidate that has two cuts at first.

        Whole programs of many layers are told from the one that recomputes everything.
        Of few layers the second cut is the whole, and what keeps more is compiled
        faster and more often chosen.
        """
        few = self.offered[: self.heuristics.fewest_candidates]
        sets = [c for c in few if c.action.kind == "recompute" and not c.action.on_host]
        sets = [c for c in sets if c.action.layers_per_iteration == 1]
        is_short = (
            self.unit.skippable and self.unit.num_layers <= self.heuristics.most_whole
        )
        return sets[-1] if is_short else self.probed[RECOMPUTE_ALL]

    def second_probes(self, names: Iterable[str]) -> list[tuple[Action, ...]]:
        """What is missing for exact costs of candidates.

        Where a stopwatch tells times, whole programs are enough, each as it is: between
        two of them bytes are told by how many layers each has of both.
        """
        if self.unit.num_layers == 1:
            return []
        sources = [self._sources(n) for n in names if n in self.candidates]
        return [
            self._cuts(self.candidates[name].action)[0]
            for name in dict.fromkeys(itertools.chain(*sources))
            if self._shallow(name) is None
            and not self._is_whole(self.candidates[name].action)
        ]

    def _is_whole(self, action: Action) -> bool:
        """Whether one program that is timed has all layers."""
        long = self._cuts(action)[-1]
        return self.heuristics.is_measured and len(long) == self.unit.num_layers

    @property
    def can_unroll(self) -> bool:
        """Whether it is a loop, and not one that takes too long to compile unrolled."""
        unit, limits = self.unit, self.heuristics
        num_operations = unit.num_layers * len(unit.operations)
        return (
            is_loop(unit)
            and unit.num_layers <= limits.most_unrolled_layers
            and num_operations <= limits.most_unrolled_operations
        )

    def not_unrolled(self, more: Iterable[Candidate] = ()) -> "list[Unrolled]":
        """The candidates unrolled, those that are not yet.

        What a layer of a loop keeps is copied into a stack of all layers' and out of it
        again, so what is fastest in a loop need not be so without one.

        Args:
          more: Candidates that are not offered in the loop.
        """
        if not self.can_unroll:
            return []
        joint = Joint(self.unit, stacked=False)
        by_action: dict[Action, Candidate] = {}
        for one in (*self.candidates.values(), *more):
            by_action.setdefault(one.action, one)
        found = [
            unrolled(candidate, joint=joint)
            for candidate in by_action.values()
            if candidate.action.can_unroll
            and not candidate.action.unroll
            and candidate.name not in self.dominated
        ]
        return [one for one in found if one.action not in self.known_actions]

    def unrolled_by(self, number: int, names: Iterable[str]) -> "list[Unrolled]":
        """Candidates of a loop with so many layers to an iteration, those that are new.

        Args:
          number: Layers of an iteration.
          names: Of the candidates, in loops or unrolled.
        """
        unit, limits = self.unit, self.heuristics
        fits = len(self._cuts(SAVE(unroll=number))[-1]) <= unit.num_layers
        num_operations = number * len(unit.operations)
        if not is_loop(unit) or not fits:
            return []
        if num_operations > limits.most_unrolled_operations:
            return []
        plain = dict.fromkeys(plain_of(self.candidates[name]) for name in names)
        can = lambda action: action.can_unroll and not action.on_host
        found = [unrolled(one, number) for one in plain if can(one.action)]
        return [one for one in found if one.action not in self.known_actions]

    @property
    def gains_unrolled(self) -> bool:
        """Whether a candidate takes less time unrolled than in the loop, for sure."""
        most = 1 - self.heuristics.timing_error
        for name, one in self.candidates.items():
            if isinstance(one, Unrolled) and one.plain.name in self.candidates:
                alone, looped = self._deep(name), self._deep(one.plain.name)
                if alone and looped and alone.time_us < most * looped.time_us:
                    return True
        return False

    # ---- Costs -----------------------------------------------------------------------

    @cached_property
    def options(self) -> UnitOptions:
        """All costs that are known: none before the one that others are held to."""
        found = []
        for name, candidate in self.candidates.items() if self.has_reference else ():
            if any(self._deep(source) is None for source in self._sources(name)):
                continue
            cost = self.cost(name)
            base = max(0.0, cost.base_bytes + self.correction)
            shortest = candidate.action.layers_per_iteration
            if self._can_peel and not candidate.action.unroll:
                shortest = max(2, shortest)
            length = candidate.action.segment_length
            found.append(
                dataclasses.replace(
                    cost, base_bytes=base, shortest_run=shortest, segment_length=length
                )
            )
        return UnitOptions(self.unit.name, self.unit.num_layers, tuple(found))

    @property
    def reference(self) -> LayerCost:
        """The cost of recomputing everything."""
        return self.cost(RECOMPUTE_ALL)

    def difference(self, name: str) -> tuple[float, float]:
        """Bytes kept and time of one layer, against recomputing everything."""
        cost, full = self.cost(name), self.reference
        return cost.kept_bytes - full.kept_bytes, cost.time_us - full.time_us

    def cost(self, name: str) -> LayerCost:
        """One layer's, without the correction of all else; rough without two probes."""
        one = self.candidates[name]
        if isinstance(one, OtherLength):
            return one.cost(self.cost(one.probed.name), self.cost(one.alone.name))
        deep, shallow = self._deep(name), self._shallow(name)
        assert deep is not None
        if shallow is None and name == self._held_to:
            return self._share_of(name, deep)
        if shallow is None:
            return self._rough_cost(name, deep)
        action = self.candidates[name].action
        long, short = self._cuts(action)[-1], self._cuts(action)[0]
        layers = _num_taking(long) - _num_taking(short)
        others = len(short) - _num_taking(short)  # they recompute everything
        if layers <= 0:
            kept = self.unit.kept(action).device_bytes
            # Of several layers, the others' costs are against all recomputed.
            alone = self.unit.num_layers == 1
            own = self._deep(RECOMPUTE_ALL)
            assert own is not None
            host = deep.host_bytes - own.host_bytes if alone else 0.0
            time_us = deep.time_us if alone else 0.0
        else:
            kept = (deep.bytes - shallow.bytes) / layers
            host = (deep.host_bytes - shallow.host_bytes) / layers
            if not others:  # what recomputed layers have there is no cost
                host -= self._host_when_recomputed
            time_us = (deep.time_us - shallow.time_us) / layers
            if others:  # the slopes are against layers that recompute everything
                kept += self.unit.kept(RECOMPUTE).device_bytes
            if self.heuristics.is_measured:
                time_us = self._by_whole_us(name, time_us)
        kept = max(0.0, kept)
        base = deep.bytes - _num_taking(long) * kept - self.kept_by_others
        return LayerCost(name, kept, base, max(0.0, host), time_us)

    def _by_whole_us(self, name: str, alone_us: float) -> float:
        """Time of a layer that a stopwatch told, against the one it is held to.

        Of two programs that were run, the difference has the errors of both, and half
        the layers make it twice as large. All candidates share that of one.
        """
        held_to, deep = self._held_to, self._deep(name)
        if held_to in (None, name):
            return alone_us
        known, reference = self.cost(held_to), self._deep(held_to)
        assert deep is not None
        assert reference is not None
        long = self._cuts(self.candidates[name].action)[-1]
        if len(long) != len(self._cuts(self.candidates[held_to].action)[-1]):
            return alone_us
        return known.time_us + (deep.time_us - reference.time_us) / len(long)

    def _share_of(self, name: str, whole: Probe) -> LayerCost:
        """One of all layers, as the others are held to it.

        All programs have as many, so only what they take more than this tells anything.
        """
        number, action = self.unit.num_layers, self.candidates[name].action
        kept = float(self.unit.kept(action).device_bytes)
        base = whole.bytes - number * kept - self.kept_by_others
        return LayerCost(name, kept, base, 0.0, whole.time_us / number)

    @cached_property
    def _host_when_recomputed(self) -> float:
        """Bytes that one layer has on the host even if it recomputes everything."""
        own, known = self._deep(RECOMPUTE_ALL), self._held_to
        if own is None or known is None:
            return 0.0
        few = self._cuts(self.candidates[known].action)
        deep, shallow = self._deep(known), self._shallow(known)
        layers = len(few[-1]) - len(few[0])
        if deep is None or shallow is None or layers <= 0:
            return 0.0
        more = (own.host_bytes - deep.host_bytes) / len(few[-1])
        return (deep.host_bytes - shallow.host_bytes) / layers + more

    def _rough_cost(self, name: str, deep: Probe) -> LayerCost:
        """As if all but the kept bytes were as with the one it is held to.

        Of unrolled layers all else takes less if nothing is recomputed, so what a layer
        keeps is between two numbers. What it keeps on paper tells which it is.
        """
        assert self._held_to is not None
        known, reference = self.cost(self._held_to), self._deep(self._held_to)
        own = self._deep(RECOMPUTE_ALL)
        assert reference is not None
        assert own is not None
        action = self.candidates[name].action
        n = _num_taking(self._cuts(action)[-1])
        kept = max(0.0, known.kept_bytes + (deep.bytes - reference.bytes) / n)
        time_us = known.time_us + (deep.time_us - reference.time_us) / n
        if action.unroll is True and self._plain_unrolled is not None:
            least_base = self.cost(self._plain_unrolled).base_bytes
            most = (deep.bytes - least_base - self.kept_by_others) / n
            kept = max(kept, min(most, self.unit.kept(action).device_bytes))
        base = deep.bytes - n * kept - self.kept_by_others
        host = max(0.0, deep.host_bytes - own.host_bytes) / n
        return LayerCost(name, kept, base, host, time_us)

    @cached_property
    def peeled(self) -> PeeledCosts:
        """What the first and the last layer cost outside of their loop."""
        most_whole = self.heuristics.most_whole
        known = self.unit, self.candidates, self.probe, self._deep
        return PeeledCosts(*known, most_whole)

    def layers_us(self, runs: Runs) -> float:
        """Time of all layers by their estimated costs, of peeled ones by theirs."""
        total = sum(n * self.cost(name).time_us for name, n in runs)
        for more_us in self.peeled.more_us(runs, lambda name: self.cost(name).time_us):
            total += more_us
        return total


def _num_taking(actions: Sequence[Action]) -> int:
    """Layers that take the action in question; all of them if all are recomputed."""
    number = sum(action != RECOMPUTE for action in actions)
    return number or len(actions)
