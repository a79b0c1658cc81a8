"""What a layer keeps under an action, and what it recomputes: told here alone.

A layer's values may be anything that has an identity: those of a traced program, or
their positions in a graph.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import comb
from typing import Protocol

from revremat._action import Action
from revremat._primitives import DISCONTINUOUS, EXACT


class Operation[V](Protocol):
    """What of an operation is looked at."""

    @property
    def kind(self) -> str: ...
    @property
    def inputs(self) -> Sequence[V]: ...
    @property
    def outputs(self) -> Sequence[V]: ...


@dataclass(frozen=True, eq=False)
class Flow[V, O: Operation]:
    """One layer's forward pass, as far as it decides what is kept.

    Attributes:
      operations: In order; each after all that it uses.
      residuals: What the backward pass reads.
      plain: What of that plain autodiff keeps: neither weights nor what is made of
        weights alone for free.
      inputs: What the layer is given and would have to keep; no weights.
      names: From name to value.
      unrepeatable: The results of operations that cannot be run twice.
      free: What is made of weights alone for free.
      handed_in: Its inputs that come from the layer before.
      carried_out: What it gives the next one, where it has an inverse.
      inverse: The operations of its inverse, followed by its own. None to take the
        inverse's place as given: only the layer's own operations are counted then.
    """

    operations: Sequence[O]
    residuals: Sequence[V]
    plain: Set[V]
    inputs: Sequence[V]
    names: Mapping[str, V]
    unrepeatable: Set[V]
    free: Set[V]
    handed_in: Sequence[V] = ()
    carried_out: Sequence[V] = ()
    inverse: Callable[[], Sequence[O]] | None = None


@dataclass(frozen=True, eq=False)
class Resolved[V, O]:
    """What becomes of each value of a layer.

    Attributes:
      saved: Kept on the device, forward to backward; may hold the layer's inputs.
      offloaded: Kept in host memory.
      ahead: Recomputed one layer early; for INVERT, the layer's inputs and whatever
        else comes of undoing it.
      early: The operations that recompute those.
      late: The operations that recompute all other residuals.
      used: What the backward pass or anything recomputed for it reads.
    """

    saved: Set[V]
    offloaded: Set[V]
    ahead: tuple[V, ...]
    early: tuple[O, ...]
    late: tuple[O, ...]
    used: Set[V]


def resolve[V, O: Operation](flow: Flow[V, O], action: Action) -> Resolved[V, O]:
    """What a layer keeps under an action, and the operations that recompute the rest.

    Args:
      flow: The layer; it has all names that the action lists.
      action: Without `segment_length`: in a segment, that holds once it is run again.
    """
    ops, residuals = flow.operations, flow.residuals
    find = lambda names: [flow.names[name] for name in names]
    offloaded, saved = set(find(action.offload)), set(find(action.save))
    if action.kind == "save":
        saved |= flow.plain - offloaded
    if action.kind == "offload":
        offloaded |= flow.plain - saved
    saved |= flow.unrepeatable - offloaded
    inverts = action.inverts
    known = set(flow.carried_out) if inverts else set()
    kept = saved | offloaded
    again, _ = needed(ops, residuals, kept | known)
    inverted = ({*flow.inputs} | known) - kept if inverts else set()
    saved |= _unsteady(again, kept, inverted) - offloaded
    kept = saved | offloaded
    ahead = [v for v in dict.fromkeys(find(action.ahead)) if v not in kept]
    late, from_late = needed(ops, residuals, kept | known | set(ahead))
    ahead = [v for v in ahead if v in from_late and v not in flow.free]
    early, from_early = needed(ops, ahead, kept | known)
    used = from_early | from_late
    if not inverts:
        saved |= {v for v in flow.inputs if v in used} - offloaded
    elif flow.inverse is not None:
        undone = flow.inverse()
        # What an action lists and nothing uses is not kept: the inverse may need it.
        there = kept & used
        missing = [v for v in flow.handed_in if v not in there]
        late, _ = needed(undone, (*residuals, *missing), there | known)
        if ahead:
            early, _ = needed(undone, (*missing, *ahead), there | known)
            ahead = _made_for(late, early, (*residuals, *missing), flow.free)
            late, _ = needed(undone, residuals, there | known | set(ahead))
    return Resolved(saved & used, offloaded & used, tuple(ahead), early, late, used)


def needed[V, O: Operation](
    operations: Sequence[O],
    targets: Iterable[V],
    given: Set[V],
    always: Callable[[O], bool] = lambda op: False,
) -> tuple[tuple[O, ...], Set[V]]:
    """The operations that make `targets` out of `given` and whatever has no maker.

    Args:
      operations: In order.
      targets: What is wanted.
      given: What is there.
      always: Of an operation, whether it belongs to them in any case.

    Returns:
      Those operations in order, and the values they (or the targets) use without one of
      them making it: the given ones that are really used, and inputs.
    """
    wanted, ops = set(targets), []
    for op in reversed(operations):
        makes = any(out in wanted and out not in given for out in op.outputs)
        if makes or always(op):
            ops.append(op)
            wanted.update(op.inputs)
    ops.reverse()
    made = {out for op in ops for out in op.outputs}
    return tuple(ops), {v for v in wanted if v in given or v not in made}


def _made_for[V, O: Operation](
    ops: Sequence[O], early: Sequence[O], targets: Iterable[V], free: Set[V]
) -> list[V]:
    """What the operations that run early make that the others, or targets, need."""
    first = set(early)
    used = {a for op in ops if op not in first for a in op.inputs} | set(targets)
    made = dict.fromkeys(out for op in early for out in op.outputs)
    return [v for v in made if v in used and v not in free]


def _unsteady[V, O: Operation](
    ops: Iterable[O], kept: Set[V], inverted: Set[V]
) -> set[V]:
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


def least_again(num_steps: int, slots: int) -> int:
    """How many steps are run again at least, beside those that are differentiated.

    In closed form (Griewank, 1992): with r the least number for which `comb(slots + r,
    slots)` steps are as many as there are, or more, `r * num_steps - comb(slots + r, r
    - 1)` steps are run, of which the forward pass has `num_steps - 1`.

    Args:
      num_steps: Of the loop.
      slots: How many states may be kept at a time.
    """
    if num_steps == 1:
        return 0
    times = times_run(num_steps, slots)
    return times * num_steps - comb(slots + times, times - 1) - (num_steps - 1)


def times_run(num_steps: int, slots: int) -> int:
    """How often any step is run at most until it is differentiated."""
    times = 0
    while comb(slots + times, slots) < num_steps:
        times += 1
    return times
