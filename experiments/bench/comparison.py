"""One program: what the search and its baselines return at several budgets."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import revremat as rr
from experiments.bench.baselines import BASELINES, Baseline, Comparison
from experiments.bench.plain_jax import Loops, num_layers, ways, written
from experiments.bench.searching import Actions, Row, Searching
from revremat import Unit, format_bytes, policies, xla
from revremat.policies import PRESETS, Candidate, UnitOptions, preset

Tell = Callable[[str], None]
_JUST_UNDER = 0.999
_TO_SPARE = 1.001


def budgets_of(search: Searching, number: int) -> list[int]:
    """Evenly spaced by ratio, from just under plain to the smallest that was compiled.

    Args:
      search: Prepared.
      number: How many, 2 or more.
    """
    plain = _JUST_UNDER * search.baseline().bytes
    limit = _TO_SPARE * policies.smallest_bytes(search.options)
    host_bytes = search.target.host_bytes
    assignment = policies.choose(search.options, limit, host_budget_bytes=host_bytes)
    if assignment is not None:
        search.try_assignment(assignment)
    smallest = min(plain, search.best(0).bytes)
    ratio = (smallest / plain) ** (1 / (number - 1))
    return [*(int(plain * ratio**k) for k in range(number - 1)), math.ceil(smallest)]


def comparison_of(search: Searching) -> Comparison:
    """The search's program for baselines, who share its compiles.

    Plans that keep the same are compiled once, whatever their names.
    """
    rows: dict[Any, Row | None] = {}
    options: dict[bool, tuple[UnitOptions, ...]] = {}
    problem = search.problem
    memory = search.baseline().measurement.memory
    fixed = memory.argument_bytes + memory.output_bytes - memory.alias_bytes

    def compile(name: str, actions: Actions | None) -> Row | None:
        key = None if actions is None else _kept(search, actions)
        if key not in rows:
            rows[key] = search.add(name, actions)
        return rows[key]

    def presets(unroll: bool = False) -> tuple[UnitOptions, ...]:
        if unroll not in options:
            options[unroll] = tuple(_preset_options(search, unroll))
        return options[unroll]

    def write(loops: Loops | None, limit: int | None) -> Row | None:
        if (loops, limit) not in rows:
            loss = problem.loss if loops is None else written(problem.loss, loops)
            name = str(loops or "baseline") + _limit_text(limit)
            rows[loops, limit] = search.write(name, loss, limit)
        return rows[loops, limit]

    return Comparison(
        tuple(search.units),
        compile,
        presets,
        write,
        tuple(ways(problem.loss, problem.specs)),
        num_layers(problem.loss, problem.specs),
        lambda size: xla.remat_pass_percent(search.target, int(size), fixed),
    )


def _limit_text(limit: int | None) -> str:
    return "" if limit is None else f"; XLA's remat pass at {limit} %"


def _kept(search: Searching, actions: Actions) -> tuple[Any, ...]:
    found, plan = [], search.state.space.graph.plan(actions)
    for unit in search.units:
        for action in plan.actions[unit.name]:
            kept = unit.kept(action)
            how = action.kind, action.chunks, action.segment_length, action.unroll
            found.append((*how, kept.saved, kept.offloaded, kept.ahead))
    return tuple(found)


def _preset_options(search: Searching, unroll: bool) -> list[UnitOptions]:
    """Measured costs of the presets, by two compiles each."""
    all_options = []
    for unit in search.units:
        every = search.choices[unit.name]
        choices = {n: c for n, c in every.items() if c.action.unroll == unroll}
        choices = choices or every  # what is no loop cannot be unrolled
        nearest = {n: _nearest(unit, choices, n) for n in PRESETS}
        search.refine(frozenset((unit.name, name) for name in nearest.values()))
        unit_options = search.state.costs[unit.name].options
        by_name = {p.name: p for p in unit_options.costs}
        found = (dataclasses.replace(by_name[nearest[n]], name=n) for n in PRESETS)
        all_options.append(dataclasses.replace(unit_options, costs=tuple(found)))
    return all_options


def _nearest(unit: Unit, choices: Mapping[str, Candidate], name: str) -> str:
    """The candidate whose cost is the preset's: its own where it has one."""
    if name in choices:
        return name
    kept = unit.kept(preset(unit, name).action)
    distances = []
    for other, candidate in choices.items():
        action = candidate.action
        plain = action.can_group and action.segment_length == 1
        if action.kind != "invert" and plain:
            mine = unit.kept(action)
            size = abs(mine.device_bytes - kept.device_bytes)
            flops = abs(mine.recompute_flops - kept.recompute_flops)
            distances.append((size, flops, other))
    return min(distances)[-1]


