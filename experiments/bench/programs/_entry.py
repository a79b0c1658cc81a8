"""What an entry of the table is, and the training step around a plain loss."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import revremat as rr

Size = Literal["tiny", "cpu", "card", "real"]
Group = Literal["standard", "novel"]
SIZES: tuple[Size, ...] = ("tiny", "cpu", "real")


@dataclass(frozen=True)
class Entry:
    """One program of the benchmark.

    Attributes:
      name: What tables call it.
      group: `standard`: a network people train; `novel`: a pattern.
      target: Where its real size is to run, as `rr.target` reads it.
      make: `make(target, size)` with a target that has `num_devices` and `mesh(axes)`.
        Sizes: `real` (compiled only), `cpu` (20 to 300 ms a step on one core),
        `tiny`, and of some programs `card`: the part of the real size that one card
        of 80 GB holds. The step takes what it replaces first: `step(state, batch) ->
        (state, others)`, the state donated.
      about: What it is, in a line.
      has_kernel: Whether `make` also takes `attention=`: "plain", by a softmax, or
        "cudnn", by cuDNN's kernel (at real size).
      data_std: Standard deviation of data with which a step of a fresh network stays
        finite, as `values` takes it.
    """

    name: str
    group: Group
    target: str
    make: Callable[..., rr.Problem]
    about: str
    has_kernel: bool = False
    data_std: float = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What a step replaces.

    Attributes:
      params: Float32 arrays.
      opt_state: Optax's state.
      statistics: Running means and variances, where a network has any.
    """

    params: Any
    opt_state: Any
    statistics: Any = None


def spec(*shape: int, dtype: Any = float) -> jax.ShapeDtypeStruct:
    """An array that is not there; floats as wide as JAX has them."""
    return jax.ShapeDtypeStruct(shape, jnp.result_type(dtype))


def compute_dtype(size: Size) -> Any:
    """bfloat16 as is customary on cards; what is run here is run in full."""
    on_cards = size in ("card", "real")
    return jnp.bfloat16 if on_cards else jnp.result_type(float)


def training(
    name: str,
    loss: Callable[..., Any],
    params: Any,
    batch: dict[str, Any],
    statistics: Any = None,
) -> rr.Problem:
    """A loss with AdamW around it, gradients clipped by their global norm.

    Args:
      name: What reports call it.
      loss: `loss(params, batch)`; with statistics they are `batch["statistics"]`, and
        it returns the loss and the new ones.
      params: Shapes and dtypes of what is trained.
      batch: The same of what the loss reads.
      statistics: The same of what moves without a gradient.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1)
    )
    opt_state = jax.eval_shape(optimizer.init, params)
    has_aux = statistics is not None

    def make_step(loss: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        def step(state: State, batch: dict[str, Any]) -> tuple[State, jax.Array]:
            moved = None
            if has_aux:
                batch = batch | {"statistics": state.statistics}
            gradient = jax.value_and_grad(loss, has_aux=has_aux)
            value, grads = gradient(state.params, batch)
            if has_aux:
                value, moved = value
            with jax.named_scope("update"):
                updates, opt_state = optimizer.update(
                    grads, state.opt_state, state.params
                )
                params = optax.apply_updates(state.params, updates)
            return State(params, opt_state, moved), value

        return step, (State(params, opt_state, statistics), batch)

    seen = batch | {"statistics": statistics} if has_aux else batch
    return rr.Problem(loss, (params, seen), make_step, donate=(0,), name=name)


def values(specs: Any, seed: int = 0, data_std: float = 1.0) -> Any:
    """Numbers for abstract arguments: what a fresh network holds, and random data.

    Matrices are normal with variance one over their inputs, data around zero, scales
    and variances one, biases, means and moments zero, whole numbers from 0 to 7.

    Args:
      specs: What a loss takes, or a step: what is trained first, then data.
      seed: Of the random numbers.
      data_std: Standard deviation of data.
    """
    fill = partial(_fill, np.random.default_rng(seed), data_std)
    return jax.tree_util.tree_map_with_path(fill, specs)


def _fill(
    random: np.random.Generator, data_std: float, path: Any, leaf: Any
) -> jax.Array:
    where = jax.tree_util.keystr(path, simple=True, separator="/")
    last = where.removesuffix("/value").rsplit("/", 1)[-1]
    is_data = where.split("/")[0] != "0"
    shape = leaf.shape
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape)
    if "opt_state" in where or last in ("bias", "mean") or not shape:
        made = np.zeros(shape, leaf.dtype)
    elif last in ("scale", "var"):
        made = np.ones(shape, leaf.dtype)
    elif jnp.issubdtype(leaf.dtype, jnp.floating):
        inputs = shape[-2] if len(shape) > 1 and not is_data else 1
        std = data_std if is_data else inputs**-0.5
        made = random.standard_normal(shape, np.float32) * np.float32(std)
    else:
        made = random.integers(0, 8, shape)
    return jax.device_put(made.astype(leaf.dtype), leaf.sharding)
