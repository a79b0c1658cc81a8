"""What a user writes by hand: names, blocks and stacks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from revremat._action import Action, for_each
from revremat._errors import UserError
from revremat.program._by_hand import act
from revremat.program.engine._split import write_chunks
from revremat.program.ir._inverse import inverse_label
from revremat.program.ir._ops import BLOCK_PREFIX


def name(x: Any, name: str) -> Any:
    """Tag an array, so that plans can say how it is restored.

    The identity, at no cost. A plan that keeps the tagged value keeps that very value:
    whatever else the derivative needs is recomputed from it. `jax.checkpoint` policies
    see the same name.

    Args:
      x: An array, or a pytree of arrays, which then get `name_0`, `name_1`, ...
      name: The tag; one value of a unit per name.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> layer = lambda w, x: jnp.tanh(rr.name(x @ w, "up"))
      >>> loss = lambda w, x: rr.stack(layer, w, x).sum()
      >>> graph = rr.trace(loss, jnp.ones((4, 8, 8)), jnp.ones((2, 8)))
      >>> [r.name for r in graph["stack"].residuals if r.name == "up"]
      ['up']
    """
    leaves, treedef = jax.tree.flatten(x)
    if len(leaves) == 1:
        return treedef.unflatten([checkpoint_name(leaves[0], name)])
    return treedef.unflatten(
        [checkpoint_name(leaf, f"{name}_{k}") for k, leaf in enumerate(leaves)]
    )


def block(
    f: Callable[..., Any],
    name: str,
    *,
    inverse: Callable[..., Any] | None = None,
    split: Sequence[int | None] | None = None,
) -> Callable[..., Any]:
    """Mark a function as a unit of decision.

    It computes what it did. `rr.trace` lists it, and every equal call of a block is one
    layer of its unit, with an action of its own.

    Args:
      f: A function of arrays, or pytrees of arrays; it may close over arrays, which are
        read, as by `jax.jit`, at the first call with arguments of such shapes.
      name: What plans call it.
      inverse: For `f(params, x, *rest) -> y` with `y` shaped as `x`:
        `inverse(params, y, *rest) -> x`, which makes INVERT available.
      split: For a function whose results are *sums* over an axis of some arguments:
        that axis for each argument, None for one to be used whole. Makes it possible to
        compute the block in chunks: `RECOMPUTE(chunks=8)`.

    Raises:
      UserError: The name is empty, or has a `/` or a `#`.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> rr.block(lambda x: 2 * x, "double")(jnp.ones(2))
      Array([2., 2.], dtype=float32)
    """
    if not name or set(name) & set("/#"):
        raise UserError(
            f"rr.block: {name!r} is not a name; use letters, digits and '_'."
        )

    return mark_block(f, name, inverse, split, has_ys=False)


def mark_block(
    f: Callable[..., Any],
    name: str,
    inverse: Callable[..., Any] | None = None,
    split: Sequence[int | None] | None = None,
    has_ys: bool = False,
) -> Callable[..., Any]:
    """`block` without a look at the name; with `has_ys`, `f` returns `(y, more)`."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        if kwargs and (inverse is not None or split is not None):
            raise UserError(
                f"rr.block: {name!r} has an inverse or can be split, so it is called "
                f"by position; {', '.join(kwargs)} was given by name"
            )
        out = f(*args, **kwargs)
        if inverse is not None:
            out = _apart_from(args, out)
            y = out[0] if has_ys else out
            _write_inverse(inverse, name, y, args, len(jax.tree.leaves(out)))
        if split is not None:
            write_chunks(f, name, split, args)
        return out

    marked.__name__ = marked.__qualname__ = BLOCK_PREFIX + name
    return functools.wraps(f, assigned=("__doc__",), updated=())(jax.jit(marked))


def _apart_from(args: Any, out: Any) -> Any:
    """Outputs that are inputs as values of their own, or JAX hands them past a block.

    Its inverse would not find them then.
    """
    given = set(map(id, jax.tree.leaves(args)))
    own = lambda leaf: jax.lax.optimization_barrier(leaf) if id(leaf) in given else leaf
    return jax.tree.map(own, out)


