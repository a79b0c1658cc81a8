"""A Flax NNX module over the stack engine."""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from revremat._action import Action
from revremat.program._api import stack


class Stack(nnx.Module):
    """Equal layers one after the other, as one module with stacked parameters.

    Dropout draws the same numbers when a layer is recomputed as it did the first time,
    and running statistics move once: a layer's state before the call is one of its
    inputs, and the state after the call is taken from the forward pass alone.

    Args:
      make_layer: `make_layer(rngs) -> module`, where `module(x) -> x`.
      num_layers: How many.
      rngs: Split for the layers.
      actions: As in `rr.stack`; by default left to `rr.apply`.
      inverse: `inverse(module, y) -> x`, the layer undone, for INVERT. It must not
        depend on randomness or running statistics.
      name: What plans call it.

    >>> from flax import nnx
    >>> import jax.numpy as jnp, revremat as rr
    >>> from revremat.program.nnx import Stack
    >>> make = lambda rngs: nnx.Linear(4, 4, rngs=rngs)
    >>> model = Stack(make, 3, rngs=nnx.Rngs(0), actions=rr.RECOMPUTE)
    >>> model(jnp.ones((2, 4))).shape
    (2, 4)
    """

    def __init__(
        self,
        make_layer: Callable[[nnx.Rngs], nnx.Module],
        num_layers: int,
        *,
        rngs: nnx.Rngs,
        actions: Action | Sequence[Action] | None = None,
        inverse: Callable[[Any, Any], Any] | None = None,
        name: str = "stack",
    ):
        # One argument, or vmap would map over defaults as well.
        make = nnx.vmap(lambda rngs: make_layer(rngs), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=num_layers)(make)(rngs)
        self.actions = actions if isinstance(actions, Action | None) else tuple(actions)
        self.inverse = inverse
        self.name = name

    def __call__(self, x: Any) -> Any:
        """The last layer's output; the layers' states move once."""
        graph, params, state = nnx.split(self.layers, nnx.Param, ...)

        def layer(params: Any, x: Any, state: Any) -> tuple[Any, Any]:
            module = nnx.merge(graph, params, state, copy=True)
            y = module(x)
            return y, nnx.split(module, nnx.Param, ...)[2]

        def undo(params: Any, y: Any, state: Any) -> Any:
            assert self.inverse is not None
            return self.inverse(nnx.merge(graph, params, state, copy=True), y)

        y, state = stack(
            layer,
            params,
            x,
            state,
            has_ys=True,
            actions=self.actions,
            inverse=None if self.inverse is None else undo,
            name=self.name,
        )
        nnx.update(self.layers, state)
        return y
