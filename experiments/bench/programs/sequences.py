"""Texts otherwise than by one stack of layers: two stacks, experts, recurrence.

Shapes: B batch, L length, M length of the source, D width, E experts, C places of an
expert in a sequence.
"""

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
    cross_entropy,
    linear,
    linear_specs,
    norm_specs,
    rms_norm,
)


def _t5(target: Any, size: Size) -> rr.Problem:
    """An encoder, and a decoder each of whose layers reads what the encoder made."""
    del target
    batch, source, length, width, mlp, heads, depth, vocabulary = {
        "tiny": (2, 8, 4, 16, 32, 2, 2, 32),
        "cpu": (4, 64, 32, 96, 384, 4, 3, 256),
        "real": (32, 512, 128, 1024, 4096, 16, 24, 32_128),
    }[size]
    dtype = compute_dtype(size)

    def feed(w, x):
        hidden = jax.nn.relu(linear(w["up"], rms_norm(w["mlp_norm"], x)))
        return x + linear(w["down"], hidden)

    def attend_to_itself(w, x, bias, causal):
        normed = rms_norm(w["norm"], x)
        made = attention(w["attn"], normed, normed, heads, bias_HLM=bias, causal=causal)
        return x + made

    def loss(params, batch):
        embed = params["embed"].astype(dtype)
        encoder, decoder = params["encoder"], params["decoder"]
        bias = _relative_bias(encoder["bias"], source, both_ways=True)

        def encode(x, w):
            return feed(w, attend_to_itself(w, x, bias, False)), None

        memory, _ = jax.lax.scan(encode, embed[batch["source"]], encoder["layers"])
        memory = rms_norm(encoder["norm"], memory)
        turned = _relative_bias(decoder["bias"], length, both_ways=False)

        def decode(x, w):
            x = attend_to_itself(w, x, turned, True)
            normed = rms_norm(w["cross_norm"], x)
            return feed(w, x + attention(w["cross"], normed, memory, heads)), None

        x, _ = jax.lax.scan(decode, embed[batch["tokens"][:, :-1]], decoder["layers"])
        x = rms_norm(decoder["norm"], x) * width**-0.5
        return cross_entropy(x @ embed.T, batch["tokens"][:, 1:])

    layers = {
        "norm": norm_specs(depth, width, bias=False),
        "attn": attention_specs(depth, width=width),
        "mlp_norm": norm_specs(depth, width, bias=False),
        "up": linear_specs(depth, width, mlp, bias=False),
        "down": linear_specs(depth, mlp, width, bias=False),
    }
    cross = {
        "cross_norm": norm_specs(depth, width, bias=False),
        "cross": attention_specs(depth, width=width),
    }
    ends = {
        "norm": norm_specs(width, bias=False),
        "bias": {"kernel": spec(_BUCKETS, heads)},
    }
    params = {
        "embed": spec(vocabulary, width),
        "encoder": ends | {"layers": layers},
        "decoder": ends | {"layers": layers | cross},
    }
    given = {
        "source": spec(batch, source, dtype=jnp.int32),
        "tokens": spec(batch, length + 1, dtype=jnp.int32),
    }
    return training("t5_large", loss, params, given)


_BUCKETS, _FARTHEST = 32, 128


def _relative_bias(w: Any, length: int, *, both_ways: bool) -> jax.Array:
    """[heads, L, L]: a number for each bucket of distances, wider ones farther off."""
    place = jnp.arange(length)
    distance = place[None, :] - place[:, None]
    buckets = _BUCKETS // 2 if both_ways else _BUCKETS
    ahead = jnp.where(distance > 0, buckets, 0) if both_ways else 0
    distance = jnp.abs(distance) if both_ways else jnp.maximum(-distance, 0)
    exact = buckets // 2
    share = jnp.log(jnp.maximum(distance, 1) / exact) / jnp.log(_FARTHEST / exact)
    far = exact + (share * (buckets - exact)).astype(int)
    bucket = jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))
    return jnp.moveaxis(w["kernel"][ahead + bucket], -1, 0)


