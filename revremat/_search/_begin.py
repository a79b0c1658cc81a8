"""Begin and run: a search from a problem to a `Fit`."""

from revremat._errors import UserError
from revremat._measure import Oracle
from revremat._problem import Problem
from revremat._search._answer import answer
from revremat._search._asking import Asking, Progress
from revremat._search._heuristics import Effort, Heuristics
from revremat._search._oracle import CompilerOracle
from revremat._search._pass import Ask
from revremat._search._result import Fit
from revremat._search._run import decide
from revremat._search._start import expected_compiles, state_of, traced_twice
from revremat._search._state import State
from revremat._search._timed import TimedOracle
from revremat._search.passes._bound import bound
from revremat.xla import Target


def compiler(
    problem: Problem,
    target: Target,
    oracle: Oracle | None = None,
    *,
    keep_checkpoints: bool = False,
    exact: bool = True,
) -> CompilerOracle:
    """The target's own compiler, or an oracle in its place, for one problem.

    Raises:
      UserError: The loss is another program each time it is traced.
    """
    graph, traced = traced_twice(problem, target, keep_checkpoints=keep_checkpoints)
    found = CompilerOracle(problem, traced, graph, target, oracle, exact)
    if oracle is not None:
        found.check_uses_loss()
    return found


def begin(
    problem: Problem,
    target: Target,
    *,
    oracle: Oracle | None = None,
    timed: bool = False,
    exact: bool = True,
    heuristics: Heuristics | None = None,
    effort: Effort = "exhaustive",
    most_compiles: int | None = None,
    unroll: bool = True,
    keep_checkpoints: bool = False,
    progress: Progress | None = None,
) -> tuple[State, Asking]:
    """A search that knows nothing yet, and how it asks.

    Args:
      problem: The program.
      target: Where it would run.
      oracle: Says what steps take; by default the target's compiler does.
      timed: Whether programs are run on the target, which is this machine.
      exact: As `CompilerOracle` has it.
      heuristics: Numbers that decide.
      effort: How long it goes on, where `most_compiles` does not say.
      most_compiles: How many programs may be measured; None for as many as it takes.
      unroll: Whether layers of loops may be unrolled.
      keep_checkpoints: Whether the program's own `jax.checkpoint` regions stay.
      progress: Called before each program is measured.

    Raises:
      UserError: As `rr.search` does.
    """
    if timed:
        _check_timed(target, oracle)
    about = {"keep_checkpoints": keep_checkpoints, "exact": exact}
    known = compiler(problem, target, oracle, **about)
    state = state_of(
        problem,
        target,
        known.graph,
        known.traced,
        effort=effort,
        most_compiles=most_compiles,
        unroll=unroll,
        timed=timed,
        heuristics=heuristics,
    )
    measuring = TimedOracle(known) if timed else known
    asking = Asking(measuring, expected_compiles(state), progress)
    return state, asking


def bound_if_cut(state: State, ask: Ask) -> State:
    """The bound, where a limit cut the search before it came there; it asks nothing.

    One that a pass took back stays unknown.
    """
    was_there = bool(state.bound_us) or state.is_bounded
    if was_there or not (state.skipped and state.is_profiled):
        return state
    return bound(state, ask)


def _check_timed(target: Target, oracle: Oracle | None) -> None:
    if oracle is not None:
        raise UserError(
            "timed=True was given with an oracle, which has times of its own: leave "
            "out one of them"
        )
    if not target.runs_here:
        raise UserError(
            f"timed=True runs programs, and {target.spec} is not this machine: write "
            "target='local', or leave timed=True out"
        )


def run(
    problem: Problem,
    target: Target,
    budget_bytes: int,
    *,
    oracle: Oracle | None = None,
    timed: bool = False,
    heuristics: Heuristics | None = None,
    effort: Effort = "exhaustive",
    most_compiles: int | None = None,
    unroll: bool = True,
    keep_checkpoints: bool = False,
    progress: Progress | None = None,
) -> Fit:
    """The best plan for a budget; takes what `begin` takes."""
    state, ask = begin(
        problem,
        target,
        oracle=oracle,
        timed=timed,
        exact=not target.is_elsewhere,
        heuristics=heuristics,
        effort=effort,
        most_compiles=most_compiles,
        unroll=unroll,
        keep_checkpoints=keep_checkpoints,
        progress=progress,
    )
    state = decide(state.within(budget_bytes), ask)
    state = bound_if_cut(state, ask)
    if isinstance(ask.oracle, CompilerOracle | TimedOracle):
        state = ask.oracle.confirmed(state)
    return answer(state, problem.loss)
