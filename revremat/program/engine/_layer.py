"""One layer's forward and backward pass under one action."""

from collections.abc import Sequence
from typing import Any

import jax

from revremat.program.arrays._buffers import again, barrier
from revremat.program.arrays._host import to_device, to_host
from revremat.program.engine._keep import Kept, Layer
from revremat.program.engine._lone_reductions import in_own_kernel, lone_reductions
from revremat.program.ir._ops import Op, Program, Value, needed, read, run

Saved = tuple[list[Any], list[Any]]
"""What a layer keeps: values on the device, values on the host."""


def forward(
    layer: Layer, kept: Kept, inputs: Sequence[Any], in_place: bool = False
) -> tuple[list[Any], Saved]:
    """The layer's outputs, and what it keeps.

    Args:
      layer: The layer.
      kept: What it keeps.
      inputs: What it is given.
      in_place: Whether what it keeps on the device is written into stacks.
    """
    program = layer.passes.forward
    targets = (*program.outputs, *kept.saved, *kept.offloaded)
    ops, _ = needed(program.ops, targets, keep_effects=True)
    env = dict(zip(program.inputs, inputs, strict=True))
    lone = lone_reductions(ops, kept.saved) if in_place else frozenset()
    for op in ops:
        run([op], env)
        for value in lone.intersection(op.outputs):
            env[value] = in_own_kernel(env[value])
    on_host = [to_host(_constrained(layer, v, env)) for v in kept.offloaded]
    outputs = [read(env, out) for out in program.outputs]
    return outputs, ([_constrained(layer, v, env) for v in kept.saved], on_host)


def _constrained(layer: Layer, value: Value, env: dict[Value, Any]) -> Any:
    """A value to keep, cut over devices as far as the layer's constraints say so."""
    where = layer.shardings.get(value)
    if where is None:
        return env[value]
    return jax.lax.with_sharding_constraint(env[value], where)


def advance(layer: Layer, kept: Kept, inputs: Sequence[Any]) -> tuple[list[Any], Saved]:
    """The layer's carry out, and what it keeps.

    Values that neither needs are not computed; the inputs that only they use may be
    None.
    """
    program, saved = layer.passes.forward, kept.saved
    env = dict(zip(program.inputs, inputs, strict=True))
    run(advancing(layer, kept), env)
    on_device = [_constrained(layer, v, env) for v in saved]
    return [read(env, out) for out in layer.carried_out], (on_device, [])


def advancing(layer: Layer, kept: Kept) -> tuple[Op, ...]:
    """The operations of `advance`."""
    return needed(layer.passes.forward.ops, (*layer.carried_out, *kept.saved))[0]


def recall(kept: Kept, held: dict[Value, Any], saved: Saved) -> dict[Value, Any]:
    """The values a layer has in the backward pass before anything is recomputed.

    All that it kept is on the device by now.
    """
    on_device, fetched = saved
    env = dict(held)
    env.update(zip(kept.saved, on_device, strict=True))
    env.update(zip(kept.offloaded, fetched, strict=True))
    return {v: None if x is None else again(x) for v, x in env.items()}


def recompute(ops: Sequence[Op], env: dict[Value, Any]) -> None:
    """Run operations of the forward pass again, under the scope compilers report."""
    if ops:
        with jax.named_scope("rematted_computation"):
            run(ops, env)


def pull_back(
    layer: Layer,
    kept: Kept,
    env: dict[Value, Any],
    cotangents: Sequence[Any],
    backward: Program | None = None,
) -> list[Any]:
    """One cotangent per differentiated input, from one per differentiable output.

    Args:
      layer: The layer.
      kept: What it keeps.
      env: What it has in the backward pass before anything is recomputed.
      cotangents: Of its outputs.
      backward: Another form of its backward program.
    """
    recompute(kept.late, env)
    residuals = [read(env, residual) for residual in layer.passes.residuals]
    return (backward or layer.passes.backward)(*residuals, *cotangents)


def tie(
    env: dict[Value, Any], ops: Sequence[Op], cotangents: Sequence[Any]
) -> list[Any]:
    """Make operations on values of `env` wait for the cotangents; returns those, tied.

    Outside a loop nothing else stops a compiler from finding that the recomputing
    repeats the forward pass, and from keeping the forward pass's values instead.
    """
    used = {atom for op in ops for atom in op.inputs}
    keys = [v for v in env if v in used and env[v] is not None]
    values, tied = tie_arrays([env[v] for v in keys], cotangents)
    env.update(zip(keys, values, strict=True))
    return tied


def tie_arrays(
    arrays: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Arrays that are only there once the cotangents are; both, tied."""
    if not arrays:
        return [], list(cotangents)
    return barrier((list(arrays), list(cotangents)))


def wait_for(sent: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Arrays that are only there once what was sent to the host is.

    Outside a loop a compiler would send it when it is fetched, and hold it until then.
    """
    if not sent:
        return list(arrays)
    return tie_arrays(arrays, sent)[0]


def fetch_after(
    on_host: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Values that come from the host once the cotangents are there; both, tied.

    Outside a loop a compiler would find that what is sent there is fetched again, and
    leave it on the device.
    """
    if not on_host:
        return [], list(cotangents)
    held, tied = tie_arrays(on_host, cotangents)
    return [to_device(array) for array in held], tied
