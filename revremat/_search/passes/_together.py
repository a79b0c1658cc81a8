"""Together: what a search asks first in any case, all at the same time."""

from revremat._search._keys import BASELINE, Request
from revremat._search._pass import Ask
from revremat._search._start import another_of
from revremat._search._state import State
from revremat._search.passes._ask import first_requests, probe_request
from revremat._search.passes._on_paper import has_unrolled_sets
from revremat._search.passes._plain_unroll import plain_request


def together(state: State, ask: Ask) -> State:
    """Measures the baseline beside all that does not depend on what it takes.

    One after the other they would leave cores idle. The order is that of the passes
    which want them, and those come no further than they would alone.
    """
    if state.is_profiled or not _is_sure(state):
        return state
    requests = [Request(BASELINE, "baseline")]
    for unit in state.units:
        cuts = state.costs[unit.name].first_probes
        requests += [probe_request(state, unit, actions) for actions in cuts]
    requests.append(state.all_recomputed())
    if not has_unrolled_sets(state):  # else the best of those come beside plain loops
        for name, candidate in another_of(state).items():
            unit = state.space.graph[name]
            requests += first_requests(state, unit, [candidate])[1]
        if (plain := plain_request(state)) is not None:
            requests.append(plain)
    new = [request for request in requests if not state.knows(request)]
    return ask(state, new[: state.room])


def _is_sure(state: State) -> bool:
    """Whether nothing that the baseline says would change what is asked next."""
    space = state.space
    apart = sum(u.num_layers for u in state.units if not (u.is_loop or u.chained))
    return not (
        space.chain
        or space.small_units
        or space.enclosing
        or apart > 1  # a gradient barrier may come first
        or any(unit.enclosing for unit in space.graph.units)
        or space.argument_bytes > state.budget_bytes
    )
