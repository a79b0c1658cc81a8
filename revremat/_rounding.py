"""What must not be recomputed: what a rounding error would change altogether."""

from collections.abc import Iterable
from typing import Any

DISCONTINUOUS = {
    *("eq", "ne", "lt", "le", "gt", "ge", "sign", "floor", "ceil", "round", "sort"),
    *("argmax", "argmin", "top_k", "approx_top_k", "reduce_precision", "cond", "while"),
}
# Their results are some of their operands' entries, unchanged.
EXACT = {
    *("reshape", "broadcast_in_dim", "transpose", "squeeze", "expand_dims", "slice"),
    *("dynamic_slice", "concatenate", "pad", "gather", "copy", "rev", "split", "name"),
    *("select_n", "max", "min", "reduce_max", "reduce_min", "cummax", "cummin", "neg"),
    *("abs", "clamp", "sort", "stop_gradient", "iota", "argmax", "argmin"),
    *DISCONTINUOUS,
}


def unsteady(ops: Iterable[Any], kept: set[Any], inverted: set[Any]) -> set[Any]:
    """What is to be kept because a rounding error would change it altogether.

    Which entry is the maximum is found by comparing entries with the maximum for being
    equal. Were one side kept and the other recomputed, then the rounding of a compiler
    that computes it in another way, or of an inverse, would leave no entry equal. What
    an inverse gives is further off, so there every comparison of that kind counts.

    Args:
      ops: What is run again, in order; each with `kind`, `inputs` and `outputs`.
      kept: What is there as it was.
      inverted: What the inverse gives.
    """
    exact, rounded, found = set(kept), set(inverted), set()
    watched = DISCONTINUOUS if inverted else {"eq", "ne"}
    for op in ops:
        from_exact = not exact.isdisjoint(op.inputs)
        from_rounded = not rounded.isdisjoint(op.inputs)
        if from_exact and from_rounded and op.kind in watched:
            found.update(op.outputs)
            exact.update(op.outputs)
            continue
        if from_rounded or (op.kind not in EXACT and not inverted):
            rounded.update(op.outputs)
        elif from_exact:
            exact.update(op.outputs)
    return found
