"""Apply: the same loss, the same gradients, other memory."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from revremat._compat import jax_version
from revremat._errors import UserError
from revremat._plan import Plan, UnitPlan, check_nested
from revremat.program._decision import Decision
from revremat.program._loss import TracedLoss, trace_loss
from revremat.program.units._units import FoundUnit

_log = logging.getLogger("revremat")


def apply(loss: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """The same function, whose residuals are restored as a plan says.

    Scans, blocks, repeats and checkpointed regions that the plan names are replaced
    where they stand, also inside jitted functions and inside code of other libraries;
    all else stays as it is. The result can be jitted, differentiated in reverse mode,
    mapped and sharded as the loss could. Layers unrolled have a say in how arrays
    lie in memory, which `jax.export` has to be told to allow, by
    `disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]`.

    Args:
      loss: What was given to `rr.trace` or `rr.search`.
      plan: Its plan.

    Returns:
      A function with the signature of `loss`. When it is called it raises `UserError`
      if the program is another than the one the plan was made for, or if what it would
      keep differs from what the plan says.

    Raises:
      UserError: The loss is no function, or the plan no `Plan`.

    The logger `revremat` says so in a line each where another JAX made the plan, and
    where the plan is for XLA's own remat pass. No function can turn that on: compile
    the step with `plan.compiler_options`, or within `plan.compiling()`.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.full((4, 8, 8), 0.1), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> plan = rr.trace(loss, w, x).plan({"stack": rr.RECOMPUTE})
      >>> gradients = [jax.grad(f)(w, x) for f in (loss, rr.apply(loss, plan))]
      >>> bool(jnp.allclose(*gradients))
      True
    """
    if not isinstance(plan, Plan):
        raise UserError(
            f"rr.apply: {plan!r:.60} is no plan: write what rr.search returns, or "
            "rr.load(...) for the file of one"
        )
    if not callable(loss):
        raise UserError(
            f"rr.apply: a {type(loss).__name__} is no loss: write the function, such "
            "as problem.loss"
        )
    for note in filter(None, (plan.version_note, plan.remat_pass_note)):
        _log.warning("%s", note)
    return apply_quietly(loss, plan)


def apply_quietly(loss: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """`apply`, where the caller says itself what is to be known of the plan."""

    return rewritten(
        loss,
        lambda traced: _decide(traced, plan),
        keep_checkpoints=plan.keep_checkpoints,
        gradient_barrier=plan.gradient_barrier,
    )


def rewritten(
    loss: Callable[..., Any],
    decide: Callable[[TracedLoss], list[Decision]],
    *,
    keep_checkpoints: bool,
    gradient_barrier: bool,
) -> Callable[..., Any]:
    """A function of the same arguments, whose units do what is decided.

    Args:
      loss: What was given to `rr.trace`.
      decide: From what it is traced to, at each call, to what its units do.
      keep_checkpoints: As for `rr.trace`.
      gradient_barrier: Whether layers' gradients are held together.
    """

    @functools.wraps(loss)
    def applied(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _by_position(loss, args, kwargs)
        bound = functools.partial(loss, **kwargs)
        functools.update_wrapper(bound, loss)
        traced = trace_loss(bound, args, keep_checkpoints=keep_checkpoints)
        return traced.run(decide(traced), gradient_barrier)

    return applied


def _by_position(
    loss: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as `rr.trace` was given them, where a name says which one is meant."""
    try:
        bound = inspect.signature(loss).bind(*args, **kwargs)
    except (TypeError, ValueError):  # it has no signature, or will say what is wrong
        return args, kwargs
    return bound.args, bound.kwargs


def _decide(traced: TracedLoss, plan: Plan) -> list[Decision]:
    found = {unit.name: unit for unit in traced.units}
    for unit in plan.units:
        if difference := _difference(unit, found):
            raise _another_program(plan, difference)
    if plan.program != traced.fingerprint:
        raise _another_program(
            plan,
            "the units agree, but the code outside of them does not (fingerprint "
            f"{traced.fingerprint}, the plan has {plan.program})",
        )
    check_nested(plan.units, found)
    return [
        Decision(
            unit=found[unit.name],
            plan=unit,
            gradient_barrier=plan.gradient_barrier,
            is_distributed=plan.num_devices > 1,
            puts_gradients_off=plan.puts_gradients_off,
        )
        for unit in plan.units
    ]


def _difference(unit: UnitPlan, found: dict[str, FoundUnit]) -> str:
    if unit.name not in found:
        return f"it has a unit {unit.name!r}, this one has {', '.join(found)}"
    here = found[unit.name]
    if len(unit.actions) != here.num_layers:
        return (
            f"it has {len(unit.actions)} layers in unit {unit.name!r}, this one "
            f"{here.num_layers}"
        )
    if unit.fingerprint != here.fingerprint:
        return (
            f"unit {unit.name!r} computes something else, or on other shapes, than "
            "when the plan was made"
        )
    return ""


def _another_program(plan: Plan, difference: str) -> UserError:
    here, there = jax_version(), plan.jax_version
    versions = (
        f" It was made with JAX {there} and this is {here}, which may trace the same "
        "program differently."
        if there not in ("", here)
        else ""
    )
    return UserError(
        f"the plan was made for another program: {difference}; search again.{versions}"
    )
