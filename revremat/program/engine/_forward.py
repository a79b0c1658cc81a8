"""The forward pass of a stack: a loop over its layers, each keeping what it should."""

from functools import partial
from typing import Any

import jax
from jax import lax

from revremat.program.arrays import _avals
from revremat.program.arrays._buffers import barrier, put, put_rows, take
from revremat.program.arrays._host import to_host
from revremat.program.engine import _layer, _slots
from revremat.program.engine._engine import Engine
from revremat.program.engine._keep import NOTHING
from revremat.program.engine._segments import Segment
from revremat.program.ir._ops import Value


def forward(engine: Engine, consts, init, xs):
    """What the last layer gives with all `ys`, and what is kept of each segment."""
    stack, carry = engine.stack, list(init)
    y_avals = [a.aval for a in engine.layer.passes.forward.outputs[stack.num_carry :]]
    ys = engine.places([_avals.stacked(a, stack.length) for a in y_avals])
    saved, sent = [], []
    for segment in engine.segments:
        if not engine.is_unrolled(segment, segment.repeats):
            carry, sent = _layer.wait_for(sent, carry), []
        if segment.slots:
            carry, ys, slots = _slots.forward(engine, segment, consts, xs, carry, ys)
            saved.append(([(slots, [])], None))
            continue
        step = _group if segment.group else _step
        iteration = partial(step, engine, segment, consts, xs)
        first = (carry, ys, _room(engine, segment), sent)
        if segment.is_unrolled_in_part:
            state, kept = _in_rows(engine, segment, iteration, first)
        else:
            state, kept = engine.loop(segment, iteration, first, range(segment.repeats))
        carry, ys, room, sent = state
        pairs = zip(room, kept, strict=True)
        kept = [(own or buffers, on_host) for buffers, (own, on_host) in pairs]
        last = carry if engine.keeps_output(segment) else None
        saved.append((_send_all(engine, segment, kept), last))
    ys = engine.filled(ys, y_avals, _avals.room)
    return (_layer.wait_for(sent, carry), ys), saved


def _in_rows(engine: Engine, segment: Segment, iteration, first):
    """A loop with several layers to an iteration, whose `ys` are written once each."""
    carry, ys, room, sent = first
    none = [None] * len(ys)

    def one(state, t):
        (carry, own, room, sent), kept = iteration(state, t)
        return (carry, none, room, sent), (own, kept)

    state, (rows, kept) = engine.loop(
        segment, one, (carry, none, room, sent), range(segment.repeats)
    )
    carry, _, room, sent = state
    start = 0
    if engine.stack.reverse:
        rows, start = [lax.rev(few, (0,)) for few in rows], segment.repeats - 1
    ys = put_rows(ys, rows, engine.index(segment, start, 0))
    return (carry, ys, room, sent), kept


def _send_all(engine: Engine, segment: Segment, kept: list[Any]) -> list[Any]:
    """What the layers have for the host, sent there if they have not done so."""
    split = []
    for action, (on_device, on_host) in zip(segment.pattern, kept, strict=True):
        own = len(on_device) - engine.num_sent[action]
        split.append(
            (on_device[:own], [*on_host, *jax.tree.map(to_host, on_device[own:])])
        )
    return split


def _room(engine: Engine, segment: Segment) -> list[list[Any]]:
    """Buffers for what the layers of a loop's pattern save.

    What a loop gives out is only written when an iteration ends, into stacks that
    `lax.scan` fills with zeros first. Written to buffers, it is out of the way before
    the pattern's next layer begins. Of several layers to an iteration, what they all
    give out is written at once. Without a loop each layer's arrays stay by themselves.
    """
    no_loop = engine.is_unrolled(segment, segment.repeats)
    if len(segment.pattern) == 1 and (no_loop or segment.is_unrolled_in_part):
        return [[]]
    room = lambda value: _avals.room(_avals.stacked(value.aval, segment.repeats))
    return [list(map(room, engine.kept[a].saved)) for a in segment.pattern]


def _step(engine: Engine, segment: Segment, consts, xs, state, t):
    carry, ys, room, sent = state
    unrolled = isinstance(t, int)
    if unrolled:
        carry = engine.lay(carry)
    room, kept = list(room), []
    last = len(segment.pattern) - 1
    for j, action in enumerate(segment.pattern):
        index = engine.index(segment, t, j)
        inputs = [*consts, *carry, *take(xs, index)]
        outs, (on_device, on_host) = _layer.forward(
            engine.layer, engine.kept[action], inputs, in_place=bool(room[j])
        )
        carry, y = outs[: len(carry)], outs[len(carry) :]
        ys = put(ys, y, index)
        if room[j]:
            room[j] = put(room[j], on_device, t)
            on_device = []
            if j < last:
                t, carry, room[j] = barrier((t, carry, room[j]))
        kept.append((on_device, on_host))
    if unrolled:
        # What the layer before sent to the host had a layer's time to get there.
        carry = _layer.wait_for(sent, carry)
        sent = [array for _, on_host in kept for array in on_host]
    return (carry, ys, room, sent), kept


def _group(engine: Engine, segment: Segment, consts, xs, state, t):
    """A segment of layers of which only the first one's input is kept."""
    first, ys, room, sent = state

    def one(state, j):
        carry, ys = state
        if isinstance(j, int):
            carry = engine.lay(carry)
        index = engine.index(segment, t, j)
        inputs = [*consts, *carry, *take(xs, index)]
        outs, _ = _layer.forward(engine.layer, NOTHING, inputs)
        return (outs[: len(carry)], put(ys, outs[len(carry) :], index)), None

    (carry, ys), _ = engine.loop(segment, one, (first, ys), range(segment.group))
    return (carry, ys, room, sent), [(first, [])]


def only_used(engine: Engine, consts, xs):
    """The weights that the backward pass reads, and None for all others."""
    used = {a for a in engine.layer.passes.residuals}
    for kept in engine.kept.values():
        for op in (*kept.early, *kept.late):
            used.update(op.inputs)
    for action, kept in engine.kept.items():
        if action.segment_length > 1 or action.slots:
            for op in _layer.advancing(engine.layer, kept):
                used.update(op.inputs)
            used.update(a for a in engine.layer.carried_out if isinstance(a, Value))
    keep = lambda values, arrays: [
        a if v in used else None for v, a in zip(values, arrays, strict=True)
    ]
    return keep(engine.const_values, consts), keep(engine.x_values, xs)
