"""The stack engine: one custom_vjp around a whole stack of layers.

Weights are indexed by layer inside the loops and never sliced into runs; every weight
has one gradient buffer, written in place. Whatever way a layer's residuals come back,
its gradients are computed by the same backward program.

A function with its own derivative per layer would keep every layer's output, because
each one's input is a residual of its own; one around the stack keeps what the plan
says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from revremat._errors import UserError
from revremat._plan import Action
from revremat.program import _layer
from revremat.program._buffers import Each, at, at_all, put, take, zeros
from revremat.program._choice import write_choice
from revremat.program._keep import (
    Kept,
    Layer,
    cannot_rebuild,
    name_values,
    resolve,
)
from revremat.program._linearize import depends, is_inexact, linearize, pick
from revremat.program._ops import Program, Value
from revremat.program._segments import Segment, segments


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack of equal layers and the action of each.

    Attributes:
      body: One layer: constants, carry and one layer's `xs` in; carry and `ys` out.
      num_consts: How many of its inputs are constants, shared by all layers.
      num_carry: How many are carried from layer to layer.
      length: How many layers.
      reverse: Whether the first layer to run is the last in the stacked arrays.
      actions: One for each layer, the first to run first.
      inverse: From what `body` takes, with the carry that comes out in place of the one
        that goes in, to the latter; where there is a way.
      name: What messages call it.
      in_mask: Which of the body's inputs are differentiated, as far as the whole
        program shows; None to see when it happens.
      unrolled: Whether `xs` are `Each`, not stacked; the loops are written out then,
        and there are no `ys`.
      layers: The body's two passes, for each mask that was asked for.
      shortened: Whether there may be fewer actions than layers; the layers beyond them
        are left out. Not the same function: only for pricing a layer.
    """

    body: Program
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    actions: tuple[Action, ...]
    inverse: Program | None = None
    name: str = "the stack"
    in_mask: tuple[bool, ...] | None = None
    unrolled: bool = False
    shortened: bool = False
    layers: dict[tuple[bool, ...], Layer] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        if len(self.actions) != self.length and not self.shortened:
            raise UserError(
                f"{self.name} has {self.length} layers and {len(self.actions)} "
                "actions; give one action for each layer."
            )
        for action in self.actions:
            if action.kind == "invert" and self.inverse is None:
                raise UserError(
                    f"{self.name}: INVERT needs the layer's inverse; give one with "
                    "`inverse=`, or choose another action."
                )
            if action.kind == "invert" and action.ahead:
                raise UserError(
                    f"{self.name}: `ahead` does not go with INVERT, whose input is "
                    "only known when the layer above is done; choose one of the two."
                )
            if action.every != 1 and not action.can_group:
                raise UserError(
                    f"{self.name}: {action!r} keeps every {action.every}th layer's "
                    "input on the device and rebuilds the others from it; `every` goes "
                    "with SAVE and RECOMPUTE, without `offload` and `ahead`."
                )
            if action.every != 1 and self.unrolled:
                raise UserError(
                    f"{self.name} is written out, layer by layer, and `every` is for "
                    "loops; write it as a `jax.lax.scan` or leave `every` away."
                )
            if action.chunks != 1:
                raise UserError(
                    f"{self.name} is a stack, which cannot be split in {action.chunks} "
                    "chunks; chunks are for `rr.block(..., split=...)`."
                )

    @property
    def label(self) -> str:
        """What people called it."""
        return self.name.removeprefix("rr.").removeprefix("unit ").strip("'")

    def layer(self, mask: tuple[bool, ...]) -> Layer:
        """The layer's two passes when the inputs in `mask` are differentiated."""
        if mask not in self.layers:
            passes = linearize(self.body, mask)
            inputs, n = passes.forward.inputs, self.num_consts
            held = (*inputs[:n], *inputs[n + self.num_carry :])
            carried = range(n, n + self.num_carry)
            unit = f"a layer of {self.name}"
            self.layers[mask] = name_values(passes, held, unit, self.inverse, carried)
        return self.layers[mask]


