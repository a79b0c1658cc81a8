"""A model's own logical constraints under a mesh: all arrive, or an error."""

import contextvars
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from revremat import _compat
from revremat._errors import UserError
from revremat.sharding._axes import AxisRules, check_laid_out_by, users_line


@dataclass
class _Arrivals:
    """What takes constraints while a function runs, and how many came."""

    mesh: Mesh
    rules: AxisRules
    count: int = 0

    def lay_out(self, x: Any, names: tuple[Any, ...]) -> Any:
        """One value where its names say; what Flax leaves to the compiler stays so."""
        free = PartitionSpec.UNCONSTRAINED
        known = tuple(None if name is free else name for name in names)
        array = f"the {x.dtype.name} array{users_line()}"
        spec = self.rules.spec(known, x.shape, dict(self.mesh.shape), array=array)
        entries = [*spec, *[None] * (len(names) - len(spec))]
        entries = [
            free if n is free else e for n, e in zip(names, entries, strict=True)
        ]
        self.count += 1
        where = NamedSharding(self.mesh, PartitionSpec(*entries))
        return jax.lax.with_sharding_constraint(x, where)


_current: contextvars.ContextVar[_Arrivals | None] = contextvars.ContextVar(
    "under", default=None
)


def under(
    mesh: Mesh, rules: AxisRules
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A model's logical constraints, laid out on a mesh by one table.

    Flax drops `nn.with_logical_constraint` without a word where no mesh is set, and
    leaves whole what no rule names. Here every constraint is laid out, or refused.

    Args:
      mesh: The devices; they need not exist on this machine.
      rules: Which mesh axes each name is cut over.

    Returns:
      What turns a loss, or any function that calls the model, into one whose values
      lie where their names say.

    Raises:
      UserError: The mesh or the rules are something else, or axes are Explicit. And
        from the function, when it is called: no constraint arrived; as
        `AxisRules.spec`, with the line of the constraint; it is called within the
        older `with mesh:`, or within another one that lays out otherwise.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import sharding
      >>> mesh = rr.target("cpu:2").mesh({"data": 1, "model": 2})
      >>> def loss(x):
      ...     return nn.with_logical_constraint(x * x, ("batch", "mlp"))
      >>> planned = sharding.under(mesh, sharding.megatron(axis="model"))(loss)
      >>> jax.jit(planned)(jnp.ones((2, 4))).sharding.spec
      P(None, 'model')
    """

    check_laid_out_by("sharding.under", mesh, rules)
    if mesh.explicit_axes:
        raise UserError(
            f"sharding.under: the axes {', '.join(mesh.explicit_axes)} are Explicit, "
            "and constraints are for Auto ones; write sharding.make_mesh, or lay the "
            "model out by sharding.Layout"
        )
    logical_axis_rules = _take_constraints()

    def laid_out(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            _refuse_older_mesh()
            if (outer := _current.get()) is not None:
                if (outer.mesh, outer.rules) == (mesh, rules):
                    return function(*args, **kwargs)
                raise UserError(
                    "sharding.under is called within another sharding.under of other "
                    "rules or another mesh; keep one of the two"
                )
            arrivals = _Arrivals(mesh, rules)
            token = _current.set(arrivals)
            try:
                # Flax asks for rules before it asks for anything else.
                with logical_axis_rules([*rules.activations.items()]):
                    out = function(*args, **kwargs)
            finally:
                _current.reset(token)
            if not arrivals.count:
                label = getattr(function, "__name__", "the function")
                raise UserError(
                    f"sharding.under: none of {label}'s values has a logical "
                    "constraint; write nn.with_logical_constraint(x, names) in the "
                    "model, or sharding.Layout in code of your own"
                )
            return out

        return wrapped

    return laid_out


def _refuse_older_mesh() -> None:
    if (found := _compat.entered_mesh()) is not None:
        raise UserError(
            f"sharding.under is called within `with mesh:` of {dict(found.shape)}, "
            "under which Flax drops constraints; take the `with` away, the mesh is "
            "handed to sharding.under"
        )


@functools.cache
def _take_constraints() -> Any:
    """From here on all of Flax's logical constraints are seen here first.

    There is one place through which they all go, and no other that sees names for
    which there is no rule. Where no `under` is at work, Flax does what it did.

    Returns:
      Flax's own `logical_axis_rules`: without any rules it asks for nothing.
    """
    import flax.linen.spmd as flax_spmd
    from flax.core.spmd import logical_axis_rules

    of_flax = flax_spmd._with_sharding_constraint_one_fallback

    @functools.wraps(of_flax)
    def constrained(names: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        arrivals = _current.get()
        is_placed = kwargs.get("mesh") is not None
        if arrivals is None or is_placed or names is None:
            return of_flax(names, x, *args, **kwargs)
        return arrivals.lay_out(x, tuple(names))

    flax_spmd._with_sharding_constraint_one_fallback = constrained
    return logical_axis_rules
