"""The engine of a stack: what its forward and its backward pass have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from revremat._action import Action, check_actions
from revremat.program.arrays import _avals
from revremat.program.arrays._buffers import Each, none_yet, stack
from revremat.program.engine._keep import Kept, Layer, resolve
from revremat.program.engine._layout import as_in_a_loop, is_turned
from revremat.program.engine._segments import Segment, segments
from revremat.program.engine._stack import Stack
from revremat.program.ir._ops import Value


@dataclass(frozen=True, eq=False)
class Engine:
    """A stack, once it is known what is differentiated.

    Attributes:
      stack: Its layers and their actions.
      layer: The two passes of one layer.
      kept: What a layer keeps under each of the actions; where all is sent to the host
        at once, on the device until then.
      num_sent: Under each, how many of the last ones are sent when all layers are done.
      segments: The loops that serve the layers.
      lay: Lays arrays between unrolled layers as they lie between a loop's iterations.
    """

    stack: Stack
    layer: Layer
    kept: Mapping[Action, Kept]
    num_sent: Mapping[Action, int]
    segments: tuple[Segment, ...]
    lay: Callable[[Any], list[Any]]

    @classmethod
    def of(cls, stack: Stack, mask: tuple[bool, ...]) -> "Engine":
        """The engine of a stack of whose inputs those in `mask` are differentiated.

        Raises:
          UserError: An action that speaks of names its layers do not have, or that
            would run an operation twice which cannot be.
        """
        layer, unit = stack.layer(mask), f"a layer of {stack.name}"
        facts = replace(stack.facts, unrepeatable=layer.unrepeatable)
        check_actions(stack.name, stack.actions, facts, shortened=stack.shortened)
        listed = {
            a: a.only(layer.names) if stack.in_chunks else a for a in stack.actions
        }
        kept = {action: resolve(layer, own, unit) for action, own in listed.items()}
        num_sent = dict.fromkeys(kept, 0)
        if stack.at_once:
            num_sent = {a: len(k.offloaded) for a, k in kept.items()}
            kept = {a: k.on_device() for a, k in kept.items()}
        found = segments(stack.actions, loops=not stack.unrolled)
        lay = list if is_turned(layer.passes.forward) else as_in_a_loop
        return cls(stack, layer, kept, num_sent, found, lay)

    @property
    def const_values(self) -> tuple[Value, ...]:
        return self.layer.passes.forward.inputs[self._parts[0]]

    @property
    def carry_values(self) -> tuple[Value, ...]:
        return self.layer.passes.forward.inputs[self._parts[1]]

    @property
    def x_values(self) -> tuple[Value, ...]:
        return self.layer.passes.forward.inputs[self._parts[2]]

    @property
    def const_mask(self) -> tuple[bool, ...]:
        return self.layer.passes.in_mask[self._parts[0]]

    @property
    def carry_mask(self) -> tuple[bool, ...]:
        return self.layer.passes.in_mask[self._parts[1]]

    @property
    def x_mask(self) -> tuple[bool, ...]:
        return self.layer.passes.in_mask[self._parts[2]]

    @property
    def y_mask(self) -> tuple[bool, ...]:
        return self.layer.passes.out_mask[self.stack.num_carry :]

    @property
    def _parts(self) -> tuple[slice, slice, slice]:
        """Where a layer's inputs are constants, the carry and its own `xs`."""
        n, k = self.stack.num_consts, self.stack.num_carry
        return slice(n), slice(n, n + k), slice(n + k, None)

    def loop(
        self,
        segment: Segment,
        step,
        state: Any,
        iterations: range,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """`lax.scan` over the iterations, or the same unrolled."""
        if not self.is_unrolled(segment, len(iterations)):
            numbers = jnp.arange(iterations.start, iterations.stop)
            at_a_time = min(segment.unroll or 1, len(iterations))
            return lax.scan(step, state, numbers, reverse=reverse, unroll=at_a_time)
        outs: list[Any] = []
        for t in reversed(iterations) if reverse else iterations:
            state, out = step(state, t)
            outs.append(out)
        if reverse:
            outs.reverse()
        return state, jax.tree.map(lambda *each: Each(each), *outs) if outs else []

    def is_unrolled(self, segment: Segment, num_iterations: int) -> bool:
        return self.stack.unrolled or segment.unroll is True or num_iterations <= 1

    @property
    def has_no_loop(self) -> bool:
        """Whether all of its layers stand one after the other, one by one."""
        return all(
            self.is_unrolled(segment, max(segment.repeats, segment.group))
            for segment in self.segments
        )

    def places(self, avals: Sequence[Any]) -> list[Any]:
        """Where all layers put an array each, for each of these types of their stack.

        Loops write into stacks. Without a loop each layer's array stays by itself.
        """
        if self.has_no_loop:
            return [none_yet(self.stack.length) for _ in avals]
        return list(map(_avals.room, avals))

    def filled(
        self,
        places: Sequence[Any],
        avals: Sequence[Any],
        missing: Callable[[Any], Any] = _avals.zeros,
    ) -> list[Any]:
        """What all layers put there, stacked.

        Args:
          places: From `places`.
          avals: The type of each for one layer.
          missing: Makes what layers that are left out would have put there.
        """
        return [
            stack(place, partial(missing, aval)) if isinstance(place, Each) else place
            for place, aval in zip(places, avals, strict=True)
        ]

    def index(self, segment: Segment, t, j: int):
        run_index = segment.start + t * segment.iteration + j
        return self.stack.length - 1 - run_index if self.stack.reverse else run_index

    def keeps_output(self, segment: Segment) -> bool:
        """Whether a run of INVERT has to be told its output to start from."""
        after = segment.start + segment.num_layers
        actions = self.stack.actions
        above = after < len(actions) and actions[after].inverts
        return segment.pattern[0].inverts and not above
