"""Operations that are not to be run again, and why: He and Yu's rules.

Where `front` puts a cost on everything, these rules say yes or no, as in the
partitioner of PyTorch's compiler, whose rules they are in our words (He and Yu, MLSys
2023). With all of them recomputing is next to free, so the cut saves memory and time at
once.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from revremat._format import format_bytes
from revremat._primitives import VIEWS
from revremat.policies._joint import Joint, takes_fused

RULES = ("compute-intensive", "reduction", "whole", "far apart", "chain")
_SHRINKS_BY = 4
_LONGEST_CHAIN = 100


def bans(joint: Joint, rules: Iterable[str] = RULES) -> dict[int, str]:
    """Operations not to be run again, each with the reason.

    Effectful operations are always among them, and views never are. The rules:

    - `compute-intensive`: products, sorts, kernels: more than a pass over memory.
    - `reduction`: the result is less than a quarter of the operands.
    - `whole`: the backward pass reads the result from memory, so recomputing has to
      write it first.
    - `far apart`: the result is computed from a value that is used before a product
      and after it, too; recomputing would hold that value over the product.
    - `chain`: every hundredth of the fusible operations in a row.

    Args:
      joint: A unit's graph.
      rules: Those that hold.

    Returns:
      From the operation's position to a reason people can read.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import Joint, bans
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> joint = Joint(rr.trace(loss, w, x)["stack"])
      >>> len(bans(joint, rules=["compute-intensive"]))  # the product
      1
    """
    rules, unit = set(rules), joint.unit
    unknown = sorted(rules - set(RULES))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no rule; the rules are {', '.join(RULES)}")
    size = lambda ks: sum(unit.values[k].num_bytes for k in ks)
    far = _far_apart(joint) if "far apart" in rules else {}
    chain = _chain_ends(joint) if "chain" in rules else set()
    found = {}
    for n in joint.recomputing:
        op = unit.operations[n]
        taken, made = size(op.inputs), size(op.outputs)
        if op.effectful:
            found[n] = op.effectful
        elif op.kind in VIEWS:
            continue
        elif op.compute_intensive and takes_fused(op):
            if "reduction" in rules and _SHRINKS_BY * made < taken:
                found[n] = f"makes {format_bytes(made)} of {format_bytes(taken)}"
        elif op.compute_intensive:
            if "compute-intensive" in rules:
                found[n] = f"{op.kind} takes {op.num_flops:,} FLOPs"
        elif "whole" in rules and not joint.read_whole.isdisjoint(op.outputs):
            found[n] = "the backward pass reads it from memory in any case"
        elif n in far:
            found[n] = f"takes {far[n]}, which is used before a product, too"
        elif n in chain:
            found[n] = f"ends a chain of {_LONGEST_CHAIN} fusible operations"
    return found


def _far_apart(joint: Joint) -> dict[int, str]:
    """Fusible users that come after something unfusible made of the same value."""
    operations, found = joint.unit.operations, {}
    for k in sorted(joint.wanted):
        users = joint.users.get(k, ())
        if len(users) < 2:
            continue
        last = max(users)
        limit = _first_unfusible(joint, users, last)
        for n in users:
            if n > limit and not operations[n].compute_intensive:
                found.setdefault(n, joint.unit.values[k].name or "a value")
    return found


def _first_unfusible(joint: Joint, users: Iterable[int], last: int) -> int:
    """The first operation that reads from memory what these lead to."""
    operations = joint.unit.operations
    queue = list(users)
    heapify(queue)
    seen = set(queue)
    while queue:
        n = heappop(queue)
        if not takes_fused(operations[n]):
            return n
        for out in operations[n].outputs:
            for user in joint.users.get(out, ()):
                if user <= last and user not in seen:
                    seen.add(user)
                    heappush(queue, user)
    return last


def _chain_ends(joint: Joint) -> set[int]:
    """Operations at which a fusible chain has become too long."""
    length: dict[int, int] = {}
    found = set()
    for n, op in enumerate(joint.unit.operations):
        if op.compute_intensive or n not in joint.recomputing:
            continue
        before = max((length.get(k, 0) for k in op.inputs), default=0)
        if op.kind not in VIEWS:
            before += 1
        if before > _LONGEST_CHAIN:
            found.add(n)
            before = 0
        length.update((out, before) for out in op.outputs)
    return found
