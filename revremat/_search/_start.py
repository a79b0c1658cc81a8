"""How a search starts: the space and the first state of a program, or inside of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from revremat import policies, xla
from revremat._action import RECOMPUTE, Action
from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._graph import Graph, Unit
from revremat._problem import Problem
from revremat._search._chain import chain_of, rates_of
from revremat._search._heuristics import Effort, Heuristics
from revremat._search._layer_costs import RECOMPUTE_ALL, SAVE_ALL
from revremat._search._probe_programs import small_units
from revremat._search._probes import cuts, first_cuts, is_loop
from revremat._search._space import Space
from revremat._search._state import State
from revremat._trace import trace
from revremat.policies import Candidate, Pool
from revremat.program._loss import TracedLoss, trace_loss
from revremat.program.ir._costs import num_bytes
from revremat.program.ir._placement import cut_of, parts_of
from revremat.xla import Target

NOTHING_TO_DECIDE = (
    "there is nothing to decide: every action keeps the same values for the backward "
    "pass"
)

ALL_KEPT = (
    "there is nothing to decide: all layers are in checkpoints of the program's own, "
    "which keep_checkpoints=True leaves as they are; write keep_checkpoints=False"
)


def traced_twice(
    problem: Problem, target: Target, *, keep_checkpoints: bool = False
) -> tuple[Graph, TracedLoss]:
    """A program's units and its loss, which has to be the same program each time.

    Args:
      problem: The program.
      target: Where it would run.
      keep_checkpoints: As for `rr.trace`.

    Raises:
      UserError: It is not.
    """
    again = lambda *args: problem.loss(*args)  # JAX remembers functions it traced
    with xla.traced_for(target):
        loss, specs, keep = problem.loss, problem.specs, keep_checkpoints
        graph = trace(loss, *specs, keep_checkpoints=keep)
        traced = trace_loss(again, specs, keep_checkpoints=keep)
    if traced.fingerprint != graph.fingerprint:
        raise UserError(
            "the loss is another program each time it is traced, so no plan can hold "
            "for it; give it whatever changes between calls (Python's random numbers, "
            "a counter, the time) as an argument."
        )
    return graph, traced


def state_of(
    problem: Problem,
    target: Target,
    graph: Graph,
    traced: TracedLoss,
    *,
    effort: Effort = "exhaustive",
    most_compiles: int | None = None,
    unroll: bool = True,
    timed: bool = False,
    heuristics: Heuristics | None = None,
) -> State:
    """The start of a search.

    Raises:
      UserError: `effort` is none, `most_compiles` is no number of compiles or too
        small, or nothing is to be decided.
    """
    if effort not in (efforts := get_args(Effort)):
        raise UserError(f"effort is {effort!r}: write one of {efforts}")
    if type(most_compiles) not in (int, type(None)):
        raise UserError(
            f"most_compiles is {most_compiles!r}, which is no number of compiles: "
            "write one like 12, or None for as many as it takes"
        )
    heuristics = heuristics or Heuristics()
    if timed:
        heuristics = heuristics.for_measured_times()
    state = start(
        graph,
        target,
        argument_bytes=_argument_bytes(traced),
        small_units=small_units(traced, graph, heuristics),
        repeats_loss=problem.step is not None,
        most_compiles=most_compiles,
        unroll=unroll,
        heuristics=heuristics,
    )
    if most_compiles is not None and most_compiles < state.num_needed:
        raise UserError(
            f"{most_compiles} compiles are too few for this program: a search needs "
            f"{state.num_needed} or more"
        )
    if most_compiles is None:
        # One program more where loops have others inside.
        around = any(unit.enclosing for unit in graph.units)
        needed = state.num_needed + around
        numbers = needed, len(another_of(state))
        runs = timed and state.space.chain is None
        loops = sum(unroll and c.can_unroll for c in state.costs.values())
        how = {"runs": runs, "num_unrolled": loops}
        most = heuristics.most_compiles(effort, *numbers, **how)
        limits: dict[str, Any] = {"most_compiles": most}
        limits["ends_unrolled"] = effort != "exhaustive"
        if effort == "quick" and state.space.chain is None:
            limits["most_to_choose"] = heuristics.most_to_choose(*numbers, **how)
            if loops and not timed:
                few = needed + heuristics.more_on_paper
                limits["most_on_paper"] = few
        state = state.but(space=dataclasses.replace(state.space, **limits))
    return state


def start(
    graph: Graph,
    target: Target,
    *,
    nesting: int = 0,
    enclosing: Sequence[Unit] = (),
    argument_bytes: int | None = None,
    **fixed,
) -> State:
    """The start of a search of one nesting of units.

    Args:
      graph: The program's units.
      target: Where it would run.
      nesting: How many units lie around those.
      enclosing: Those that do and recompute everything.
      argument_bytes: What the loss is given, to say that no plan takes less.
      **fixed: Other attributes of `Space`.

    Raises:
      UserError: Nothing is to be decided.
    """
    space = Space(
        graph,
        target,
        units=(),
        pools=pools_of(graph, target, nesting),
        proposed={},
        nesting=nesting,
        enclosing=tuple(enclosing),
        argument_bytes=argument_bytes or 0,
        **fixed,
    )
    offered = _offered(space, space.heuristics.most_candidates)
    space = _with_units(space, offered)
    space = dataclasses.replace(space, chain=chain_of(graph, target))
    if not space.units and space.chain is None:
        no_units = graph.keep_checkpoints and not graph.units
        bound = "" if argument_bytes is None else _least(argument_bytes)
        raise UserError(ALL_KEPT if no_units else NOTHING_TO_DECIDE + bound)
    first = {unit.name: first_of(space, unit) for unit in space.units}
    return State.of(space).but(candidates=first)


def _least(argument_bytes: int) -> str:
    return (
        ", so no plan takes less than the baseline, which takes at least the "
        f"{format_bytes(argument_bytes)} of the loss's arguments"
    )


def _argument_bytes(traced: TracedLoss) -> int:
    """What the loss is given, per device."""
    avals = [value.aval for value in traced.found.program.inputs]
    parts = (
        parts_of(cut_of(getattr(value, "sharding", None), len(aval.shape)))
        for value, aval in zip(traced.arguments.values, avals, strict=True)
    )
    sizes = map(num_bytes, avals)
    return sum(size // part for size, part in zip(sizes, parts, strict=True))


def first_of(space: Space, unit: Unit) -> tuple[Candidate, ...]:
    """The candidates with which a unit begins: all, nothing, and one between.

    So a plan is found by few compiles; the others follow.
    """
    few, fewest = space.proposed[unit.name], space.heuristics.fewest_candidates
    simple = [c for c in few if c.name in (RECOMPUTE_ALL, SAVE_ALL)]
    actions = _judged(space, unit, fewest)
    others = [c for c in few if c not in simple]
    others.sort(key=lambda c: c.action not in actions)  # those of few come first
    return tuple([*simple, *others][:fewest])


def another_of(state: State) -> dict[str, Candidate]:
    """One candidate more for each unit that has no more than it began with.

    Not for loops that a stopwatch may find to gain unrolled: it is offered so instead.
    """
    space, found = state.space, {}
    is_measured = space.heuristics.is_measured
    for unit in state.units:
        if is_measured and space.unroll and state.costs[unit.name].can_unroll:
            continue
        fewest, known = space.heuristics.fewest_candidates, state.costs[unit.name]
        new = [
            candidate
            for candidate in space.proposed[unit.name]
            if candidate.action not in known.known_actions
        ]
        if not new or len(state.candidates[unit.name]) > fewest:
            continue
        actions = _judged(space, unit, fewest + 1)
        if few := [candidate for candidate in new if candidate.action in actions]:
            found[unit.name] = few[0]
    return found


def _judged(space: Space, unit: Unit, most: int) -> set[Action]:
    """What would be compiled if there were only so many candidates."""
    few = space.pools[unit.name].worth_compiling(most=most)
    return {candidate.action for candidate in few}


def pools_of(graph: Graph, target: Target, nesting: int) -> dict[str, Pool]:
    """What is proposed for every unit of a nesting."""
    rates = rates_of(target)
    return {u.name: Pool(u, rates) for u in nested_units(graph, nesting)}


def nested_units(graph: Graph, nesting: int) -> tuple[Unit, ...]:
    """The units of which so many lie around, and those with fewer and none inside."""
    outer = {unit.enclosing for unit in graph.units}
    depths = {unit.name: len(graph.enclosing(unit.name)) for unit in graph.units}
    return tuple(
        unit
        for unit in graph.units
        if not unit.is_segment  # which are decided all at once
        and (
            depths[unit.name] == nesting
            or (depths[unit.name] < nesting and unit.name not in outer)
        )
    )


def _offered(space: Space, most: int) -> dict[str, tuple[Candidate, ...]]:
    """Candidates of every unit, at most so many each."""
    return {
        name: pool.worth_compiling(
            offload=space.can_offload(pool.unit),
            ahead=space.target.num_devices > 1,
            most=most,
        )
        for name, pool in space.pools.items()
    }


def _with_units(space: Space, offered: Mapping[str, tuple[Candidate, ...]]) -> Space:
    """The space that decides about the units with much to gain."""
    few = policies.shortlist(offered, space.graph.units)
    untouched = [
        n
        for n, unit_options in offered.items()
        if len(unit_options) > 1 and n not in few
    ]
    units = tuple(u for u in space.graph.units if u.name in few)
    return dataclasses.replace(
        space, units=units, proposed=few, untouched=tuple(untouched)
    )


def expected_compiles(state: State) -> int:
    """About how many programs a search will measure."""
    limits, number = state.space.heuristics, state.num_compiles + 2
    for unit in state.units:
        few = state.space.proposed[unit.name]
        number += len(first_cuts(unit, few)) + len(cuts(unit, RECOMPUTE)) - 1 + 2
        if state.space.unroll and is_loop(unit):
            number += sum(c.action.can_unroll for c in few)
    number += limits.num_runners_up + limits.most_tightenings // 2
    number += limits.most_schedules if state.space.chain else 0
    number += limits.num_peeled if any(map(is_loop, state.units)) else 0
    most = state.space.most_compiles
    return number if most is None else min(number, most)
