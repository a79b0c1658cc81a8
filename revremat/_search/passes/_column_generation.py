"""Column generation: candidates that were not worth a probe at first, and now seem so.

A dozen candidates of a unit are probed before anything is known; units that hold little
have two. Once there are costs, those of their nearest neighbours tell what the others
would cost, and an assignment among all of them tells which to ask about.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from revremat._graph import Kept, Unit
from revremat._search._layer_costs import LayerCosts, plain_of, unrolled
from revremat._search._pass import Ask
from revremat._search._state import State, support_of
from revremat._search.passes._ask import offer, probe
from revremat._search.passes._solve import solve_again
from revremat.policies import (
    Candidate,
    LayerCost,
    Pool,
    Support,
    UnitOptions,
    sent_to_host,
    without_maxima,
)


def column_generation(state: State, ask: Ask) -> State:
    """Offers what the best assignment of all candidates would take, if it gains enough.

    Estimates are too good or too bad; a cost shows which, and moves those of all that
    are near. So it is done again, some rounds. Then some more by what is chosen: of a
    set whose neighbours are all slow, the model may still say that it is faster.
    """
    if state.leading is None:
        return state
    more = state
    for by_chosen in (False, True):
        for _ in range(state.space.heuristics.most_column_rounds):
            before = more.generated
            more = ask_for_best(more, ask, by_chosen=by_chosen)
            if more.generated == before:
                break
    return more if more.generated == state.generated else solve_again(more, ask)


def ask_for_best(
    state: State,
    ask: Ask,
    *,
    by_chosen: bool,
    only_unrolled: bool = False,
    pure: bool = False,
    limit: float | None = None,
) -> State:
    """Costs of a few candidates more; the same state if none is worth it.

    Args:
      state: Knows the costs of what is chosen.
      ask: Asks for those of what the best assignment would take.
      by_chosen: Whether estimates are held to what is chosen, too.
      only_unrolled: Whether layers that can be unrolled all are, and send nothing to
        the host; costs then are of one probe as yet.
      pure: Whether all layers of a unit take the same.
      limit: Bytes of what would be chosen; by default the budget.
    """
    heuristics = state.space.heuristics
    limit = state.budget_bytes if limit is None else limit
    if not (state.fits or only_unrolled):
        return state
    proposed = {unit.name: without_cost(state, unit) for unit in state.units}
    if only_unrolled:
        fits = lambda action: action.unroll is True and not action.on_host
        proposed = {
            unit: [c for c in few if fits(c.action)] for unit, few in proposed.items()
        }
    known = state.options_without(("in_loops",) if only_unrolled else ())
    now = state.assign(known, limit)
    if now is None and not only_unrolled:
        return state
    chosen = now.support if now and by_chosen else frozenset()
    options = [
        _with_estimates(state, unit_options, proposed[unit_options.unit], chosen)
        for unit_options in known
    ]
    assignment = state.assign(options, limit, pure=pure)
    if assignment is None:
        return state
    wanted = {
        name: [c for c in few if (name, c.name) in assignment.support]
        for name, few in proposed.items()
    }
    number = sum(map(len, wanted.values()))
    least_us = heuristics.least_gain_column * state.best.time_us
    if not number or (now and now.time_us - assignment.time_us <= least_us):
        return state
    for unit in state.units:
        if not (new := wanted[unit.name]):
            continue
        state = offer(state, ask, unit, new)
        names = [c.name for c in new]
        if not only_unrolled:
            second = state.costs[unit.name].second_probes(names)
            state = probe(state, ask, unit, second)
        state = state.but(
            generated=state.generated | {(unit.name, name) for name in names}
        )
    return state


def without_cost(state: State, unit: Unit) -> list[Candidate]:
    """What is proposed for a unit and has no cost, in loops and unrolled.

    Sets, and whatever has a cost with one more of its values on the host.
    """
    pool, costs = state.space.pools[unit.name], state.costs[unit.name]
    candidates = costs.candidates.values()
    found = [*pool.sets]
    if state.space.can_offload(unit) and unit.num_layers > 1:
        sets = {plain_of(c) for c in candidates if _is_set(c)}
        for one in sorted(sets, key=lambda c: c.name):
            found += sent_to_host(unit, one)
    slower = state.dropped_maxima.get(unit.name, frozenset())
    in_loops = [without_maxima(c, slower) for c in found]
    found = [*in_loops]
    for unroll in sorted({c.action.unroll for c in candidates} - {False}):
        if unroll is True:
            found += unrolled_sets_of(state, unit, in_loops)
        else:
            few = [c for c in in_loops if c.action.can_unroll and not c.action.on_host]
            found += [unrolled(c, unroll) for c in few]
    by_action = {c.action: c for c in reversed(found)}  # the first of each stays
    by_name = {c.name: c for c in by_action.values()}
    known = costs.known_actions
    return [
        c
        for c in by_name.values()
        if c.action not in known and c.name not in costs.candidates
    ]


def unrolled_sets_of(
    state: State, unit: Unit, sets: Iterable[Candidate]
) -> list[Candidate]:
    """A unit's sets unrolled, and those that are of unrolled layers alone."""
    pool = state.space.pools[unit.name]
    slower = state.dropped_maxima.get(unit.name, frozenset())
    can_unroll = [c for c in sets if c.action.can_unroll]
    alone = (without_maxima(c, slower) for c in pool.unrolled_sets)
    return [
        *(unrolled(c, joint=pool.unrolled) for c in can_unroll),
        *(unrolled(c) for c in alone),
    ]


