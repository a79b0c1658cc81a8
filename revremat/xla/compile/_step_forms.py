"""Forms that a step may have: a function, or what some `jit` made of one."""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from revremat._arguments import outcome_of, take_apart
from revremat._compat import devices_of_lowered
from revremat._errors import UserError
from revremat.xla.target._specs import place
from revremat.xla.target._targets import Target

_STAGES = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)


def stage_of(step: Any) -> Any:
    """The stage of JAX's own in a step that was traced, lowered or compiled before.

    Args:
      step: What was given; Flax and Equinox have stages of their own around it.

    Returns:
      A `jax.stages.Traced`, `Lowered` or `Compiled`; None where it is no stage.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import xla
      >>> lowered = jax.jit(jnp.sin).lower(jnp.ones(256))
      >>> xla.stage_of(lowered) is lowered, xla.stage_of(jnp.sin)
      (True, None)
    """
    if isinstance(step, _STAGES):
        return step
    inner = (getattr(step, name, None) for name in ("traced", "lowered", "compiled"))
    return next((one for one in inner if isinstance(one, _STAGES)), None)


def check_stage(stage: Any, target: Target) -> None:
    """Refuses a step that was lowered or compiled for other devices than the target's.

    Args:
      stage: A `jax.stages.Lowered` or `Compiled`.
      target: Where it is to be measured.

    Raises:
      UserError: It was.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> lowered = jax.jit(jnp.sin).lower(jnp.ones(256))
      >>> xla.check_stage(lowered, rr.target("cpu:1"))
      >>> try:
      ...     xla.check_stage(lowered, rr.target("h100:1"))
      ... except rr.UserError:
      ...     print("it was lowered for CPUs")
      it was lowered for CPUs
    """
    found = _devices_of(stage)
    if not found:
        return
    wanted = target.devices
    kinds = [(one[0].platform, one[0].device_kind) for one in (found, wanted)]
    if kinds[0] != kinds[1] or len(found) != len(wanted):
        number = f"{len(found)} device{'s' * (len(found) != 1)}"
        raise UserError(
            f"the step was {type(stage).__name__.lower()} for {number} of kind "
            f"{found[0].device_kind!r}, and {target.spec} has {len(wanted)} of kind "
            f"{wanted[0].device_kind!r}: hand over the function itself"
        )


def _devices_of(stage: Any) -> list[Any]:
    if isinstance(stage, jax.stages.Lowered):
        return list(devices_of_lowered(stage))
    shardings = jax.tree.leaves((stage.input_shardings, stage.output_shardings))
    return list(shardings[0].device_set) if shardings else []


@dataclass(frozen=True)
class JittedCall:
    """A jitted function and the arguments with which it is traced.

    Attributes:
      jitted: Anything with `trace`, as `jax.jit` and `nnx.jit` make it.
      args: By position.
      kwargs: By name.
      static: Positions and names of arguments that are not arrays.
    """

    jitted: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    static: frozenset[int | str] = frozenset()

    def placed(self, target: Target, *, carried: bool = True) -> "JittedCall":
        """The same with its arrays on a target's devices; see `place`."""
        keys = [*range(len(self.args)), *self.kwargs]
        given = [*self.args, *self.kwargs.values()]
        arguments = take_apart(
            [None if k in self.static else x for k, x in zip(keys, given, strict=True)]
        )
        placed = arguments.copy(place(arguments.values, target, carried=carried)).args
        moved = [
            one if key in self.static else other
            for key, one, other in zip(keys, given, placed, strict=True)
        ]
        args, rest = moved[: len(self.args)], moved[len(self.args) :]
        kwargs = dict(zip(self.kwargs, rest, strict=True))
        return JittedCall(self.jitted, tuple(args), kwargs, self.static)

    def trace(self) -> jax.stages.Traced:
        """Traced, as JAX's own stage."""
        return stage_of(self.jitted.trace(*self.args, **self.kwargs))


def jitted_call(
    step: Callable[..., Any], specs: tuple[Any, ...], donate: tuple[int, ...]
) -> JittedCall:
    """What is traced where this is measured.

    Args:
      step: A function, the result of `jax.jit` or `nnx.jit`, or a `functools.partial`
        of one; what a partial of a jitted function binds is an argument as well.
      specs: Its arguments.
      donate: Positions of the ones that may be overwritten.

    Raises:
      UserError: The step was jitted in a way that cannot be looked into.
    """
    args, kwargs, inner = specs, {}, step
    while isinstance(inner, functools.partial):
        args, kwargs = (*inner.args, *args), {**inner.keywords, **kwargs}
        inner = inner.func
    if hasattr(inner, "trace"):
        if donate:
            raise UserError(
                f"donate={donate} was given with a step that is already jitted: write "
                "donate_argnums in its jax.jit instead"
            )
        return JittedCall(inner, args, kwargs, _static(inner))
    if isinstance(inner, types.FunctionType) and hasattr(inner, "lower"):
        raise UserError(
            "the step is mapped by jax.pmap, which splits its arguments only where it "
            "is called: hand over the function itself within jax.shard_map(..., "
            "mesh=target.mesh(...))"
        )
    if getattr(inner, "donate_first", False) or getattr(inner, "donate_rest", False):
        raise UserError(
            "the step was jitted by eqx.filter_jit(donate=...), whose donation is not "
            "seen here: hand over the function itself, and write donate=(0,) in "
            "rr.measure"
        )
    _check_positions(donate, len(specs))
    whole, trees = _returning_changes(step, specs, donate)
    return JittedCall(jax.jit(whole, donate_argnums=donate), trees)


def _returning_changes(
    step: Callable[..., Any], specs: tuple[Any, ...], donate: tuple[int, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step that returns what it writes into its arguments; and those, as trees.

    Without that the compiler would leave out whatever leads to nothing else.
    """
    arguments = take_apart(specs)
    count = len(arguments.leaves)
    order = jax.tree.leaves(arguments.as_trees(range(count)))
    donated = {position % max(1, len(specs)) for position in donate}

    @functools.wraps(step)
    def whole(*trees: Any) -> Any:
        found = dict(zip(order, jax.tree.leaves(trees), strict=True))
        values = [found[k] for k in range(count)]
        copy = arguments.copy(values)
        out = step(*copy.args)
        outcome, arrays = outcome_of(copy, out)
        if not (arguments.graphs or outcome.is_change):
            return out
        # As nnx.jit does: what is donated and stays comes back in its own memory.
        stay = [k for k in outcome.untouched if arguments.leaves[k].argument in donated]
        return [*arrays, *(values[k] for k in stay)]

    return whole, arguments.as_trees(arguments.values)


def _static(jitted: Any) -> frozenset[int | str]:
    """What `jax.jit` was told not to trace; `nnx.jit` holds a function of it."""
    info = getattr(jitted, "_jit_info", None)
    info = info or getattr(getattr(jitted, "jitted_fn", None), "_jit_info", None)
    if info is None:
        return frozenset()
    return frozenset((*info.static_argnums, *info.static_argnames))


def _check_positions(donate: tuple[int, ...], number: int) -> None:
    """JAX refuses positions that are not there, unless the step takes `*args`."""
    if any(not -number <= position < number for position in donate):
        raise UserError(
            f"donate={donate} names an argument that the step is not given: it has "
            f"{number}, the first at position 0"
        )
