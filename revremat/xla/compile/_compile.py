"""Lower a step for a target, and compile it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from revremat._compat import (
    ShardingTypeError,
    lower_absent_callbacks,
    on_device,
    trace_absent_kernels,
)
from revremat._errors import UserError, arguments_told
from revremat._primitives import ATTENTION
from revremat._problem import positions
from revremat._sources import loops_told
from revremat.xla.compile._artifact import Artifact
from revremat.xla.compile._carried import carried_ambient_mesh, carry_over, is_mixture
from revremat.xla.compile._lowered import Lowered
from revremat.xla.compile._step_forms import JittedCall, jitted_call
from revremat.xla.target._absent_devices import traced_for
from revremat.xla.target._specs import is_typed_by_mesh
from revremat.xla.target._targets import Target


def lower_step(
    step: Callable[..., Any],
    specs: tuple[Any, ...],
    target: Target,
    *,
    donate: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
    remat_pass: bool = False,
) -> Lowered:
    """Traces `step` and lowers it for `target`; see `compile_step`.

    Args:
      step: A function, or the result of `jax.jit`.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      target: What to compile for.
      donate: Positions of the arguments that may be overwritten.
      options: Compiler options, by XLA's names.
      remat_pass: Whether XLA's own rematerialization pass runs.

    Raises:
      UserError: The program mixes meshes of the target and of this machine.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> lowered = xla.lower_step(jnp.sin, (jnp.ones(256),), rr.target("cpu:1"))
      >>> "sine" in lowered.program.as_text()
      True
    """
    given = jitted_call(step, specs, positions(donate))
    label = getattr(step, "__name__", "the step")

    def lowered(placed: JittedCall) -> Lowered:
        with arguments_told(label, step, specs), loops_told(label):
            traced = placed.trace()
        return _lower(traced, target, options, remat_pass)

    placed = given.placed(target)
    try:
        with _as_on(target):
            return lowered(placed)
    except UserError:
        raise
    except (TypeError, ValueError, ShardingTypeError) as error:
        if not is_typed_by_mesh((given.args, given.kwargs)):
            raise
        # There a mesh of this machine in the program is of another type than the
        # target's: all are traced as they are, and carried over afterwards.
        try:
            with traced_for(target):
                return lowered(given.placed(target, carried=False))
        except (TypeError, ValueError, ShardingTypeError) as other:
            if is_mixture(error) or is_mixture(other):
                raise UserError(
                    f"the program mixes meshes of {target} and of this machine, which "
                    "are of different types where axes are Explicit or a mesh is set: "
                    "make all of them with target.mesh(...), or all of them here"
                ) from None
            raise error from None


def lower_traced(
    traced: Any,
    target: Target,
    *,
    options: Mapping[str, Any] | None = None,
    remat_pass: bool = False,
) -> Lowered:
    """Lowers what was traced before, a `jax.stages.Traced`; see `compile_step`.

    Args:
      traced: The result of `jax.jit(step).trace(...)`.
      target: What to compile for.
      options: Compiler options, by XLA's names.
      remat_pass: Whether XLA's own rematerialization pass runs.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> traced = jax.jit(jnp.sin).trace(jnp.ones(256))
      >>> xla.lower_traced(traced, rr.target("cpu:1")).compile().stats["argument"]
      1024
    """
    with _as_on(target):
        return _lower(traced, target, options, remat_pass)


@contextlib.contextmanager
def _as_on(target: Target) -> Iterator[None]:
    """JAX is told that it is on the target, as far as a program can notice."""
    trace_absent_kernels()
    lower_absent_callbacks()
    with carried_ambient_mesh(target), traced_for(target), _elsewhere(target):
        yield


def _lower(
    traced: Any, target: Target, options: Mapping[str, Any] | None, remat_pass: bool
) -> Lowered:
    moved = carry_over(traced, target)
    try:
        lowered = moved.lower(lowering_platforms=(target.platform,))
    except NotImplementedError as error:
        if target.platform == "cuda" or ATTENTION not in str(error):
            raise
        raise UserError(
            f"the program calls cuDNN's attention, which {target} does not have: write "
            "another implementation, or a target such as h100:1"
        ) from None
    except ValueError as error:
        if "ordered effects are not supported" not in str(error):
            raise
        raise UserError(
            f"the program has ordered callbacks, which JAX does not run on the "
            f"{target.num_devices} devices of {target}: leave out ordered=True"
        ) from None
    options = {**_default_options(target), **(options or {})}
    return Lowered(lowered, target, options, moved._meta_tys_flat, remat_pass)


def _elsewhere(target: Target) -> contextlib.AbstractContextManager[None]:
    """Kernels that ask which device they are for are told the target's."""
    if target.platform == "cpu" or target.present:
        return contextlib.nullcontext()
    capability = target.card.description.get("compute_capability", "")
    return on_device(target.devices[0], str(capability))


def compile_step(
    step: Callable[..., Any],
    specs: tuple[Any, ...],
    target: Target,
    *,
    donate: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
    remat_pass: bool = False,
    cache: bool = True,
) -> Artifact:
    """Compiles `step` for `target`, or reads an identical compile from the disk.

    XLA's own rematerialization pass is off, so that the program keeps what it says it
    keeps, unless it is asked for.

    Args:
      step: A function, or the result of `jax.jit`.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      target: What to compile for.
      donate: Positions of the arguments that may be overwritten; only for a `step`
        that is not jitted yet.
      options: More compiler options, by XLA's names.
      remat_pass: Whether XLA's own rematerialization pass runs, as by JAX's default.
      cache: Read and write the cache.

    Returns:
      An `Artifact`.

    Raises:
      DoesNotFit: The compiler ran out of memory before it had laid it out.
      UserError: The arguments do not suit the target.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> artifact.stats["temp"]
      0
    """
    lowered = lower_step(
        step, specs, target, donate=donate, options=options, remat_pass=remat_pass
    )
    return lowered.compile(cache=cache)


def _default_options(target: Target) -> dict[str, Any]:
    if target.is_elsewhere:
        return {"xla_gpu_autotune_level": 0}  # nothing to tune on
    return {}
