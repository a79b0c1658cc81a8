"""measure: compile a step for a target and say what it takes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax

from revremat import sharding, xla
from revremat._arguments import modules_are_arguments
from revremat._errors import DoesNotFit, UserError
from revremat._format import format_bytes, parse_bytes
from revremat._measure._read import read_artifact
from revremat._measure._steps import Step, name_of, remat_pass_of
from revremat._measurement import Measurement, categories
from revremat._problem import Problem
from revremat.xla import Artifact, Target


def measure(
    step: Any,
    *specs: Any,
    target: str | Target = "local",
    donate: tuple[int, ...] = (),
    name: str = "",
    options: Mapping[str, Any] | None = None,
    remat_pass: bool = False,
    cache: bool = True,
    packing: bool = False,
    what_if: bool = False,
    rules: Mapping[str, str] | None = None,
) -> Measurement:
    """What one step takes on a target, by asking the target's own compiler.

    Nothing is allocated and no device is needed; the same step on the same target is
    compiled once and afterwards read from disk.

    Args:
      step: The training step: a function, the result of `jax.jit` or `nnx.jit`, a
        `functools.partial` of one, a `Problem`, a `Step`, or what JAX, Flax or Equinox
        made of it on the way: traced, lowered for the target's own devices, or compiled
        for them (then XLA no longer tells buffers, so that only totals and time come
        out).
      *specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s with shardings. A mesh
        of this machine is carried over to the target, here and within the program.
      target: Where it would run; see `revremat.target`.
      donate: Positions of the arguments whose memory the step may reuse.
      name: What reports call it; by default the function's name.
      options: More compiler options, by XLA's names.
      remat_pass: Whether XLA's own rematerialization pass runs, as by JAX's default; it
        may compute again what the program keeps, to get below the device's memory.
      cache: Read and write the compile cache.
      packing: Also pack the temporaries anew, and say how much less they could take.
      what_if: Also say what would fall without a residual or with a donation, and
        whether checkpoints free what they compute again.
      rules: Categories for memory over the schedule, in place of phases: a regular
        expression for each, as for `Memory.by_rule`.

    Returns:
      A `Measurement`: bytes per device, the buffers alive at the peak, and time.

    Raises:
      UserError: The arguments do not suit the target, a rule is no regular
        expression, or wheels are missing.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> def loss(w, x):
      ...     return jnp.sum(jnp.tanh(x @ w))
      >>> w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
      >>> x = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
      >>> m = rr.measure(jax.grad(loss), w, x, target="cpu:1")
      >>> m.memory.argument_bytes
      1310720
    """
    wanted = xla.target(target)
    categories(rules or {})  # what is wrong with them is told before the compile
    layout = step.layout if isinstance(step, Problem) else None
    if isinstance(step, Problem | Step):
        if specs or donate:
            what = type(step).__name__.lower()
            raise UserError(
                f"arguments or donate= were given with a {what}, which has its own: "
                "leave them out"
            )
        name, donate = name or step.name, step.donate
        if isinstance(step, Step) and (how := remat_pass_of(step.plan, wanted)):
            options, remat_pass = {**how["options"], **(options or {})}, True
        if isinstance(step, Problem):
            step, specs = step.make_step()
        else:
            step, specs = step.function, step.specs
    stage = xla.stage_of(step)
    if stage is not None:
        artifact = _measured_stage(
            stage, specs, donate, wanted, options, remat_pass, cache
        )
    elif callable(step):
        with modules_are_arguments(name or name_of(step)):
            artifact = xla.compile_step(
                step,
                specs,
                wanted,
                donate=donate,
                options=options,
                remat_pass=remat_pass,
                cache=cache,
            )
    else:
        raise UserError(
            f"a step is a function, a jitted one or a Problem; this is a "
            f"{type(step).__name__}"
        )
    found = read_artifact(
        artifact,
        wanted,
        name or name_of(step),
        packing=packing,
        what_if=what_if,
        rules=rules,
    )
    return with_unexpected(found, layout)


def with_unexpected(found: Measurement, layout: sharding.Layout | None) -> Measurement:
    """A measurement that notes the collectives which a layout does not explain."""
    if layout is None:
        return found
    notes = []
    for one, why in sharding.unexpected(found.collectives, layout):
        at = f" at {one.source}" if one.source else ""
        notes.append(
            f"unexpected {one.kind} of {format_bytes(one.bytes)} in {one.phase}{at}, "
            f"{one.times} a step: {why}"
        )
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _measured_stage(
    stage: Any,
    specs: Any,
    donate: Any,
    target: Target,
    options: Mapping[str, Any] | None,
    remat_pass: bool,
    cache: bool,
) -> Artifact:
    """A step that was traced, lowered or compiled before."""
    state = type(stage).__name__.lower()
    if specs:
        raise UserError(
            f"arguments were given with a step that is already {state} for its own: "
            "leave them out"
        )
    if donate:
        raise UserError(
            f"donate={donate} was given with a step that is already {state}: write "
            "donate_argnums in its jax.jit instead"
        )
    if isinstance(stage, jax.stages.Traced):
        lowered = xla.lower_traced(
            stage, target, options=options, remat_pass=remat_pass
        )
        return lowered.compile(cache=cache)
    xla.check_stage(stage, target)
    if isinstance(stage, jax.stages.Lowered):
        lowered = xla.Lowered(stage, target, options or {}, (), remat_pass)
        return lowered.compile(cache=cache)
    if options or remat_pass:
        given = f"options={dict(options)}" if options else "remat_pass=True"
        raise UserError(
            f"{given} was given with a step that is already compiled: "
            "give options to its compile(compiler_options=) instead"
        )
    return xla.read_compiled(stage)


def assert_fits(
    step: Any,
    *specs: Any,
    target: str | Target,
    budget: int | str | None = None,
    donate: tuple[int, ...] = (),
    remat_pass: bool | Literal["both"] = False,
) -> Measurement:
    """Fails a test when a step takes more than its budget on a target.

    Args:
      step: The training step; see `measure`.
      *specs: Its arguments.
      target: Where it must fit.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable; by
        default all that is usable.
      donate: Positions of the arguments whose memory the step may reuse.
      remat_pass: Whether XLA's own rematerialization pass runs: False as within
        `Fit.as_measured`, True as by JAX's default, `"both"` if it must fit either way.

    Returns:
      The `Measurement`; of two the larger.

    Raises:
      DoesNotFit: With what holds most of the memory.
      UserError: An argument is none of these.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
      >>> rr.assert_fits(jnp.tanh, x, target="cpu:1", budget="1MiB").fits
      True
    """
    wanted = xla.target(target)
    usable = wanted.usable_bytes
    limit = usable if budget is None else parse_bytes(budget, usable_bytes=usable)
    if remat_pass not in (False, True, "both"):
        raise UserError(
            f"remat_pass={remat_pass!r} says nothing: write False (XLA's own pass is "
            'off), True (it is on) or "both"'
        )
    passes = (False, True) if remat_pass == "both" else (bool(remat_pass),)
    measured = [
        measure(step, *specs, target=wanted, donate=donate, remat_pass=on)
        for on in passes
    ]
    found = max(measured, key=lambda m: m.memory.total_bytes)
    total = found.memory.total_bytes
    if total > limit:
        largest = ", ".join(
            f"{'/'.join(filter(None, key))} {format_bytes(size)}"
            for key, size in list(found.memory.by("phase", "scope").items())[:3]
        )
        on = passes[measured.index(found)]
        told = f" with XLA's own remat pass {'on' if on else 'off'}" * bool(remat_pass)
        raise DoesNotFit(
            f"{found.program} takes {format_bytes(total)} on each device of "
            f"{wanted.spec}{told}, {format_bytes(total - limit)} more than the budget "
            f"of {format_bytes(limit)}; most is held by {largest}"
        )
    return found
