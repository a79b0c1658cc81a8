"""A pyramid of reversible streams, stored by default; repeats could be inverted."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import revremat as rr
from experiments.bench.programs._entry import (
    Entry,
    Size,
    compute_dtype,
    spec,
    training,
)
from experiments.bench.programs._layers import cross_entropy
from revremat.reversible import REVBIFPN, RevBiFPNConfig
from revremat.reversible._revbifpn import (
    CHANNELS,
    ROUNDS,
    Head,
    Neck,
    _round,
    _silo,
    stem,
)
from revremat.reversible.nnx import RevScan, RevSequence


class Scanned(nnx.Module):
    """RevBiFPN with equal rounds, and the equal groups at the end, in loops.

    It differs from `revremat.reversible.RevBiFPN` in the rate of stochastic depth of
    those groups, which is the last one's in all of them.
    """

    def __init__(self, config: RevBiFPNConfig, *, rngs: nnx.Rngs):
        grown = len(CHANNELS) - 1
        rate = config.stochastic_depth
        parts = []
        for streams in range(1, grown + 1):
            drop = rate * streams / (grown + config.more_layers)
            make = lambda rngs, s=streams, d=drop: _round(config, s, d, rngs)
            name = f"rounds_{streams}"
            parts.append(RevScan(make, ROUNDS, rngs=rngs, actions=None, name=name))
            parts.append(_silo(config, streams + 1, True, drop, rngs))

        def group(rngs: nnx.Rngs) -> RevSequence:
            many = len(CHANNELS)
            rounds = [_round(config, many, rate, rngs) for _ in range(ROUNDS)]
            return RevSequence([*rounds, _silo(config, many, False, rate, rngs)])

        more = config.more_layers
        parts.append(RevScan(group, more, rngs=rngs, actions=None, name="groups"))
        self.parts = nnx.List(parts)
        self.neck = Neck(config, recompute=False, rngs=rngs)
        self.head = Head(config, rngs=rngs)
        self.config = config

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits `[batch, num_classes]`."""
        streams = (stem(images, self.config),)
        for part in self.parts:
            if isinstance(part, RevScan):
                streams = part(streams)
                continue
            coupling, params, rest = part.parts()
            streams, state = coupling.run(params, streams, rest)
            part.put(jax.lax.stop_gradient(state))
        return self.head(streams, self.neck)


def _revbifpn(target: Any, size: Size) -> rr.Problem:
    del target
    small = replace(REVBIFPN["S0"], width=1 / 3, more_layers=2, num_classes=10)
    config, batch = {
        "tiny": (replace(small, image_size=32), 2),
        "cpu": (replace(small, image_size=64), 4),
        "real": (REVBIFPN["S4"], 96),
    }[size]
    config = replace(config, dtype=compute_dtype(size))
    model = nnx.eval_shape(lambda: Scanned(config, rngs=nnx.Rngs(0)))
    graph, params, moving = nnx.split(model, nnx.Param, ...)

    def loss(params, batch):
        model: Any = nnx.merge(graph, params, batch["statistics"], copy=True)
        model.train()
        value = cross_entropy(model(batch["images"]), batch["labels"])
        return value, nnx.split(model, nnx.Param, ...)[2]

    side = config.image_size
    images = spec(batch, side, side, 3, dtype=jnp.float32)
    given = {"images": images, "labels": spec(batch, dtype=jnp.int32)}
    return training("revbifpn_s4", loss, params, given, moving)


ENTRIES = (
    Entry(
        "revbifpn_s4",
        "standard",
        "h100:1",
        _revbifpn,
        "RevBiFPN-S4 (Chiley et al. 2023), stored, 96 images of 320 x 320",
    ),
)
