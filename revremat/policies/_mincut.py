"""What to keep of a unit: minimum cuts of its joint forward and backward graph.

Every value is two nodes, and the edge between them costs what keeping it costs; every
operation is a node that costs what running it again costs. Whatever parts the start
from the backward pass's residuals is a set of values to keep, and the cheapest is found
at once, whatever the number of sets (He and Yu, MLSys 2023, who rule operations out
where here most have a cost).
"""

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from revremat._errors import UserError
from revremat.policies._flow import MOST_CAPACITY, minimum_cut
from revremat.policies._joint import Cost, Joint

_SMALL_STEP = 0.005


@dataclass(frozen=True)
class Weights:
    """What counts how much in a cut.

    Attributes:
      bytes: A byte kept.
      keeping: A byte moved for keeping.
      recomputing: A byte moved, or FLOPs worth it, for recomputing.

    Example:
      >>> from revremat.policies import Weights
      >>> Weights(bytes=2.0).keeping
      1.0
    """

    bytes: float = 0.0
    keeping: float = 1.0
    recomputing: float = 1.0


@dataclass(frozen=True)
class Cut:
    """A set of values to keep.

    Attributes:
      kept: Their positions in `Unit.values`, inputs included.
      cost: What that costs.

    Example:
      >>> from revremat.policies import Cost, Cut
      >>> Cut(frozenset({0, 2}), Cost(bytes=1024, traffic=4096.0)).cost.bytes
      1024
    """

    kept: frozenset[int]
    cost: Cost


def cut(joint: Joint, weights: Weights, banned: Collection[int] = frozenset()) -> Cut:
    """The cheapest set of values from which all residuals can be had.

    Args:
      joint: A unit's graph.
      weights: What counts how much.
      banned: Positions of operations that are not to be run again, beside effectful
        ones.

    Raises:
      UserError: A value that cannot be recomputed has no name to keep it by.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import Joint, Weights, cut
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> joint = Joint(rr.trace(loss, w, x)["stack"])
      >>> costs = [cut(joint, Weights(bytes=weight)).cost for weight in (1e6, 0.0)]
      >>> costs[0].bytes <= costs[1].bytes
      True
    """
    unit = joint.unit
    source, sink = 0, 1
    entry, exit_, node = {}, {}, {}
    for k in sorted(joint.wanted):
        entry[k], exit_[k] = 2 * k + 2, 2 * k + 3
    for k in joint.targets:
        exit_[k] = sink
    start = 2 * len(unit.values) + 2
    fixed, whole = [], []
    for n in sorted(joint.recomputing):
        op = unit.operations[n]
        outputs = [k for k in op.outputs if k in joint.wanted]
        if op.effectful or n in banned:
            for k in outputs:
                entry[k] = source
            continue
        node[n] = start + n
        fixed.append((source, node[n], weights.recomputing * joint.recomputing[n]))
        whole += [(node[n], entry[k]) for k in outputs]
        whole += [(exit_[k], node[n]) for k in set(op.inputs) if k in joint.wanted]
    keep = []
    for k in sorted(joint.wanted):
        value = unit.values[k]
        if value.role == "input":
            entry[k] = source
        if value.name:
            byte_weight = (
                weights.bytes * value.num_bytes + weights.keeping * joint.keeping[k]
            )
            keep.append((k, byte_weight))
        else:
            whole.append((entry[k], exit_[k]))
    # Whole numbers; of equally cheap sets the one of fewest values, tagged ones first.
    ties = 4 * len(keep) + 1
    total = sum(c for *_, c in fixed) + sum(c for _, c in keep)
    scale = 1.0
    while total and scale * total * ties < MOST_CAPACITY / 16:
        scale *= 2
    while scale * total * ties > MOST_CAPACITY / 8:
        scale /= 2
    edges = [(a, b, round(c * scale) * ties) for a, b, c in fixed]
    edges += [
        (entry[k], exit_[k], round(c * scale) * ties + joint.oddity(k)) for k, c in keep
    ]
    infinite = sum(c for *_, c in edges) + 1
    edges += [(a, b, infinite) for a, b in whole]
    value, near = minimum_cut(start + len(unit.operations), edges, source, sink)
    if value >= infinite:
        reasons = {op.effectful for op in unit.operations if op.effectful}
        raise UserError(
            f"unit {unit.name!r} makes a value without a name that cannot be "
            "recomputed "
            f"({'; '.join(sorted(reasons))}); tag it with `rr.name`."
        )
    kept = frozenset(k for k, _ in keep if near[entry[k]] and not near[exit_[k]])
    return Cut(kept, joint.cost(kept))


def front(joint: Joint, *, most: int = 32) -> tuple[Cut, ...]:
    """The sets that are cheapest for some weight of a byte, the largest first.

    They are the corners of the lower convex hull of all sets, by bytes and traffic:
    between two of them an assignment of layers does as well as any set. Each cut either
    finds a corner between two or shows that there is none; steps of less than half a
    percent in either are left out.

    Args:
      joint: A unit's graph.
      most: How many at most; where most is to be gained, corners are looked for first.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import Joint, front
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> joint = Joint(rr.trace(loss, w, x)["stack"])
      >>> sizes = [one.cost.bytes for one in front(joint)]
      >>> sizes == sorted(sizes, reverse=True)
      True
    """
    fastest = cut(joint, Weights(bytes=1e-6))
    smallest = cut(joint, Weights(bytes=1.0, keeping=1e-6, recomputing=1e-6))
    bytes_range = fastest.cost.bytes - smallest.cost.bytes
    traffic_range = smallest.cost.traffic - fastest.cost.traffic
    if bytes_range <= 0:
        return (fastest,)
    found, gaps = [fastest, smallest], []

    def consider(large: Cut, small: Cut) -> None:
        less = (large.cost.bytes - small.cost.bytes) / bytes_range
        slower = (small.cost.traffic - large.cost.traffic) / traffic_range
        if less > _SMALL_STEP and slower > _SMALL_STEP:
            heappush(gaps, (-less * slower, small.cost.bytes, large, small))

    if traffic_range > 0:
        consider(fastest, smallest)
    while gaps and len(found) < most:
        *_, large, small = heappop(gaps)
        byte_weight = (small.cost.traffic - large.cost.traffic) / (
            large.cost.bytes - small.cost.bytes
        )
        middle = cut(joint, Weights(bytes=byte_weight))
        now, before = (
            c.cost.traffic + byte_weight * c.cost.bytes for c in (middle, large)
        )
        if now < before - 1e-9 * abs(before):
            found.append(middle)
            consider(large, middle)
            consider(middle, small)
    return tuple(sorted(found, key=lambda c: -c.cost.bytes))
