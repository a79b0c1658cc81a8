"""Nine programs of plain functions, no two of whose layers are equal.

Each says where a person would write `jax.checkpoint`: around its blocks, and around a
larger region of several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import revremat as rr

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What is put around a block or a region, such as `jax.checkpoint`."""
Make = Callable[[Wrap, Wrap], Callable[..., Any]]
"""From what is around blocks and around regions to a loss."""
F32, BF16 = jnp.float32, jnp.bfloat16


@dataclass(frozen=True)
class Program:
    """A loss that can be checkpointed by hand.

    Attributes:
      name: What tables call it.
      make: `make(around_block, around_region)` gives the loss.
      specs: Its arguments.
    """

    name: str
    make: Make
    specs: tuple[Any, ...]

    def problem(self, block: Wrap, region: Wrap) -> rr.Problem:
        """The program with what a person has put around its parts."""
        return rr.Problem(self.make(block, region), self.specs, name=self.name)


def _spec(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _conv(
    x: Float[Array, "N H W C"], w: Float[Array, "h w C D"], stride: int = 1
) -> Float[Array, "N _H _W D"]:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _kernel(size: int, width: int, out: int) -> jax.ShapeDtypeStruct:
    return _spec(size, size, width, out)


def _norm(x: Float[Array, "..."], scale: Float[Array, " C"]) -> Float[Array, "..."]:
    wide = x.astype(F32)
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * scale


def _half(x: Float[Array, "N H W C"]) -> Float[Array, "N _H _W C"]:
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def _double(x: Float[Array, "N H W C"]) -> Float[Array, "N _H _W C"]:
    n, h, w, c = x.shape
    wide = jnp.broadcast_to(x[:, :, None, :, None, :], (n, h, 2, w, 2, c))
    return wide.reshape(n, 2 * h, 2 * w, c)


def _unet(scales: int, width: int, images: int, size: int, normed: bool) -> Program:
    """A U-Net: down with a skip at each scale, and up again."""

    def two(p, x):
        for k in (0, 1):
            x = _conv(x, p["w"][k])
            x = _norm(x, p["scale"]) if normed else x
            x = jax.nn.relu(x)
        return x

    def make(block, region):
        one = block(two)

        def down(ps, x):
            skips = []
            for p in ps:
                x = one(p, x)
                skips.append(x)
                x = _half(x)
            return x, skips

        def loss(params, x, y):
            x, skips = region(down)(params["down"], x.astype(BF16))
            x = one(params["middle"], x)
            for p, skip in zip(params["up"], reversed(skips), strict=True):
                x = one(p, jnp.concatenate([_double(x), skip], -1))
            out = _conv(x, params["out"])
            return jnp.square(out.astype(F32) - y).mean()

        return loss

    def pair(a: int, b: int) -> dict[str, Any]:
        return {"w": [_kernel(3, a, b), _kernel(3, b, b)], "scale": _spec(b)}

    widths = [width * 2**k for k in range(scales)]
    params = {
        "down": [pair(a, b) for a, b in zip([3, *widths], widths[:-1], strict=False)],
        "middle": pair(widths[-2], widths[-1]),
        "up": [pair(a + b, b) for a, b in pairwise(reversed(widths))],
        "out": _kernel(3, width, 1),
    }
    data = [_spec(images, size, size, c, dtype=F32) for c in (3, 1)]
    name = "U-Net, normed" if normed else "U-Net"
    return Program(name, make, (params, *data))


def _stages() -> Program:
    """A residual network whose every block is wider than the one before."""
    widths, images, size = (64, 80, 112, 160, 232, 328), 256, 128

    def residual(p, x, stride):
        y = jax.nn.relu(_norm(_conv(x, p["a"], stride), p["scale"]))
        return jax.nn.relu(_conv(y, p["b"]) + _conv(x, p["skip"], stride))

    def make(block, region):
        one = lambda p, x, stride: block(partial(residual, stride=stride))(p, x)

        def first(ps, x):
            for p, stride in zip(ps, (1, 1, 2), strict=True):
                x = one(p, x, stride)
            return x

        def loss(params, x, labels):
            x = region(first)(params["stages"][:3], x.astype(BF16))
            for p, stride in zip(params["stages"][3:], (1, 2, 1), strict=True):
                x = one(p, x, stride)
            logits = x.mean((1, 2)).astype(F32) @ params["head"].astype(F32)
            at = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
            return (jax.nn.logsumexp(logits, -1) - at).mean()

        return loss

    def stage(a: int, b: int) -> dict[str, Any]:
        return {
            "a": _kernel(3, a, b),
            "b": _kernel(3, b, b),
            "skip": _kernel(1, a, b),
            "scale": _spec(b),
        }

    params = {
        "stages": [stage(a, b) for a, b in zip((3, *widths), widths, strict=False)],
        "head": _spec(widths[-1], 1000),
    }
    data = _spec(images, size, size, 3, dtype=F32), _spec(images, dtype=jnp.int32)
    return Program("unequal stages", make, (params, *data))


def _encoder_decoder() -> Program:
    """Sequences made shorter and wider, attended to, and made long again."""
    batch, length, widths = 64, 4096, (256, 384, 640)

    def shrink(p, x):
        x = jax.nn.gelu(_norm(x @ p["in"], p["scale"]))
        x = x.reshape(x.shape[0], x.shape[1] // 4, 4 * x.shape[2])
        return jax.nn.gelu(x @ p["out"])

    def attend(p, x):
        q, k, v = (x @ p[n] for n in ("q", "k", "v"))
        scores = jnp.einsum("btd,bsd->bts", q, k).astype(F32) / q.shape[-1] ** 0.5
        return x + jax.nn.softmax(scores).astype(x.dtype) @ v

    def grow(p, x, skip):
        x = jax.nn.gelu(x @ p["in"])
        x = x.reshape(x.shape[0], 4 * x.shape[1], x.shape[2] // 4)
        both = jnp.concatenate([x, skip], -1)
        return jax.nn.silu(_norm(both @ p["out"], p["scale"]))

    def make(block, region):
        def encode(ps, x):
            skips = []
            for p in ps:
                skips.append(x)
                x = block(shrink)(p, x)
            return x, skips

        def loss(params, x, y):
            x, skips = region(encode)(params["down"], x @ params["in"])
            x = block(attend)(params["middle"], x)
            for p, skip in zip(params["up"], reversed(skips), strict=True):
                x = block(grow)(p, x, skip)
            return jnp.square((x @ params["out"]).astype(F32) - y).mean()

        return loss

    def down(a: int, b: int) -> dict[str, Any]:
        return {"in": _spec(a, 2 * a), "scale": _spec(2 * a), "out": _spec(8 * a, b)}

    def up(a: int, b: int) -> dict[str, Any]:
        return {"in": _spec(a, 4 * b), "out": _spec(2 * b, b), "scale": _spec(b)}

    a, b, c = widths
    params = {
        "in": _spec(64, a),
        "down": [down(a, b), down(b, c)],
        "middle": {n: _spec(c, c) for n in ("q", "k", "v")},
        "up": [up(c, b), up(b, a)],
        "out": _spec(a, 64),
    }
    data = _spec(batch, length, 64), _spec(batch, length, 64, dtype=F32)
    return Program("encoder-decoder", make, (params, *data))


def _steps() -> Program:
    """Steps of a reaction in a flow, split by what they do; there are no products."""
    size = 4096

    def flow(p, u):
        return u - p[0] * jnp.sin(u) * (u - jnp.roll(u, 1, -1)) - p[1] * u**3

    def spread(p, u):
        near = sum(jnp.roll(u, k, axis) for k in (1, -1) for axis in (-1, -2))
        return u + p[2] * jnp.tanh(near - 4 * u)

    def react(p, u):
        return u + p[3] * u * jnp.exp(-jnp.square(u)) * jnp.cos(p[1] * u)

    def limit(p, u):
        slope = jnp.roll(u, -1, -2) - u
        return u + p[4] * jax.nn.sigmoid(slope) * slope / (1 + jnp.square(slope))

    def force(p, u):
        return jnp.tanh(u + p[5] * jnp.sin(jnp.cumsum(u, -1) / size))

    def mix(p, u):
        wave = jnp.cos(p[6] * u)
        return u * wave + jnp.log1p(jnp.square(wave)) * jnp.roll(wave, 2, -1)

    order = (flow, spread, react, limit, force, mix)

    def make(block, region):
        def first(p, u):
            for step in order[:3]:
                u = block(step)(p, u)
            return u

        def loss(p, u):
            u = region(first)(p, u)
            for step in order[3:]:
                u = block(step)(p, u)
            return jnp.square(u).mean()

        return loss

    specs = _spec(7, dtype=F32), _spec(32, size, size // 2, dtype=F32)
    return Program("steps of a flow", make, specs)


def _kinds() -> Program:
    """Attention, a convolution, a gated MLP and mixing over time, one of each."""
    batch, length, width = 32, 2048, 1024

    def attend(p, x):
        y = _norm(x, p["scale"])
        heads = lambda a: a.reshape(*a.shape[:2], 8, -1)
        q, k, v = (heads(y @ p[n]) for n in ("q", "k", "v"))
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(F32) / 128**0.5
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(BF16), v)
        return x + mixed.reshape(x.shape) @ p["o"]

    def convolve(p, x):
        y = jax.lax.conv_general_dilated(
            x, p["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return x + jax.nn.gelu(y) @ p["o"]

    def gate(p, x):
        y = _norm(x, p["scale"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    def over_time(p, x):
        y = jnp.einsum("btd,ts->bsd", x, p["t"])
        return x + jnp.tanh(y) @ p["o"]

    order = ("attend", "convolve", "gate", "over_time")
    kinds = dict(zip(order, (attend, convolve, gate, over_time), strict=True))

    def make(block, region):
        def first(p, x):
            for name in order[:2]:
                x = block(kinds[name])(p[name], x)
            return x

        def loss(p, x):
            x = region(first)(p, x)
            for name in order[2:]:
                x = block(kinds[name])(p[name], x)
            return jnp.square(x.astype(F32)).mean()

        return loss

    square, scale = _spec(width, width), _spec(width)
    params = {
        "attend": {"scale": scale, **dict.fromkeys("qkvo", square)},
        "convolve": {"w": _spec(5, width, 2 * width), "o": _spec(2 * width, width)},
        "gate": {
            "scale": scale,
            "gate": _spec(width, 3 * width),
            "up": _spec(width, 3 * width),
            "down": _spec(3 * width, width),
        },
        "over_time": {"t": _spec(length, length), "o": square},
    }
    return Program("blocks of kinds", make, (params, _spec(batch, length, width)))


def _huge() -> Program:
    """One layer that is nearly all there is: three branches that meet in a product."""
    rows, width, inner = 131_072, 1024, 4096

    def enter(p, x):
        return jax.nn.gelu(_norm(x, p["scale"]) @ p["in"])

    def middle(p, x):
        return jax.nn.silu(x @ p["mix"]) * jnp.sin(x)

    def leave(p, x):
        return jnp.tanh(x @ p["out"])

    def make(block, region):
        def layer(p, x):
            h = block(enter)(p, x)
            h = block(middle)(p, h)
            return x + block(leave)(p, h)

        def loss(p, x):
            return jnp.square(region(layer)(p, x).astype(F32)).mean()

        return loss

    params = {
        "scale": _spec(width),
        "in": _spec(width, inner),
        "mix": _spec(inner, inner),
        "out": _spec(inner, width),
    }
    return Program("one huge layer", make, (params, _spec(rows, width)))


def _dense() -> Program:
    """A dense network: every layer reads what all before it gave."""
    images, size, first, growth, layers = 128, 128, 64, 32, 8

    def add(p, xs):
        x = jnp.concatenate(xs, -1)
        x = jax.nn.relu(_norm(x, p["scale"]))
        return _conv(jax.nn.relu(_conv(x, p["a"])), p["b"])

    def make(block, region):
        def half(ps, xs):
            xs = list(xs)
            for p in ps:
                xs.append(block(add)(p, xs))
            return xs

        def loss(params, x):
            xs = [_conv(x.astype(BF16), params["in"])]
            xs = region(half)(params["layers"][: layers // 2], xs)
            xs = half(params["layers"][layers // 2 :], xs)
            return jnp.square(jnp.concatenate(xs, -1).astype(F32)).mean()

        return loss

    def layer(k: int) -> dict[str, Any]:
        given = first + k * growth
        a, b = _kernel(1, given, 4 * growth), _kernel(3, 4 * growth, growth)
        return {"scale": _spec(given), "a": a, "b": b}

    params = {"in": _kernel(3, 3, first), "layers": [layer(k) for k in range(layers)]}
    return Program("dense", make, (params, _spec(images, size, size, 3, dtype=F32)))


def _chain() -> Program:
    """Six small blocks of different kinds, each of another width than the others."""
    batch, length, widths = 64, 128, (32, 64, 96, 80, 48, 112, 40)

    def convolve(p, x):
        y = jax.lax.conv_general_dilated(
            x, p["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return jax.nn.gelu(y)

    def expand(p, x):
        return jax.nn.silu(x @ p["up"]) @ p["down"]

    def attend(p, x):
        q, k, v = (x @ p[n] for n in "qkv")
        scores = jnp.einsum("btd,bsd->bts", q, k) / q.shape[-1] ** 0.5
        return jax.nn.softmax(scores) @ v

    def gate(p, x):
        y = _norm(x, p["scale"])
        return (y @ p["a"]) * jax.nn.sigmoid(y @ p["b"])

    def over_time(p, x):
        y = jnp.tanh(jnp.einsum("btd,ts->bsd", x, p["t"]))
        return y @ p["out"]

    def wave(p, x):
        y = jnp.sin(x @ p["in"]) * jnp.cos(x @ p["in"] + 1.0)
        return jnp.tanh(y @ p["out"])

    order = (convolve, expand, attend, gate, over_time, wave)

    def make(block, region):
        def first(ps, x):
            for kind, p in zip(order[:3], ps, strict=True):
                x = block(kind)(p, x)
            return x

        def loss(ps, x):
            x = region(first)(ps[:3], x)
            for kind, p in zip(order[3:], ps[3:], strict=True):
                x = block(kind)(p, x)
            return jnp.square(x).mean()

        return loss

    a, b, c, d, e, f, g = widths
    spec = partial(_spec, dtype=F32)
    params = [
        {"w": spec(5, a, b)},
        {"up": spec(b, 3 * c), "down": spec(3 * c, c)},
        {"q": spec(c, d), "k": spec(c, d), "v": spec(c, d)},
        {"scale": spec(d), "a": spec(d, e), "b": spec(d, e)},
        {"t": spec(length, length), "out": spec(e, f)},
        {"in": spec(f, 2 * g), "out": spec(2 * g, g)},
    ]
    return Program("chain of kinds", make, (params, spec(batch, length, a)))


def _plain(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


PROGRAMS = (
    _unet(3, 128, 64, 256, normed=False),
    _unet(4, 64, 32, 256, normed=True),
    _stages(),
    _encoder_decoder(),
    _steps(),
    _kinds(),
    _huge(),
    _dense(),
    _chain(),
)
"""The nine of them."""
plain = _plain
"""Nothing put around a part."""
