"""Small networks of the kinds people train: GPT, ViT, MLP-mixer, encoder-decoder.

Each is `make(form, wrap) -> (loss, params, batch)` with weights in float64, to be cast;
dropout and batch normalization included. `form` says how layers are put together,
`wrap` is done to every layer.
"""

import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr

WIDTH, HEADS, LENGTH, BATCH, LAYERS, VOCABULARY = 16, 2, 8, 2, 4, 32


def _weights(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-2]))
        for name, shape in shapes.items()
    }


def _norm(x):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def _attend(q, k, v, causal):
    split = lambda a: a.reshape(*a.shape[:2], HEADS, -1)
    scores = (
        jnp.einsum("bthd,bshd->bhts", split(q), split(k)) * float(WIDTH / HEADS) ** -0.5
    )
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, jnp.asarray(-1e9, scores.dtype))
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights, split(v)).reshape(q.shape)


def _drop(x, key):
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(kept, x / jnp.asarray(0.9, x.dtype), jnp.zeros_like(x))


def _transformer_layer(w, x, key, causal):
    q, k, v = jnp.split(rr.name(_norm(x) @ w["qkv"], "qkv"), 3, axis=-1)
    x = x + _drop(rr.name(_attend(q, k, v, causal) @ w["out"], "attn_out"), key)
    up = rr.name(_norm(x) @ w["up"], "up")
    return x + jax.nn.gelu(up) @ w["down"]


def _transformer_weights(seed, layers=LAYERS):
    return _weights(
        seed,
        qkv=(layers, WIDTH, 3 * WIDTH),
        out=(layers, WIDTH, WIDTH),
        up=(layers, WIDTH, 4 * WIDTH),
        down=(layers, 4 * WIDTH, WIDTH),
    )


def unwrapped(f):
    return f


def _repeat(layer, w, x, keys, form, wrap):
    layer = wrap(layer)
    if form == "scan":
        step = lambda x, wk: (layer(wk[0], x, wk[1]), None)
        return jax.lax.scan(step, x, (w, keys))[0]
    for k in range(len(keys)):
        x = layer(jax.tree.map(lambda a, k=k: a[k], w), x, keys[k])
    return x


def gpt(form, wrap=unwrapped):
    params = {
        "layers": _transformer_weights(0),
        **_weights(1, embed=(VOCABULARY, WIDTH), head=(WIDTH, VOCABULARY)),
    }
    rng = np.random.default_rng(2)
    tokens = jnp.asarray(rng.integers(0, VOCABULARY, (BATCH, LENGTH + 1)))
    keys = jax.random.split(jax.random.key(0), LAYERS)

    def loss(params, batch):
        tokens, keys = batch
        x = params["embed"][tokens[:, :-1]]
        layer = lambda w, x, key: _transformer_layer(w, x, key, causal=True)
        x = _repeat(layer, params["layers"], x, keys, form, wrap)
        return rr.cross_entropy(_norm(x), params["head"], tokens[:, 1:])

    return loss, params, (tokens, keys)


def vit(form, wrap=unwrapped):
    params = {
        "layers": _transformer_weights(3),
        **_weights(4, patch=(12, WIDTH), head=(WIDTH, 10)),
    }
    rng = np.random.default_rng(5)
    patches = jnp.asarray(rng.normal(size=(BATCH, LENGTH, 12)))
    labels = jnp.asarray(rng.integers(0, 10, BATCH))
    keys = jax.random.split(jax.random.key(1), LAYERS)

    def loss(params, batch):
        patches, labels, keys = batch
        x = patches.astype(params["patch"].dtype) @ params["patch"]
        layer = lambda w, x, key: _transformer_layer(w, x, key, causal=False)
        x = _repeat(layer, params["layers"], x, keys, form, wrap)
        logits = (_norm(x).mean(axis=1) @ params["head"])[:, None]
        wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        at_label = jnp.take_along_axis(wide[:, 0], labels[:, None], axis=-1)[:, 0]
        return (jax.nn.logsumexp(wide[:, 0], axis=-1) - at_label).mean()

    return loss, params, (patches, labels, keys)


def mixer(form, wrap=unwrapped):
    params = {
        "layers": _weights(
            6,
            tokens=(LAYERS, LENGTH, LENGTH),
            up=(LAYERS, WIDTH, 2 * WIDTH),
            down=(LAYERS, 2 * WIDTH, WIDTH),
        )
    }
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.normal(size=(BATCH, LENGTH, WIDTH)))
    keys = jax.random.split(jax.random.key(2), LAYERS)

    def layer(w, x, key):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - wide.mean((0, 1))
        normed = centred * jax.lax.rsqrt((centred**2).mean((0, 1)) + 1e-5)
        normed = normed.astype(x.dtype)  # batch normalization
        x = x + rr.name(jnp.einsum("btd,ts->bsd", normed, w["tokens"]), "mixed")
        return x + _drop(jax.nn.silu(rr.name(x @ w["up"], "up")), key) @ w["down"]

    def loss(params, batch):
        x, keys = batch
        x = x.astype(params["layers"]["up"].dtype)
        x = _repeat(layer, params["layers"], x, keys, form, wrap)
        return (x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2).mean()

    return loss, params, (x, keys)


def encoder_decoder(form, wrap=unwrapped):
    params = {
        "encoder": _transformer_weights(8),
        "decoder": _transformer_weights(9, layers=3),
        **_weights(10, cross=(3, WIDTH, WIDTH)),
    }
    rng = np.random.default_rng(11)
    x = jnp.asarray(rng.normal(size=(2, BATCH, LENGTH, WIDTH)))
    keys = jax.random.split(jax.random.key(3), LAYERS)

    def loss(params, batch):
        (source, target), keys = batch
        dtype = params["cross"].dtype
        encode = lambda w, x, key: _transformer_layer(w, x, key, causal=False)
        memory = source.astype(dtype)
        memory = _repeat(encode, params["encoder"], memory, keys, form, wrap)

        def decode(w, x, key):
            w, cross = w
            x = _transformer_layer(w, x, key, causal=True)
            return x + rr.name(_attend(x, memory, memory @ cross, False), "cross")

        w = (params["decoder"], params["cross"])
        x = _repeat(decode, w, target.astype(dtype), keys[:3], form, wrap)
        return (x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2).mean()

    return loss, params, (x, keys)


NETWORKS = (gpt, vit, mixer, encoder_decoder)
