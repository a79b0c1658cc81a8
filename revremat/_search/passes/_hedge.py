"""Hedge: the best assignment without what costs may not be believed of."""

from revremat._search._pass import Ask, Pass
from revremat._search._state import State
from revremat._search.passes._runners_up import compare
from revremat._search.passes._solve import tighten
from revremat.policies import Assignment


def hedge(kind: str) -> Pass:
    """Tries the best assignment without a kind of candidates that is doubtful.

    Args:
      kind: "unroll" or "on_host", as `State.options_without` has them.
    """

    def hedged(state: State, ask: Ask) -> State:
        if state.leading is None or not _is_doubtful(state, state.leading, kind):
            return state
        state, surer = tighten(state, ask, (kind,))
        return state if surer is None else compare(state, ask, surer, (kind,))

    hedged.__name__ = f"hedge ({kind})"
    return hedged


def _is_doubtful(state: State, assignment: Assignment, kind: str) -> bool:
    """Whether costs want what may be slower or larger beside other layers.

    What crosses to the host hides behind other layers, always. Unrolled layers are
    fused with one another, and are doubtful where nothing that has any fits or
    something that has takes much more than its costs say.
    """
    if all(name in state.lacking(kind, unit) for unit, name in assignment.support):
        return False
    rows = [row for row in state.rows.values() if row.takes("unroll")]
    fits = any(row.bytes <= state.budget_bytes for row in rows)
    return kind == "on_host" or not fits or bool(state.far_off)