def with_all_estimates(state: State) -> list[UnitOptions]:
    """All costs, and estimates of all that is proposed and has none."""
    proposed = {unit.name: without_cost(state, unit) for unit in state.units}
    return [
        _with_estimates(state, options, proposed[options.unit])
        for options in state.options
    ]


def _with_estimates(
    state: State,
    unit_options: UnitOptions,
    proposed: Sequence[Candidate],
    chosen: Support = frozenset(),
) -> UnitOptions:
    """Options with what has no cost beside what has, where nothing seems better.

    What has no cost is held to its nearest neighbour and to what is chosen, if that is
    given. The better estimate counts.
    """
    pool, card = state.space.pools[unit_options.unit], state.space.target.card
    costs: LayerCosts = state.costs[unit_options.unit]
    known = {p.name: p for p in unit_options.costs}
    taken = [costs.candidates[n] for n in support_of(chosen, costs)]
    pairs = [
        (candidate, near)
        for candidate in proposed
        for few in (costs.candidates.values(), taken)
        for near in [_nearest(pool, few, candidate)]
        if near is not None
    ]
    estimates: dict[str, LayerCost] = {}
    for candidate, near in pairs:
        mine, theirs, there = pool.kept(candidate), pool.kept(near), known[near.name]
        kept_bytes = there.kept_bytes + mine.device_bytes - theirs.device_bytes
        if near.action.kind == "save":  # much of all is fused away and never kept
            kept_bytes = max(kept_bytes, mine.device_bytes)
        host_bytes = mine.host_bytes - theirs.host_bytes
        traffic = pool.cost(candidate).traffic - pool.cost(near).traffic
        estimate = LayerCost(
            candidate.name,
            max(0.0, kept_bytes),
            there.base_bytes,
            max(0.0, there.host_bytes + host_bytes),
            there.time_us + 1e6 * traffic / card.stream_bandwidth,
            there.shortest_run,
        )
        if mine.host_bytes > theirs.host_bytes:
            waits_us = exposed_us(costs.unit, mine, estimate, card.pcie_bandwidth)
            estimate = replace(estimate, time_us=estimate.time_us + waits_us)
        other = estimates.get(candidate.name, estimate)
        estimates[candidate.name] = min(estimate, other, key=lambda p: p.time_us)
    return UnitOptions(
        unit_options.unit,
        unit_options.num_layers,
        (*unit_options.costs, *_best(estimates.values(), known)),
    )


def exposed_us(unit: Unit, kept: Kept, cost: LayerCost, bandwidth: float) -> float:
    """What a layer waits for the host, if its transfers hide behind all that it does.

    Sending has the time of its forward pass, fetching that of its backward
    pass.
    """
    both = unit.forward_flops + unit.backward_flops + kept.recompute_flops
    forward_us = cost.time_us * unit.forward_flops / max(1, both)
    sent_us = 1e6 * cost.host_bytes / bandwidth
    return sum(
        max(0.0, sent_us - passes_us)
        for passes_us in (forward_us, cost.time_us - forward_us)
    )


def _nearest(
    pool: Pool, costed: Iterable[Candidate], candidate: Candidate
) -> Candidate | None:
    """The one that keeps most of the same, of those that are alike otherwise.

    What sends nothing to the host is held to others that do not.
    """
    unroll, may_send = candidate.action.unroll, candidate.action.on_host
    alike = [
        c
        for c in costed
        if _is_set(c)
        and c.action.unroll == unroll
        and (may_send or not c.action.on_host)
    ]
    order = lambda c: (pool.apart(candidate, c), c.name)
    return min(alike, key=order, default=None)


def _is_set(candidate: Candidate) -> bool:
    """Whether it is no more than to keep some values and recompute the others."""
    action = candidate.action
    if action.kind not in ("save", "recompute") or action.ahead:
        return False
    return action.chunks == action.segment_length == 1


def _best(
    estimates: Iterable[LayerCost], known: Mapping[str, LayerCost]
) -> list[LayerCost]:
    """Without those that take no less time than another that keeps no more."""
    found: list[LayerCost] = []
    order = lambda p: (p.kept_bytes, p.time_us, p.name)
    for one in sorted(estimates, key=order):
        others = [*known.values(), *found]
        if not any(
            p.kept_bytes <= one.kept_bytes
            and p.time_us <= one.time_us
            and p.base_bytes <= one.base_bytes
            and not p.host_bytes
            for p in others
        ):
            found.append(one)
    return found
