"""The couplings of the literature, as steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float, Shaped

from revremat._errors import UserError
from revremat.reversible._coupling import Coupling, Map, Step, Steps, described
from revremat.reversible._joins import Add, Affine, Blend, Join


def additive(f: Map, g: Map, *, first: int = 0, has_aux: bool = False) -> Steps:
    """Two streams: `y0 = x0 + f(x1); y1 = x1 + g(y0)` (Gomez et al. 2017, RevNet).

    Args:
      f: `f(params["f"], stream)`; see `Steps.maps`.
      g: The same for the other stream.
      first: The stream that is changed first; 1 swaps the streams' parts.
      has_aux: Whether the maps return `(value, aux)`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import reversible
      >>> block = reversible.additive(lambda w, x: w * x, lambda w, x: w * x)
      >>> y = block.forward({"f": 2.0, "g": 3.0}, (jnp.ones(1), jnp.ones(1)))
      >>> block.inverse({"f": 2.0, "g": 3.0}, y)
      (Array([1.], dtype=float32), Array([1.], dtype=float32))
    """
    return _two(f, g, Add(), first, has_aux)


def affine(
    f: Map, g: Map, *, first: int = 0, clamp: float = 2.0, has_aux: bool = False
) -> Steps:
    """Two streams: `y0 = x0 * exp(s(x1)) + t(x1)`, then the same for y1 by y0.

    Dinh et al. 2017, RealNVP, with a bounded scale. The maps return a pair, what to
    scale by and what to shift by; see `Affine`. `log_det` gives the log-determinant.

    Args:
      f: `f(params["f"], stream) -> (s, t)`.
      g: The same for the other stream.
      first: The stream that is changed first.
      clamp: Scales lie between `exp(-clamp)` and `exp(clamp)`.
      has_aux: Whether the maps return `((s, t), aux)`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import affine
      >>> half = lambda w, x: (jnp.tanh(w * x), w * x)
      >>> block, params = affine(half, half), {"f": 1.0, "g": 0.5}
      >>> x = (jnp.ones((2, 3)), jnp.zeros((2, 3)))
      >>> y = block.forward(params, x)
      >>> bool(jnp.allclose(block.inverse(params, y)[0], x[0]))
      True
      >>> block.log_det(params, x).shape
      (2,)
    """
    return _two(f, g, Affine(clamp), first, has_aux)


def momentum(f: Map, *, momentum: float = 0.9, has_aux: bool = False) -> Steps:
    """Position and velocity: `v' = g v + (1 - g) f(x); x' = x + v'`.

    Sander et al. 2021, Momentum ResNets: a residual network with one more stream that
    starts at zero.

    Args:
      f: `f(params["f"], x)`.
      momentum: g; the inverse divides by it.
      has_aux: Whether the map returns `(value, aux)`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import momentum
      >>> block = momentum(lambda w, x: w * x, momentum=0.5)
      >>> y = block.forward({"f": 2.0}, (jnp.ones(1), jnp.zeros(1)))
      >>> [one.tolist() for one in y]
      [[2.0], [1.0]]
    """
    steps = (
        Step(target=1, terms=(("f", 0),), join=Blend(momentum)),
        Step(target=0, terms=((None, 1),), join=Add()),
    )
    return Steps({"f": f}, steps, num_inputs=2, has_aux=has_aux)


def reformer(attention: Map, feed_forward: Map, *, has_aux: bool = False) -> Steps:
    """Two streams: `y0 = x0 + attention(x1); y1 = x1 + feed_forward(y0)`.

    Kitaev et al. 2020, Reformer; Mangalam et al. 2022, RevViT. The maps hold their own
    norms; parameters are `params["attention"]` and `params["feed_forward"]`. Both
    streams start as the embedding.

    Args:
      attention: `attention(params, stream)`.
      feed_forward: `feed_forward(params, stream)`.
      has_aux: Whether the maps return `(value, aux)`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import reformer
      >>> block = reformer(lambda w, x: w * x, lambda w, x: w * x)
      >>> params = {"attention": 1.0, "feed_forward": 2.0}
      >>> [one.tolist() for one in block.forward(params, (jnp.ones(1), jnp.ones(1)))]
      [[2.0], [5.0]]
    """
    maps = {"attention": attention, "feed_forward": feed_forward}
    steps = (
        Step(target=0, terms=(("attention", 1),), join=Add()),
        Step(target=1, terms=(("feed_forward", 0),), join=Add()),
    )
    return Steps(maps, steps, num_inputs=2, has_aux=has_aux)


def _two(f: Map, g: Map, join: Join, first: int, has_aux: bool) -> Steps:
    if first not in (0, 1):
        raise UserError(f"first={first} is no stream of two; write 0 or 1.")
    steps = (
        Step(target=first, terms=(("f", 1 - first),), join=join),
        Step(target=1 - first, terms=(("g", first),), join=join),
    )
    return Steps({"f": f, "g": g}, steps, num_inputs=2, has_aux=has_aux)


def silo(
    down: Mapping[tuple[int, int], Map],
    up: Mapping[tuple[int, int], Map],
    *,
    join: Join | None = None,
    num_inputs: int | None = None,
    has_aux: bool = False,
) -> Steps:
    """N streams that read one another, finest first (Chiley et al. 2023, RevSilo).

    Down, then up, with g the join (sums by default):
    `m_j = g(x_j, sum over i < j of D_ij(x_i))`,
    `y_i = g(m_i, sum over j > i of U_ji(m_j))`.

    Args:
      down: The maps from finer to coarser, by `(from, to)`; any of the pairs.
      up: The maps from coarser to finer, by `(from, to)`; any of the pairs.
      join: `Add()` (the default) or `Affine()`, whose maps return pairs.
      num_inputs: N, or N - 1 for a silo that grows: the last stream is then made by
        `down` alone (its maps return the stream itself, whatever the join). By default
        the most that the pairs name.
      has_aux: Whether the maps return `(value, aux)`.

    Returns:
      A coupling with parameters `params["down_0_1"]` for the map from 0 to 1,
      `params["up_1_0"]` and so on.

    Raises:
      UserError: A map from a stream to itself or in the wrong direction, or a stream
        that nothing makes.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import silo
      >>> halve = lambda w, x: w * x[::2]
      >>> double = lambda w, x: w * jnp.repeat(x, 2)
      >>> block = silo({(0, 1): halve}, {(1, 0): double})
      >>> sorted(block.maps)
      ['down_0_1', 'up_1_0']
    """
    join = Add() if join is None else join
    pairs = (*down, *up)
    if not pairs:
        raise UserError("a silo of no maps joins nothing; give it `down` or `up` maps.")
    count = 1 + max(map(max, pairs))
    inputs = count if num_inputs is None else num_inputs
    for (i, j), word in (*((p, "down") for p in down), *((p, "up") for p in up)):
        if (i < j) != (word == "down") or i == j or min(i, j) < 0:
            raise UserError(
                f"a silo has a map {word} from stream {i} to {j}; `down` goes from a "
                "smaller number to a larger one, `up` from a larger to a smaller."
            )
    if inputs not in (count, count - 1):
        raise UserError(
            f"a silo of {count} streams takes {count}, or {count - 1} if it grows, not "
            f"{inputs}."
        )
    steps = []
    for j in reversed(range(1, count)):
        terms = tuple((f"down_{i}_{j}", i) for i in range(j) if (i, j) in down)
        if not terms and j >= inputs:
            raise UserError(
                f"a silo grows to stream {j}, but no map leads down to it; give one, "
                f"such as down[{j - 1}, {j}]."
            )
        if terms:
            steps.append(Step(j, terms, join if j < inputs else None))
    for i in range(count - 1):
        terms = tuple((f"up_{j}_{i}", j) for j in range(i + 1, count) if (j, i) in up)
        if terms:
            steps.append(Step(i, terms, join))
    maps = {f"down_{i}_{j}": f for (i, j), f in down.items()}
    maps |= {f"up_{j}_{i}": f for (j, i), f in up.items()}
    return Steps(maps, tuple(steps), num_inputs=inputs, has_aux=has_aux)


@dataclass(frozen=True, eq=False)
class Rearrange(Coupling):
    """A change of shape that loses nothing and has no parameters.

    Attributes:
      change: From one array, or pytree, to another with the same numbers in it.
      undo: Back.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Rearrange
      >>> flip = Rearrange(lambda x: x[::-1], lambda y: y[::-1])
      >>> flip.forward((), jnp.arange(3)).tolist()
      [2, 1, 0]
    """

    change: Callable[[Any], Any]
    undo: Callable[[Any], Any]

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        del params, rest
        return self.change(x), None

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        del params, rest
        return self.undo(y)

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        """Also the cotangent's: the transpose of a permutation undoes it."""
        del rest, aux
        return self.undo(y), jax.tree.map(lambda p: p * 0, params), self.undo(cotangent)

    def log_det(self, params: Any, x: Any, rest: Any = None) -> Float[Array, " batch"]:
        del params, rest
        first = jax.tree.leaves(x)[0]
        return first.reshape(first.shape[0], -1)[:, 0] * 0


