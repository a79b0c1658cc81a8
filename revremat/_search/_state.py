"""State: all that is known in a search, which only grows."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from revremat import policies
from revremat._action import RECOMPUTE, Action
from revremat._graph import Unit
from revremat._measure import Failure
from revremat._measurement import Measurement
from revremat._plan import Plan
from revremat._search._keys import BASELINE, Actions, ProbeKey, ProgramKey, Request
from revremat._search._layer_costs import RECOMPUTE_ALL, LayerCosts, summary
from revremat._search._probes import Probe, whole_of
from revremat._search._result import Row, Skipped
from revremat._search._space import Space
from revremat.policies import Assignment, Candidate, Counts, Support, UnitOptions


@dataclass(frozen=True)
class Trial:
    """One whole program that was measured.

    Attributes:
      key: Which.
      label: What it was called when it was asked for.
      plan: Its plan; None for the baseline.
      outcome: What the target's compiler says, or why it could not.
      predicted_bytes: What was expected of it; None if nothing was.
    """

    key: ProgramKey
    label: str
    plan: Plan | None
    outcome: Measurement | Failure
    predicted_bytes: float | None = None

    @property
    def row(self) -> Row | None:
        """What is told of it; None for what does not compile."""
        if isinstance(self.outcome, Failure):
            return None
        return Row(self.name, self.plan, self.outcome, self.predicted_bytes)

    @property
    def name(self) -> str:
        """What tables call it."""
        order = "; gradient barrier" if self.key.gradient_barrier else ""
        order += "; gradients put off" if self.key.puts_gradients_off else ""
        percent = self.key.remat_pass_percent
        limit = "" if percent is None else f"; XLA's remat pass at {percent} %"
        return f"{self.label}{order}{limit}"


class OutOfCompiles(Exception):
    """A limit of compiles was reached while a pass was asking.

    Args:
      state: All that is known then.
      number: How many more programs were asked for.
    """

    def __init__(self, state: "State", number: int):
        super().__init__(f"{number} programs more than are allowed")
        self.state, self.number = state, number


@dataclass(frozen=True)
class State:
    """All that is known; passes give a new one that knows more.

    Attributes:
      space: What is fixed.
      budget_bytes: Per device.
      candidates: From unit to everything offered for it so far, in that order.
      probes: Shortened programs, by what was compiled.
      failed_labels: What shortened programs were called that could not be compiled.
      trials: Whole programs, by what was compiled.
      units: Units that are decided: those of the space whose layers can be recomputed.
      isolated: Units whose probes are of the unit alone.
      calibration: From unit to what all else takes more than its probes say, in bytes.
      gradient_barrier: Whether programs hold layers' gradients together.
      dominated: From unit to candidates that are not worth unrolling.
      dropped_maxima: From unit to maxima of a softmax that are better not kept.
      generated: Units and candidates that column generation added.
      exhausted: Programs and budgets; near those programs nothing is faster that fits.
      compared: What was held against its runners-up, and by how many candidates.
      is_profiled: Whether layers' first costs are known.
      leading: What costs liked best, before it was compiled.
      bound_us: Time of a step that no assignment of these candidates can beat, by their
        costs; 0 where that is not known.
      greedy_us: What costs say of a greedy assignment; None if it found none.
      is_bounded: Whether that was asked for; passes may take the bound back.
      is_settled: Whether nothing that is left could gain enough for this budget.
      nested: States of what is inside of units, by whether those recompute everything;
        None where there is nothing to decide.
      num_compiles: Programs measured, shortened ones included.
      skipped: What a limit of compiles cut off.
    """

    space: Space
    candidates: Mapping[str, tuple[Candidate, ...]]
    units: tuple[Unit, ...]
    budget_bytes: int = 0
    probes: Mapping[ProbeKey, Probe | Failure] = field(default_factory=dict)
    failed_labels: Mapping[ProbeKey, str] = field(default_factory=dict)
    trials: Mapping[ProgramKey, Trial] = field(default_factory=dict)
    isolated: frozenset[str] = frozenset()
    calibration: Mapping[str, float] = field(default_factory=dict)
    gradient_barrier: bool = False
    dominated: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dropped_maxima: Mapping[str, frozenset[str]] = field(default_factory=dict)
    generated: frozenset[tuple[str, str]] = frozenset()
    exhausted: frozenset[tuple[ProgramKey, int]] = frozenset()
    compared: frozenset[tuple[Any, ...]] = frozenset()
    is_profiled: bool = False
    leading: Assignment | None = None
    bound_us: float = 0.0
    greedy_us: float | None = None
    is_bounded: bool = False
    is_settled: bool = False
    nested: Mapping[bool, "State | None"] = field(default_factory=dict)
    num_compiles: int = 0
    skipped: tuple[Skipped, ...] = ()

    @staticmethod
    def of(space: Space, **known: Any) -> "State":
        """Nothing is known but what was proposed, and what is given."""
        return State(space, dict(space.proposed), space.units, **known)

    def but(self, **changes: Any) -> "State":
        """The same with more known."""
        return dataclasses.replace(self, **changes)

    def within(self, budget_bytes: int) -> "State":
        """The same for a budget; what was chosen for another is forgotten."""
        return self.but(
            budget_bytes=budget_bytes,
            leading=None,
            bound_us=0.0,
            greedy_us=None,
            is_bounded=False,
            is_settled=False,
        )

    # ---- What is measured ------------------------------------------------------------

    def with_measured(
        self, request: Request, outcome: Measurement | Failure
    ) -> "State":
        """The same, and what was measured."""
        key, number = request.key, self.num_compiles + 1
        if isinstance(key, ProgramKey):
            plan = key.plan(self.space.graph)
            predicted = request.predicted_bytes
            trial = Trial(key, request.label, plan, outcome, predicted)
            return self.but(trials={**self.trials, key: trial}, num_compiles=number)
        if isinstance(outcome, Failure):
            labels = {**self.failed_labels, key: request.label}
            probes = {**self.probes, key: outcome}
            return self.but(probes=probes, failed_labels=labels, num_compiles=number)
        probe = probe_of(outcome)
        trials = {**self.trials, **self._as_whole(key, request.label, outcome)}
        probes = {**self.probes, key: probe}
        return self.but(probes=probes, trials=trials, num_compiles=number)

    def _as_whole(
        self, key: ProbeKey, label: str, outcome: Measurement
    ) -> dict[ProgramKey, Trial]:
        """A shortened program that has all layers, as the whole one that it is.

        Where estimates tell times, a choice by costs comes to the same. Measured times
        differ from the sums of their layers.
        """
        if not self.space.heuristics.is_measured:
            return {}
        whole = whole_of(self.space.graph, key)
        if whole is None or whole in self.trials:
            return {}
        if key.recomputed:
            label += "; all else is recomputed"
        else:
            label = label.removeprefix(f"{key.unit}: ")
        return {whole: Trial(whole, label, whole.plan(self.space.graph), outcome)}

    def gains_unrolled(self, unit: Unit) -> bool:
        """Whether a stopwatch found that a loop takes less time unrolled."""
        return (
            self.space.heuristics.is_measured
            and self.space.unroll
            and self.costs[unit.name].gains_unrolled
        )

    def with_expected(self, request: Request) -> "State":
        """The same, and what is now expected of a program that was measured before."""
        key = request.key
        if not isinstance(key, ProgramKey) or request.predicted_bytes is None:
            return self
        if (known := self.trials[key]).predicted_bytes is not None:
            return self
        new = dataclasses.replace(known, predicted_bytes=request.predicted_bytes)
        return self.but(trials={**self.trials, key: new})

    def knows(self, request: Request) -> bool:
        """Whether a program was measured already."""
        if isinstance(request.key, ProgramKey):
            return request.key in self.trials
        return self.probed(request.key) is not None

    def probed(self, key: ProbeKey) -> Probe | Failure | None:
        """What became of a shortened program; of one with all layers, of the whole.

        Where estimates tell times it is asked for by itself, as `_as_whole` says.
        """
        one = self.probes.get(key)
        if one is not None or not self.space.heuristics.is_measured:
            return one
        whole = whole_of(self.space.graph, key)
        trial = None if whole is None else self.trials.get(whole)
        if trial is None or isinstance(trial.outcome, Failure):
            return None
        return probe_of(trial.outcome)

    def row(self, key: ProgramKey) -> Row | None:
        """What is told of a whole program; None if it is not known to compile."""
        trial = self.trials.get(key)
        return trial.row if trial else None

    @cached_property
    def rows(self) -> Mapping[ProgramKey, Row]:
        """Every whole program that compiles, in the order in which they were asked."""
        found = ((key, trial.row) for key, trial in self.trials.items())
        return {key: row for key, row in found if row is not None}

    @property
    def baseline(self) -> Row:
        """The program without a plan."""
        return self.rows[BASELINE]

    @property
    def reference(self) -> Row | None:
        """The program all of whose layers recompute everything."""
        return self.row(self.reference_key)

    @property
    def reference_key(self) -> ProgramKey:
        return self.key_of({u.name: (RECOMPUTE,) * u.num_layers for u in self.units})

    @property
    def host_bytes(self) -> float:
        """What layers may keep on the host of each device, beside the program's own."""
        own = self.reference.measurement.memory.host_bytes if self.reference else 0
        return max(0.0, self.space.target.host_bytes - own)

    @cached_property
    def best(self) -> Row:
        """The fastest program that fits, or else the smallest."""
        return best_of(self.rows.values(), self.budget_bytes)

    @property
    def fits(self) -> bool:
        """Whether any program does."""
        return self.best.bytes <= self.budget_bytes

    @property
    def arguments_exceed(self) -> bool:
        """Whether the step's arguments alone are more than the budget."""
        memory = self.baseline.measurement.memory
        return memory.argument_bytes > self.budget_bytes

    @property
    def known_bound_us(self) -> float:
        """What no assignment beats, where a plan fits; 0 where that is not known.

        Of plans whose gradients are put off it is not, nor where the best plan is much
        faster: then it has layers without costs.
        """
        best, off_whole = self.best, self.space.heuristics.off_whole
        if not self.fits or (best.plan is not None and best.plan.puts_gradients_off):
            return 0.0
        if self.bound_us > (1 + off_whole) * best.time_us:
            return 0.0
        return min(self.bound_us, best.time_us)

    # ---- Programs of this space ------------------------------------------------------

    def key_of(
        self, actions: Actions, gradient_barrier: bool | None = None
    ) -> ProgramKey:
        """A program whose units take these actions; what is around recomputes all."""
        if gradient_barrier is None:
            gradient_barrier = self.gradient_barrier
        around = {u.name: (RECOMPUTE,) * u.num_layers for u in self.space.enclosing}
        taken = {**around, **actions}
        units = [u.name for u in self.space.graph.units if u.name in taken]
        return ProgramKey.of({name: taken[name] for name in units}, gradient_barrier)

    def probe_key(self, unit: Unit, actions: tuple[Action, ...]) -> ProbeKey:
        """A shortened program of a unit's first layers, or of one that is alike."""
        unit = self.space.first_alike[unit.name]
        is_isolated = unit.name in self.isolated
        others = (*self.space.enclosing, *self.units)
        names = () if is_isolated else tuple(u.name for u in others if u != unit)
        barrier = self.gradient_barrier
        return ProbeKey(unit.name, actions, names, is_isolated, barrier)

    def assignment_request(
        self, counts: Counts, predicted_bytes: float | None = None
    ) -> Request | None:
        """A program by its candidates; None if one of those does not compile."""
        actions = {}
        for unit, runs in counts.items():
            candidates = self.costs[unit].candidates
            if not all(name in candidates for name, _ in runs):
                return None
            actions[unit] = tuple(
                candidates[name].action for name, n in runs for _ in range(n)
            )
        around = {
            u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in self.space.enclosing
        }
        label = summary({**around, **counts})
        return Request(self.key_of(actions), label, predicted_bytes)

    def all_recomputed(self, predicted_bytes: float | None = None) -> Request:
        """The program that all others are held to."""
        counts = {u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in self.units}
        found = self.assignment_request(counts, predicted_bytes)
        assert found is not None
        return found

    def decided(self, row: Row) -> dict[str, tuple[Action, ...]]:
        """A row's actions without those of what is around, if those are as here."""
        actions = dict(row.plan.actions) if row.plan else {}
        for unit in self.space.enclosing:
            if actions.pop(unit.name, ()) != (RECOMPUTE,) * unit.num_layers:
                return {}
        return actions

    def counts_of(self, row: Row) -> Counts:
        """A row's plan as runs of candidates."""
        return self.counts(self.decided(row))

    def counts(self, actions: Actions) -> Counts:
        """Units' actions as runs of candidates."""
        found = {}
        for unit, costs in self.costs.items():
            if unit in actions:
                runs = groupby(map(costs.names.__getitem__, actions[unit]))
                found[unit] = tuple((name, len(list(run))) for name, run in runs)
        return found

    def is_costed(self, row: Row) -> bool:
        """Whether all actions of a program have costs: presets need not have any."""
        if row.plan is None or row.plan.gradient_barrier != self.gradient_barrier:
            return False
        if row.plan.remat_pass_percent is not None or row.plan.puts_gradients_off:
            return False
        actions = self.decided(row)
        return actions.keys() == self.costs.keys() and all(
            self.costs[unit].has_costs(taken) for unit, taken in actions.items()
        )

    @property
    def best_costed(self) -> Row | None:
        """The best program whose actions have costs."""
        rows = [row for row in self.rows.values() if self.is_costed(row)]
        return best_of(rows, self.budget_bytes) if rows else None

    def key_of_row(self, row: Row) -> ProgramKey:
        """The key of one of the rows."""
        if row.plan is None:
            return BASELINE
        plan = row.plan
        return ProgramKey.of(
            plan.actions,
            plan.gradient_barrier,
            plan.remat_pass_percent,
            plan.puts_gradients_off,
        )

    # ---- Costs -----------------------------------------------------------------------

    @cached_property
    def costs(self) -> Mapping[str, LayerCosts]:
        """What is known of every unit's layers, by units' names."""
        return self.costs_with(self.calibration)

    def costs_with(self, calibration: Mapping[str, float]) -> dict[str, LayerCosts]:
        """The same as if all else took that much more than probes say."""
        return {
            unit.name: self._costs(unit, calibration.get(unit.name, 0.0))
            for unit in self.units
        }

    def _costs(self, unit: Unit, correction: float) -> LayerCosts:
        def found(actions: tuple[Action, ...]) -> Probe | Failure | None:
            return self.probed(self.probe_key(unit, actions))

        def probe(actions: tuple[Action, ...]) -> Probe | None:
            one = found(actions)
            return None if isinstance(one, Failure) else one

        others = sum(
            u.num_layers * u.kept(RECOMPUTE).device_bytes
            for u in self.units
            if u != unit
        )
        is_isolated = unit.name in self.isolated
        return LayerCosts(
            unit,
            self.candidates[unit.name],
            probe,
            lambda actions: isinstance(found(actions), Failure),
            is_isolated,
            0.0 if is_isolated else float(others),
            correction,
            self.dominated.get(unit.name, ()),
            self.space.heuristics,
        )

    @cached_property
    def options(self) -> tuple[UnitOptions, ...]:
        """All costs that are known, of the units that have some."""
        return tuple(c.options for c in self.costs.values() if c.has_reference)

    def layers_us(self, row: Row) -> float:
        """Time of a compiled program's layers by their estimated costs."""
        runs = self.counts_of(row)
        return sum(
            costs.layers_us(runs[unit])
            for unit, costs in self.costs.items()
            if unit in runs
        )

    def options_without(self, kinds: Collection[str]) -> Sequence[UnitOptions]:
        """Costs of what is not of these kinds.

        Args:
          kinds: "unroll", what is unrolled; "in_loops", what could be and is not;
            "on_host"; "generated", what column generation added.
        """
        found: Sequence[UnitOptions] = self.options
        for kind in kinds:
            found = [
                unit_options.only(self.lacking(kind, unit_options.unit))
                for unit_options in found
            ]
        return found

    def lacking(self, kind: str, unit: str) -> set[str]:
        """Names of a unit's candidates that are not of a kind."""
        if kind == "generated":
            is_of = lambda c: (unit, c.name) in self.generated
        elif kind == "in_loops":
            can_unroll = self.costs[unit].can_unroll
            is_of = lambda c: can_unroll and c.action.unroll is not True
        else:
            is_of = lambda c: getattr(c.action, kind)
        return {c.name for c in self.costs[unit].candidates.values() if not is_of(c)}

    @property
    def far_off(self) -> tuple[str, ...]:
        """Kinds whose programs take much more than their costs say."""
        rows = [row for row in self.rows.values() if row.takes("unroll")]
        most = self.space.heuristics.far_off
        far_off = any(
            row.predicted_bytes is not None and row.bytes > most * row.predicted_bytes
            for row in rows
        )
        return ("unroll",) if far_off else ()

    def assign(
        self, options: Sequence[UnitOptions], limit: float, **how: Any
    ) -> Assignment | None:
        """The fastest assignment of these options that the host has room for."""
        distinct = [unit_options.distinct() for unit_options in options]
        return policies.choose(
            distinct, limit, host_budget_bytes=self.host_bytes, **how
        )

    # ---- A limit of compiles ---------------------------------------------------------

    @property
    def room(self) -> int | None:
        """How many compiles more are allowed; None for as many as it takes."""
        most = self.most_compiles
        return None if most is None else max(0, most - self.num_compiles)

    @property
    def most_compiles(self) -> int | None:
        """How many are allowed in all, by what is known; None for as many as it takes.

        A quick search does not end on what recomputes all when the next program is the
        first choice by costs. It ends where unrolled layers fit and are the best.
        """
        most, space = self.space.most_compiles, self.space
        if most is None:
            return None
        if not self.is_chosen:
            return max(most, space.most_to_choose)
        if not space.most_on_paper or not self.recomputes_unrolled:
            return most
        if self.better_in_loops is not None:  # until that is measured
            return max(most, self.num_compiles + 1)
        return min(most, space.most_on_paper + self.leaves_much)

    @property
    def recomputes_unrolled(self) -> bool:
        """Whether the best program fits and has unrolled layers that recompute."""
        taken = chain.from_iterable(self.decided(self.best).values())
        ways = {(action.kind, action.unroll) for action in taken}
        return self.fits and ("recompute", True) in ways

    @cached_property
    def better_in_loops(self) -> Assignment | None:
        """An assignment all in loops that costs call better than the best program."""
        if not self.fits or self.reference is None:
            return None
        options = self.options_without(("unroll",))
        found = self.assign(options, self.budget_bytes)
        request = found and self.assignment_request(found.counts)
        if found is None or request is None or self.knows(request):
            return None
        fixed_us = self.reference.time_us - self.layers_us(self.reference)
        least_gain = 1 + self.space.heuristics.least_gain_settled
        promised_us = found.time_us + fixed_us
        return found if least_gain * promised_us < self.best.time_us else None

    @property
    def leaves_much(self) -> bool:
        """Whether the best program has unrolled layers and leaves much memory."""
        most_left = self.space.heuristics.most_left_on_paper
        least_bytes = (1 - most_left) * self.budget_bytes
        return self.recomputes_unrolled and self.best.bytes < least_bytes

    @property
    def is_chosen(self) -> bool:
        """Whether any program fits but the one that recomputes all."""
        others = (row for key, row in self.rows.items() if key != self.reference_key)
        return any(row.bytes <= self.budget_bytes for row in others)

    def skip(self, what: str, number: int) -> "State":
        """The same, and which pass was cut for want of compiles."""
        return self.but(skipped=(*self.skipped, Skipped(what, number)))

    @property
    def num_needed(self) -> int:
        """Compiles without which nothing is known of any plan."""
        return 1 + sum(len(c.first_probes) for c in self.costs.values()) + 1


def probe_of(outcome: Measurement) -> Probe:
    """What is told of a shortened program."""
    memory = outcome.memory
    return Probe(memory.total_bytes, memory.host_bytes, outcome.time.step_us)


def best_of(rows: Collection[Row], budget_bytes: int) -> Row:
    """The fastest that fits, or else the smallest."""
    fitting = [row for row in rows if row.bytes <= budget_bytes]
    if fitting:
        return min(fitting, key=lambda row: (row.time_us, row.bytes))
    return min(rows, key=lambda row: row.bytes)


def support_of(support: Support, costs: LayerCosts) -> list[str]:
    """The chosen candidates of one unit; what keeps least on the device comes first."""
    chosen = [
        c for name, c in costs.candidates.items() if (costs.unit.name, name) in support
    ]
    chosen.sort(key=lambda c: costs.unit.kept(c.action).device_bytes)
    return [c.name for c in chosen]
