"""A long loop whose states are kept in a few slots, by a binomial schedule.

Which step runs when, and where its result goes, stands in tables. Both passes are loops
over those, so that ten thousand steps compile as fast as ten.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from revremat._primitives import ITERATIONS
from revremat._resolve import least_again
from revremat.program.arrays import _avals
from revremat.program.arrays._buffers import put, take
from revremat.program.arrays._once import once
from revremat.program.engine import _layer
from revremat.program.engine._binomial import Binomial, binomial
from revremat.program.engine._engine import Engine
from revremat.program.engine._keep import NOTHING, Kept
from revremat.program.engine._segments import Segment
from revremat.program.ir._ops import needed, run

_WHY_ONCE = (
    "the gradient of a gradient cannot go back through layers that run again a number "
    "of times that is in a table, as `slots` has it: write RECOMPUTE without `slots`"
)


def schedule_of(segment: Segment) -> Binomial:
    """When which layer of a segment runs."""
    return binomial(segment.group, segment.slots)


def forward(engine: Engine, segment: Segment, consts, xs, carry, ys):
    """The last layer's carry out, all `ys`, and the slots."""
    schedule, number = schedule_of(segment), len(carry)
    room = lambda value: _avals.stacked(value.aval, schedule.num_states)
    slots = [_avals.room(room(value)) for value in engine.carry_values]
    slots = put(slots, carry, schedule.first_slot)

    def one(slots, ys, slot, j):
        index = engine.index(segment, 0, j)
        inputs = [*consts, *take(slots, slot), *take(xs, index)]
        outs, _ = _layer.forward(engine.layer, NOTHING, inputs)
        return outs[:number], put(ys, outs[number:], index)

    def step(state, where):
        slots, ys, slot = state
        j, into = where
        carry, ys = one(slots, ys, slot, j)
        return (put(slots, carry, into), ys, into), None

    numbers = jnp.arange(segment.group - 1), jnp.array(schedule.forward, jnp.int32)
    state = slots, ys, jnp.int32(schedule.first_slot)
    (slots, ys, slot), _ = lax.scan(step, state, numbers)
    carry, ys = one(slots, ys, slot, jnp.int32(segment.group - 1))
    return carry, ys, slots


def backward(engine: Engine, segment: Segment, consts, xs, slots, back, state):
    """Differentiates every layer, from the last to the first.

    Args:
      engine: The stack.
      segment: Its layers.
      consts: Arrays that all layers share.
      xs: Arrays with one entry for each layer.
      slots: What the forward pass has left there.
      back: `back(plan, index, saved, state)` differentiates one layer.
      state: The gradients so far.
    """
    schedule, plan = schedule_of(segment), engine.kept[segment.pattern[0]]
    again = jnp.array([*schedule.again, (0, 0)], jnp.int32)
    times = least_again(segment.group, min(segment.slots, segment.group))
    mean = round(1000 * times / segment.group)

    def given(slots, slot, index) -> list[Any]:
        return [*consts, *take(slots, slot), *take(xs, index)]

    def advance(j, run_on):
        slots, slot, place = run_on
        into, stop = lax.dynamic_index_in_dim(again, place, keepdims=False)
        index = engine.index(segment, 0, j)
        carry, _ = _layer.advance(engine.layer, NOTHING, given(slots, slot, index))
        return put(slots, carry, into), into, jnp.where(j + 1 == stop, place + 1, place)

    def step(all_of_it, where):
        state, slots, place = all_of_it
        j, begin, slot = where
        with jax.named_scope(f"rematted_computation/{ITERATIONS}{mean}"):
            slots, slot, place = lax.fori_loop(begin, j, advance, (slots, slot, place))
        slots = [once(array, _WHY_ONCE) for array in slots]
        index = engine.index(segment, 0, j)
        saved = _saved(engine, plan, given(slots, slot, index))
        return (back(plan, index, saved, state), slots, place), None

    numbers = jnp.arange(segment.group, dtype=jnp.int32)
    tables = [jnp.array(few, jnp.int32) for few in (schedule.begin, schedule.source)]
    first = state, slots, jnp.int32(0)
    (state, _, _), _ = lax.scan(step, first, (numbers, *tables), reverse=True)
    return state


def _saved(engine: Engine, plan: Kept, inputs: list[Any]) -> _layer.Saved:
    """What a layer keeps, from what it is given."""
    program = engine.layer.passes.forward
    env = dict(zip(program.inputs, inputs, strict=True))
    run(needed(program.ops, plan.saved)[0], env)
    return [env[v] for v in plan.saved], []
