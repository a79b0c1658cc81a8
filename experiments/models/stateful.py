"""NNX models with batch norm and dropout as pure functions of nested dicts."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class Stateful:
    """A model whose batch statistics go in and come out.

    Attributes:
      make: `make(rngs) -> model`; parameters are convolutions' and linear layers'
        `kernel` and `bias`, norms' `scale` and `bias`, or start from one.
    """

    make: Callable[[nnx.Rngs], nnx.Module]

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Fresh float32 parameters, all from one draw.

        As RevBiFPN's own: kernels normal with variance 2 / fan-out, of a linear layer
        uniform with bound 1 / sqrt(fan-in), biases 0, scales 1; but a draw for each
        array would take XLA's CPU backend minutes to compile.
        """
        specs = _by_name(self._parts()[1])
        paths, treedef = jax.tree.flatten_with_path(specs)
        sizes = [spec.size for _, spec in paths]
        draws = jnp.split(
            jax.random.normal(key, (sum(sizes),)),
            list(itertools.accumulate(sizes))[:-1],
        )
        leaves = [
            _initial(path[-1].key, draw.reshape(spec.shape))
            for (path, spec), draw in zip(paths, draws, strict=True)
        ]
        return jax.tree.unflatten(treedef, leaves)

    def init_state(self) -> dict[str, Any]:
        """Means of 0 and variances of 1."""
        return jax.tree.map_with_path(
            lambda path, spec: jnp.full(spec.shape, float(path[-1].key == "var")),
            _by_name(self._parts()[2]),
        )

    def __call__(
        self,
        params: dict[str, Any],
        state: dict[str, Any],
        key: jax.Array | None,
        *args: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """The model's output and the moved statistics.

        Args:
          params: As `init` gives them.
          state: Running statistics, as `init_state` gives them.
          key: For dropout, in training; None to use the running statistics and drop
            nothing.
          *args: What the model takes.
        """
        graph, _, _, random = self._parts()
        random = _drawn(random, jax.random.key(0) if key is None else key)
        model: Any = nnx.merge(graph, _by_number(params), _by_number(state), random)
        if key is None:
            model.eval()
        else:
            model.train()
        out = model(*args)
        return out, _by_name(nnx.state(model, nnx.BatchStat))

    def _parts(self) -> tuple[Any, Any, Any, Any]:
        model = nnx.eval_shape(lambda: self.make(nnx.Rngs(0)))
        graph, params, state, random = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
        return graph, params, state, random


def _initial(name: str, draw: jax.Array) -> jax.Array:
    if name == "kernel" and draw.ndim == 4:
        height, width, _, outputs = draw.shape
        return draw * math.sqrt(2 / (height * width * outputs))
    if name == "kernel":
        uniform = 2 * jax.scipy.stats.norm.cdf(draw) - 1
        return uniform / math.sqrt(draw.shape[0])
    return jnp.full(draw.shape, float(name == "scale"))


def _drawn(random: Any, key: jax.Array) -> Any:
    """Streams that start from `key`, each its own."""
    leaves, treedef = jax.tree.flatten(random)
    fresh = [
        jax.random.fold_in(key, number)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, fresh)


def _by_name(state: Any) -> dict[str, Any]:
    """A nested dict with text keys only, as checkpoints need them."""

    def renamed(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {str(name): renamed(value) for name, value in tree.items()}

    return renamed(nnx.to_pure_dict(state))


def _by_number(tree: Any) -> Any:
    """The items of lists by number again."""
    if not isinstance(tree, dict):
        return tree
    return {
        int(name) if name.isdigit() else name: _by_number(value)
        for name, value in tree.items()
    }