class Searched:
    """A search of one program, and its answers at the budgets it was asked for.

    Args:
      problem: The program.
      target: Where it would run.
      tell: Gets a line now and then.
      stop: Called before each compile; whatever it raises ends the search.
      unroll: Whether the search may unroll loops.
    """

    def __init__(
        self,
        problem: rr.Problem,
        target: rr.Target,
        tell: Tell = print,
        stop: Callable[[], None] = lambda: None,
        unroll: bool = True,
    ):
        self.began, self.load = time.perf_counter(), os.getloadavg()[0]
        self.tell, self.unroll = tell, unroll
        self.search = Searching(problem, target, lambda *_: stop(), unroll)
        self.search.prepare()
        self.plain = self.search.baseline()
        self.alone: dict[int, dict[str, Any]] = {}

    def say(self, what: str) -> None:
        """Tells what is done."""
        self.tell(f"{self.search.done} compiles, {self.seconds:.0f} s: {what}")

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.began

    def ask(self, budget: int) -> None:
        """Searches at one budget."""
        fit = self.search.fit(budget)
        first_us = fit.measurement.time.step_us if fit.plan.fits else None
        self.alone[budget] = {
            "at_once_us": first_us,
            "bound_us": fit.bound_us,
            "filled": fit.filled,
        }
        self.say(f"searched at {format_bytes(budget)}")

    def answer(self, budget: int) -> dict[str, Any] | None:
        """The best for a budget of all that was compiled so far; None if none fits."""
        best = self.search.best(budget)
        if best.bytes > budget:
            return None
        assert best.plan is not None
        plan = [str(unit) for unit in best.plan.units]
        how = {**self.alone[budget], "unroll": self.unroll, "plan": plan}
        return {**_told(best), **how}

    def alike(self, budget: int) -> dict[str, Any] | None:
        """The best for a budget of all that treat a unit's layers alike."""
        fitting = [r for r in self.search.rows if r.alike and r.bytes <= budget]
        by_time = lambda r: (r.time_us, r.bytes)
        return _row(min(fitting, key=by_time, default=None))

    def about(self) -> dict[str, Any]:
        """What any answer holds for."""
        return {
            "target": self.search.target.spec,
            "versions": self.plain.measurement.versions,
            "baseline": _told(self.plain),
        }

    def no_more_memory(self) -> dict[str, Any]:
        """The fastest that take no more than the baseline."""
        rows = [r for r in self.search.rows if r.plan is not None]
        rows = [r for r in rows if r.bytes <= self.plain.bytes]
        by_time = lambda r: (r.time_us, r.bytes)
        fused = min(filter(_only_recomputes, rows), key=by_time, default=None)
        best = min(rows, key=by_time, default=None)
        return {"fusion-aware": _row(fused), "search": _row(best)}