def space_to_depth(block: int) -> Rearrange:
    """Down-sampling that loses nothing: `[B, H, W, C] -> [B, H/b, W/b, b b C]`.

    The block's row is the slowest index of the new channels, the old channel the
    fastest (as in RevBiFPN's stem). Its inverse is `depth_to_space(block)`.

    Args:
      block: b.

    Raises:
      UserError: When called, if b does not divide height and width.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import space_to_depth
      >>> space_to_depth(2).forward((), jnp.ones((1, 8, 8, 3))).shape
      (1, 4, 4, 12)
    """
    return Rearrange(partial(_to_depth, block=block), partial(_to_space, block=block))


def depth_to_space(block: int) -> Rearrange:
    """Up-sampling that makes nothing up: `[B, H, W, b b C] -> [B, H b, W b, C]`.

    Args:
      block: b, in pixels.

    Raises:
      UserError: When called, if b * b does not divide the channels.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import depth_to_space
      >>> depth_to_space(2).forward((), jnp.ones((1, 4, 4, 12))).shape
      (1, 8, 8, 3)
    """
    return Rearrange(partial(_to_space, block=block), partial(_to_depth, block=block))


def _to_depth(
    x: Shaped[Array, "batch height width channels"], block: int
) -> Shaped[Array, "_ _ _ _"]:
    batch, height, width, channels = x.shape
    if height % block or width % block:
        raise UserError(
            f"an image of {height} x {width} ({described(x)}) cannot be cut in blocks "
            f"of {block}; give a height and width that {block} divides."
        )
    cut = x.reshape(batch, height // block, block, width // block, block, channels)
    return cut.swapaxes(2, 3).reshape(batch, height // block, width // block, -1)


def _to_space(
    x: Shaped[Array, "batch height width channels"], block: int
) -> Shaped[Array, "_ _ _ _"]:
    batch, height, width, channels = x.shape
    if channels % block**2:
        raise UserError(
            f"{channels} channels ({described(x)}) cannot be spread over blocks of "
            f"{block} x {block}; give a number of channels that {block**2} divides."
        )
    cut = x.reshape(batch, height, width, block, block, channels // block**2)
    return cut.swapaxes(2, 3).reshape(batch, height * block, width * block, -1)
