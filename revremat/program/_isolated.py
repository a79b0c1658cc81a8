"""A unit's layers without the program around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from revremat.program._decision import Decision, Step, steps_of
from revremat.program.arrays._avals import is_floating
from revremat.program.ir._ops import Value
from revremat.program.units._sites import Site


def isolated_unit(decision: Decision) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The layers of a unit, forward and backward, as a step of their own.

    What they take from the rest of the program is an argument. Activations among it are
    made anew, so that they take memory for as long as a layer keeps them. No gradient
    is made before all results are, so everything the layers keep is there at a time,
    and the last layer's gradients come first, as they would for the loss.

    Args:
      decision: The unit and an action for each layer that is to run.

    Returns:
      `(step, specs)`: a jitted function, which keeps arguments it does not use, and its
      arguments; it returns gradients.
    """
    steps = [step for _, _, step in steps_of(decision)]
    sites = decision.unit.sites
    parts = [sites] if len(steps) < len(sites) else [(site,) for site in sites]
    used = {atom for site in sites for atom in site.inputs}
    known = {out for site in sites for out in site.outputs}
    differentiated, iterations = set[Value](), []
    for step, part in zip(steps, parts, strict=True):
        taken = [one for site in part for one in _taken(site)]
        differentiated.update(value for value, on, _ in taken if on)
        new = dict.fromkeys(value for value, _, _ in taken if value not in known)
        held = {value for value, _, held in taken if held}
        known.update(new)
        results = [out for site in part for out in site.outputs if out not in used]
        fresh = [v for v in new if v not in held and is_floating(v.aval)]
        results = [out for out in results if is_floating(out.aval)]
        iterations.append(_Iteration(step, list(new), fresh, results))
    given = [value for iteration in iterations for value in iteration.given]
    wanted = [v for v in given if v in differentiated and is_floating(v.aval)]
    others = [v for v in given if v not in differentiated or not is_floating(v.aval)]
    results = [out for iteration in iterations for out in iteration.results]

    def loss(
        arrays: Any, beside: Any, cotangents: Any, one: Float[Array, ""]
    ) -> Float[Array, ""]:
        env = dict(zip((*wanted, *others), (*arrays, *beside), strict=True))
        by_result = dict(zip(results, cotangents, strict=True))
        total = jnp.zeros(())
        for iteration in iterations:
            made = [
                env[value] * one.astype(value.aval.dtype) for value in iteration.fresh
            ]
            # The iteration before is over, and its gradients wait for this one's.
            made, total = jax.lax.optimization_barrier((made, total))
            env.update(zip(iteration.fresh, made, strict=True))
            iteration.step(env)
            for out in iteration.results:
                product = jnp.sum(env[out] * by_result[out]).real
                total += product.astype(total.dtype)
        return total * total  # its derivative is not known before it is

    specs = (
        *map(_specs, (wanted, others, results)),
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    return jax.jit(jax.grad(loss), keep_unused=True), specs


@dataclass(frozen=True, eq=False)
class _Iteration:
    """One layer, or all of a chain.

    Attributes:
      step: Runs it.
      given: What it takes that none before took.
      fresh: Activations among that.
      results: What the program around takes of it.
    """

    step: Step
    given: list[Value]
    fresh: list[Value]
    results: list[Value]


def _taken(site: Site) -> list[tuple[Value, bool, bool]]:
    """What a site takes; whether it is differentiated; whether it is there anyway."""
    return [
        (atom, on, held)
        for atom, on, held in zip(
            site.inputs, site.in_mask or (), site.held, strict=True
        )
        if isinstance(atom, Value)
    ]


def _specs(values: Sequence[Value]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in values]
