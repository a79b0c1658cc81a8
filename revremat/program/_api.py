"""What a user writes by hand: names, blocks and stacks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from revremat._errors import UserError
from revremat._plan import Action
from revremat.program._ops import BLOCK_PREFIX, flatten, lift_constants, with_inputs
from revremat.program._stack import Stack, run_stack


def name(x: Any, name: str) -> Any:
    """Tag an array, so that plans can say how it comes back.

    The identity, at no cost. A plan that keeps the tagged value keeps that very value:
    whatever else the derivative needs is rebuilt from it. `jax.checkpoint` policies see
    the same name.

    Args:
      x: An array, or a pytree of arrays, which then get `name_0`, `name_1`, ...
      name: The tag; one value of a unit per name.
    """
    leaves, treedef = jax.tree.flatten(x)
    if len(leaves) == 1:
        return treedef.unflatten([checkpoint_name(leaves[0], name)])
    return treedef.unflatten(
        [checkpoint_name(leaf, f"{name}_{k}") for k, leaf in enumerate(leaves)]
    )


def block(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Mark a function as a unit of decision.

    It computes what it did. `rr.trace` lists it, and every equal call of a block is one
    layer of its unit, with an action of its own.

    Args:
      f: A function of arrays, or pytrees of arrays; it may close over arrays.
      name: What plans call it.

    >>> import jax.numpy as jnp, revremat as rr
    >>> rr.block(lambda x: 2 * x, "double")(jnp.ones(2))
    Array([2., 2.], dtype=float32)
    """
    if not name or set(name) & set("/#"):
        raise UserError(
            f"rr.block: {name!r} is not a name; use letters, digits and '_'."
        )

    def marked(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    marked.__name__ = marked.__qualname__ = BLOCK_PREFIX + name
    return functools.wraps(f, assigned=("__doc__",), updated=())(jax.jit(marked))


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
) -> Any:
    """Apply equal layers one after the other, each with its way back for gradients.

    The same as `for p in params: x = layer(p, x)` with the layers' weights stacked along
    their first axis; only memory and time of the backward pass depend on `actions`.

    Args:
      layer: `layer(params_of_layer, x) -> x`; with `xs`,
        `layer(params_of_layer, x, xs_of_layer) -> x`; with `has_ys`, it returns `(x, y)`.
        It may close over arrays, which get gradients too.
      params: A pytree of arrays `[num_layers, ...]`.
      x: What the first layer is given: any pytree.
      xs: Further per-layer inputs `[num_layers, ...]`, such as RNG keys: any pytree.
      actions: One action for all layers, or one for each, the first to run first. By
        default a plain `jax.lax.scan`, which `rr.trace` sees and `rr.apply` rewrites.
      inverse: `inverse(params_of_layer, y) -> x` (with `xs`, a third argument), the
        layer undone: makes INVERT available.
      has_ys: Whether the layer returns `(x, y)`; then so does the stack, `y` stacked.
      reverse: Whether the layer of the last weights runs first.

    Returns:
      The last layer's output, or `(output, stacked ys)`.

    Raises:
      UserError: Stacked arrays of different lengths, a wrong number of actions, an
        unknown name in one, INVERT without an inverse, or a layer that does not return
        what it takes.

    >>> import jax.numpy as jnp, revremat as rr
    >>> layer = lambda w, x: x + jnp.tanh(x @ w)
    >>> rr.stack(layer, jnp.zeros((3, 2, 2)), jnp.ones(2), actions=rr.RECOMPUTE)
    Array([1., 1.], dtype=float32)
    """
    weights, weights_tree = jax.tree.flatten((params, xs))
    length = _length(weights)
    carry, carry_tree = jax.tree.flatten(jax.tree.map(jnp.asarray, x))
    trees: list[Any] = []

    def step(carry, weights):
        p, extra = weights_tree.unflatten(weights)
        arguments = (p, carry_tree.unflatten(carry))
        out = layer(*arguments) if xs is None else layer(*arguments, extra)
        out, y = out if has_ys else (out, None)
        ys, ys_tree = jax.tree.flatten(y)
        outs, out_tree = jax.tree.flatten(out)
        _check_carry(carry_tree, carry, out_tree, outs)
        trees[:] = [ys_tree]
        return outs, ys

    if actions is None:
        outs, ys = jax.lax.scan(step, carry, weights, reverse=reverse)
    else:
        avals = jax.tree.map(jax.typeof, carry)
        slices = [jax.eval_shape(lambda w: w[0], w) for w in weights]
        body, consts = lift_constants(
            flatten(jax.make_jaxpr(step)(avals, slices), keep_names=True)
        )
        undo, undo_consts = _flat_inverse(
            inverse, avals, carry_tree, slices, weights_tree, xs is not None
        )
        engine = Stack(
            body=with_inputs(body, [jax.typeof(c) for c in undo_consts], 0),
            num_consts=len(undo_consts) + len(consts),
            num_carry=len(carry),
            length=length,
            reverse=reverse,
            actions=(actions,) * length
            if isinstance(actions, Action)
            else tuple(actions),
            inverse=None
            if undo is None
            else with_inputs(undo, [jax.typeof(c) for c in consts], len(undo_consts)),
            name="rr.stack",
        )
        outs, ys = run_stack(engine, [*undo_consts, *consts], carry, weights)
    out = carry_tree.unflatten(outs)
    return (out, trees[0].unflatten(ys)) if has_ys else out


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
            f"rr.stack: weights and xs are stacked to different lengths ({found}); every "
            "array needs one entry for each layer along its first axis."
        )
    return next(iter(lengths))[0]


def _check_carry(tree_in: Any, carry: Any, tree_out: Any, outs: Any) -> None:
    before, after = map(_describe, (carry, outs))
    if tree_in != tree_out or before != after:
        raise UserError(
            f"rr.stack: the layer takes {before} and returns {after}; it must return what "
            "it takes, shape and dtype, for the next layer to take it."
        )


def _describe(leaves: Sequence[Any]) -> str:
    return "(" + ", ".join(jax.typeof(leaf).str_short() for leaf in leaves) + ")"


def _flat_inverse(inverse, carry, carry_tree, slices, weights_tree, has_xs):
    """The inverse as a program from carry and weights to carry, and what it closes over.

    None and nothing where there is no inverse.
    """
    if inverse is None:
        return None, []

    def undo(carry, weights):
        p, extra = weights_tree.unflatten(weights)
        arguments = (p, carry_tree.unflatten(carry))
        x = inverse(*arguments, extra) if has_xs else inverse(*arguments)
        found, tree = jax.tree.flatten(x)
        if tree != carry_tree or _describe(found) != _describe(carry):
            raise UserError(
                f"rr.stack: the inverse returns {_describe(found)} for "
                f"{_describe(carry)}; it must return what the layer takes."
            )
        return found

    return lift_constants(flatten(jax.make_jaxpr(undo)(carry, slices)))
