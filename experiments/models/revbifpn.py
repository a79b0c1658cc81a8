"""RevBiFPN as a classifier of small images, reversible or plain (Chiley et al. 2023).

Widths, kernels and blocks are the published ones. Only the image is smaller: grey
images are padded with zeros to a multiple of 32, the coarsest stream's stride, so that
28 x 28 pixels give streams of 8, 4, 2 and 1 pixels across.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.models.depthwise import use_sums_of_products
from experiments.models.layout import ONE_DEVICE, Layout
from experiments.models.stateful import Stateful
from revremat.reversible import REVBIFPN, RevBiFPN

COARSEST = 32
Variant = Literal["S0", "S1", "S2", "S3", "S4", "S5", "S6"]


@dataclass(frozen=True)
class RevBiFPNClassifierConfig:
    """An image classifier.

    Attributes:
      variant: Widths and depth, by the published name.
      image_size: Pixels down and across.
      channels: 1 for grey.
      num_classes: Labels.
      reversible: Whether the stack is inverted in the backward pass; if not, it is the
        plain counterpart: the same function with all activations stored.
      recompute_head: Whether the head's maps are computed again in the backward pass.
      dropout: Rate before the classifier.
      depthwise: Depthwise convolutions as sums of products, fast on a CPU, or XLA's.
    """

    variant: Variant = "S0"
    image_size: int = 28
    channels: int = 1
    num_classes: int = 10
    reversible: bool = True
    recompute_head: bool = False
    dropout: float = 0.25
    depthwise: Literal["sums", "xla"] = "sums"


def make(config: RevBiFPNClassifierConfig, rngs: nnx.Rngs) -> RevBiFPN:
    """The module."""
    published = replace(
        REVBIFPN[config.variant],
        num_classes=config.num_classes,
        recompute_head=config.recompute_head,
        dropout=config.dropout,
    )
    model = RevBiFPN(published, rngs=rngs, reversible=config.reversible)
    if config.depthwise == "sums":
        use_sums_of_products(model)
    return model


def init(config: RevBiFPNClassifierConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict of arrays."""
    return Stateful(partial(make, config)).init(key)


def init_state(config: RevBiFPNClassifierConfig) -> dict[str, Any]:
    """Fresh batch statistics."""
    return Stateful(partial(make, config)).init_state()


def loss_fn(
    config: RevBiFPNClassifierConfig, *, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, Any]], tuple[jax.Array, Any]]:
    """The mean cross-entropy in nats, and the moved batch statistics.

    Args:
      config: The model.
      layout: Pins nothing here.

    Returns:
      `loss(params, batch)` with `batch["images"]` float32 [B, Y, X, C] in [0, 1],
      `batch["labels"]` int32 [B], `batch["key"]` for dropout and `batch["state"]`.
    """
    del layout
    model = Stateful(partial(make, config))

    def loss(params, batch):
        key = jax.random.wrap_key_data(batch["key"])
        images = padded(batch["images"])
        logits_BQ, state = model(params, batch["state"], key, images)
        return _cross_entropy(logits_BQ, batch["labels"]), state

    return loss


def metrics_fn(
    config: RevBiFPNClassifierConfig, *, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, Any]], dict[str, jax.Array]]:
    """What validation reports: loss and accuracy by the running statistics."""
    del layout
    model = Stateful(partial(make, config))
    size = (config.image_size, config.image_size, config.channels)

    def metrics(params, batch):
        images_BYXC, labels_B = batch["images"], batch["labels"]
        chex.assert_shape(images_BYXC, (None, *size))
        logits_BQ, _ = model(params, batch["state"], None, padded(images_BYXC))
        return {
            "loss": _cross_entropy(logits_BQ, labels_B),
            "accuracy": (logits_BQ.argmax(-1) == labels_B).mean(),
        }

    return metrics


def _cross_entropy(logits_BQ: jax.Array, labels_B: jax.Array) -> jax.Array:
    losses = optax.losses.softmax_cross_entropy_with_integer_labels
    return losses(logits_BQ, labels_B).mean()


def padded(images_BYXC: jax.Array) -> jax.Array:
    """Zeros around the images, up to the next multiple of 32 pixels."""
    around = [
        (missing // 2, missing - missing // 2)
        for missing in (-size % COARSEST for size in images_BYXC.shape[1:3])
    ]
    return jnp.pad(images_BYXC, ((0, 0), *around, (0, 0)))


def batch_specs(
    config: RevBiFPNClassifierConfig, batch_size: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a batch."""
    size = (config.image_size, config.image_size, config.channels)
    return {
        "images": jax.ShapeDtypeStruct((batch_size, *size), jnp.float32),
        "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }


def tensor_parallel(config: RevBiFPNClassifierConfig, axis: str) -> tuple[()]:
    """Nothing is cut: its channels are few."""
    del config, axis
    return ()
