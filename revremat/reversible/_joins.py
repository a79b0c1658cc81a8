"""How what a map says of other streams is joined to a stream, and taken out again."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from revremat._errors import UserError


class Join(Protocol):
    """One way to join `value` to `x` that can be undone where `value` is known.

    Attributes:
      separate: Whether several values may be joined one after the other in any order;
        otherwise they are summed first.

    Example:
      >>> from revremat.reversible import Add, Affine
      >>> Add().separate, Affine().separate
      (True, False)
    """

    @property
    def separate(self) -> bool: ...

    def parts(self, value: Any) -> int:
        """How many trees like `x` a value consists of."""
        ...

    def join(self, x: Any, value: Any) -> Any:
        """The stream afterwards: a pytree like `x`."""
        ...

    def undo(self, y: Any, value: Any) -> Any:
        """The stream before."""
        ...

    def log_det(self, x: Any, value: Any) -> jax.Array | float:
        """The log-determinant of `join` in `x`, summed over all but the first axis."""
        ...


@dataclass(frozen=True)
class Add:
    """`y = x + value` (Dinh et al. 2014, NICE; Gomez et al. 2017, RevNet).

    Attributes:
      separate: As in `Join`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Add
      >>> x, value = jnp.ones(1), jnp.full(1, 2.0)
      >>> Add().join(x, value).tolist(), Add().undo(jnp.full(1, 3.0), value).tolist()
      ([3.0], [1.0])
    """

    separate: bool = True

    def parts(self, value: Any) -> int:
        del value
        return 1

    def join(self, x: Any, value: Any) -> Any:
        return jax.tree.map(lambda x, f: x + f.astype(x.dtype), x, value)

    def undo(self, y: Any, value: Any) -> Any:
        return jax.tree.map(lambda y, f: y - f.astype(y.dtype), y, value)

    def log_det(self, x: Any, value: Any) -> jax.Array | float:
        del x, value
        return 0.0


@dataclass(frozen=True)
class Affine:
    """`y = x * exp(s) + shift` (Dinh et al. 2017, RealNVP); `value` is a pair.

    The first of the pair is bounded before it is used, `s = (2 c / pi) * atan(first)`,
    so that a scale lies between `exp(-c)` and `exp(c)`: errors of the inverse grow by
    no more than that a layer.

    Attributes:
      clamp: The bound c.
      separate: As in `Join`; products may not be.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Affine
      >>> y = Affine().join(jnp.ones(1), (jnp.zeros(1), jnp.ones(1)))
      >>> y.tolist()
      [2.0]
    """

    clamp: float = 2.0
    separate: bool = False

    def __post_init__(self):
        if not self.clamp > 0:
            raise UserError(
                f"an affine coupling clamped at {self.clamp} scales by nothing; give a "
                "positive clamp, such as 2.0."
            )

    def parts(self, value: Any) -> int:
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise UserError(
                f"an affine coupling's map returns {type(value).__name__}; return a "
                "pair, what to scale by and what to shift by."
            )
        return 2

    def join(self, x: Any, value: Any) -> Any:
        scale, shift = self._parts(x, value)
        return jax.tree.map(lambda x, s, t: x * jnp.exp(s) + t, x, scale, shift)

    def undo(self, y: Any, value: Any) -> Any:
        scale, shift = self._parts(y, value)
        return jax.tree.map(lambda y, s, t: (y - t) * jnp.exp(-s), y, scale, shift)

    def log_det(self, x: Any, value: Any) -> jax.Array | float:
        return sum(map(_sum_of_each, jax.tree.leaves(self._parts(x, value)[0])))

    def _parts(self, x: Any, value: Any) -> tuple[Any, Any]:
        # In the stream's dtype, or it would change, and exp(-s) not undo exp(s).
        bound = 2 * self.clamp / math.pi
        first, shift = (
            jax.tree.map(lambda x, v: v.astype(x.dtype), x, part) for part in value
        )
        return jax.tree.map(lambda s: bound * jnp.arctan(s), first), shift


@dataclass(frozen=True)
class Blend:
    """`y = g x + (1 - g) value`: the velocity of a momentum network.

    Sander et al. 2021, Momentum ResNets. The inverse divides by g, so rounding errors
    grow by `1 / g` a layer.

    Attributes:
      momentum: g, above 0 and below 1.
      separate: As in `Join`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Blend
      >>> Blend(momentum=0.5).join(jnp.ones(1), jnp.full(1, 3.0)).tolist()
      [2.0]
    """

    momentum: float = 0.9
    separate: bool = False

    def __post_init__(self):
        if not 0 < self.momentum < 1:
            raise UserError(
                f"a momentum of {self.momentum} cannot be undone; give one above 0 and "
                "below 1."
            )

    def parts(self, value: Any) -> int:
        del value
        return 1

    def join(self, x: Any, value: Any) -> Any:
        g = self.momentum
        return jax.tree.map(lambda x, f: g * x + (1 - g) * f.astype(x.dtype), x, value)

    def undo(self, y: Any, value: Any) -> Any:
        g = self.momentum
        return jax.tree.map(
            lambda y, f: (y - (1 - g) * f.astype(y.dtype)) / g, y, value
        )

    def log_det(self, x: Any, value: Any) -> jax.Array | float:
        del value
        ones = jax.tree.map(jnp.ones_like, x)
        return math.log(self.momentum) * sum(map(_sum_of_each, jax.tree.leaves(ones)))


def _sum_of_each(x: Float[Array, " batch *rest"]) -> Float[Array, " batch"]:
    return x.sum(axis=tuple(range(1, x.ndim)))
