"""EfficientNet B0 to B7 (Tan & Le 2019), the networks RevBiFPN is compared with.

Shapes: images and activations are `[batch, height, width, channels]`.
"""

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import jax
from flax import nnx

from revremat import UserError

_NORMAL = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_out", "uniform")


@dataclass(frozen=True)
class Stage:
    """Blocks of one resolution, before scaling.

    Attributes:
      repeats: How many.
      kernel: Of the depthwise convolution.
      stride: Of the first block.
      expand: Times as many channels inside a block.
      channels: That it gives.
    """

    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
STEM_CHANNELS, HEAD_CHANNELS = 32, 1280
SQUEEZE = 0.25


@dataclass(frozen=True)
class EfficientNetConfig:
    """One of the family; see `EFFICIENTNET` for the eight that were published.

    Attributes:
      image_size: Height and width in pixels; any will do.
      width: Multiplies channels, which are rounded to multiples of 8.
      depth: Multiplies repeats, which are rounded up.
      dropout: Rate before the classifier.
      stochastic_depth: Rate at the last block; it grows linearly from the first.
      num_classes: Of the classifier.
      dtype: Of the computation; parameters are float32.
    """

    image_size: int = 224
    width: float = 1.0
    depth: float = 1.0
    dropout: float = 0.2
    stochastic_depth: float = 0.2
    num_classes: int = 1000
    dtype: Any = None

    def __post_init__(self):
        if self.width <= 0 or self.depth <= 0:
            raise UserError(
                f"an EfficientNet of width {self.width} and depth {self.depth} has no "
                "layers; choose both above 0."
            )

    def scaled(self, channels: int) -> int:
        """Channels at this width: the nearest multiple of 8, at least 90 % of it."""
        exact = channels * self.width
        near = max(8, int(exact + 4) // 8 * 8)
        return near + 8 if near < 0.9 * exact else near


EFFICIENTNET = {
    "B0": EfficientNetConfig(224, 1.0, 1.0, 0.2),
    "B1": EfficientNetConfig(240, 1.0, 1.1, 0.2),
    "B2": EfficientNetConfig(260, 1.1, 1.2, 0.3),
    "B3": EfficientNetConfig(300, 1.2, 1.4, 0.3),
    "B4": EfficientNetConfig(380, 1.4, 1.8, 0.4),
    "B5": EfficientNetConfig(456, 1.6, 2.2, 0.4),
    "B6": EfficientNetConfig(528, 1.8, 2.6, 0.5),
    "B7": EfficientNetConfig(600, 2.0, 3.1, 0.5),
}


class ConvNorm(nnx.Module):
    """Convolution without bias, then batch norm."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dtype: Any, rngs, **conv: Any
    ):
        self.conv = nnx.Conv(
            inputs,
            outputs,
            (kernel, kernel),
            use_bias=False,
            kernel_init=_NORMAL,
            dtype=dtype,
            rngs=rngs,
            **conv,
        )
        self.norm = nnx.BatchNorm(
            outputs, momentum=0.99, epsilon=1e-3, dtype=dtype, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class SqueezeExcite(nnx.Module):
    """Scales channels by what their means say of one another."""

    def __init__(self, channels: int, squeezed: int, *, dtype: Any, rngs: nnx.Rngs):
        conv = partial(
            nnx.Conv, kernel_size=(1, 1), kernel_init=_NORMAL, dtype=dtype, rngs=rngs
        )
        self.squeeze = conv(channels, squeezed)
        self.excite = conv(squeezed, channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.swish(self.squeeze(x.mean(axis=(1, 2), keepdims=True)))
        return x * jax.nn.sigmoid(self.excite(hidden))


class Block(nnx.Module):
    """Expand, depthwise convolution, squeeze and excite, project; skip where it can."""

    def __init__(
        self,
        inputs: int,
        stage: Stage,
        outputs: int,
        *,
        stride: int,
        drop: float,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        conv = partial(ConvNorm, dtype=dtype, rngs=rngs)
        inner = inputs * stage.expand
        self.expand = conv(inputs, inner, 1) if stage.expand != 1 else None
        self.depthwise = conv(
            inner, inner, stage.kernel, strides=stride, feature_group_count=inner
        )
        squeezed = max(1, int(inputs * SQUEEZE))
        self.squeeze = SqueezeExcite(inner, squeezed, dtype=dtype, rngs=rngs)
        self.project = conv(inner, outputs, 1)
        self.skips = stride == 1 and inputs == outputs
        self.drop = nnx.Dropout(drop, broadcast_dims=(1, 2, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        if self.expand is not None:
            y = jax.nn.swish(self.expand(y))
        y = self.squeeze(jax.nn.swish(self.depthwise(y)))
        y = self.project(y)
        return x + self.drop(y) if self.skips else y


class EfficientNet(nnx.Module):
    """The classifier.

    Args:
      config: Such as `EFFICIENTNET["B0"]`.
      rngs: For parameters, dropout and stochastic depth.
    """

    def __init__(self, config: EfficientNetConfig, *, rngs: nnx.Rngs):
        conv = partial(ConvNorm, dtype=config.dtype, rngs=rngs)
        inputs = config.scaled(STEM_CHANNELS)
        self.stem = conv(3, inputs, 3, strides=2)
        repeats = [ceil(stage.repeats * config.depth) for stage in STAGES]
        blocks, total = [], sum(repeats)
        for stage, count in zip(STAGES, repeats, strict=True):
            outputs = config.scaled(stage.channels)
            for turn in range(count):
                block = Block(
                    inputs,
                    stage,
                    outputs,
                    stride=1 if turn else stage.stride,
                    drop=config.stochastic_depth * len(blocks) / total,
                    dtype=config.dtype,
                    rngs=rngs,
                )
                blocks.append(block)
                inputs = outputs
        self.blocks = nnx.List(blocks)
        outputs = config.scaled(HEAD_CHANNELS)
        self.head = conv(inputs, outputs, 1)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.linear = nnx.Linear(
            outputs,
            config.num_classes,
            kernel_init=_UNIFORM,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.config = config

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits `[batch, num_classes]`."""
        x = jax.nn.swish(self.stem(images))
        for block in self.blocks:
            x = block(x)
        x = jax.nn.swish(self.head(x)).mean(axis=(1, 2))
        return self.linear(self.dropout(x))
