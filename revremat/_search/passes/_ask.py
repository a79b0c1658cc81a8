"""What passes ask for: shortened programs, assignments, and what is more exact."""

from collections.abc import Sequence
from typing import Any

from revremat import policies
from revremat._action import Action
from revremat._graph import Unit
from revremat._search._keys import Request
from revremat._search._pass import Ask
from revremat._search._probes import first_cuts
from revremat._search._result import Row
from revremat._search._state import State, support_of
from revremat.policies import Assignment, Candidate, Counts, Support


def probe(
    state: State, ask: Ask, unit: Unit, cuts: Sequence[tuple[Action, ...]]
) -> State:
    """Measures shortened programs of a unit's first layers."""
    return ask(state, [probe_request(state, unit, actions) for actions in cuts])


def probe_request(state: State, unit: Unit, actions: tuple[Action, ...]) -> Request:
    """A shortened program of a unit's first layers."""
    names = state.costs[unit.name].names
    runs: list[tuple[str, int]] = []
    for action in actions:
        name = names.get(action, repr(action))
        number = runs.pop()[1] if runs and runs[-1][0] == name else 0
        runs.append((name, number + 1))
    text = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in runs)
    if len(actions) == 1:
        text = f"1 x {text}"
    return Request(state.probe_key(unit, actions), f"{unit.name}: {text}")


def offer(state: State, ask: Ask, unit: Unit, more: Sequence[Candidate]) -> State:
    """More candidates of a unit, and their first costs; what is no news is left out."""
    return ask(*first_requests(state, unit, more))


def first_requests(
    state: State, unit: Unit, more: Sequence[Candidate]
) -> tuple[State, list[Request]]:
    """The state with more candidates of a unit, and what tells their first costs."""
    known, before = state.costs[unit.name].known_actions, state.candidates[unit.name]
    new = {c.action: c for c in more if c.action not in known}
    candidates = {**state.candidates, unit.name: (*before, *new.values())}
    offered = state.but(candidates=candidates)
    cuts = first_cuts(unit, new.values(), state.space.heuristics.most_whole)
    return offered, [probe_request(offered, unit, actions) for actions in cuts]


def refine(state: State, ask: Ask, support: Support) -> State:
    """Second costs of what is chosen, where they are missing."""
    missing = {
        unit: state.costs[unit.name].second_probes(
            support_of(support, state.costs[unit.name])
        )
        for unit in state.units
    }
    for unit, cuts in missing.items():
        state = probe(state, ask, unit, cuts)
    return state


def assign(
    state: State,
    ask: Ask,
    limit: float | None,
    without: Sequence[str] = (),
    is_rough: bool = False,
    **how: Any,
) -> tuple[State, Assignment | None]:
    """An assignment whose costs come from two probes.

    Args:
      state: Knows costs.
      ask: Asks for second ones.
      limit: Bytes on each device; without it, as few as all of a unit alike can take.
      without: Kinds that no layer takes, as `State.options_without` has them.
      is_rough: Whether one probe is enough.
      **how: As `policies.choose` takes it.
    """
    while True:
        options = state.options_without(without)
        if (within := limit) is None:
            within = policies.smallest_bytes(options, state.host_bytes)
        assignment = state.assign(options, within, **how)
        if assignment is None or is_rough:
            return state, assignment
        before = state.num_compiles
        state = refine(state, ask, assignment.support)
        if state.num_compiles == before:
            return state, assignment


def try_assignments(
    state: State, ask: Ask, assignments: Sequence[tuple[Counts, float | None]]
) -> tuple[State, list[Row | None]]:
    """Measures whole programs, each with the bytes expected of it.

    Returns:
      What is known then, and a row for each; None for one that does not compile.
    """
    requests = [state.assignment_request(counts, size) for counts, size in assignments]
    state = ask(state, [r for r in requests if r is not None])
    keys = [r and r.key for r in requests]
    return state, [state.rows.get(key) if key else None for key in keys]  # pyright: ignore