def _moe(target: Any, size: Size) -> rr.Problem:
    """Every layer has experts, two of which every token goes to while they have room.

    Source: Lepikhin et al. 2020, "GShard", with one-hot dispatch and a balancing loss.
    """
    del target
    batch, length, width, mlp, heads, experts, depth, vocabulary = {
        "tiny": (2, 8, 16, 32, 2, 4, 2, 32),
        "cpu": (8, 64, 64, 128, 4, 4, 4, 256),
        "card": (12, 1024, 1024, 4096, 16, 8, 16, 32_000),
        "real": (16, 1024, 1024, 4096, 16, 8, 16, 32_000),
    }[size]
    dtype, places = compute_dtype(size), 5 * 2 * length // (4 * experts)

    def layer(x, w):
        normed = rms_norm(w["norm"], x)
        x = x + attention(w["attn"], normed, normed, heads, causal=True)
        normed = rms_norm(w["mlp_norm"], x)
        send_BLEC, balance = _dispatch(w["route"], normed, places)
        send_BLEC = send_BLEC.astype(dtype)
        given = jnp.einsum("BLEC,BLD->EBCD", (send_BLEC > 0).astype(dtype), normed)
        hidden = jnp.einsum("EBCD,EDF->EBCF", given, w["up"].astype(dtype))
        hidden = jax.nn.gelu(hidden)
        made = jnp.einsum("EBCF,EFD->EBCD", hidden, w["down"].astype(dtype))
        return x + jnp.einsum("BLEC,EBCD->BLD", send_BLEC, made), balance

    def loss(params, batch):
        embed, tokens = params["embed"].astype(dtype), batch["tokens"]
        x, balance = jax.lax.scan(layer, embed[tokens[:, :-1]], params["layers"])
        x = rms_norm(params["norm"], x) * width**-0.5
        return cross_entropy(x @ embed.T, tokens[:, 1:]) + 1e-2 * balance.mean()

    params = {
        "embed": spec(vocabulary, width),
        "layers": {
            "norm": norm_specs(depth, width, bias=False),
            "attn": attention_specs(depth, width=width),
            "mlp_norm": norm_specs(depth, width, bias=False),
            "route": linear_specs(depth, width, experts, bias=False),
            "up": spec(depth, experts, width, mlp),
            "down": spec(depth, experts, mlp, width),
        },
        "norm": norm_specs(width, bias=False),
    }
    given = {"tokens": spec(batch, length + 1, dtype=jnp.int32)}
    return training("moe", loss, params, given)


def _dispatch(w: Any, x_BLD: jax.Array, places: int) -> tuple[jax.Array, jax.Array]:
    """Gates [B, L, E, C] of the two best experts, in order of coming; and imbalance."""
    experts = w["kernel"].shape[-1]
    probs_BLE = jax.nn.softmax(linear(w, x_BLD.astype(float)))
    gates_BLK, chosen_BLK = jax.lax.top_k(probs_BLE, 2)
    gates_BLK = gates_BLK / gates_BLK.sum(-1, keepdims=True)
    wanted_BKLE = jax.nn.one_hot(chosen_BLK.swapaxes(1, 2), experts, dtype=int)
    batch, _, length, _ = wanted_BKLE.shape
    in_order = wanted_BKLE.reshape(batch, 2 * length, experts)  # first choices first
    place = (jnp.cumsum(in_order, axis=1) - 1).reshape(wanted_BKLE.shape)
    place_BLK = (place * wanted_BKLE).sum(-1).swapaxes(1, 2)
    at_BLKC = jax.nn.one_hot(place_BLK, places)  # nothing where there is no room
    wanted_BLKE = wanted_BKLE.swapaxes(1, 2).astype(float)
    send = jnp.einsum("BLK,BLKE,BLKC->BLEC", gates_BLK, wanted_BLKE, at_BLKC)
    share = wanted_BLKE[:, :, 0].mean(1)
    return send, experts * (share * probs_BLE.mean(1)).sum(-1).mean()


def _recurrence(target: Any, size: Size) -> rr.Problem:
    """Layers of gated linear recurrence, all of them advanced token by token.

    Source: Bradbury et al. 2016, "Quasi-recurrent neural networks": gates see the
    input of their own time only, states are mixed element by element.
    """
    del target
    batch, length, width, depth, vocabulary = {
        "tiny": (2, 16, 8, 2, 32),
        "cpu": (8, 512, 64, 2, 128),
        "real": (256, 1024, 1024, 4, 8192),
    }[size]
    dtype = compute_dtype(size)

    def loss(params, batch):
        embed = params["embed"].astype(dtype)
        tokens = batch["tokens"].swapaxes(0, 1)

        def step(states, x):
            moved = []
            for w, state in zip(params["layers"], states, strict=True):
                made = linear(w["in"], rms_norm(w["norm"], x))
                gate, candidate, out = jnp.split(made, 3, axis=-1)
                gate = jax.nn.sigmoid(gate)
                state = gate * state + (1 - gate) * candidate
                x = x + linear(w["out"], jax.nn.silu(out) * state)
                moved.append(state)
            return moved, x

        nothing = [jnp.zeros((tokens.shape[1], width), dtype)] * depth
        _, x = jax.lax.scan(step, nothing, embed[tokens[:-1]])
        x = rms_norm(params["norm"], x) * width**-0.5
        return cross_entropy(x @ embed.T, tokens[1:])

    layer = {
        "norm": norm_specs(width, bias=False),
        "in": linear_specs(width, 3 * width),
        "out": linear_specs(width, width),
    }
    params = {
        "embed": spec(vocabulary, width),
        "layers": [layer] * depth,
        "norm": norm_specs(width, bias=False),
    }
    given = {"tokens": spec(batch, length + 1, dtype=jnp.int32)}
    return training("recurrence", loss, params, given)


ENTRIES = (
    Entry(
        "t5_large",
        "standard",
        "h100:1",
        _t5,
        "T5-large's shape (Raffel et al. 2020): 24 + 24 layers, 32 x (512 + 128)",
    ),
    Entry(
        "moe",
        "standard",
        "h100:1",
        _moe,
        "16 layers of 8 experts, two for a token (GShard), 16 x 1024 tokens",
    ),
    Entry(
        "recurrence",
        "standard",
        "h100:1",
        _recurrence,
        "gated linear recurrence over 1024 tokens of 256 texts, 4 layers of 1024",
    ),
)