def comparison(
    searched: Searched,
    num_budgets: int = 8,
    kinds: Sequence[type[Baseline]] = BASELINES,
) -> Iterator[dict[str, Any]]:
    """All of one program's figures, for JSON.

    The search runs first, at all budgets, and its answers are taken from what it
    compiled itself; then the baselines run. A baseline's figures are there once it is
    done with all budgets.

    Args:
      searched: Has not been asked for any budget.
      num_budgets: How many budgets.
      kinds: The baselines.

    Yields:
      Budgets, each with the search's answer, the fastest plan with all layers alike,
      and every baseline's best so far (None where none of its proposals fits). What the
      baseline takes, as it is and with its loops unrolled, the fastest that take no
      more, compiles and seconds. The last is complete.
    """
    search = searched.search
    budgets = budgets_of(search, num_budgets)
    searched.say("costs")
    for budget in budgets:
        searched.ask(budget)
    mine = [searched.answer(budget) for budget in budgets]
    alike = [searched.alike(budget) for budget in budgets]
    no_more = searched.no_more_memory()
    compiles, seconds = {"search": search.done}, {"search": searched.seconds}
    comparison = comparison_of(search)
    way = Loops("unrolled")
    plain = comparison.write(way, None) if way in comparison.ways else None

    def figures(done: Sequence[Baseline], is_complete: bool) -> dict[str, Any]:
        return {
            **searched.about(),
            "unrolled": _row(plain),
            "units": {u.name: u.num_layers for u in search.units},
            "budgets": [
                {
                    "budget_bytes": budget,
                    "search": answer,
                    "alike": same,
                    "baselines": {r.name: _row(r.best(budget)) for r in done},
                }
                for budget, answer, same in zip(budgets, mine, alike, strict=True)
            ],
            "no_more_memory": no_more,
            "compiles": compiles,
            "seconds": {name: round(s, 1) for name, s in seconds.items()},
            "load": round(searched.load, 1),
            "complete": is_complete,
        }

    done: list[Baseline] = []
    for kind in kinds:
        baseline = kind(comparison)
        before, start = search.done, searched.seconds
        for budget in budgets:
            baseline.ask(budget)
        compiles[baseline.name] = search.done - before
        seconds[baseline.name] = searched.seconds - start
        searched.say(baseline.name)
        done.append(baseline)
        yield figures(done, is_complete=len(done) == len(kinds))


def search_again(
    searched: Searched, known: dict[str, Any], places: Sequence[int] = ()
) -> Iterator[dict[str, Any]]:
    """Figures there are, with the search's anew; whole after each budget.

    Args:
      searched: Of the same program.
      known: Figures whose budgets and baselines stay.
      places: Which of the budgets, the first is 1; by default all.

    Yields:
      The figures: where it was not asked yet, the search's are those of before; its
      compiles and seconds are those of now.

    Raises:
      UserError: What is known is of another program, another target or other compilers,
        or has no such budget.
    """
    for what, value in searched.about().items():
        if known[what] != value:
            raise rr.UserError(
                f"baselines' figures cannot stay, {what.replace('_', ' ')} is {value} "
                f"and was {known[what]}: write --again instead"
            )
    number = len(known["budgets"])
    if unknown := sorted(set(places) - set(range(1, number + 1))):
        raise rr.UserError(f"there is no budget {unknown[0]}, there are 1 to {number}")
    searched.say("costs")
    by_time = lambda r: (r["step_us"], r["bytes"])
    for place in places or range(1, number + 1):
        searched.ask(known["budgets"][place - 1]["budget_bytes"])
        now = searched.no_more_memory()
        yield {
            **known,
            "units": {u.name: u.num_layers for u in searched.search.units},
            "budgets": [
                {**at, "search": searched.answer(at["budget_bytes"])}
                if at["budget_bytes"] in searched.alone
                else at
                for at in known["budgets"]
            ],
            "no_more_memory": {
                kind: min(filter(None, [before, now[kind]]), key=by_time, default=None)
                for kind, before in known["no_more_memory"].items()
            },
            "compiles": {**known["compiles"], "search": searched.search.done},
            "seconds": {**known["seconds"], "search": round(searched.seconds, 1)},
            "load": round(searched.load, 1),
        }


def _row(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else _told(row)


def _told(row: Row) -> dict[str, Any]:
    return {"name": row.name, "bytes": row.bytes, "step_us": row.time_us}


def _only_recomputes(row: Row) -> bool:
    """Whether a plan is what a minimum cut can say: to keep or to recompute."""
    assert row.plan is not None
    actions = (a for unit in row.plan.units for a in set(unit.actions))
    return all(
        a.kind in ("save", "recompute")
        and a.can_group
        and a.segment_length == 1
        and not a.unroll
        for a in actions
    )


def plain_json(found: dict[str, Any]) -> str:
    """As it is written to a file."""
    return json.dumps(found, indent=1) + "\n"
