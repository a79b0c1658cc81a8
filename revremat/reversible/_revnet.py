"""RevNet, a residual network whose stages are reversible (Gomez et al. 2017, NeurIPS).

Images are `[batch, height, width, channels]`. Blocks that halve the resolution are
ordinary ones and their inputs are stored, as in the paper; all others are inverted.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from revremat._action import INVERT
from revremat._errors import UserError
from revremat.reversible.nnx import RevBlock, RevScan

_KAIMING = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


@dataclass(frozen=True)
class RevNetConfig:
    """A network for small images; the defaults are RevNet-38 on CIFAR.

    Attributes:
      image_channels: 3 for RGB.
      num_classes: Of the classifier.
      channels: Of each stage, even; the first one's resolution is the image's, each
        later one's is half of that before.
      blocks: Reversible blocks in each stage.
      dtype: Of the computation; parameters and streams are float32.

    Example:
      >>> from revremat.reversible import RevNetConfig
      >>> sum(RevNetConfig().blocks)
      9
    """

    image_channels: int = 3
    num_classes: int = 10
    channels: tuple[int, ...] = (32, 64, 112)
    blocks: tuple[int, ...] = (3, 3, 3)
    dtype: Any = None

    def __post_init__(self):
        if len(self.channels) != len(self.blocks) or not self.channels:
            raise UserError(
                f"a RevNet of channels {self.channels} and blocks {self.blocks}: give "
                "one of each for every stage."
            )
        for channels in self.channels:
            if channels % 2 or channels < 2:
                raise UserError(
                    f"a RevNet stage of {channels} channels has no two equal halves; "
                    f"give it an even number, such as {max(2, channels + 1)}."
                )


class Residual(nnx.Module):
    """Norm, ReLU and a 3 x 3 convolution, twice: a residual function, without a skip.

    Args:
      inputs: Channels it takes.
      outputs: Channels it gives.
      stride: Of the first convolution.
    """

    def __init__(
        self, inputs: int, outputs: int, *, stride: int = 1, dtype: Any, rngs: nnx.Rngs
    ):
        norm = partial(nnx.BatchNorm, momentum=0.9, dtype=dtype, rngs=rngs)
        conv = partial(_conv, dtype=dtype, rngs=rngs)
        self.norm1, self.conv1 = norm(inputs), conv(inputs, outputs, strides=stride)
        self.norm2, self.conv2 = norm(outputs), conv(outputs, outputs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        x = self.conv1(jax.nn.relu(self.norm1(x)))
        return self.conv2(jax.nn.relu(self.norm2(x)))


class Transition(nnx.Module):
    """An ordinary residual block that halves the resolution."""

    def __init__(self, inputs: int, outputs: int, *, dtype: Any, rngs: nnx.Rngs):
        self.residual = Residual(inputs, outputs, stride=2, dtype=dtype, rngs=rngs)
        self.skip = _conv(inputs, outputs, size=1, strides=2, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        return self.skip(x) + self.residual(x)


def _conv(inputs: int, outputs: int, *, size: int = 3, **more: Any) -> nnx.Conv:
    kernel = (size, size)
    init = {"kernel_init": _KAIMING, "use_bias": False}
    return nnx.Conv(inputs, outputs, kernel, **init, **more)


class RevNet(nnx.Module):
    """The classifier.

    Args:
      config: The defaults are RevNet-38.
      rngs: For parameters.
      reversible: Whether stages are inverted in the backward pass; if not, this is the
        plain counterpart: the same function by plain autodiff, unless a plan says
        otherwise.

    Example:
      >>> from flax import nnx
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import RevNet, RevNetConfig
      >>> config = RevNetConfig(channels=(4, 8), blocks=(1, 1))
      >>> images = jnp.ones((2, 8, 8, 3))
      >>> nnx.eval_shape(lambda: RevNet(config, rngs=nnx.Rngs(0))(images)).shape
      (2, 10)
    """

    def __init__(
        self, config: RevNetConfig, *, rngs: nnx.Rngs, reversible: bool = True
    ):
        dtype, channels = config.dtype, config.channels

        def stage(number: int) -> RevScan:
            half = channels[number] // 2
            make = lambda rngs: RevBlock(
                *(Residual(half, half, dtype=dtype, rngs=rngs) for _ in range(2))
            )
            return RevScan(
                make,
                config.blocks[number],
                rngs=rngs,
                actions=INVERT if reversible else None,
                name=f"stage{number}",
            )

        self.stem = _conv(config.image_channels, channels[0], dtype=dtype, rngs=rngs)
        self.transitions = nnx.List(
            Transition(before, after, dtype=dtype, rngs=rngs)
            for before, after in pairwise(channels)
        )
        self.stages = nnx.List(stage(k) for k in range(len(channels)))
        self.norm = nnx.BatchNorm(channels[-1], momentum=0.9, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(channels[-1], config.num_classes, dtype=dtype, rngs=rngs)
        self.config = config

    def __call__(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Logits `[batch, num_classes]`."""
        x = self.stages[0](self.stem(images))
        for transition, stage in zip(self.transitions, self.stages[1:], strict=True):
            x = stage(transition(x))
        return self.head(jax.nn.relu(self.norm(x)).mean(axis=(1, 2)))