def carried_mask(
    body: Program, consts: Sequence[bool], carry: Sequence[bool], xs: Sequence[bool]
) -> tuple[bool, ...]:
    """Which of a layer's inputs are differentiated, given which of the stack's are.

    A carry that starts as a constant is differentiated if any layer makes it depend on
    something that is.
    """
    carry = list(carry)
    while True:
        mask = (*consts, *carry, *xs)
        out = depends(body, mask)[: len(carry)]
        grown = [a or b for a, b in zip(carry, out, strict=True)]
        if grown == carry:
            return mask
        carry = grown


def run_stack(
    stack: Stack, consts: Sequence[Any], init: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Run a stack so that its backward pass follows its actions.

    Args:
      stack: The layers and what to do with each one's residuals.
      consts: Arrays all layers share.
      init: What the first layer is given.
      xs: Arrays with one entry for each layer along their first axis, or `Each`.

    Returns:
      What the last layer gives, and the `ys` of all layers, stacked.
    """

    @jax.custom_vjp
    def call(consts, init, xs):
        if not stack.unrolled:
            write_choice(stack.label, stack.actions)

        def body(carry, x):
            outs = stack.body(*consts, *carry, *x)
            return outs[: stack.num_carry], outs[stack.num_carry :]

        if stack.unrolled:
            for t in range(stack.length):
                init, _ = body(init, take(xs, t))
            return init, []
        return lax.scan(body, init, xs, length=stack.length, reverse=stack.reverse)

    def forward(consts, init, xs):
        (consts, c_mask), (init, i_mask), (xs, x_mask) = map(_split, (consts, init, xs))
        mask = carried_mask(stack.body, c_mask, i_mask, x_mask)
        mask = widen(mask, stack.in_mask)
        engine = _Engine(stack, stack.layer(mask))
        outputs, saved = engine.forward(consts, init, xs)
        static = _Static(mask, tuple(jax.tree.map(jax.typeof, xs)))
        return outputs, (engine.only_used(consts, xs), saved, static)

    def backward(residuals, cotangents):
        (consts, xs), saved, static = residuals
        engine = _Engine(stack, stack.layer(static.mask))
        return engine.backward(consts, xs, saved, static.x_avals, *cotangents)

    call.defvjp(forward, backward, symbolic_zeros=True)
    carry, ys = call(list(consts), list(init), list(xs))
    return list(carry), list(ys)


def _split(primals: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """The values that a forward rule is given, and whether each is differentiated."""
    values, mask = [], []
    for primal in primals:
        leaves, treedef = jax.tree.flatten(
            primal, is_leaf=lambda p: hasattr(p, "value")
        )
        values.append(treedef.unflatten([leaf.value for leaf in leaves]))
        perturbed = any(leaf.perturbed for leaf in leaves)
        mask.append(perturbed and is_inexact(jax.typeof(leaves[0].value)))
    return values, mask


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    mask: tuple[bool, ...]
    x_avals: tuple[Any, ...]


class _Engine:
    """The two passes of a stack, once it is known what is differentiated."""

    def __init__(self, stack: Stack, layer: Layer):
        self.stack, self.layer = stack, layer
        unit = f"a layer of {stack.name}"
        self.kept: dict[Action, Kept] = {
            action: resolve(layer, action, unit) for action in set(stack.actions)
        }
        self.segments = segments(stack.actions)
        if any(segment.group for segment in self.segments):
            _check_repeatable(layer, unit)
        n, k = stack.num_consts, stack.num_carry
        inputs, mask = layer.passes.forward.inputs, layer.passes.in_mask
        self.const_values, self.x_values = inputs[:n], inputs[n + k :]
        self.carry_values = inputs[n : n + k]
        self.const_mask, self.x_mask = mask[:n], mask[n + k :]
        self.carry_mask = mask[n : n + k]
        out = layer.passes.out_mask
        self.carry_out_mask, self.y_mask = out[:k], out[k:]

    # Forward -----------------------------------------------------------------------

    def forward(self, consts, init, xs):
        stack, carry = self.stack, list(init)
        y_avals = [a.aval for a in self.layer.passes.forward.outputs[stack.num_carry :]]
        ys = [zeros(a, (stack.length,)) for a in y_avals]
        saved = []
        for segment in self.segments:
            forward = self._forward_group if segment.group else self._forward_step
            step = partial(forward, segment, consts, xs)
            turns = range(segment.repeats)
            room = self._room(segment, step, carry, ys)
            (carry, ys, room), kept = self._loop(step, (carry, ys, room), turns)
            pairs = zip(room, kept, strict=True)
            kept = [(own or buffers, on_host) for buffers, (own, on_host) in pairs]
            last = carry if self._keeps_output(segment) else None
            saved.append((kept, last))
        return (carry, ys), saved

    def _room(self, segment: Segment, step, carry, ys) -> list[list[Any]]:
        """Buffers for what the layers of a pattern save, where there are several.

        What a loop gives out is only written when a turn ends; written to buffers, it
        is out of the way before the pattern's next layer begins.
        """
        none: list[list[Any]] = [[] for _ in segment.pattern]
        if len(segment.pattern) == 1:
            return none
        (_, _, _), kept = jax.eval_shape(
            lambda c, y: step((c, y, none), jnp.int32(0)), carry, ys
        )
        stacked = lambda a: zeros(a, (segment.repeats,))
        return [jax.tree.map(stacked, on_device) for on_device, _ in kept]

    def _forward_step(self, segment: Segment, consts, xs, state, t):
        carry, ys, room = state
        room, kept = list(room), []
        last = len(segment.pattern) - 1
        for j, action in enumerate(segment.pattern):
            index = self._index(segment, t, j)
            inputs = [*consts, *carry, *take(xs, index)]
            outs, (on_device, on_host) = _layer.forward(
                self.layer, self.kept[action], inputs
            )
            carry, y = outs[: len(carry)], outs[len(carry) :]
            ys = put(ys, y, index)
            if room[j]:
                room[j] = put(room[j], on_device, t)
                on_device = []
                if j < last:
                    t, carry, room[j] = lax.optimization_barrier((t, carry, room[j]))
            kept.append((on_device, on_host))
        return (carry, ys, room), kept

    def _forward_group(self, segment: Segment, consts, xs, state, t):
        """A segment of layers of which only the first one's input is kept."""
        first, ys, room = state

        def one(state, j):
            carry, ys = state
            index = self._index(segment, t, j)
            inputs = [*consts, *carry, *take(xs, index)]
            outs, _ = _layer.forward(self.layer, NOTHING, inputs)
            return (outs[: len(carry)], put(ys, outs[len(carry) :], index)), None

        (carry, ys), _ = self._loop(one, (first, ys), range(segment.group))
        return (carry, ys, room), [(first, [])]

    def _loop(
        self, step, state: Any, turns: range, reverse: bool = False
    ) -> tuple[Any, Any]:
        """`lax.scan` over the turns, or the same written out where it is one turn."""
        if not self._is_written_out(len(turns)):
            return lax.scan(
                step, state, jnp.arange(turns.start, turns.stop), reverse=reverse
            )
        outs: list[Any] = []
        for t in reversed(turns) if reverse else turns:
            state, out = step(state, t)
            outs.append(out)
        if reverse:
            outs.reverse()
        return state, jax.tree.map(lambda *each: Each(each), *outs) if outs else []

    def _is_written_out(self, num_turns: int) -> bool:
        return self.stack.unrolled or num_turns <= 1

    def _index(self, segment: Segment, t, j: int):
        run_index = segment.start + t * segment.turn + j
        return self.stack.length - 1 - run_index if self.stack.reverse else run_index

    def _keeps_output(self, segment: Segment) -> bool:
        """Whether a run of INVERT has to be told its output to start from."""
        after = segment.start + segment.num_layers
        actions = self.stack.actions
        above = after < len(actions) and actions[after].kind == "invert"
        return segment.pattern[0].kind == "invert" and not above

    def only_used(self, consts, xs):
        """The weights that the backward pass reads, and None for all others."""
        used = {a for a in self.layer.passes.residuals}
        for kept in self.kept.values():
            for op in (*kept.early, *kept.late):
                used.update(op.inputs)
        for action, kept in self.kept.items():
            if action.every > 1:
                for op in _layer.advancing(self.layer, kept):
                    used.update(op.inputs)
                used.update(a for a in self.layer.carried_out if isinstance(a, Value))
        keep = lambda values, arrays: [
            a if v in used else None for v, a in zip(values, arrays, strict=True)
        ]
        return keep(self.const_values, consts), keep(self.x_values, xs)

    # Backward ----------------------------------------------------------------------

    def backward(self, consts, xs, saved, x_avals, ct_carry, ct_ys):
        """Cotangents for the constants, the first carry and the `xs`; None for zero."""
        state = _Gradients(
            carry=[instantiate(ct) for ct in pick(ct_carry, self.carry_mask)],
            consts=[zeros(v.aval) for v in pick(self.const_values, self.const_mask)],
            xs=[jax.tree.map(zeros, aval) for aval in pick(x_avals, self.x_mask)],
            output=None,
        )
        self.ct_ys = [None if isinstance(ct, SymbolicZero) else ct for ct in ct_ys]
        self.consts, self.xs = consts, xs
        for segment, (kept, last) in zip(
            reversed(self.segments), reversed(saved), strict=True
        ):
            if last is not None:
                state = replace(state, output=last)
            if segment.pattern[0].kind != "invert":
                state = replace(state, output=None)
            state = self._backward_segment(segment, kept, state)
        spread = lambda mask, found: [next(found) if on else None for on in mask]
        return (
            spread(self.const_mask, iter(state.consts)),
            spread(self.carry_mask, iter(state.carry)),
            spread(self.x_mask, iter(state.xs)),
        )

    def _backward_segment(self, segment: Segment, kept, state: "_Gradients"):
        if self.kept[segment.pattern[0]].ahead:
            return self._backward_ahead(segment, kept, state)
        if segment.group:
            step = partial(self._backward_group, segment, kept)
            return self._loop(step, state, range(segment.repeats), reverse=True)[0]
        step = partial(self._backward_step, segment, kept)
        return self._loop(step, state, range(segment.repeats), reverse=True)[0]

    def _backward_step(self, segment: Segment, kept, state: "_Gradients", t):
        last, written_out = len(segment.pattern) - 1, isinstance(t, int)
        for j in reversed(range(len(segment.pattern))):
            plan = self.kept[segment.pattern[j]]
            if j < last and not written_out:
                # Or the compiler fetches every layer's weights before it needs them.
                t, carry = lax.optimization_barrier((t, state.carry))
                state = replace(state, carry=carry)
            index, one = self._index(segment, t, j), at_all(kept[j], t)
            env = self._recall(plan, index, one)
            cotangents, inverts = state.carry, segment.pattern[j].kind == "invert"
            if inverts:
                self._start_from(state.output, env)
            if written_out:
                cotangents = _layer.tie(env, plan.late, cotangents)
            state = self._differentiate(plan, index, env, cotangents, state)
            if inverts:
                below = [env[v] for v in self.carry_values]
                state = replace(state, output=below)
        return state, None

    def _backward_ahead(self, segment: Segment, kept, state: "_Gradients"):
        """While one layer's gradients are computed, rebuild part of the layer below."""
        plan, last = self.kept[segment.pattern[0]], segment.repeats - 1
        kept = kept[0]

        def at(t):
            index = self._index(segment, t, 0)
            return index, self._recall(plan, index, at_all(kept, t))

        def early(t, cotangents):
            _, env = at(t)
            _layer.tie(env, plan.early, cotangents)
            _layer.rebuild(plan.early, env)
            return [env[v] for v in plan.ahead]

        def differentiate(t, state, rebuilt):
            index, env = at(t)
            env.update(zip(plan.ahead, rebuilt, strict=True))
            return self._differentiate(plan, index, env, state.carry, state)

        def step(both, t):
            state, rebuilt = both
            below = early(t - 1, state.carry)
            return (differentiate(t, state, rebuilt), below), None

        rebuilt = early(last, state.carry)
        turns = range(1, segment.repeats)
        (state, rebuilt), _ = self._loop(step, (state, rebuilt), turns, reverse=True)
        return differentiate(0, state, rebuilt)

    def _backward_group(self, segment: Segment, kept, state: "_Gradients", t):
        """Run a segment forward again, its layers keeping as said, then backward."""
        plan = self.kept[segment.pattern[0]]
        first, _ = at_all(kept[0], t)
        if isinstance(t, int):
            first, carry = _layer.tie_arrays(first, state.carry)
            state = replace(state, carry=carry)

        def again(carry, j):
            inputs = [*self.consts, *carry, *take(self.xs, self._index(segment, t, j))]
            return _layer.advance(self.layer, plan, inputs)

        turns = range(segment.group)
        with jax.named_scope("rematted_computation"):
            _, saved = self._loop(again, first, turns)

        def back(state, j):
            index = self._index(segment, t, j)
            env = self._recall(plan, index, at_all(saved, j))
            cotangents = state.carry
            if isinstance(j, int):
                cotangents = _layer.tie(env, plan.late, cotangents)
            return self._differentiate(plan, index, env, cotangents, state), None

        return self._loop(back, state, turns, reverse=True)

    def _recall(self, plan: Kept, index, saved) -> dict[Value, Any]:
        held = dict(zip(self.const_values, self.consts, strict=True))
        held.update(zip(self.x_values, take(self.xs, index), strict=True))
        return _layer.recall(plan, held, saved)

    def _start_from(self, output, env: dict[Value, Any]) -> None:
        """Adds what the layer hands on, from which it is undone."""
        for atom, array in zip(self.layer.carried_out, output, strict=True):
            if isinstance(atom, Value):
                env.setdefault(atom, array)

    def _differentiate(self, plan: Kept, index, env, cotangents, state):
        out_mask = self.layer.passes.out_mask[: len(self.carry_mask)]
        carried = dict(zip(_where(self.carry_mask), cotangents, strict=True))
        ct_outs = [carried[k] for k in _where(out_mask)]
        y_avals = [out.aval for out in self.layer.passes.forward.outputs][
            len(out_mask) :
        ]
        for k in _where(self.y_mask):
            ct = self.ct_ys[k]
            ct_outs.append(zeros(y_avals[k]) if ct is None else at(ct, index))
        pulled = iter(_layer.pull_back(self.layer, plan, env, ct_outs))
        ct_consts = [next(pulled) for _ in state.consts]
        ct_carry = [next(pulled) for _ in state.carry]
        return replace(
            state,
            consts=[a + b for a, b in zip(state.consts, ct_consts, strict=True)],
            carry=ct_carry,
            xs=put(state.xs, list(pulled), index),
        )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["carry", "consts", "xs", "output"],
    meta_fields=[],
)
@dataclass(frozen=True)
class _Gradients:
    """What the backward pass carries from layer to layer."""

    carry: list[Any]
    consts: list[Any]
    xs: list[Any]
    output: list[Any] | None


NOTHING = Kept((), (), (), (), (), (), ())


def _check_repeatable(layer: Layer, unit: str) -> None:
    for op in layer.passes.forward.ops:
        if why := cannot_rebuild(op):
            raise UserError(f"{unit} cannot be run twice, as `every` would: {why}.")


def _where(mask: Sequence[bool]) -> list[int]:
    return [k for k, on in enumerate(mask) if on]


def widen(mask: tuple[bool, ...], known: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """The mask a plan was made for, unless more than that is differentiated.

    Names that are made up count operations of the derivative, so they hold for one
    mask.
    """
    if known is None or any(on and not k for on, k in zip(mask, known, strict=True)):
        return mask
    return known


def instantiate(cotangent: Any) -> Any:
    """A cotangent as an array, where it may be a symbolic zero."""
    if isinstance(cotangent, SymbolicZero):
        return zeros(cotangent.aval)
    return cotangent
