"""Run: which passes a search has, in which order, and why in that order."""

from revremat._search._pass import Ask, Pass
from revremat._search._state import State
from revremat._search.passes._baseline import baseline, recompute_all
from revremat._search.passes._bound import bound
from revremat._search.passes._calibrate import calibrate
from revremat._search.passes._column_generation import column_generation
from revremat._search.passes._fill import fill
from revremat._search.passes._gradient_barrier import gradient_barrier, without_barrier
from revremat._search.passes._hedge import hedge
from revremat._search.passes._nested import nested
from revremat._search.passes._peel import peel
from revremat._search.passes._profile import profile_layers
from revremat._search.passes._runners_up import runners_up
from revremat._search.passes._smallest import smallest
from revremat._search.passes._softmax_maxima import softmax_maxima
from revremat._search.passes._solve import solve, unroll_chosen
from revremat._search.passes._unroll import unroll_freely


def _inside(state: State, ask: Ask) -> State:
    return decide(state, ask)


PROFILE: tuple[Pass, ...] = (
    baseline,  # everything is held to it, and what it takes says what to isolate
    gradient_barrier,  # before any cost: with a barrier they are other ones
    profile_layers,  # one probe for each candidate
    calibrate,  # their constant by a whole program; costs may turn out not to hold
    softmax_maxima,  # before unrolling, so that the better variants are unrolled
    unroll_freely,
)
DECIDE: tuple[Pass, ...] = (
    solve,
    runners_up,  # costs are off by some percent, so what is nearest may be better
    unroll_chosen,
    column_generation,  # its estimates need the costs of what was chosen
    hedge("unroll"),  # after everything that has unrolled layers was measured
    hedge("on_host"),
    smallest,  # only where nothing above has fitted
    fill,  # from the best of all, so after all that starts anew
    bound,  # by the costs of plans in loops; peeling then corrects it
    peel,
    fill,  # peeled layers may have given something back
    nested(_inside),  # what is inside has to beat all of that
    without_barrier,  # last: it has no costs to go on from
)


def profile(state: State, ask: Ask) -> State:
    """Measures what layers cost, once for all budgets."""
    if state.is_profiled:
        return state
    for one in PROFILE:
        state = one(state, ask)
    return state.but(is_profiled=True)


def decide(state: State, ask: Ask) -> State:
    """Finds the best plan for the state's budget."""
    state = baseline(state, ask)
    if state.arguments_exceed:  # then no plan can fit
        return recompute_all(state, ask)
    state = profile(state, ask)
    for one in DECIDE if state.units else ():
        state = one(state, ask)
    return state


REQUIRED: tuple[Pass, ...] = (baseline, profile_layers, calibrate, solve)
"""Without any of the others a search finds less, and all that it finds is right."""
