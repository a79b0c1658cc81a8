"""The two passes of a stack: loops over its layers, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from revremat._errors import UserError
from revremat._plan import Action
from revremat.program import _avals, _layer
from revremat.program._buffers import (
    Each,
    at,
    at_all,
    put,
    take,
)
from revremat.program._host import fetch, to_host
from revremat.program._keep import Kept, Layer, cannot_rebuild, resolve
from revremat.program._layout import as_in_a_loop, is_turned
from revremat.program._linearize import pick
from revremat.program._ops import Value
from revremat.program._segments import Segment, segments

if TYPE_CHECKING:
    from revremat.program._stack import Stack


class Engine:
    """The two passes of a stack, once it is known what is differentiated."""

    def __init__(self, stack: "Stack", layer: Layer):
        self.stack, self.layer = stack, layer
        unit = f"a layer of {stack.name}"
        self.kept: dict[Action, Kept] = {
            action: resolve(layer, action, unit) for action in set(stack.actions)
        }
        self.num_sent = dict.fromkeys(self.kept, 0)
        if stack.at_once:
            self.num_sent = {a: len(k.offloaded) for a, k in self.kept.items()}
            self.kept = {a: k.on_device() for a, k in self.kept.items()}
        self.lay = list if is_turned(layer.passes.forward) else as_in_a_loop
        self.segments = segments(stack.actions, loops=not stack.unrolled)
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
        ys = [_avals.room(_avals.stacked(a, stack.length)) for a in y_avals]
        saved, sent = [], []
        for segment in self.segments:
            if not self._is_written_out(segment, segment.repeats):
                carry, sent = _layer.wait_for(sent, carry), []
            forward = self._forward_group if segment.group else self._forward_step
            step = partial(forward, segment, consts, xs)
            first = (carry, ys, self._room(segment), sent)
            state, kept = self._loop(segment, step, first, range(segment.repeats))
            carry, ys, room, sent = state
            pairs = zip(room, kept, strict=True)
            kept = [(own or buffers, on_host) for buffers, (own, on_host) in pairs]
            last = carry if self._keeps_output(segment) else None
            saved.append((self._send_all(segment, kept), last))
        return (_layer.wait_for(sent, carry), ys), saved

    def _send_all(self, segment: Segment, kept: list[Any]) -> list[Any]:
        """What the layers have for the host, sent there if they have not done so."""
        split = []
        for action, (on_device, on_host) in zip(segment.pattern, kept, strict=True):
            own = len(on_device) - self.num_sent[action]
            split.append(
                (on_device[:own], [*on_host, *jax.tree.map(to_host, on_device[own:])])
            )
        return split

    def _fetch_all(self, saved: list[Any], cotangents: list[Any]) -> tuple[Any, Any]:
        """What was sent when all layers were done, back where they look for it."""
        if not self.stack.at_once:
            return saved, cotangents
        on_host = [[host for _, host in kept] for kept, _ in saved]
        leaves, tree = jax.tree.flatten(on_host)
        leaves, cotangents = _layer.fetch_after(leaves, cotangents)
        fetched = tree.unflatten(leaves)
        back = [
            ([([*d, *h], []) for (d, _), h in zip(kept, own, strict=True)], last)
            for (kept, last), own in zip(saved, fetched, strict=True)
        ]
        return back, cotangents

    def _room(self, segment: Segment) -> list[list[Any]]:
        """Buffers for what the layers of a pattern save, where there are several.

        What a loop gives out is only written when a turn ends; written to buffers, it
        is out of the way before the pattern's next layer begins.
        """
        if len(segment.pattern) == 1:
            return [[]]
        room = lambda value: _avals.room(_avals.stacked(value.aval, segment.repeats))
        return [list(map(room, self.kept[a].saved)) for a in segment.pattern]

    def _forward_step(self, segment: Segment, consts, xs, state, t):
        carry, ys, room, sent = state
        written_out = isinstance(t, int)
        if written_out:
            carry = self.lay(carry)
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
        if written_out:
            # What the layer before sent to the host had a layer's time to get there.
            carry = _layer.wait_for(sent, carry)
            sent = [array for _, on_host in kept for array in on_host]
        return (carry, ys, room, sent), kept

    def _forward_group(self, segment: Segment, consts, xs, state, t):
        """A segment of layers of which only the first one's input is kept."""
        first, ys, room, sent = state

        def one(state, j):
            carry, ys = state
            if isinstance(j, int):
                carry = self.lay(carry)
            index = self._index(segment, t, j)
            inputs = [*consts, *carry, *take(xs, index)]
            outs, _ = _layer.forward(self.layer, NOTHING, inputs)
            return (outs[: len(carry)], put(ys, outs[len(carry) :], index)), None

        (carry, ys), _ = self._loop(segment, one, (first, ys), range(segment.group))
        return (carry, ys, room, sent), [(first, [])]

    def _loop(
        self,
        segment: Segment,
        step,
        state: Any,
        turns: range,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """`lax.scan` over the turns, or the same written out."""
        if not self._is_written_out(segment, len(turns)):
            numbers = jnp.arange(turns.start, turns.stop)
            return lax.scan(step, state, numbers, reverse=reverse)
        outs: list[Any] = []
        for t in reversed(turns) if reverse else turns:
            state, out = step(state, t)
            outs.append(out)
        if reverse:
            outs.reverse()
        return state, jax.tree.map(lambda *each: Each(each), *outs) if outs else []

    def _is_written_out(self, segment: Segment, num_turns: int) -> bool:
        return self.stack.unrolled or segment.unroll or num_turns <= 1

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
            carry=[_avals.instantiate(ct) for ct in pick(ct_carry, self.carry_mask)],
            consts=[
                _avals.zero_cotangent(v.aval)
                for v in pick(self.const_values, self.const_mask)
            ],
            xs=[
                jax.tree.map(lambda a: _avals.room(a.to_ct_aval()), aval)
                for aval in pick(x_avals, self.x_mask)
            ],
            output=None,
            fetched=None,
        )
        self.ct_ys = [None if isinstance(ct, SymbolicZero) else ct for ct in ct_ys]
        self.consts, self.xs = consts, xs
        saved, carry = self._fetch_all(saved, state.carry)
        state = replace(state, carry=carry)
        below = [None, *map(self._on_host_at_top, self.segments, saved)]
        for segment, (kept, last), waiting in zip(
            reversed(self.segments), reversed(saved), reversed(below[:-1]), strict=True
        ):
            if last is not None:
                state = replace(state, output=last)
            if segment.pattern[0].kind != "invert":
                state = replace(state, output=None)
            state = self._backward_segment(segment, kept, waiting, state)
        spread = lambda mask, found: [next(found) if on else None for on in mask]
        return (
            spread(self.const_mask, iter(state.consts)),
            spread(self.carry_mask, iter(state.carry)),
            spread(self.x_mask, iter(state.xs)),
        )

    def _on_host_at_top(self, segment: Segment, saved: Any) -> list[Any] | None:
        """What the last one of written out layers has on the host."""
        if segment.group or segment.turn > 1 or self.kept[segment.pattern[0]].ahead:
            return None
        if not self._is_written_out(segment, segment.repeats):
            return None
        kept, _ = saved
        return at_all(kept[0][1], segment.repeats - 1)

    def _backward_segment(self, segment: Segment, kept, waiting, state: "_Gradients"):
        if self.kept[segment.pattern[0]].ahead:
            return self._backward_ahead(segment, kept, state)
        turns = range(segment.repeats)
        if segment.group:
            step = partial(self._backward_group, segment, kept)
            return self._loop(segment, step, state, turns, reverse=True)[0]
        step = partial(self._backward_step, segment, kept, waiting)
        if self._is_written_out(segment, segment.repeats):
            return self._loop(segment, step, state, turns, reverse=True)[0]
        fetched, carry = self._fetch_first(kept, turns[-1], state.carry)
        state = replace(state, carry=carry, fetched=fetched)
        state, _ = self._loop(segment, step, state, turns, reverse=True)
        return replace(state, fetched=None)

    def _fetch_first(self, kept, t: int, cotangents):
        """What the first turn of a backward loop begins with, once it is wanted."""
        on_host = kept[-1][1]
        if not on_host:
            return [], cotangents
        turn, cotangents = lax.optimization_barrier((jnp.int32(t), cotangents))
        return [fetch(array, turn) for array in on_host], cotangents

    def _backward_step(self, segment: Segment, kept, waiting, state: "_Gradients", t):
        last, written_out, turn = len(segment.pattern) - 1, isinstance(t, int), t
        for j in reversed(range(len(segment.pattern))):
            plan = self.kept[segment.pattern[j]]
            if j < last and not written_out:
                # Or the compiler fetches every layer's weights before it needs them.
                t, carry = lax.optimization_barrier((t, state.carry))
                state = replace(state, carry=carry)
            index, (on_device, on_host) = self._index(segment, t, j), kept[j]
            cotangents, inverts = state.carry, segment.pattern[j].kind == "invert"
            if written_out:
                cotangents = self.lay(cotangents)
                below = waiting if t == 0 else at_all(on_host, t - 1)
                own = at_all(on_host, t)
                fetched, state, cotangents = self._fetch(own, below, state, cotangents)
            elif j < last:  # While the layer above is differentiated.
                fetched = [fetch(array, turn) for array in on_host]
            else:  # The turn before has fetched it; this one does for the next.
                fetched, after = state.fetched, jnp.maximum(turn - 1, 0)
                coming = [fetch(array, after) for array in on_host]
                state = replace(state, fetched=coming)
            env = self._recall(plan, index, (at_all(on_device, t), fetched))
            if inverts:
                self._start_from(state.output, env)
            if written_out:
                cotangents = _layer.tie(env, plan.late, cotangents)
            state = self._differentiate(plan, index, env, cotangents, state)
            if written_out and (segment.unroll or self.stack.unrolled):
                state = _together(state, index)
            if inverts:
                below = [env[v] for v in self.carry_values]
                state = replace(state, output=below)
        return state, None

    def _fetch(self, own: list[Any], below, state: "_Gradients", cotangents):
        """What a written out layer has on the host, there; the next one's on its way.

        It comes while this layer is differentiated, as what this layer has came before.
        """
        fetched, coming = state.fetched, None
        if fetched is None:
            fetched, cotangents = _layer.fetch_after(own, cotangents)
        if below is not None:
            coming, cotangents = _layer.fetch_after(below, cotangents)
        return fetched, replace(state, fetched=coming), cotangents

    def _backward_ahead(self, segment: Segment, kept, state: "_Gradients"):
        """While one layer's gradients are computed, rebuild part of the layer below."""
        plan, last = self.kept[segment.pattern[0]], segment.repeats - 1
        inverts, kept = segment.pattern[0].kind == "invert", kept[0]

        def at(t):
            index = self._index(segment, t, 0)
            fetched = [fetch(array, t) for array in kept[1]]
            return index, self._recall(plan, index, (at_all(kept[0], t), fetched))

        def early(t, cotangents, output):
            _, env = at(t)
            if inverts:
                self._start_from(output, env)
            _layer.tie(env, plan.early, cotangents)
            _layer.rebuild(plan.early, env)
            return [env[v] for v in plan.ahead]

        def known(t, rebuilt):
            """What a layer has, and what it was given: the output of the one below."""
            index, env = at(t)
            env.update(zip(plan.ahead, rebuilt, strict=True))
            return index, env, [env[v] for v in self.carry_values] if inverts else None

        def differentiate(index, env, given, state):
            if inverts:
                self._start_from(state.output, env)
            state = self._differentiate(plan, index, env, state.carry, state)
            return replace(state, output=given)

        def step(both, t):
            state, rebuilt = both
            index, env, given = known(t, rebuilt)
            below = early(t - 1, state.carry, given)
            return (differentiate(index, env, given, state), below), None

        rebuilt = early(last, state.carry, state.output)
        turns = range(1, segment.repeats)
        both = (state, rebuilt)
        (state, rebuilt), _ = self._loop(segment, step, both, turns, reverse=True)
        return differentiate(*known(0, rebuilt), state)

    def _backward_group(self, segment: Segment, kept, state: "_Gradients", t):
        """Run a segment forward again, its layers keeping as said, then backward."""
        plan = self.kept[segment.pattern[0]]
        first, _ = at_all(kept[0], t)
        if isinstance(t, int):
            first, carry = _layer.tie_arrays(first, state.carry)
            state = replace(state, carry=carry)

        def again(carry, j):
            if isinstance(j, int):
                carry = self.lay(carry)
            inputs = [*self.consts, *carry, *take(self.xs, self._index(segment, t, j))]
            return _layer.advance(self.layer, plan, inputs)

        turns = range(segment.group)
        with jax.named_scope("rematted_computation"):
            _, saved = self._loop(segment, again, first, turns)

        def back(state, j):
            index = self._index(segment, t, j)
            env = self._recall(plan, index, at_all(saved, j))
            cotangents = state.carry
            if isinstance(j, int):
                cotangents = self.lay(cotangents)
                cotangents = _layer.tie(env, plan.late, cotangents)
            return self._differentiate(plan, index, env, cotangents, state), None

        return self._loop(segment, back, state, turns, reverse=True)

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
            ct_outs.append(
                _avals.zero_cotangent(y_avals[k]) if ct is None else at(ct, index)
            )
        pulled = iter(_layer.pull_back(self.layer, plan, env, ct_outs))
        ct_consts = [next(pulled) for _ in state.consts]
        ct_carry = [next(pulled) for _ in state.carry]
        return replace(
            state,
            consts=list(map(_avals.add, state.consts, ct_consts)),
            carry=ct_carry,
            xs=put(state.xs, list(pulled), index),
        )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["carry", "consts", "xs", "output", "fetched"],
    meta_fields=[],
)
@dataclass(frozen=True)
class _Gradients:
    """What the backward pass carries from layer to layer."""

    carry: list[Any]
    consts: list[Any]
    xs: list[Any]
    output: list[Any] | None
    fetched: list[Any] | None


def _together(state: _Gradients, index: int) -> _Gradients:
    """All gradients of one layer are done before the layer below begins.

    Nobody waits for those of weights, and the compiler would put them off to the end of
    the step, with all that they are made from.
    """
    own = [at(x, index) if isinstance(x, Each) else x for x in state.xs]
    carry, consts, own = lax.optimization_barrier((state.carry, state.consts, own))
    xs = [
        put([x], [one], index)[0] if isinstance(x, Each) else one
        for x, one in zip(state.xs, own, strict=True)
    ]
    return replace(state, carry=carry, consts=consts, xs=xs)


NOTHING = Kept((), (), (), (), (), (), ())


def _check_repeatable(layer: Layer, unit: str) -> None:
    for op in layer.passes.forward.ops:
        if why := cannot_rebuild(op):
            raise UserError(f"{unit} cannot be run twice, as `every` would: {why}.")


def _where(mask: Sequence[bool]) -> list[int]:
    return [k for k, on in enumerate(mask) if on]
