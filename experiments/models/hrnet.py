"""HRNet W18, W32 and W48 (Wang et al. 2020), and HRNetV2p, its pyramid for detection.

Shapes: activations are `[batch, height, width, channels]`, streams finest first.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

_NORMAL = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
STEM, STEM_BLOCKS, EXPANSION = 64, 4, 4
MODULES, BLOCKS = (1, 4, 3), 4
HEAD_PLANES, CLASSIFIER_CHANNELS = (32, 64, 128, 256), 2048
PYRAMID_CHANNELS, PYRAMID_LEVELS = 256, 5


@dataclass(frozen=True)
class HRNetConfig:
    """One of the family; `HRNET` has the three that are compared.

    Attributes:
      width: Channels of the finest stream; each coarser one has twice as many.
      num_classes: Of the classifier; None for the four streams alone.
      dtype: Of the computation; parameters are float32.
    """

    width: int = 18
    num_classes: int | None = 1000
    dtype: Any = None

    @property
    def channels(self) -> tuple[int, ...]:
        """Of the four streams."""
        return tuple(self.width * 2**k for k in range(4))


HRNET = {f"W{width}": HRNetConfig(width) for width in (18, 32, 48)}


class ConvNorm(nnx.Module):
    """Convolution, batch norm, and ReLU where asked."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        relu: bool = True,
        bias: bool = False,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        pad = kernel // 2
        self.conv = nnx.Conv(
            inputs,
            outputs,
            (kernel, kernel),
            strides=stride,
            padding=((pad, pad), (pad, pad)),
            use_bias=bias,
            kernel_init=_NORMAL,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(outputs, momentum=0.9, dtype=dtype, rngs=rngs)
        self.relu = relu

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norm(self.conv(x))
        return jax.nn.relu(x) if self.relu else x


class Residual(nnx.Module):
    """A basic block (two 3 x 3) or a bottleneck (1 x 1, 3 x 3, 1 x 1)."""

    def __init__(self, inputs: int, planes: int, *, bottleneck: bool, conv: Any):
        outputs = planes * EXPANSION if bottleneck else planes
        if bottleneck:
            layers = [conv(inputs, planes, 1), conv(planes, planes)]
            layers.append(conv(planes, outputs, 1, relu=False))
        else:
            layers = [conv(inputs, planes), conv(planes, outputs, relu=False)]
        self.layers = nnx.List(layers)
        self.skip = conv(inputs, outputs, 1, relu=False) if inputs != outputs else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        for layer in self.layers:
            y = layer(y)
        return jax.nn.relu(y + (x if self.skip is None else self.skip(x)))


class Sequence(nnx.Module):
    """Modules one after the other."""

    def __init__(self, *layers: nnx.Module):
        self.layers = nnx.List(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class HighResolution(nnx.Module):
    """Blocks on every stream, then every stream reads all others."""

    def __init__(self, channels: tuple[int, ...], *, conv: Any):
        count = len(channels)
        block = partial(Residual, bottleneck=False, conv=conv)
        self.branches = nnx.List(
            Sequence(*(block(c, c) for _ in range(BLOCKS))) for c in channels
        )

        def path(to: int, source: int) -> nnx.Module | None:
            if source == to:
                return None
            if source > to:
                return conv(channels[source], channels[to], 1, relu=False)
            here = channels[source]
            steps = [conv(here, here, stride=2) for _ in range(to - source - 1)]
            return Sequence(*steps, conv(here, channels[to], stride=2, relu=False))

        self.fuse = nnx.List(
            nnx.List(path(to, source) for source in range(count)) for to in range(count)
        )

    def __call__(self, streams: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        streams = tuple(f(x) for f, x in zip(self.branches, streams, strict=True))
        fused = []
        for paths, own in zip(self.fuse, streams, strict=True):
            total: Any = 0.0
            for path, x in zip(paths, streams, strict=True):
                y = x if path is None else path(x)
                total = total + _resized(y, own.shape[1:3], "nearest")
            fused.append(jax.nn.relu(total))
        return tuple(fused)


def _resized(x: jax.Array, size: tuple[int, ...], how: str) -> jax.Array:
    if x.shape[1:3] == tuple(size):
        return x
    return jax.image.resize(x, (x.shape[0], *size, x.shape[3]), how)


class HRNet(nnx.Module):
    """The classifier, or the four streams alone.

    Args:
      config: Such as `HRNET["W18"]`.
      rngs: For parameters.
    """

    def __init__(self, config: HRNetConfig, *, rngs: nnx.Rngs):
        conv = partial(ConvNorm, dtype=config.dtype, rngs=rngs)
        self.stem = Sequence(conv(3, STEM, stride=2), conv(STEM, STEM, stride=2))
        wide, channels = STEM * EXPANSION, config.channels
        bottleneck = partial(Residual, bottleneck=True, conv=conv)
        inputs = [STEM] + [wide] * (STEM_BLOCKS - 1)
        self.stage1 = Sequence(*(bottleneck(c, STEM) for c in inputs))
        self.first = conv(wide, channels[0])
        coarser = (wide, *channels[1:])
        self.new = nnx.List(
            conv(coarser[k], channels[k + 1], stride=2) for k in range(3)
        )
        self.stages = nnx.List(
            Sequence(
                *(HighResolution(channels[: k + 2], conv=conv) for _ in range(count))
            )
            for k, count in enumerate(MODULES)
        )
        self.head = Head(config, conv=conv, rngs=rngs) if config.num_classes else None
        self.config = config

    def __call__(self, images: jax.Array) -> Any:
        """Logits `[batch, num_classes]`, or streams at a 4th to a 32nd."""
        x = self.stage1(self.stem(images))
        streams = (self.first(x), self.new[0](x))
        for k, stage in enumerate(self.stages):
            streams = stage(streams)
            if k + 1 < len(self.stages):
                streams = (*streams, self.new[k + 1](streams[-1]))
        return streams if self.head is None else self.head(streams)


class Head(nnx.Module):
    """Wider, from fine to coarse, then the mean, then logits."""

    def __init__(self, config: HRNetConfig, *, conv: Any, rngs: nnx.Rngs):
        channels = config.channels
        self.widen = nnx.List(
            Residual(c, planes, bottleneck=True, conv=conv)
            for c, planes in zip(channels, HEAD_PLANES, strict=True)
        )
        wide = [planes * EXPANSION for planes in HEAD_PLANES]
        self.down = nnx.List(
            conv(wide[k], wide[k + 1], stride=2, bias=True) for k in range(3)
        )
        self.last = conv(wide[-1], CLASSIFIER_CHANNELS, 1, bias=True)
        self.linear = nnx.Linear(
            CLASSIFIER_CHANNELS, config.num_classes or 0, dtype=config.dtype, rngs=rngs
        )

    def __call__(self, streams: tuple[jax.Array, ...]) -> jax.Array:
        x, *others = (f(s) for f, s in zip(self.widen, streams, strict=True))
        for f, other in zip(self.down, others, strict=True):
            x = other + f(x)
        return self.linear(self.last(x).mean(axis=(1, 2)))


class Pyramid(nnx.Module):
    """HRNetV2p's neck: all streams at the finest resolution, then pooled levels.

    Args:
      channels: Of the streams.
      dtype: Of the computation.
      rngs: For parameters.
    """

    def __init__(self, channels: tuple[int, ...], *, dtype: Any, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, kernel_init=_NORMAL, dtype=dtype, rngs=rngs)
        self.reduce = conv(sum(channels), PYRAMID_CHANNELS, (1, 1))
        self.levels = nnx.List(
            conv(PYRAMID_CHANNELS, PYRAMID_CHANNELS, (3, 3))
            for _ in range(PYRAMID_LEVELS)
        )

    def __call__(self, streams: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Five levels, at a 4th to a 64th of the images' resolution."""
        size = streams[0].shape[1:3]
        x = jnp.concatenate([_resized(s, size, "bilinear") for s in streams], axis=-1)
        x, found = self.reduce(x), []
        for k, level in enumerate(self.levels):
            window = (2**k, 2**k)
            found.append(level(nnx.avg_pool(x, window, window)))
        return tuple(found)
