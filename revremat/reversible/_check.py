"""How well an inverse inverts: a table of errors by dtype and depth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from revremat._errors import UserError
from revremat.program.arrays._avals import promoted
from revremat.reversible._chain import Repeat, chain
from revremat.reversible._coupling import Coupling, described

_COLUMNS = ("dtype", "depth", "round trip", "gradient", "noise floor")


@dataclass(frozen=True)
class InverseRow:
    """Relative errors (of the Euclidean norm) at one dtype and depth.

    Attributes:
      dtype: Of parameters and streams.
      depth: How many times the coupling is applied.
      round_trip: Of the input recomputed from the output.
      gradient: Of the gradient by inversion, against plain autodiff in the same dtype.
      noise_floor: Of plain autodiff in this dtype, against plain autodiff in float64:
        what the dtype costs anyhow.

    Example:
      >>> from revremat.reversible import InverseRow
      >>> row = InverseRow("float32", 4, 1e-7, gradient=1e-7, noise_floor=2e-7)
      >>> row.is_within_noise
      True
    """

    dtype: str
    depth: int
    round_trip: float
    gradient: float
    noise_floor: float

    @property
    def is_within_noise(self) -> bool:
        """Whether inverting costs no more than the dtype does, or 1e-9."""
        return self.gradient <= max(self.noise_floor, 1e-9)


@dataclass(frozen=True)
class InverseTable:
    """What `check_inverse` found; prints as a table.

    Attributes:
      rows: One for each dtype and depth.

    Example:
      >>> from revremat.reversible import InverseRow, InverseTable
      >>> print(InverseTable((InverseRow("float32", 4, 1e-7, 2e-7, 1e-7),)))
        dtype  depth  round trip  gradient  noise floor
      float32      4     1.0e-07   2.0e-07      1.0e-07
    """

    rows: tuple[InverseRow, ...]

    def __str__(self) -> str:
        lines: list[tuple[str, ...]] = [_COLUMNS]
        for row in self.rows:
            errors = (row.round_trip, row.gradient, row.noise_floor)
            lines.append((row.dtype, str(row.depth), *(f"{e:.1e}" for e in errors)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True))
            for line in lines
        )


def check_inverse(
    coupling: Coupling,
    params: Any,
    x: Any,
    rest: Any = None,
    *,
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16"),
    depths: Sequence[int] = (1, 8, 64),
) -> InverseTable:
    """Invert a coupling, applied `depth` times over, and say how far off it is.

    Every layer has the same parameters; what has no gradient is the same too. The
    gradient is that of a sum of squares by the parameters and the input.

    Args:
      coupling: It returns what it takes, shape and dtype.
      params: Of the coupling; floating arrays are cast to each dtype, complex ones to
        the one whose parts they are, of 32 bits at least.
      x: What goes in, cast likewise.
      rest: What has no gradient; not cast.
      dtypes: To try; a coupling in exact mode has streams of 32 bits or more.
      depths: To try.

    Returns:
      A table of relative errors.

    Raises:
      UserError: The inverse does not return what went in, in shape, or is wrong: in
        float64, at depth 1, off by more than 1e-6.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import reversible
      >>> block = reversible.additive(lambda w, x: jnp.sin(w * x), lambda w, x: w * x)
      >>> params, x = {"f": 1.0, "g": 0.5}, (jnp.ones(3), jnp.ones(3))
      >>> table = reversible.check_inverse(block, params, x, depths=[4])
      >>> table.rows[0].is_within_noise
      True
    """
    with jax.enable_x64(True):
        _check_is_inverse(coupling, params, x, rest)
        rows = []
        for depth in depths:
            exact = _gradient(coupling, params, x, rest, "float64", depth, "stored")
            for dtype in dtypes:
                case = (coupling, params, x, rest, dtype, depth)
                stored = _gradient(*case, "stored")
                inverted = _gradient(*case, "inverted")
                rows.append(
                    InverseRow(
                        dtype=dtype,
                        depth=depth,
                        round_trip=_round_trip(*case),
                        gradient=_error(inverted, stored),
                        noise_floor=_error(stored, exact),
                    )
                )
    return InverseTable(tuple(rows))


def _check_is_inverse(coupling: Coupling, params: Any, x: Any, rest: Any) -> None:
    params, x = _cast((params, x), "float64")
    y = coupling.run(params, x, rest)[0]
    found = coupling.inverse(params, y, rest)
    if described(found) != described(x):
        raise UserError(
            f"the inverse returns {described(found)} for an input of {described(x)}; "
            "let it return what went in."
        )
    error = _error(found, x)
    if not error <= 1e-6:
        raise UserError(
            f"the inverse is off by {error:.1e} of the input in float64; it must undo "
            "the function, and draw the same random numbers."
        )


def _round_trip(
    coupling: Coupling, params: Any, x: Any, rest: Any, dtype: str, depth: int
) -> float:
    repeat, stacked, x, rest = _repeated(coupling, params, x, rest, dtype, depth)
    y = jax.jit(lambda p, x: repeat.run(p, x, rest)[0])(stacked, x)
    return _error(jax.jit(lambda p, y: repeat.inverse(p, y, rest))(stacked, y), x)


def _gradient(
    coupling: Coupling,
    params: Any,
    x: Any,
    rest: Any,
    dtype: str,
    depth: int,
    how: str,
) -> Any:
    repeat, stacked, x, rest = _repeated(coupling, params, x, rest, dtype, depth)

    def loss(params: Any, x: Any) -> jax.Array:
        if how == "stored":
            y = repeat.run(params, x, rest)[0]
        else:
            y = chain([repeat], [params], x, [rest])
            y = y[0] if repeat.has_aux else y
        squares = [_squares(_double(a)) for a in jax.tree.leaves(y)]
        return jnp.sum(jnp.stack(squares))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(stacked, x)


def _repeated(
    coupling: Coupling, params: Any, x: Any, rest: Any, dtype: str, depth: int
) -> tuple[Repeat, Any, Any, Any]:
    spread = lambda a: jnp.broadcast_to(a, (depth, *jnp.shape(a)))
    params, x = _cast((params, x), dtype)
    stacked, rest = jax.tree.map(spread, (params, rest))
    return Repeat(coupling, depth), stacked, x, rest


def _cast(tree: Any, dtype: str) -> Any:
    def cast(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            return leaf.astype(promoted(dtype, jnp.complex64))
        inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
        return leaf.astype(dtype) if inexact else leaf

    return jax.tree.map(cast, tree)


def _error(found: Any, expected: Any) -> float:
    """The Euclidean norm of the difference, over that of what is expected."""
    differences = norms = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        differences += float(_squares(_double(a) - _double(b)))
        norms += float(_squares(_double(b)))
    return math.sqrt(differences / norms) if norms else math.sqrt(differences)


def _double(a: jax.Array) -> jax.Array:
    is_complex = jnp.issubdtype(a.dtype, jnp.complexfloating)
    return a.astype(jnp.complex128 if is_complex else jnp.float64)


def _squares(a: jax.Array) -> jax.Array:
    return (a.real**2 + a.imag**2).sum()
