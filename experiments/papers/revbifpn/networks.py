"""The networks of the comparison, and the step of each that is compiled.

Dropout, stochastic depth and batch statistics are on, as in training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.models.efficientnet import EFFICIENTNET, EfficientNet
from revremat import UserError
from revremat.reversible import REVBIFPN, RevBiFPN

STORED, INVERTED, HEAD_TOO = "stored", "inverted", "inverted, head recomputed"
WAYS = (STORED, INVERTED, HEAD_TOO)
"""How a RevBiFPN's activations are restored."""


@dataclass(frozen=True)
class Network:
    """One network to be trained.

    Attributes:
      name: Such as `"S0"`.
      way: How its activations are restored.
      image_size: Height and width in pixels, its native ones.
      make: `make(rngs) -> model`, a classifier.
    """

    name: str
    way: str
    image_size: int
    make: Callable[[nnx.Rngs], nnx.Module]


def network(name: str, way: str = STORED) -> Network:
    """A network by the name it was published under.

    Raises:
      UserError: There is none of that name, or it cannot be trained in that way.
    """
    if name in REVBIFPN and way in WAYS:
        config = replace(REVBIFPN[name], recompute_head=way == HEAD_TOO)
        make = lambda rngs: RevBiFPN(config, rngs=rngs, reversible=way != STORED)
        return Network(name, way, config.image_size, make)
    if name in EFFICIENTNET and way == STORED:
        peer = EFFICIENTNET[name]
        make = lambda rngs: EfficientNet(peer, rngs=rngs)
        return Network(name, way, peer.image_size, make)
    known = ", ".join((*REVBIFPN, *EFFICIENTNET))
    raise UserError(
        f"{name!r} {way} is no network of this comparison; choose one of {known}, and "
        f"{', '.join(map(repr, WAYS))} for the first seven."
    )


@dataclass(frozen=True)
class Step:
    """A training step in the abstract.

    Attributes:
      function: The gradient of the mean loss, and the new state.
      specs: What it takes: parameters, state, and the batch.
      own_bytes: Of parameters and state, and of the gradients and the new state, which
        are no sample's.
    """

    function: Callable[..., Any]
    specs: tuple[Any, ...]
    own_bytes: int


def training_step(net: Network, batch: int) -> Step:
    """The gradient of the cross-entropy, dropout and batch statistics on."""
    model = nnx.eval_shape(lambda: net.make(nnx.Rngs(0)))
    size = net.image_size
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def loss(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(
            model(images), labels
        )
        return losses.mean()

    return gradient_step(model, loss, (images, labels))


def gradient_step(
    model: nnx.Module, loss: Callable[..., jax.Array], batch: tuple[Any, ...]
) -> Step:
    """The gradient of `loss(model, *batch)` for the parameters, and the new state."""
    graph, params, state = nnx.split(model, nnx.Param, ...)

    def of_parameters(params: Any, state: Any, *batch: Any):
        model: Any = nnx.merge(graph, params, state, copy=True)
        model.train()
        value = loss(model, *batch)
        return value, nnx.split(model, nnx.Param, ...)[2]

    step = partial(jax.grad(of_parameters, has_aux=True))
    own = 2 * sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((params, state)))
    return Step(step, (params, state, *batch), own)
