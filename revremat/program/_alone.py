"""A unit's layers without the program around them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from revremat.program._linearize import is_inexact
from revremat.program._ops import Value
from revremat.program._rewrite import Decision, steps_of


def alone(decision: Decision) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The layers of a unit, forward and backward, as a step of their own.

    What they take from the rest of the program is an argument. Activations among it are
    made anew, so that they take memory for as long as a layer keeps them. The last
    layer's gradients wait for the first one's result and all others, as they would for
    the loss, so everything the layers keep is there at a time.

    Args:
      decision: The unit and an action for each layer that is to run.

    Returns:
      `(step, specs)`: a jitted function, which keeps arguments it does not use, and its
      arguments; it returns gradients.
    """
    steps = [step for _, _, step in steps_of(decision)]
    sites = decision.unit.sites
    made = {out for site in sites for out in site.outputs}
    taken: dict[Value, bool] = {}  # and whether it is differentiated
    fresh: set[Value] = set()
    for site in sites:
        for atom, on, held in zip(
            site.inputs, site.in_mask or (), site.held, strict=True
        ):
            if isinstance(atom, Value) and atom not in made:
                taken[atom] = taken.get(atom, False) or on
                if not held and is_inexact(atom.aval):
                    fresh.add(atom)
    used = {atom for site in sites for atom in site.inputs}
    results = [
        out
        for site in sites
        for out in site.outputs
        if out not in used and is_inexact(out.aval)
    ]
    wanted = [value for value, on in taken.items() if on and is_inexact(value.aval)]
    others = [value for value in taken if value not in set(wanted)]

    def loss(
        given: Sequence[Any],
        beside: Sequence[Any],
        cotangents: Sequence[Any],
        one: jax.Array,
    ) -> jax.Array:
        env = dict(zip((*wanted, *others), (*given, *beside), strict=True))
        for value in fresh:
            env[value] = _anew(env[value], one)
        for step in steps:
            step(env)
        total = jnp.zeros(())
        for result, cotangent in zip(results, cotangents, strict=True):
            product = (env[result] * cotangent).astype(cotangent.dtype)
            total += jnp.sum(product, dtype=product.dtype).real.astype(total.dtype)
        return total * total  # its derivative is not known before it is

    specs = (*map(_spec, ([*wanted], [*others], [*results])), _spec_of_one())
    return jax.jit(jax.grad(loss), keep_unused=True), specs


def _anew(x: Any, one: jax.Array) -> Any:
    return jax.lax.optimization_barrier(x * one.astype(x.dtype))


def _spec(values: Sequence[Value]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in values]


def _spec_of_one() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((), jnp.float32)
