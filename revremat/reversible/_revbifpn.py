"""RevBiFPN, a reversible pyramid of four streams (Chiley et al. 2023, MLSys).

Images are `[batch, height, width, channels]`. The stack is reversible; the neck is
computed again in the backward pass; the classifier's head is stored unless asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from revremat._errors import UserError
from revremat.reversible._couplings import space_to_depth
from revremat.reversible.nnx import RevBlock, RevParallel, RevSequence, RevSilo

CHANNELS = (48, 64, 80, 160)
HEAD_CHANNELS = (48, 64, 128, 320)
CLASSIFIER_CHANNELS = 1280
KERNELS = (3, 5, 5, 3)
MORE_KERNEL = (0, 0, 0, 2)
EXPAND = (1, 1, 2, 2)
SQUEEZE = (0.25, 0.25, 0.125, 0.0)
HEAD_EXPAND = (1, 2, 2, 2)
HEAD_SQUEEZE = (0.25, 0.25, 0.125, 0.125)
HEAD_KERNEL = 5
ROUNDS = 2
STEM_BLOCK = 4

_KAIMING = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


@dataclass(frozen=True)
class RevBiFPNConfig:
    """One of the family; see `REVBIFPN` for the seven that were published.

    Attributes:
      image_size: Height and width, a multiple of 32.
      width: Multiplies all channels, which are rounded down to multiples of 16.
      more_layers: Groups of layers on all four streams, after the three that grow.
      dropout: Rate before the classifier.
      stochastic_depth: Rate in the last group; it grows linearly from group to group.
      num_classes: Of the classifier; None for none, and then no head.
      neck: Whether the four streams pass through the neck; a classifier needs it.
      recompute_head: Compute the head's maps again in the backward pass too.
      dtype: Of the maps; parameters and streams are float32.

    Example:
      >>> from revremat.reversible import REVBIFPN
      >>> REVBIFPN["S0"].image_size, REVBIFPN["S0"].num_classes
      (224, 1000)
    """

    image_size: int = 224
    width: float = 1.0
    more_layers: int = 2
    dropout: float = 0.25
    stochastic_depth: float = 0.0
    num_classes: int | None = 1000
    neck: bool = True
    recompute_head: bool = False
    dtype: Any = None

    def __post_init__(self):
        if self.image_size % 32:
            raise UserError(
                f"image_size {self.image_size} is not a multiple of 32, the coarsest "
                f"stream's; choose {self.image_size // 32 * 32 + 32}."
            )
        if self.num_classes is not None and not self.neck:
            raise UserError(
                "a classifier reads the neck; set neck=True, or num_classes=None."
            )
        if self.channels[0] < 16:
            raise UserError(
                f"width {self.width} leaves no channels; choose at least 1/3."
            )

    def scaled(self, channels: int) -> int:
        """Channels at this width."""
        return int(self.width * channels) // 16 * 16

    @property
    def channels(self) -> tuple[int, ...]:
        """Of the four streams."""
        return tuple(map(self.scaled, CHANNELS))

    @property
    def head_channels(self) -> tuple[int, ...]:
        """Of the four streams after the neck."""
        return tuple(map(self.scaled, HEAD_CHANNELS))


REVBIFPN = {
    "S0": RevBiFPNConfig(224, 1.0, 2, 0.25, 0.0),
    "S1": RevBiFPNConfig(256, 4 / 3, 2, 0.25, 0.0),
    "S2": RevBiFPNConfig(256, 2.0, 2, 0.3, 0.0),
    "S3": RevBiFPNConfig(288, 8 / 3, 3, 0.3, 0.05),
    "S4": RevBiFPNConfig(320, 4.0, 4, 0.4, 0.1),
    "S5": RevBiFPNConfig(352, 16 / 3, 4, 0.4, 0.1),
    "S6": RevBiFPNConfig(352, 20 / 3, 5, 0.6, 0.3),
}


class ConvNormAct(nnx.Module):
    """Convolution without bias, batch norm, and hard swish unless told otherwise."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activate: bool = True,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        pad = (kernel - 1) // 2
        self.conv = nnx.Conv(
            inputs,
            outputs,
            (kernel, kernel),
            strides=stride,
            padding=((pad, pad), (pad, pad)),
            feature_group_count=groups,
            use_bias=False,
            kernel_init=_KAIMING,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(
            outputs, momentum=0.9, epsilon=1e-3, dtype=dtype, rngs=rngs
        )
        self.activate = activate

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        return self.after(self.conv(x))

    def after(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        """What follows the convolution."""
        x = self.norm(x)
        return jax.nn.hard_swish(x) if self.activate else x


class SqueezeExcite(nnx.Module):
    """Scales channels by what their means say of one another."""

    def __init__(self, channels: int, squeezed: int, *, dtype: Any, rngs: nnx.Rngs):
        conv = partial(
            nnx.Conv, kernel_size=(1, 1), kernel_init=_KAIMING, dtype=dtype, rngs=rngs
        )
        self.squeeze = conv(channels, squeezed)
        self.excite = conv(squeezed, channels)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        mean = x.mean(axis=(1, 2), keepdims=True)
        hidden = jax.nn.hard_swish(self.squeeze(mean))
        return x * jax.nn.hard_sigmoid(self.excite(hidden))


class MBConv(nnx.Module):
    """Expand, depthwise convolution, squeeze and excite, project; no skip.

    The squeezed width is a share of the input's channels, before they are expanded.
    With `recompute` what follows the depthwise convolution is computed again after the
    projection's gradients, so that nothing of it is there before; without an expansion,
    where that is cheap, the convolution is as well.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        expand: int = 1,
        stride: int = 1,
        squeeze: float = 0.0,
        drop: float = 0.0,
        recompute: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        conv = partial(ConvNormAct, dtype=dtype, rngs=rngs)
        self.recompute = recompute
        inner = inputs * expand
        self.expand = conv(inputs, inner, 1) if expand != 1 else None
        self.depthwise = conv(inner, inner, kernel, stride=stride, groups=inner)
        squeezed = max(1, int(inputs * squeeze))
        self.squeeze = (
            SqueezeExcite(inner, squeezed, dtype=dtype, rngs=rngs) if squeeze else None
        )
        self.project = conv(inner, outputs, 1, activate=False)
        # One draw for each example: its whole contribution stays or goes.
        self.drop = (
            nnx.Dropout(drop, broadcast_dims=(1, 2, 3), rngs=rngs) if drop else None
        )

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        if self.expand is not None:
            x = self.expand(x)
        if not self.recompute:
            x = self._after(self.depthwise.conv(x))
        elif self.expand is None:
            x = recomputed(self, x, lambda copy, x: copy._after(copy.depthwise.conv(x)))
        else:
            x = recomputed(self, self.depthwise.conv(x), MBConv._after)
        x = self.project(x)
        return x if self.drop is None else self.drop(x)

    def _after(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        x = self.depthwise.after(x)
        return x if self.squeeze is None else self.squeeze(x)


class UpMBConv(nnx.Module):
    """An MBConv at the coarse resolution, then bilinear up-sampling."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, times: int, **kwargs):
        self.map = MBConv(inputs, outputs, kernel, **kwargs)
        self.times = times

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch _ _ _"]:
        return bilinear_upsample(self.map(x), self.times)


@partial(jax.jit, static_argnums=1)
def bilinear_upsample(
    x: Float[Array, "batch height width channels"], times: int
) -> Float[Array, "batch {times}*height {times}*width channels"]:
    """`times` as high and wide, half-pixel centres."""
    batch, height, width, channels = x.shape
    shape = (batch, height * times, width * times, channels)
    return jax.image.resize(x, shape, "bilinear")


def _round(config: RevBiFPNConfig, count: int, drop: float, rngs: nnx.Rngs):
    """A reversible block on each of the first `count` streams."""

    def make(i: int) -> RevBlock:
        half = config.channels[i] // 2
        maps = [
            MBConv(
                half,
                half,
                KERNELS[i] + MORE_KERNEL[i],
                expand=EXPAND[i],
                squeeze=SQUEEZE[i],
                drop=drop,
                dtype=config.dtype,
                rngs=rngs,
            )
            for _ in range(2)
        ]
        return RevBlock(*maps, first=1)

    return RevParallel([make(i) for i in range(count)])


def _silo(
    config: RevBiFPNConfig, count: int, grows: bool, drop: float, rngs: nnx.Rngs
) -> RevSilo:
    channels, down, up = config.channels, {}, {}
    for i, j in combinations(range(count), 2):
        times = 2 ** (j - i)
        common = {"expand": EXPAND[i], "squeeze": SQUEEZE[i], "dtype": config.dtype}
        new = grows and j == count - 1
        down[i, j] = MBConv(
            channels[i],
            channels[j],
            2 * times - 1 + MORE_KERNEL[i],
            stride=times,
            drop=0.0 if new else drop,
            rngs=rngs,
            **common,
        )
        up[j, i] = UpMBConv(
            channels[j],
            channels[i],
            3 + MORE_KERNEL[j],
            times=times,
            drop=drop,
            rngs=rngs,
            **common,
        )
    return RevSilo(down, up, num_inputs=count - 1 if grows else count)


class Neck(nnx.Module):
    """An MBConv on each stream, computed again in the backward pass if so asked.

    `neck(streams)` are all its outputs; `neck.on(i, stream)` is one of them.
    """

    def __init__(self, config: RevBiFPNConfig, *, recompute: bool, rngs: nnx.Rngs):
        self.recompute = recompute
        self.maps = nnx.List(
            MBConv(
                config.channels[i],
                config.head_channels[i],
                HEAD_KERNEL,
                expand=HEAD_EXPAND[i],
                squeeze=HEAD_SQUEEZE[i],
                recompute=recompute,
                dtype=config.dtype,
                rngs=rngs,
            )
            for i in range(len(CHANNELS))
        )

    def __call__(
        self, streams: tuple[Float[Array, "batch _ _ _"], ...]
    ) -> tuple[Float[Array, "batch _ _ _"], ...]:
        numbers = range(len(self.maps))
        return tuple(self.on(i, x) for i, x in zip(numbers, streams, strict=True))

    def on(
        self, i: int, stream: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width _"]:
        """The output for stream `i`."""
        f = self.maps[i]
        return recomputed(f, stream) if self.recompute else f(stream)


class Head(nnx.Module):
    """From fine to coarse, then the mean of the coarsest stream, then logits."""

    def __init__(self, config: RevBiFPNConfig, *, rngs: nnx.Rngs):
        channels, outputs = config.head_channels, config.scaled(CLASSIFIER_CHANNELS)
        self.recompute = config.recompute_head
        self.down = nnx.List(
            MBConv(
                channels[i],
                channels[i + 1],
                HEAD_KERNEL,
                expand=HEAD_EXPAND[i],
                squeeze=HEAD_SQUEEZE[i],
                recompute=config.recompute_head,
                stride=2,
                dtype=config.dtype,
                rngs=rngs,
            )
            for i in range(len(channels) - 1)
        )
        self.conv = ConvNormAct(channels[-1], outputs, 1, dtype=config.dtype, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        uniform = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        self.linear = nnx.Linear(
            outputs,
            config.num_classes or 0,
            kernel_init=uniform,
            bias_init=_uniform_bias(outputs),
            dtype=config.dtype,
            rngs=rngs,
        )

    def __call__(
        self, streams: tuple[Float[Array, "batch _ _ _"], ...], neck: Neck
    ) -> Float[Array, "batch classes"]:
        """Logits `[batch, num_classes]` from the streams, each through its neck."""
        # Map by map: recomputed as a whole it would all be there at once after all.
        run = recomputed if self.recompute else lambda f, x: f(x)
        x = neck.on(0, streams[0])
        for i, (f, stream) in enumerate(zip(self.down, streams[1:], strict=True), 1):
            y = run(f, x)
            if self.recompute:
                # Both maps wait for one gradient: computed again together, both would
                # be there at once. So this one's waits for the streams' gradients.
                stream, y = jax.lax.optimization_barrier((stream, y))
            x = neck.on(i, stream) + y
        x = self.dropout(run(self.conv, x).mean(axis=(1, 2)))
        return self.linear(x)


def _uniform_bias(fan_in: int):
    bound = fan_in**-0.5

    def init(key, shape, dtype=jnp.float32, **_):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class RevBiFPN(nnx.Module):
    """The classifier, or the pyramid alone.

    Args:
      config: Such as `REVBIFPN["S0"]`.
      rngs: For parameters, dropout and stochastic depth.
      reversible: Whether the stack is inverted in the backward pass and the neck
        computed again; if not, this is the plain counterpart: the same function with
        all activations stored.

    Example:
      >>> from flax import nnx
      >>> import jax
      >>> from revremat.reversible import RevBiFPN, RevBiFPNConfig
      >>> config = RevBiFPNConfig(image_size=32, more_layers=0, num_classes=10)
      >>> model = nnx.eval_shape(lambda: RevBiFPN(config, rngs=nnx.Rngs(0)))
      >>> sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param))) > 10**6
      True
    """

    def __init__(
        self, config: RevBiFPNConfig, *, rngs: nnx.Rngs, reversible: bool = True
    ):
        grown, groups = len(CHANNELS) - 1, len(CHANNELS) - 1 + config.more_layers
        blocks = []
        for group in range(1, groups + 1):
            drop = config.stochastic_depth * group / groups
            here = min(group, len(CHANNELS))
            blocks += [_round(config, here, drop, rngs) for _ in range(ROUNDS)]
            grows = group <= grown
            after = here + 1 if grows else here
            blocks.append(_silo(config, after, grows, drop, rngs))
        self.stack = RevSequence(blocks)
        neck = partial(Neck, config, recompute=reversible, rngs=rngs)
        self.neck = neck() if config.neck else None
        self.head = Head(config, rngs=rngs) if config.num_classes is not None else None
        self.config, self.reversible = config, reversible

    def __call__(self, images: Float[Array, "batch height width channels"]) -> Any:
        """Logits `[batch, num_classes]`; without a classifier, the four streams.

        Args:
          images: `[batch, height, width, channels]`; channels are repeated until there
            are `width * 3`.

        Raises:
          UserError: Height and width that 32 does not divide.
        """
        streams = self.streams(images)
        if self.neck is None:
            return streams
        if self.head is None:
            return self.neck(streams)
        return self.head(streams, self.neck)

    def streams(
        self, images: Float[Array, "batch height width channels"]
    ) -> tuple[Float[Array, "batch _ _ _"], ...]:
        """The four streams at a 4th, 8th, 16th and 32nd of the resolution."""
        streams = (stem(images, self.config),)
        if self.reversible:
            return self.stack(streams)
        whole, params, rest = self.stack.parts()
        streams, state = whole.run(params, streams, rest)
        self.stack.put(jax.lax.stop_gradient(state))
        return streams


def stem(
    images: Float[Array, "batch height width channels"], config: RevBiFPNConfig
) -> Float[Array, "batch _ _ _"]:
    """Channels repeated in turn, then blocks of 4 x 4 pixels as channels."""
    _, height, width, channels = images.shape
    if height % 32 or width % 32:
        raise UserError(
            f"an image of {height} x {width} has no stream at a 32nd of that; give a "
            "height and width that 32 divides."
        )
    wanted = config.channels[0] // STEM_BLOCK**2
    tiled = jnp.tile(images, (1, 1, 1, -(-wanted // channels)))[..., :wanted]
    return space_to_depth(STEM_BLOCK).forward(None, tiled)


def recomputed(
    module: Any, x: Any, call: Callable[[Any, Any], Any] = lambda module, x: module(x)
) -> Any:
    """Call a module so that its residuals are computed again, its state moved once."""
    graph, params, state = nnx.split(module, nnx.Param, ...)

    @jax.checkpoint
    def run(params: Any, x: Any, state: Any) -> tuple[Any, Any]:
        one: Any = nnx.merge(graph, params, state, copy=True)
        y = call(one, x)
        return y, nnx.split(one, nnx.Param, ...)[2]

    y, state = run(params, x, state)
    nnx.update(module, jax.lax.stop_gradient(state))
    return y
