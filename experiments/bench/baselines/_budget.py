"""PyTorch's `activation_memory_budget`: minimum cuts with rules, then a knapsack.

From its description: a share between 0 and 1 of the activations that the fastest cut
keeps. Fewer rules are tried first; if those do not save enough, the operations that
they still forbid to run again become items of a knapsack, by bytes and FLOPs, and what
is not in it may be run again, too. The share is of a proxy, the bytes of what is saved,
so that a person tries shares until the compiled program fits; so does this.

What differs: layers' inputs are always kept, because layers are loops here and not one
unrolled graph, and of equal layers the last ones are those that save more, which is the
order that takes least memory.
"""

import heapq
from collections.abc import Collection, Iterable
from functools import cached_property

from experiments.bench.baselines._comparison import Actions, Baseline, Comparison, Line
from experiments.bench.baselines._knapsack import knapsack
from revremat import RECOMPUTE, Action, Operation, Unit
from revremat.policies import (
    MOST_CAPACITY,
    Joint,
    bans,
    is_collective,
    is_kernel,
    is_product,
    minimum_cut,
)

_PER_HOP = 1.1
_MOST_HOPS = 100
_QUANTA = 10_000
_RANDOM = ("random_", "threefry", "rng_")


class Part:
    """One unit as PyTorch's partitioner would see one of its layers.

    Args:
      unit: From a graph.
    """

    def __init__(self, unit: Unit):
        self.unit, self.joint = unit, Joint(unit)
        self.cuts: dict[frozenset[int], frozenset[int]] = {}

    @cached_property
    def hops(self) -> dict[int, int]:
        """From every value the fewest uses to the backward pass."""
        hops = dict.fromkeys(self.joint.targets, 1)
        queue = [(1, k) for k in hops]
        while queue:
            distance, k = heapq.heappop(queue)
            maker = self.joint.maker.get(k)
            if distance > hops[k] or maker is None:
                continue
            for before in self.unit.operations[maker].inputs:
                if distance + 1 < hops.get(before, 1 << 60):
                    hops[before] = distance + 1
                    heapq.heappush(queue, (distance + 1, before))
        return hops

    def capacity(self, k: int) -> float:
        """What saving a value costs: more far from its use, twice if not written."""
        written = k in self.joint.written or k in self.joint.read_whole
        hops = max(1, min(self.hops.get(k, _MOST_HOPS), _MOST_HOPS))
        size = self.unit.values[k].num_bytes * _PER_HOP**hops
        return size if written else 2 * size

    def saved(self, banned: Collection[int]) -> frozenset[int]:
        """The values that the minimum cut saves, inputs apart."""
        key = frozenset(banned)
        if key not in self.cuts:
            self.cuts[key] = self._cut(key)
        return self.cuts[key]

    def _cut(self, banned: frozenset[int]) -> frozenset[int]:
        unit, wanted = self.unit, sorted(self.joint.wanted)
        source, sink = 0, 1
        entry = {k: 2 * n + 2 for n, k in enumerate(wanted)}
        exit_ = {k: 2 * n + 3 for n, k in enumerate(wanted)}
        whole, keep = [], []
        for k in wanted:
            value, maker = unit.values[k], self.joint.maker.get(k)
            effectful = maker is not None and bool(unit.operations[maker].effectful)
            if value.role == "input" or maker in banned or effectful:
                whole.append((source, entry[k]))
            if k in self.joint.targets:
                whole.append((exit_[k], sink))
            if value.name:
                # An input is saved in any case, at no further cost.
                cost = 0.0 if value.role == "input" else self.capacity(k)
                keep.append((k, cost))
            else:
                whole.append((entry[k], exit_[k]))
        for n in self.joint.recomputing:
            op = unit.operations[n]
            ends = [entry[k] for k in op.outputs if k in entry]
            whole += [(exit_[k], e) for k in set(op.inputs) if k in exit_ for e in ends]
        total = sum(cost for _, cost in keep)
        most = MOST_CAPACITY / (8 * len(whole) + 8)  # of all infinite ones together
        scale = min(1.0, most / max(1.0, total))
        edges = [(entry[k], exit_[k], round(scale * cost)) for k, cost in keep]
        infinite = sum(c for *_, c in edges) + 1
        edges += [(a, b, infinite) for a, b in whole]
        _, near = minimum_cut(2 * len(wanted) + 2, edges, source, sink)
        return frozenset(
            k
            for k, _ in keep
            if near[entry[k]] and not near[exit_[k]] and unit.values[k].role != "input"
        )

    def num_bytes(self, saved: Iterable[int]) -> int:
        """Of a layer's saved values, its inputs apart."""
        return sum(self.unit.values[k].num_bytes for k in saved)

    def action(self, saved: Iterable[int]) -> Action:
        """The set as an action."""
        action = RECOMPUTE(save=(self.unit.values[k].name for k in saved))
        unused = set(self.unit.kept(action).unused)
        return RECOMPUTE(save=(name for name in action.save if name not in unused))

    @cached_property
    def fastest(self) -> frozenset[int]:
        """Operations that all of the rules forbid to run again."""
        return frozenset(bans(self.joint))

    @cached_property
    def fewer(self) -> frozenset[int]:
        """Without the rules of what is far apart, long, or read whole."""
        return frozenset(bans(self.joint, ("compute-intensive", "reduction")))

    @cached_property
    def fewest(self) -> frozenset[int]:
        """Without the list of what is cheap: products, kernels and randomness alone."""
        heavy = {
            n for n in self.joint.recomputing if _is_intensive(self.unit.operations[n])
        }
        return frozenset(heavy | set(bans(self.joint, ("reduction",))))

    @cached_property
    def items(self) -> tuple[tuple[int, int, int], ...]:
        """What the knapsack holds: operation, bytes and FLOPs of one layer."""
        found = []
        for n in sorted(self.fewest):
            op = self.unit.operations[n]
            if op.effectful:
                continue
            size = self.num_bytes(k for k in op.outputs if k in self.joint.wanted)
            found.append((n, size, max(1, op.num_flops)))
        return tuple(found)


