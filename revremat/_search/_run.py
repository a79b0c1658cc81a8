"""Run: which passes a search has, in which order, and why in that order."""

from collections.abc import Sequence

from revremat._search._pass import Ask, Pass
from revremat._search._state import OutOfCompiles, State
from revremat._search.passes._baseline import baseline, recompute_all
from revremat._search.passes._bound import bound
from revremat._search.passes._calibrate import calibrate
from revremat._search.passes._candidates import another, candidates
from revremat._search.passes._column_generation import column_generation
from revremat._search.passes._gradient_barrier import (
    gradient_barrier,
    put_off,
    with_barrier,
    without_barrier,
)
from revremat._search.passes._hedge import hedge
from revremat._search.passes._keep_last import keep_last
from revremat._search.passes._local_search import local_search
from revremat._search.passes._near_sets import near_drops
from revremat._search.passes._nested import (
    nested,
    nested_first,
    recompute_around,
)
from revremat._search.passes._on_paper import (
    best_on_paper,
    better_in_loops,
    plain_and_on_paper,
)
from revremat._search.passes._peel import peel
from revremat._search.passes._plain_unroll import plain_unroll, settle
from revremat._search.passes._profile import profile_layers
from revremat._search.passes._remat_pass import remat_pass, remat_pass_nearly
from revremat._search.passes._runners_up import runners_up
from revremat._search.passes._schedules import schedules
from revremat._search.passes._slots import slots
from revremat._search.passes._smallest import smallest
from revremat._search.passes._softmax_maxima import softmax_maxima
from revremat._search.passes._solve import (
    solve,
    solve_briefly,
    unroll_chosen,
    unroll_partly,
    unroll_partly_again,
    unrolled_candidates,
)
from revremat._search.passes._together import together
from revremat._search.passes._uniform_plans import uniform_plans
from revremat._search.passes._unroll import unroll
from revremat._search.passes._unroll_rest import unroll_rest
from revremat._search.passes._unrolled_sets import (
    best_unrolled_set,
    leave_loops,
    leave_timed_loops,
    unrolled_sets,
)


def _inside(state: State, ask: Ask) -> State:
    return decide(state, ask)


FIRST: tuple[Pass, ...] = (
    nested_first(_inside),  # where it gains, it gains more than all that is around
)
PROFILE: tuple[Pass, ...] = (
    baseline,  # everything is held to it, and what it takes says what to isolate
    gradient_barrier,  # before any cost: with a barrier they are other ones
    profile_layers,  # a few candidates, so that there soon is a plan
    calibrate,  # their constant by a whole program; costs may turn out not to hold
)
COSTS: tuple[Pass, ...] = (
    candidates,
    softmax_maxima,  # before unrolling, so that the better variants are unrolled
    unroll,
)
DECIDE: tuple[Pass, ...] = (
    plain_and_on_paper,  # one word of plain JAX: whatever is found has to beat it
    settle,  # then nothing more need be asked
    recompute_around,  # two words of plain JAX, where loops have others inside
    best_on_paper,  # a quick plan: where unrolling gains, all best plans have it
    better_in_loops,  # one program, and only if it promises more
    plain_unroll,  # too large, and the remat pass may make it fit
    best_unrolled_set,  # by costs: what paper chose may be some percent slower
    put_off,  # over several devices it gains as much as a set
    remat_pass_nearly,  # JAX's default, and a few percent: costs promise no such plan
    unrolled_sets,  # a normal plan
    put_off,  # of what is the best by now
    leave_loops,  # where nothing is as good in loops, a limited search ends
    another,  # a quick plan where unrolling gains nothing
    near_drops,  # only where programs are timed: of what is fused no model is sure
    uniform_plans,  # only there, too: so far costs are of single runs
    solve_briefly,  # by few costs: a limit of compiles may leave no others
    unroll_partly,  # of short layers alone, where nothing else gains as much
    remat_pass,  # JAX's default: worth its compiles once there is a plan to beat
    unroll_chosen,  # of all that could come next, this gains most
    unrolled_candidates,  # only where programs are timed, and only if that did gain
    keep_last,  # only there, too: by estimates, what comes out smaller is used anyway
    leave_timed_loops,  # as above, where programs are timed
    candidates,
    solve_briefly,  # before as many costs again are asked for, of unrolled layers
    *COSTS[1:],
    solve,
    unroll_partly_again,  # of what was chosen since: each takes two costs more
    runners_up,  # costs are off by some percent, so what is nearest may be better
    column_generation,  # its estimates need the costs of what was chosen
    hedge("unroll"),  # after everything that has unrolled layers was measured
    hedge("on_host"),
    remat_pass,  # other unrolled programs by now, which are too large by themselves
    slots,  # only for long loops, where segments fit at best
    smallest,  # only where nothing above has fitted
    with_barrier,  # only where that does not fit either
    unroll_rest,  # of what fits: nothing by costs alone would choose it
    local_search,  # from the best of all, so after all that starts anew
    bound,  # by the estimated costs of plans in loops; peeling then corrects it
    peel,
    local_search,  # peeled layers may have given something back
    keep_last,  # of what is the best by now, if a search has gone on until here
    nested(_inside),  # what is inside has to beat all of that
    without_barrier,  # last, both: of plans that are new by now
    put_off,
)
SEGMENTS: tuple[Pass, ...] = (schedules,)
"""For a program without equal layers, whose segments have no costs of their own."""
REQUIRED: tuple[Pass, ...] = (baseline, profile_layers, calibrate, solve)
"""Without any of the others a search finds less, and all that it finds is right."""


def run_all(state: State, ask: Ask, passes: Sequence[Pass]) -> State:
    """One pass after the other; the first that a limit of compiles cuts is the last.

    So a limited search is the beginning of a free one.
    """
    for one in passes:
        if state.is_settled:
            break
        try:
            state = one(state, ask)
        except OutOfCompiles as cut:
            return cut.state.skip(name_of(one), cut.number)
    return state


def name_of(one: Pass) -> str:
    """What people call a pass."""
    return getattr(one, "__name__", type(one).__name__).replace("_", " ")


def profile_all(state: State, ask: Ask) -> State:
    """Measures what layers of all candidates cost."""
    state = profile(state, ask)
    return run_all(state, ask, COSTS if state.is_profiled and state.units else ())


def profile(state: State, ask: Ask) -> State:
    """Measures what layers of a few candidates cost, once for all budgets."""
    if state.is_profiled:
        return state
    before = len(state.skipped)
    state = run_all(state, ask, PROFILE)
    return state.but(is_profiled=len(state.skipped) == before)


def decide(state: State, ask: Ask) -> State:
    """Finds the best plan for the state's budget."""
    state = baseline(together(state, ask), ask)
    if state.arguments_exceed:  # then no plan can fit
        return run_all(state, ask, [recompute_all])
    if state.space.chain is not None:
        return run_all(state, ask, SEGMENTS)
    state = run_all(state, ask, FIRST)
    state = profile(state, ask)
    passes = DECIDE if state.is_profiled and state.units else ()
    return run_all(state, ask, passes)
