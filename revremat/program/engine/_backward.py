"""The backward pass of a stack: a loop over its layers, from the last to the first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from revremat.program.arrays import _avals
from revremat.program.arrays._buffers import (
    at,
    at_all,
    barrier,
    put,
    put_rows,
    take,
)
from revremat.program.arrays._host import fetch
from revremat.program.engine import _layer, _slots
from revremat.program.engine._engine import Engine
from revremat.program.engine._keep import Kept
from revremat.program.engine._segments import Segment
from revremat.program.ir._late_moves import LateMoves, late_moves
from revremat.program.ir._ops import Value
from revremat.program.ir._passes import pick


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["carry", "consts", "xs", "output", "fetched", "due"],
    meta_fields=[],
)
@dataclass(frozen=True)
class _Gradients:
    """What the backward pass carries from layer to layer.

    Attributes:
      carry: Cotangents of the carry.
      consts: Of what all layers share, added up so far.
      xs: Of what each layer has of its own.
      output: What an inverted layer is undone from.
      fetched: What the next layer has on the host, on its way.
      due: Of the layer above, with its index: its own gradients, to be done when this
        layer's pass is. None where there is none, as wherever a loop is.
    """

    carry: list[Any]
    consts: list[Any]
    xs: list[Any]
    output: list[Any] | None
    fetched: list[Any] | None
    due: tuple[int, list[Any]] | None


def backward(engine: Engine, consts, xs, saved, x_avals, ct_carry, ct_ys):
    """Cotangents for the constants, the first carry and the `xs`; None for zero."""
    state = _Gradients(
        carry=[_avals.instantiate(ct) for ct in pick(ct_carry, engine.carry_mask)],
        consts=[
            _avals.zero_cotangent(v.aval)
            for v in pick(engine.const_values, engine.const_mask)
        ],
        xs=engine.places(
            [
                jax.tree.map(lambda a: a.to_ct_aval(), aval)
                for aval in pick(x_avals, engine.x_mask)
            ]
        ),
        output=None,
        fetched=None,
        due=None,
    )
    ct_ys = [None if isinstance(ct, SymbolicZero) else ct for ct in ct_ys]
    run = _Backward(engine, consts, xs, ct_ys)
    saved, carry = run.fetch_all(saved, state.carry)
    state = replace(state, carry=carry)
    below = [None, *map(run.on_host_at_top, engine.segments, saved)]
    for segment, (kept, last), waiting in zip(
        reversed(engine.segments), reversed(saved), reversed(below[:-1]), strict=True
    ):
        if last is not None:
            state = replace(state, output=last)
        if not segment.pattern[0].inverts:
            state = replace(state, output=None)
        state = run.segment(segment, kept, waiting, state)
    state = run.put_due(state)
    own = [v.aval.to_ct_aval() for v in pick(engine.x_values, engine.x_mask)]
    of_xs = state.xs if engine.stack.unrolled else engine.filled(state.xs, own)
    spread = lambda mask, found: [next(found) if on else None for on in mask]
    return (
        spread(engine.const_mask, iter(state.consts)),
        spread(engine.carry_mask, iter(state.carry)),
        spread(engine.x_mask, iter(of_xs)),
    )


@dataclass(frozen=True, eq=False)
class _Backward:
    """The pass over one stack, and what all of its layers are given.

    Attributes:
      engine: The stack.
      consts: Arrays that all layers share, None for those that nothing reads.
      xs: Arrays with one entry for each layer, None for those that nothing reads.
      ct_ys: Cotangents of the layers' `ys`, None for zero.
    """

    engine: Engine
    consts: Sequence[Any]
    xs: Sequence[Any]
    ct_ys: Sequence[Any]

    def fetch_all(self, saved: list[Any], cotangents: list[Any]) -> tuple[Any, Any]:
        """What was sent when all layers were done, back where they look for it."""
        if not self.engine.stack.at_once:
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

    def on_host_at_top(self, segment: Segment, saved: Any) -> list[Any] | None:
        """What the last one of unrolled layers has on the host."""
        if (
            segment.group
            or segment.iteration > 1
            or self.engine.kept[segment.pattern[0]].ahead
        ):
            return None
        if not self.engine.is_unrolled(segment, segment.repeats):
            return None
        kept, _ = saved
        return at_all(kept[0][1], segment.repeats - 1)

    def segment(self, segment: Segment, kept, waiting, state: _Gradients):
        if self.engine.kept[segment.pattern[0]].ahead:
            return self._ahead(segment, kept, state)
        if segment.slots:
            ((slots, _),) = kept
            given = self.engine, segment, self.consts, self.xs, slots
            return _slots.backward(*given, self._back, state)
        iterations = range(segment.repeats)
        if segment.group:
            step = partial(self._group, segment, kept)
            return self.engine.loop(segment, step, state, iterations, reverse=True)[0]
        step = partial(self._step, segment, kept, waiting)
        if self.engine.is_unrolled(segment, segment.repeats):
            return self.engine.loop(segment, step, state, iterations, reverse=True)[0]
        fetched, carry = self._fetch_first(kept, iterations[-1], state.carry)
        state = replace(state, carry=carry, fetched=fetched)
        if segment.is_unrolled_in_part:
            state = self._in_rows(segment, step, state)
        else:
            state, _ = self.engine.loop(segment, step, state, iterations, reverse=True)
        return replace(state, fetched=None)

    def _in_rows(self, segment: Segment, step, state: _Gradients) -> _Gradients:
        """A loop with several layers to an iteration.

        Their own gradients are written once an iteration: one kernel for each layer
        would take as long as a short layer's products.
        """
        places, none = state.xs, [None] * len(state.xs)

        def one(state: _Gradients, t):
            state, _ = step(state, t)
            return replace(state, xs=none), state.xs

        # Rows come out as layers lie in the stack, which may be against their order.
        numbers, turned = range(segment.repeats), self.engine.stack.reverse
        way = (lambda u: segment.repeats - 1 - u) if turned else lambda t: t
        state, rows = self.engine.loop(
            segment,
            lambda state, u: one(state, way(u)),
            replace(state, xs=none),
            numbers,
            reverse=not turned,
        )
        first = self.engine.index(segment, segment.repeats - 1 if turned else 0, 0)
        return replace(state, xs=put_rows(places, rows, first))

    def _fetch_first(self, kept, t: int, cotangents):
        """What a backward loop's first iteration begins with, once it is wanted."""
        on_host = kept[-1][1]
        if not on_host:
            return [], cotangents
        iteration, cotangents = barrier((jnp.int32(t), cotangents))
        return [fetch(array, iteration) for array in on_host], cotangents

    def _step(self, segment: Segment, kept, waiting, state: _Gradients, t):
        last, unrolled, iteration = len(segment.pattern) - 1, isinstance(t, int), t
        for j in reversed(range(len(segment.pattern))):
            plan = self.engine.kept[segment.pattern[j]]
            if j < last and not unrolled:
                # Or the compiler fetches every layer's weights before it needs them.
                t, carry = barrier((t, state.carry))
                state = replace(state, carry=carry)
            index, (on_device, on_host) = self.engine.index(segment, t, j), kept[j]
            cotangents, inverts = state.carry, segment.pattern[j].inverts
            if unrolled:
                cotangents = self.engine.lay(cotangents)
                below = waiting if t == 0 else at_all(on_host, t - 1)
                own = at_all(on_host, t)
                fetched, state, cotangents = self._fetch(own, below, state, cotangents)
            elif j < last:  # While the layer above is differentiated.
                fetched = [fetch(array, iteration) for array in on_host]
            else:  # The iteration before has fetched it; this one does for the next.
                fetched, after = state.fetched, jnp.maximum(iteration - 1, 0)
                coming = [fetch(array, after) for array in on_host]
                state = replace(state, fetched=coming)
            env = self._recall(plan, index, (at_all(on_device, t), fetched))
            if inverts:
                self._start_from(state.output, env)
            if unrolled:
                cotangents = _layer.tie(env, plan.late, cotangents)
            stack = self.engine.stack
            # Nobody waits for gradients of weights: the compiler would put them off to
            # the end of the step, with all that they are made from.
            together = unrolled and (segment.unroll is True or stack.unrolled)
            together &= stack.gradient_lag is not None
            state = self._differentiate(plan, index, env, cotangents, state, together)
            if inverts:
                below = [env[v] for v in self.engine.carry_values]
                state = replace(state, output=below)
        return state, None

    def _fetch(self, own: list[Any], below, state: _Gradients, cotangents):
        """What an unrolled layer has on the host, there; the next one's on its way.

        It comes while this layer is differentiated, as what this layer has came before.
        """
        fetched, coming = state.fetched, None
        if fetched is None:
            fetched, cotangents = _layer.fetch_after(own, cotangents)
        if below is not None:
            coming, cotangents = _layer.fetch_after(below, cotangents)
        return fetched, replace(state, fetched=coming), cotangents

    def _ahead(self, segment: Segment, kept, state: _Gradients):
        """Recompute part of the layer below beside one layer's gradients."""
        plan, last = self.engine.kept[segment.pattern[0]], segment.repeats - 1
        inverts, kept = segment.pattern[0].inverts, kept[0]

        def at(t):
            index = self.engine.index(segment, t, 0)
            fetched = [fetch(array, t) for array in kept[1]]
            return index, self._recall(plan, index, (at_all(kept[0], t), fetched))

        def early(t, cotangents, output):
            _, env = at(t)
            if inverts:
                self._start_from(output, env)
            _layer.tie(env, plan.early, cotangents)
            _layer.recompute(plan.early, env)
            return [env[v] for v in plan.ahead]

        def known(t, recomputed):
            """What a layer has, and what it was given: the output of the one below."""
            index, env = at(t)
            env.update(zip(plan.ahead, recomputed, strict=True))
            return (
                index,
                env,
                [env[v] for v in self.engine.carry_values] if inverts else None,
            )

        def differentiate(index, env, given, state):
            if inverts:
                self._start_from(state.output, env)
            state = self._differentiate(plan, index, env, state.carry, state)
            return replace(state, output=given)

        def step(both, t):
            state, recomputed = both
            index, env, given = known(t, recomputed)
            below = early(t - 1, state.carry, given)
            return (differentiate(index, env, given, state), below), None

        recomputed = early(last, state.carry, state.output)
        iterations = range(1, segment.repeats)
        both = (state, recomputed)
        (state, recomputed), _ = self.engine.loop(
            segment, step, both, iterations, reverse=True
        )
        return differentiate(*known(0, recomputed), state)

    def _group(self, segment: Segment, kept, state: _Gradients, t):
        """Run a segment forward again, its layers keeping as said, then backward."""
        plan = self.engine.kept[segment.pattern[0]]
        first, _ = at_all(kept[0], t)
        if isinstance(t, int):
            first, carry = _layer.tie_arrays(first, state.carry)
            state = replace(state, carry=carry)

        def again(carry, j):
            if isinstance(j, int):
                carry = self.engine.lay(carry)
            inputs = [
                *self.consts,
                *carry,
                *take(self.xs, self.engine.index(segment, t, j)),
            ]
            return _layer.advance(self.engine.layer, plan, inputs)

        iterations = range(segment.group)
        with jax.named_scope("rematted_computation"):
            _, saved = self.engine.loop(segment, again, first, iterations)

        def back(state, j):
            index = self.engine.index(segment, t, j)
            own = at_all(saved, j)
            return self._back(plan, index, own, state, isinstance(j, int)), None

        return self.engine.loop(segment, back, state, iterations, reverse=True)

    def _back(
        self, plan: Kept, index, saved, state: _Gradients, unrolled: bool = False
    ):
        """Differentiate one layer by what it keeps."""
        env, cotangents = self._recall(plan, index, saved), state.carry
        if unrolled:
            cotangents = self.engine.lay(cotangents)
            cotangents = _layer.tie(env, plan.late, cotangents)
        return self._differentiate(plan, index, env, cotangents, state)

    def _recall(self, plan: Kept, index, saved) -> dict[Value, Any]:
        held = dict(zip(self.engine.const_values, self.consts, strict=True))
        held.update(zip(self.engine.x_values, take(self.xs, index), strict=True))
        return _layer.recall(plan, held, saved)

    def _start_from(self, output, env: dict[Value, Any]) -> None:
        """Adds the layer's carry out, from which it is undone."""
        for atom, array in zip(self.engine.layer.carried_out, output, strict=True):
            if isinstance(atom, Value):
                env.setdefault(atom, array)

    def _differentiate(
        self, plan: Kept, index, env, cotangents, state, together: bool = False
    ):
        out_mask = self.engine.layer.passes.out_mask[: len(self.engine.carry_mask)]
        carried = dict(zip(_where(self.engine.carry_mask), cotangents, strict=True))
        ct_outs = [carried[k] for k in _where(out_mask)]
        y_avals = [out.aval for out in self.engine.layer.passes.forward.outputs][
            len(out_mask) :
        ]
        for k in _where(self.engine.y_mask):
            ct = self.ct_ys[k]
            ct_outs.append(
                _avals.zero_cotangent(y_avals[k]) if ct is None else at(ct, index)
            )
        pulled = iter(
            _layer.pull_back(
                self.engine.layer, plan, env, ct_outs, self._late_moves.early
            )
        )
        ct_consts = [next(pulled) for _ in state.consts]
        carry, own = [next(pulled) for _ in state.carry], list(pulled)
        if together and self.engine.stack.gradient_lag:
            return self._one_layer_late(state, carry, ct_consts, own, index)
        consts = list(map(_avals.add, state.consts, ct_consts))
        if together and self._are_apart:
            carry, consts, own = barrier((carry, consts, own))
        xs = put(state.xs, self._late_moves.finish(own), index)
        if together and not self._are_apart:
            carry, consts, xs = barrier((carry, consts, xs))
        return replace(state, consts=consts, carry=carry, xs=xs)

    def _one_layer_late(self, state: _Gradients, carry, ct_consts, own, index):
        """Gradients of the layer above are done before the layer below begins.

        Devices add them up while this layer is differentiated.
        """
        if self._are_apart:
            above, due = state.due or (None, [])
            carry, consts, due = barrier((carry, state.consts, due))
            if above is not None:
                state = self.put_due(replace(state, due=(above, due)))
            state = replace(state, due=(index, own))
        else:
            carry, consts, xs = barrier((carry, state.consts, state.xs))
            state = replace(state, xs=put(xs, self._late_moves.finish(own), index))
        consts = list(map(_avals.add, consts, ct_consts))
        return replace(state, consts=consts, carry=carry)

    def put_due(self, state: _Gradients) -> _Gradients:
        """Puts the gradients that are due in their place."""
        if state.due is None:
            return state
        index, own = state.due
        xs = put(state.xs, self._late_moves.finish(own), index)
        return replace(state, xs=xs, due=None)

    @property
    def _are_apart(self) -> bool:
        """Whether each layer's own gradients stay by themselves."""
        return self.engine.has_no_loop

    @cached_property
    def _late_moves(self) -> LateMoves:
        """The backward program of a layer; its own gradients get their form last."""
        count = sum(self.engine.x_mask)
        return late_moves(self.engine.layer.passes.backward, count)


def _where(mask: Sequence[bool]) -> list[int]:
    return [k for k, on in enumerate(mask) if on]
