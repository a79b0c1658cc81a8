"""A unit's forward and backward passes as one graph, and what its values cost.

Two costs stand against each other: bytes kept, and *traffic*, the time that keeping and
recomputing take, counted in bytes moved. What is elementwise is computed where it is
used, so recomputing it moves nothing; a product's FLOPs count as the bytes that the
machine moves meanwhile. A model of fusion in a few lines, for choosing what to compile
(Horace He and Shangdi Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by
being Fusion Aware", MLSys 2023).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from revremat._graph import Kept, Operation, Unit
from revremat._primitives import (
    ATTENTION,
    COLLECTIVES,
    OPAQUE,
    PRODUCTS,
    REDUCTIONS,
    VIEWS,
)

_OPAQUE_PASSES = 8
"""Of a kernel: that it reads and writes once is all that is known."""
_FUSED = 1.05
_MOST_OPERANDS = 96
"""Of a kernel that XLA fuses on a GPU."""


@dataclass(frozen=True)
class Rates:
    """What a machine does in the time in which it moves one byte.

    The defaults are what an H100 reaches in bfloat16; a ratio twice off moves a product
    from one candidate to the next, no more.

    Attributes:
      product_flops: In products.
      other_flops: In everything else.
      sent_bytes: That it sends to other devices.

    Example:
      >>> from revremat.policies import Rates
      >>> Rates(product_flops=150.0).other_flops
      20.0
    """

    product_flops: float = 200.0
    other_flops: float = 20.0
    sent_bytes: float = 0.125


def work(unit: Unit, num_flops: int, sent_bytes: int, rates: Rates) -> float:
    """FLOPs, and those of products for which there is time in an exchange.

    Args:
      unit: From a graph.
      num_flops: Of all devices together.
      sent_bytes: By each device.
      rates: Of the machine.

    Returns:
      FLOPs on all devices together.
    """
    devices = max((op.num_devices for op in unit.operations), default=1)
    return num_flops + devices * rates.product_flops / rates.sent_bytes * sent_bytes


def work_again(unit: Unit, kept: Kept, rates: Rates) -> float:
    """The same of what a layer recomputes.

    Args:
      unit: From a graph.
      kept: What a layer of it keeps.
      rates: Of the machine.
    """
    return work(unit, kept.recompute_flops, kept.sent_bytes, rates)


@dataclass(frozen=True)
class Cost:
    """What keeping some of a unit's values costs one layer.

    Attributes:
      bytes: Kept from the forward to the backward pass.
      traffic: Time of keeping and recomputing, in bytes moved.

    Example:
      >>> from revremat.policies import Cost
      >>> Cost(bytes=1024, traffic=4096.0).bytes
      1024
    """

    bytes: int
    traffic: float


class Joint:
    """One unit's passes as one graph; values and operations by their positions.

    Args:
      unit: From a graph.
      rates: Of the machine.
      stacked: Whether what layers keep is written into a stack of all layers'; by
        default as it is in the program. Unrolled layers have none.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import Joint
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> Joint(rr.trace(loss, w, x)["stack"]).unit.num_layers
      4
    """

    def __init__(self, unit: Unit, rates: Rates = Rates(), stacked: bool | None = None):
        self.unit, self.rates = unit, rates
        self.stacked = unit.chained if stacked is None else stacked
        self.maker = {
            out: n for n, op in enumerate(unit.operations) for out in op.outputs
        }
        self.users: dict[int, list[int]] = {}
        for n, op in enumerate(unit.operations):
            for k in set(op.inputs):
                self.users.setdefault(k, []).append(n)
        self.targets = tuple(k for k in unit.residuals_of if self.counts(k))
        self.wanted = self.needed(())[0]

    def counts(self, k: int) -> bool:
        """Whether a value has to be kept or recomputed."""
        return self.unit.values[k].is_decided

    def needed(self, kept: Collection[int]) -> tuple[frozenset[int], tuple[int, ...]]:
        """What the backward pass uses if these values are kept.

        Returns:
          The values used, and the operations that are run again, in order.
        """
        kept, wanted, again = set(kept), set(self.targets), []
        for n in reversed(range(len(self.unit.operations))):
            op = self.unit.operations[n]
            if any(out in wanted and out not in kept for out in op.outputs):
                if not any(self.counts(out) for out in op.outputs):
                    continue
                again.append(n)
                wanted.update(k for k in op.inputs if self.counts(k))
        return frozenset(wanted), tuple(reversed(again))

    def cost(self, kept: Iterable[int]) -> Cost:
        """Of keeping these values, and the inputs that recomputing the rest needs."""
        kept = set(kept)
        used, again = self.needed(kept)
        kept = (kept & used) | {k for k in used if self.unit.values[k].role == "input"}
        return Cost(
            sum(self.unit.values[k].num_bytes for k in kept),
            sum(self.keeping[k] for k in kept)
            + sum(self.recomputing[n] for n in again),
        )

    def oddity(self, k: int) -> int:
        """How odd a value is to keep: tagged ones are least, views most."""
        if self.unit.values[k].given:
            return 2
        maker = self.maker.get(k)
        return (
            4 if maker is not None and self.unit.operations[maker].kind in VIEWS else 3
        )

    # Fusion ---------------------------------------------------------------------------

    @cached_property
    def written(self) -> frozenset[int]:
        """Values that the forward pass writes to memory, whether kept or not."""
        operations, found = self.unit.operations, set(self.unit.outputs)
        for k, value in enumerate(self.unit.values):
            maker = self.maker.get(k)
            users = (operations[n] for n in self.users.get(k, ()))
            made_whole = maker is None or operations[maker].compute_intensive
            if made_whole or value.role == "input" or not all(map(takes_fused, users)):
                found.add(k)
        for op in reversed(operations):  # what a view shows is written by its maker
            if op.kind in VIEWS and op.outputs[0] in found:
                found.update(op.inputs)
        for op in operations:
            if op.kind in VIEWS and not found.isdisjoint(op.inputs):
                found.update(op.outputs)
        return frozenset(found)

    @cached_property
    def read_whole(self) -> frozenset[int]:
        """Values that the backward pass reads from memory, views looked through."""
        found = set(self.unit.read_whole)
        for op in reversed(self.unit.operations):
            if op.kind in VIEWS and not found.isdisjoint(op.outputs):
                found.update(op.inputs)
        return frozenset(found)

    @cached_property
    def keeping(self) -> dict[int, float]:
        """Traffic of keeping a value: a read, and a write if there were none.

        A stack keeps the values of all layers in one array: each is written there, and
        what a product takes is copied out. Results of products are a little cheaper
        than what is computed from them at once, in whose kernel there is more to do.
        """
        stack, found = self.stacked, {}
        for k in self.wanted:
            passes = 1.0 if k in self.written and not stack else 2.0
            if stack and k in self.read_whole:
                passes += 2.0
            if k not in self.written:
                passes *= _FUSED
            found[k] = passes * self.unit.values[k].num_bytes
        return found

    @cached_property
    def recomputing(self) -> dict[int, float]:
        """Traffic of running an operation again."""
        return {
            n: self._recomputing(op)
            for n, op in enumerate(self.unit.operations)
            if not self.wanted.isdisjoint(op.outputs)
        }

    def _recomputing(self, op: Operation) -> float:
        return self._computing(op) + op.sent_bytes / self.rates.sent_bytes

    def _computing(self, op: Operation) -> float:
        size = lambda ks: float(sum(self.unit.values[k].num_bytes for k in ks))
        taken, made = size(op.inputs), size(op.outputs)
        num_flops = op.num_flops / op.num_devices
        if takes_fused(op) and op.compute_intensive:
            # It passes over what is in memory; often its users share the pass.
            read = set[int]().union(*(self._sources[k] for k in op.inputs))
            passed = min(taken, size(read)) / 2
            return max(passed, num_flops / self.rates.other_flops) + made
        if op.kind in VIEWS:
            return 0.0
        if not op.compute_intensive:
            is_turned = not self.stacked and self._is_turned(op)
            whole = [k for k in op.outputs if is_turned or k in self.read_whole]
            moved = 2 * size(whole) + (0.0 if self.stacked else self._read_more(op))
            return num_flops / self.rates.other_flops + moved
        moved = (taken + made) * (_OPAQUE_PASSES if op.kind in OPAQUE else 1)
        fast = is_product(op) or "call" in op.kind
        rate = self.rates.product_flops if fast else self.rates.other_flops
        return max(moved, num_flops / rate) + made

    def _is_turned(self, op: Operation) -> bool:
        """Whether it is a transposition whose result meets others before a product.

        A product gives its result in any order, and takes it so. But of two values in
        different orders one is turned around, in a kernel of its own.
        """
        if op.kind != "transpose":
            return False
        values, operations = self.unit.values, self.unit.operations
        left = list(op.outputs)
        size, turned = values[left[0]].num_bytes, self._sources[left[0]]
        seen = set(left)
        while left:
            for n in self.users.get(left.pop(), ()):
                user = operations[n]
                if user.compute_intensive or user.kind == "transpose":
                    continue
                large = (k for k in user.inputs if values[k].num_bytes >= size)
                if not all(self._sources[k] <= turned for k in large):
                    return True
                left += [k for k in user.outputs if k not in seen]
                seen.update(user.outputs)
        return False

    def _read_more(self, op: Operation) -> float:
        """Bytes that an operation reads to be fused, beside its largest operand.

        What is computed of one value is read in its place; of two, both are read. Next
        to the copies of a stack that is little.
        """
        size = lambda ks: sum(self.unit.values[k].num_bytes for k in ks)
        taken = [(k, self._sources[k]) for k in dict.fromkeys(op.inputs)]
        taken.sort(key=lambda one: -size(one[1]))
        seen: frozenset[int] = frozenset()
        found = 0
        for n, (k, sources) in enumerate(taken):
            if n:
                found += min(size(sources - seen), self.unit.values[k].num_bytes)
            seen |= sources
        return float(found)

    @cached_property
    def _sources(self) -> dict[int, frozenset[int]]:
        """What is read from memory for each value, all else being fused."""
        found: dict[int, frozenset[int]] = {}
        for k in range(len(self.unit.values)):
            found[k] = frozenset({k} if self.counts(k) else ())
        for op in self.unit.operations:
            if op.compute_intensive:
                continue
            read = frozenset[int]().union(*(found[k] for k in op.inputs))
            made = [k for k in op.outputs if self.counts(k)]
            is_one_kernel = len(read) <= _MOST_OPERANDS
            found |= {k: read if is_one_kernel else frozenset({k}) for k in made}
        return found


def takes_fused(op: Operation) -> bool:
    """Whether an operation computes its operands on the fly, if they allow it."""
    return not op.compute_intensive or op.kind.startswith(REDUCTIONS)


def is_product(op: Operation) -> bool:
    """Whether it multiplies matrices: products, convolutions, attention by a kernel.

    Args:
      op: Of a unit.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import is_product
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> any(map(is_product, rr.trace(loss, w, x)["stack"].operations))
      True
    """
    return op.kind.startswith(PRODUCTS)


def is_collective(op: Operation) -> bool:
    """Whether devices exchange something in it.

    Args:
      op: Of a unit.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import is_collective
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> any(map(is_collective, rr.trace(loss, w, x)["stack"].operations))
      False
    """
    return op.kind in COLLECTIVES


def is_kernel(op: Operation) -> bool:
    """Whether an operation is a program of its own, such as flash attention.

    Args:
      op: Of a unit.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import is_kernel
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> any(map(is_kernel, rr.trace(loss, w, x)["stack"].operations))
      False
    """
    return op.kind in OPAQUE or op.kind.startswith(ATTENTION)