class MemoryBudget(Baseline):
    """PyTorch's memory budget, its share chosen by compiles.

    Args:
      comparison: The program.
      most: Compiles for a budget.
    """

    name = "memory budget"

    def __init__(self, comparison: Comparison, most: int = 4):
        super().__init__(comparison)
        self.most = most
        self.parts = [Part(u) for u in comparison.units]
        self.line = Line(self.propose, self.compile, self.name)

    def ask(self, budget_bytes: int) -> None:
        if self.is_idle:
            return
        self.line.ask(budget_bytes, self.most)

    def propose(self, share: float) -> Actions:
        """The plan for a share of the activations."""
        if share <= 0:
            return self._alike([frozenset()] * len(self.parts))
        fastest = [p.saved(p.fastest) for p in self.parts]
        if share >= 1:
            return self._alike(fastest)
        most = self._num_bytes(fastest)
        if not most:
            return self._alike(fastest)
        fewer = [p.saved(p.fewer) for p in self.parts]
        if self._num_bytes(fewer) / most < share:
            return self._alike(fewer)
        fewest = [p.saved(p.fewest) for p in self.parts]
        if self._num_bytes(fewest) / most < share:
            return self._alike(fewest)
        items = [
            (size, k, n, flops)
            for k, p in enumerate(self.parts)
            for n, size, flops in p.items
        ]
        items.sort(key=lambda item: -item[0])
        counts = knapsack(
            [round(_QUANTA * size / most) for size, *_ in items],
            [float(flops) for *_, flops in items],
            [self.parts[k].unit.num_layers for _, k, *_ in items],
            round(_QUANTA * share),
        )
        found = {}
        for k, part in enumerate(self.parts):
            mine = [
                (n, c) for (_, j, n, _), c in zip(items, counts, strict=True) if j == k
            ]
            actions = []
            for layer in range(part.unit.num_layers):
                left = part.unit.num_layers - layer
                again = {n for n, count in mine if count < left}
                actions.append(part.action(part.saved(part.fewest - again)))
            found[part.unit.name] = tuple(actions)
        return found

    def _alike(self, saved: list[frozenset[int]]) -> Actions:
        return {
            p.unit.name: (p.action(s),) * p.unit.num_layers
            for p, s in zip(self.parts, saved, strict=True)
        }

    def _num_bytes(self, saved: list[frozenset[int]]) -> int:
        return sum(
            p.unit.num_layers * p.num_bytes(s)
            for p, s in zip(self.parts, saved, strict=True)
        )


def _is_intensive(op: Operation) -> bool:
    heavy = is_product(op) or is_kernel(op) or is_collective(op)
    return heavy or op.kind.startswith(_RANDOM)


class UnrolledMemoryBudget(MemoryBudget):
    """The same with the layers of loops unrolled, as PyTorch has them."""

    name = "memory budget, unrolled"
    unroll = True