def _write_inverse(
    inverse: Callable[..., Any],
    name: str,
    y: Any,
    args: tuple[Any, ...],
    num_outputs: int,
) -> None:
    """Call the inverse, as dead code, for `INVERT` to find."""
    if len(args) < 2:
        raise UserError(
            f"rr.block: {name!r} has an inverse, so it is called with its parameters "
            f"and its input, `f(params, x)`; it was called with {len(args)} argument."
        )
    params, x, *rest = args
    if _described(y) != _described(x):
        raise UserError(
            f"rr.block: {name!r} has an inverse, so it returns what it takes; it takes "
            f"{_described(x)} and returns {_described(y)}."
        )

    def undo(params: Any, y: Any, *rest: Any) -> Any:
        found = inverse(params, y, *rest)
        if _described(found) != _described(y):
            raise UserError(
                f"rr.block: the inverse of {name!r} returns {_described(found)} for "
                f"{_described(y)}; it must return what the block takes."
            )
        return found

    after, count = len(jax.tree.leaves(rest)), len(jax.tree.leaves(x))
    label = inverse_label(after + count, count, num_outputs)
    undo.__name__ = undo.__qualname__ = label
    jax.jit(undo)(*jax.tree.map(jax.lax.stop_gradient, (params, y, *rest)))


def _described(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: jax.typeof(leaf).str_short(), tree))


def stack(
    layer: Callable[..., Any],
    params: Any,
    x: Any,
    xs: Any = None,
    *,
    actions: Action | Sequence[Action] | None = None,
    inverse: Callable[..., Any] | None = None,
    has_ys: bool = False,
    reverse: bool = False,
    name: str = "stack",
) -> Any:
    """Apply equal layers one after the other, each with its action.

    The same as `for p in params: x = layer(p, x)` with the layers' weights stacked
    along their first axis; only memory and time of the backward pass depend on
    `actions`.

    Args:
      layer: `layer(params_of_layer, x) -> x`; with `xs`,
        `layer(params_of_layer, x, xs_of_layer) -> x`; with `has_ys`, it returns `(x,
        y)`. It may close over arrays, which get gradients too.
      params: A pytree of arrays `[num_layers, ...]`.
      x: What the first layer is given: any pytree.
      xs: Further per-layer inputs `[num_layers, ...]`, such as RNG keys: any pytree.
      actions: One action for all layers, or one for each, the first to run first. By
        default a plain `jax.lax.scan`, which `rr.trace` sees and `rr.apply` rewrites.
      inverse: `inverse(params_of_layer, y) -> x` (with `xs`, a third argument), the
        layer undone: makes INVERT available.
      has_ys: Whether the layer returns `(x, y)`; then so does the stack, `y` stacked.
      reverse: Whether the layer of the last weights runs first.

      name: What plans call it, where `actions` are left to them.

    Returns:
      The last layer's output, or `(output, stacked ys)`.

    Raises:
      UserError: Stacked arrays of different lengths, a wrong number of actions, an
        unknown name in one, INVERT without an inverse, or a layer that does not return
        what it takes.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> layer = lambda w, x: x + jnp.tanh(x @ w)
      >>> rr.stack(layer, jnp.zeros((3, 2, 2)), jnp.ones(2), actions=rr.RECOMPUTE)
      Array([1., 1.], dtype=float32)
    """
    length = _length(jax.tree.leaves((params, xs)))
    x = jax.tree.map(jnp.asarray, x)
    one = mark_block(layer, name, inverse, has_ys=has_ys)

    def step(x, weights):
        p, *extra = weights
        out = one(p, x, *extra)
        after, y = out if has_ys else (out, None)
        if _described(after) != _described(x):
            raise UserError(
                f"rr.stack: the layer takes {_described(x)} and returns "
                f"{_described(after)}; it must return what it takes, shape and dtype, "
                "for the next layer to take it."
            )
        return after, y

    def scan(x, weights):
        return jax.lax.scan(step, x, weights, reverse=reverse)

    weights = (params,) if xs is None else (params, xs)
    if actions is None:
        out, ys = scan(x, weights)
    else:
        out, ys = act(scan, for_each(actions, length), f"rr.{name}")(x, weights)
    return (out, ys) if has_ys else out


def _length(weights: Sequence[Any]) -> int:
    lengths = {jnp.shape(w)[:1] for w in weights}
    if not weights or () in lengths:
        raise UserError(
            "rr.stack: the weights (and xs) must be arrays stacked along a first axis; "
            "stack them with `jax.tree.map(lambda *w: jnp.stack(w), *layers)`."
        )
    if len(lengths) > 1:
        found = ", ".join(str(n) for (n,) in sorted(lengths))
        raise UserError(
            f"rr.stack: weights and xs are stacked to different lengths ({found}); "
            "every array needs one entry for each layer along its first axis."
        )
    return next(iter(lengths))[0]
