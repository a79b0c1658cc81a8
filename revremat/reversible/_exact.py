"""Exact mode: streams on a fixed-point grid, which addition never leaves.

Rounding errors of a recomputed stream grow with depth, however small they start: a last
bit that differs flips roundings inside the next map. Multiples of a step that are
smaller than 2^24 steps are float32 numbers, and so are their sums: adding is exact, and
subtracting the same value gives the very same stream back.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from revremat._errors import UserError
from revremat.program.arrays._avals import promoted
from revremat.reversible._chain import Repeat, Sequential
from revremat.reversible._coupling import Coupling, Halves, Parallel, Step, Steps
from revremat.reversible._couplings import Rearrange
from revremat.reversible._isolated import isolated
from revremat.reversible._joins import Add

STEP = 2.0**-12
_STEPS_IN_RANGE = 2.0**24


def to_grid(x: Any, step: float = STEP) -> Any:
    """Round to multiples of `step`, as float32; the gradient goes straight through.

    (float64 stays what it is, for comparisons.)

    What is `2^24` steps or larger (4096 for the default step) has left the range in
    which sums are exact. It becomes NaN, so that nothing goes on as if it were right;
    `check_range` says where it was.

    Args:
      x: A pytree of arrays of any floating dtype.
      step: A power of two.

    Example:
      >>> import jax.numpy as jnp
      >>> to_grid(jnp.array([0.30, 5000.0]), step=0.25)
      Array([2.5e-01, 5.0e+03], dtype=float32)
    """
    _check_step(step)
    return jax.tree.map(lambda leaf: _to_grid(leaf, step), x)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _to_grid(x: Float[Array, "*shape"], step: float) -> Float[Array, "*shape"]:
    x = x.astype(promoted(x.dtype, jnp.float32))
    rounded = jnp.round(x / step) * step
    return jnp.where(jnp.abs(rounded) < _limit(step), rounded, jnp.nan)


def _to_grid_forward(x: Float[Array, "*shape"], step: float):
    return _to_grid(x, step), jnp.zeros((), x.dtype)


def _to_grid_backward(step: float, like: jax.Array, ct: jax.Array):
    return (ct.astype(like.dtype),)


_to_grid.defvjp(_to_grid_forward, _to_grid_backward)


def _limit(step: float) -> float:
    return step * _STEPS_IN_RANGE


def _check_step(step: float) -> None:
    if step <= 0 or math.frexp(step)[0] != 0.5:
        raise UserError(
            f"a grid of step {step} is not exact in binary; give a power of two, such "
            "as 2**-12."
        )


@dataclass(frozen=True)
class AddOnGrid:
    """`y = x + value`, both rounded to the grid: undone bit for bit.

    The value must be the same in both passes, which `exact` sees to.
    """

    step: float = STEP
    separate: bool = True

    def parts(self, value: Any) -> int:
        del value
        return 1

    def join(self, x: Any, value: Any) -> Any:
        total = jax.tree.map(jnp.add, *self._rounded(x, value))
        return to_grid(total, self.step)

    def undo(self, y: Any, value: Any) -> Any:
        return jax.tree.map(jnp.subtract, *self._rounded(y, value))

    def log_det(self, x: Any, value: Any) -> jax.Array | float:
        del x, value
        return 0.0

    def _rounded(self, x: Any, value: Any) -> tuple[Any, Any]:
        return to_grid(x, self.step), to_grid(value, self.step)


def exact(coupling: Coupling, step: float = STEP) -> Coupling:
    """The same coupling with float32 streams on a grid, to be undone bit for bit.

    Its maps may compute in any dtype: what they return is rounded to the grid. What
    comes in is rounded too, so that the inverse gives `to_grid(x)`.

    A map has to return the same bits in both passes. So the backward pass evaluates it
    by itself to undo a step, and once more for its gradient. On CPU this is measured.
    Compiled for an H100, both passes run the same kernels; no card has run it yet.

    Args:
      coupling: Of sums only: a product loses bits that nothing brings back.
      step: A power of two; streams stay below `2^24` steps.

    Raises:
      UserError: Another join than a sum, or a step that is no power of two.

    Source: fixed point as in MacKay et al. 2018, Reversible Recurrent Neural Networks.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import additive, exact, to_grid
      >>> half = lambda w, x: jnp.sin(w * x)
      >>> block = exact(additive(half, half))
      >>> params, x = {"f": 1.3, "g": 0.7}, (jnp.linspace(0, 1, 5), jnp.ones(5))
      >>> back = block.inverse(params, block.forward(params, x))
      >>> bool((back[0] == to_grid(x)[0]).all())
      True
    """
    _check_step(step)
    match coupling:
        case Steps():
            steps = tuple(_exact_step(s, step) for s in coupling.steps)
            maps = {k: _on_grid(f, step, coupling.has_aux) for k, f in _items(coupling)}
            return replace(coupling, steps=steps, maps=maps, is_separate=True)
        case Parallel():
            return Parallel(tuple(exact(c, step) for c in coupling.couplings))
        case Sequential():
            return Sequential(tuple(exact(c, step) for c in coupling.couplings))
        case Halves():
            return Halves(exact(coupling.inner, step))
        case Repeat():
            return replace(coupling, layer=exact(coupling.layer, step))
        case Rearrange():
            return coupling
    raise UserError(
        f"{type(coupling).__name__} has no exact form; build it from sums, such as "
        "`additive` and `silo`."
    )


def _items(coupling: Steps):
    return coupling.maps.items()


def _exact_step(one: Step, step: float) -> Step:
    if one.join is None:
        return one
    if not isinstance(one.join, Add | AddOnGrid):
        raise UserError(
            f"{one.join} multiplies, which loses bits that no grid restores; exact "
            "mode takes sums only."
        )
    return replace(one, join=AddOnGrid(step))


def _on_grid(f: Any, step: float, has_aux: bool) -> Any:
    """The map between barriers, with its input and its value on the grid."""
    between = isolated(f, has_aux)

    def on_grid(params: Any, x: Any, *rest: Any) -> Any:
        out = between(params, to_grid(x, step), *rest)
        value, aux = out if has_aux else (out, None)
        value = to_grid(value, step)
        return (value, aux) if has_aux else value

    return on_grid


def check_range(streams: Any, step: float = STEP) -> float:
    """The largest share of the grid's range that streams take, 1 being its end.

    Args:
      streams: Arrays that are there (not traced), such as a coupling's output.
      step: The grid's.

    Raises:
      UserError: Something left the range on the way (it is NaN), or is not finite.

    Example:
      >>> import jax.numpy as jnp
      >>> check_range(jnp.array([1024.0, -5.0]))
      0.25
    """
    share = 0.0
    for number, leaf in enumerate(jax.tree.leaves(streams)):
        values = np.asarray(leaf, np.float64)
        lost = int((~np.isfinite(values)).sum())
        largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
        if lost or largest >= _limit(step):
            raise UserError(
                f"stream {number}: {lost or 1} of {values.size} values left the range "
                f"of a grid of step {step}, {_limit(step):g} (the largest left is "
                f"{largest:g}); take a coarser step, or normalise the stream."
            )
        share = max(share, largest / _limit(step))
    return share
