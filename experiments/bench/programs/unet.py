"""The U-Net of a latent diffusion model (Rombach et al. 2022).

Residual blocks and transformers on four levels down and up; every block's output on
the way down is read again on the way up. Shapes: B batch, Y and X pixels, C channels.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.bench.programs._entry import (
    Entry,
    Size,
    compute_dtype,
    spec,
    training,
)
from experiments.bench.programs._layers import (
    attention,
    attention_specs,
    convolve,
    convolve_specs,
    group_norm,
    layer_norm,
    linear,
    linear_specs,
    norm_specs,
)


@dataclass(frozen=True)
class _Config:
    batch: int
    side: int
    width: int
    times: tuple[int, ...]
    blocks: int
    heads: int
    groups: int
    text: tuple[int, int]

    def attends(self, level: int) -> bool:
        """All levels but the coarsest."""
        return level < len(self.times) - 1


_CONFIGS = {
    "tiny": _Config(2, 8, 8, (1, 2), 2, 2, 4, (3, 6)),
    "cpu": _Config(4, 16, 16, (1, 2), 2, 2, 8, (8, 16)),
    "real": _Config(16, 64, 320, (1, 2, 4, 4), 2, 8, 32, (77, 768)),
}


def _unet(target: Any, size: Size) -> rr.Problem:
    del target
    config, dtype = _CONFIGS[size], compute_dtype(size)

    def loss(params, batch):
        made = _run(
            config,
            params,
            batch["noisy"].astype(dtype),
            batch["time"].astype(dtype),
            batch["text"].astype(dtype),
        )
        return ((made.astype(float) - batch["noise"]) ** 2).mean()

    images = spec(config.batch, config.side, config.side, 4)
    given = {
        "noisy": images,
        "noise": images,
        "time": spec(config.batch),
        "text": spec(config.batch, *config.text),
    }
    return training("unet", loss, _specs(config), given)


def _run(c: _Config, w: Any, x: jax.Array, time: jax.Array, text: jax.Array):
    res = partial(_res_block, groups=c.groups, time=_embed_time(c, w["time"], time))
    look = partial(_transformer, text=text, heads=c.heads, groups=c.groups)

    def block(w, x):
        x = res(w["res"], x)
        return look(w["look"], x) if "look" in w else x

    x = convolve(w["in"], x)
    held = [x]
    for level in w["down"]:
        for own in level["blocks"]:
            x = block(own, x)
            held.append(x)
        if "narrower" in level:
            x = convolve(level["narrower"], x, stride=2)
            held.append(x)
    x = res(w["last"], block(w["middle"], x))
    for level in w["up"]:
        for own in level["blocks"]:
            x = block(own, jnp.concatenate([x, held.pop()], axis=-1))
        if "wider" in level:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = convolve(level["wider"], x)
    return convolve(w["out"], jax.nn.silu(group_norm(w["norm"], x, c.groups)))


def _embed_time(c: _Config, w: Any, time: jax.Array) -> jax.Array:
    half = c.width // 2
    angles = time[:, None] * 10_000.0 ** (-jnp.arange(half, dtype=time.dtype) / half)
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    return jax.nn.silu(linear(w["out"], jax.nn.silu(linear(w["in"], waves))))


def _res_block(w: Any, x: jax.Array, *, time: jax.Array, groups: int) -> jax.Array:
    with jax.named_scope("res"):
        y = convolve(w["first"], jax.nn.silu(group_norm(w["norm"], x, groups)))
        y = y + linear(w["time"], time)[:, None, None]
        y = jax.nn.silu(group_norm(w["second_norm"], y, groups))
        y = convolve(w["second"], y)
        return y + (convolve(w["skip"], x) if "skip" in w else x)


def _transformer(
    w: Any, x: jax.Array, *, text: jax.Array, heads: int, groups: int
) -> jax.Array:
    """Pixels look at one another, then at the text, then pass through a gated MLP."""
    with jax.named_scope("look"):
        y = linear(w["in"], group_norm(w["outer_norm"], x, groups))
        y = y.reshape(y.shape[0], -1, y.shape[-1])
        normed = layer_norm(w["norm"], y)
        y = y + attention(w["attn"], normed, normed, heads)
        y = y + attention(w["cross"], layer_norm(w["cross_norm"], y), text, heads)
        value, gate = jnp.split(linear(w["up"], layer_norm(w["mlp_norm"], y)), 2, -1)
        y = y + linear(w["down"], value * jax.nn.gelu(gate))
        return x + linear(w["out"], y).reshape(x.shape)


def _specs(c: _Config) -> Any:
    widths = [c.width * times for times in c.times]
    conv, long = partial(convolve_specs, kernel=3), 4 * c.width

    def res(inputs, outputs):
        found = {
            "norm": norm_specs(inputs),
            "first": conv(inputs=inputs, outputs=outputs),
            "time": linear_specs(long, outputs),
            "second_norm": norm_specs(outputs),
            "second": conv(inputs=outputs, outputs=outputs),
        }
        if inputs != outputs:
            found["skip"] = convolve_specs(kernel=1, inputs=inputs, outputs=outputs)
        return found

    def look(width):
        return {
            "outer_norm": norm_specs(width),
            "in": linear_specs(width, width),
            "norm": norm_specs(width),
            "attn": attention_specs(width=width),
            "cross_norm": norm_specs(width),
            "cross": attention_specs(width=width, source=c.text[1]),
            "mlp_norm": norm_specs(width),
            "up": linear_specs(width, 8 * width),
            "down": linear_specs(4 * width, width),
            "out": linear_specs(width, width),
        }

    def block(inputs, outputs, attends):
        found = {"res": res(inputs, outputs)}
        return found | {"look": look(outputs)} if attends else found

    held, down, inputs = [c.width], [], c.width
    for k, width in enumerate(widths):
        blocks = []
        for _ in range(c.blocks):
            blocks.append(block(inputs, width, c.attends(k)))
            held.append(inputs := width)
        level: Any = {"blocks": blocks}
        if k < len(widths) - 1:
            level["narrower"] = conv(inputs=width, outputs=width)
            held.append(width)
        down.append(level)
    up = []
    for k, width in reversed(list(enumerate(widths))):
        blocks = []
        for _ in range(c.blocks + 1):
            blocks.append(block(inputs + held.pop(), width, c.attends(k)))
            inputs = width
        up.append({"blocks": blocks})
        if k:
            up[-1]["wider"] = conv(inputs=width, outputs=width)
    return {
        "time": {"in": linear_specs(c.width, long), "out": linear_specs(long, long)},
        "in": conv(inputs=4, outputs=c.width),
        "down": down,
        "middle": block(widths[-1], widths[-1], True),
        "last": res(widths[-1], widths[-1]),
        "up": up,
        "norm": norm_specs(c.width),
        "out": conv(inputs=c.width, outputs=4),
    }


ENTRIES = (
    Entry(
        "unet",
        "standard",
        "h100:1",
        _unet,
        "Stable Diffusion 1's U-Net (Rombach et al. 2022), 16 latents of 64 x 64",
    ),
)
