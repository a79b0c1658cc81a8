"""Calibrate: the constant of all costs, set right by one whole program."""

from collections.abc import Callable, Mapping, Sequence

from revremat import policies
from revremat._action import RECOMPUTE, SAVE
from revremat._graph import Unit
from revremat._search._heuristics import Heuristics
from revremat._search._keys import Request
from revremat._search._layer_costs import (
    RECOMPUTE_ALL,
    SAVE_ALL,
    LayerCosts,
    summary,
)
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State
from revremat._search.passes._ask import probe
from revremat._search.passes._profile import profile_layers


def calibrate(state: State, ask: Ask) -> State:
    """Holds costs to the program with everything recomputed.

    Units whose layers cannot be recomputed, because that does not compile, stay as they
    are; the costs of the others are measured anew without them.
    """
    while state.units:
        state = _calibrated(state, ask)
        if state.calibration:
            return state
        state = profile_layers(_without_failing(state, ask), ask)
    return state


def _calibrated(state: State, ask: Ask) -> State:
    """Without any calibration where something needed does not compile."""
    if not _have_references(state):
        return state
    isolated = [u for u in state.units if u.name in state.isolated]
    counts = {u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in state.units}

    def predict(calibration: Mapping[str, float]) -> float:
        costs = state.costs_with(calibration)
        return policies.predict_bytes([c.options for c in costs.values()], counts)

    # Where units are probed alone, what it takes is not known before.
    expected = None if isolated else predict({})
    state = ask(state, [state.all_recomputed(expected)])
    if (row := state.reference) is None:
        return state
    if isolated:
        state, holds = _holds(state, ask, row)
        if not holds:
            state = state.but(isolated=frozenset())
            for unit in isolated:
                costs = state.costs[unit.name]
                state = probe(state, ask, unit, costs.first_probes)
            if not _have_references(state):
                return state
    found = corrections([*state.costs.values()], row.bytes, predict)
    state = state.but(calibration=found)
    return ask(state, [state.all_recomputed(predict(found))])


def _have_references(state: State) -> bool:
    return all(costs.has_reference for costs in state.costs.values())


def _holds(state: State, ask: Ask, reference: Row) -> tuple[State, bool]:
    """Whether costs are the program's."""
    recomputed = reference.bytes, reference.time_us
    costs, heuristics = [*state.costs.values()], state.space.heuristics
    baseline = state.baseline.bytes, state.baseline.time_us
    if hold(costs, baseline, recomputed, heuristics):
        return state, True
    # The baseline need not save everything.
    counts = {u.name: ((SAVE_ALL, u.num_layers),) for u in state.units}
    actions = {u.name: (SAVE,) * u.num_layers for u in state.units}
    key = state.key_of(actions)
    state = ask(state, [Request(key, summary(counts))])
    if (kept := state.row(key)) is None:
        return state, True
    return state, hold(costs, (kept.bytes, kept.time_us), recomputed, heuristics)


def _without_failing(state: State, ask: Ask) -> State:
    """Leaves units as they are without which the others compile.

    A unit that cannot be recomputed fails every program that recomputes it.
    """
    failing = {name for name, c in state.costs.items() if not c.has_reference}
    kept: list[Unit] = []
    for unit in state.units:
        actions = {u.name: (RECOMPUTE,) * u.num_layers for u in [*kept, unit]}
        key = state.key_of(actions)
        counts = {u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in [*kept, unit]}
        state = ask(state, [Request(key, summary(counts))])
        if state.row(key) is not None:
            kept.append(unit)
    if len(kept) == len(state.units):  # only shortened programs fail
        kept = [u for u in kept if u.name not in failing]
    return state.but(units=tuple(kept))


def hold(
    costs: Sequence[LayerCosts],
    saved: tuple[float, float],
    recomputed: tuple[float, float],
    heuristics: Heuristics,
) -> bool:
    """Whether costs say about what becomes of the program if it saves everything.

    They do not where the step runs the loss more than once, or on more than one of the
    arguments that probes are made with, and a unit was probed without the program.

    Args:
      costs: Of all units.
      saved: Bytes and time of the program all of whose layers save everything.
      recomputed: Bytes and time of it with everything recomputed.
      heuristics: Numbers that decide.
    """
    # Where that is no candidate, saving everything is recomputing everything.
    found = [c for c in costs if SAVE_ALL in c.candidates]
    differences = [(c.unit.num_layers, *c.difference(SAVE_ALL)) for c in found]
    more_bytes = sum(n * size for n, size, _ in differences)
    more_us = sum(n * time_us for n, _, time_us in differences)
    (all_bytes, all_us), (size, time_us) = saved, recomputed
    found_us, found_bytes = all_us - time_us, all_bytes - size
    off = heuristics.off_difference
    off_us = abs(found_us - more_us) - off * max(abs(found_us), abs(more_us))
    # Less than the costs say is right where the peak is elsewhere.
    off_bytes = found_bytes - (1 + off) * more_bytes
    most = heuristics.off_whole
    return off_us <= most * time_us and off_bytes <= most * size


def corrections(
    costs: Sequence[LayerCosts], bytes_of_all: int, predict: Callable[..., float]
) -> dict[str, float]:
    """Sets the constant of all costs right by one whole program.

    Args:
      costs: Of all units, none of them set right yet.
      bytes_of_all: What the program takes with all layers recomputing everything.
      predict: What the costs say it takes, with such corrections.
    """
    kept = sum(c.unit.num_layers * c.reference.kept_bytes for c in costs)
    found = {
        c.unit.name: (
            bytes_of_all - kept - c.reference.base_bytes if c.is_isolated else 0.0
        )
        for c in costs
    }
    off = bytes_of_all - predict(found)
    return {unit: correction + off for unit, correction in found.items()}
