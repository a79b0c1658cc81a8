"""Programs of the kinds people train, written without a thought of this library.

Each maker takes a number of rows and gives `(loss, params, batch)`: small arrays of
floating point numbers as wide as JAX has them, and a loss that returns a number, or a
number and auxiliary values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

WIDTH, LAYERS, EXPERTS, LENGTH = 8, 4, 4, 6


def normal(seed, *shape):
    drawn = np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[-2])
    return jnp.asarray(drawn, jnp.result_type(float))


def layer_weights(seed, layers=LAYERS):
    return {
        "up": normal(seed, layers, WIDTH, 2 * WIDTH),
        "down": normal(seed + 1, layers, 2 * WIDTH, WIDTH),
    }


def layer(w, x):
    return x + jnp.tanh(norm(x) @ w["up"]) @ w["down"]


def norm(x):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def at(w, k):
    return jax.tree.map(lambda a: a[k], w)


def in_turn(one, w, x):
    for k in range(len(jax.tree.leaves(w)[0])):
        x = one(at(w, k), x)
    return x


def in_a_scan(one, w, x):
    return jax.lax.scan(lambda x, w: (one(w, x), None), x, w)[0]


def over(one, how, seed=0):
    """A loss and its arguments: one layer after the other."""

    def make(rows):
        def loss(w, x):
            return (how(one, w, x) ** 2).mean()

        return loss, layer_weights(seed), normal(9, rows, WIDTH)

    return make


def attend(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), axis=-1)
    return jnp.einsum("bts,bsd->btd", weights, v)


def encoder_decoder(how):
    def make(rows):
        encoder = {**layer_weights(0), "mix": normal(2, LAYERS, WIDTH, WIDTH)}
        decoder = {**layer_weights(3, 3), "cross": normal(5, 3, WIDTH, WIDTH)}

        def encode(w, x):
            return layer(w, x + attend(x @ w["mix"], x, x))

        def loss(params, batch):
            source, target = batch
            memory = how(encode, params["encoder"], source)

            def decode(w, x):
                return layer(w, x + attend(x @ w["cross"], memory, memory))

            return (how(decode, params["decoder"], target) ** 2).mean()

        source = normal(6, rows, LENGTH, WIDTH)
        return (
            loss,
            {"encoder": encoder, "decoder": decoder},
            (source, normal(7, rows, 4, WIDTH)),
        )

    return make


def experts(dispatch):
    """Two of four experts for every row."""

    def make(rows):
        params = {
            "route": normal(0, LAYERS, WIDTH, EXPERTS),
            "up": normal(1, LAYERS, EXPERTS, WIDTH, 2 * WIDTH),
            "down": normal(2, LAYERS, EXPERTS, 2 * WIDTH, WIDTH),
        }

        def one(w, x):
            gates, chosen = jax.lax.top_k(jax.nn.softmax(norm(x) @ w["route"]), 2)
            return x + dispatch(w, x, gates, chosen)

        def loss(w, x):
            return (in_a_scan(one, w, x) ** 2).mean()

        return loss, params, normal(3, rows, WIDTH)

    return make


def by_one_hot(w, x, gates, chosen):
    mask = jax.nn.one_hot(chosen, EXPERTS, dtype=x.dtype)
    given = jnp.einsum("rke,rd->erd", mask, x)
    made = jnp.tanh(jnp.einsum("erd,edf->erf", given, w["up"]))
    made = jnp.einsum("erf,efd->erd", made, w["down"])
    return jnp.einsum("erd,rke,rk->rd", made, mask, gates)


def by_ragged_dot(w, x, gates, chosen):
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    given = jnp.repeat(x, 2, axis=0)[order]
    made = jnp.tanh(jax.lax.ragged_dot(given, w["up"], sizes))
    made = jax.lax.ragged_dot(made, w["down"], sizes)
    back = made[jnp.argsort(order)].reshape(*chosen.shape, WIDTH)
    return (back * gates[..., None]).sum(1)


def unet(rows):
    """Two residual blocks on each of two levels down and up, skips held long."""
    kernel = lambda seed, size, a, b: normal(seed, size, size, a, b) / size
    blocks = lambda seed, c: [
        [kernel(seed + k, 3, c, c), kernel(seed + 5 + k, 3, c, c)] for k in range(2)
    ]
    params = {
        "in": kernel(0, 3, 3, 4),
        "wider": kernel(1, 1, 4, 8),
        "narrower": kernel(2, 1, 12, 4),
        "down": [blocks(10, 4), blocks(20, 8)],
        "up": [blocks(30, 8), blocks(40, 4)],
    }

    def conv(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=dims
        )

    def run(x, level):
        for first, second in level:
            x = x + conv(jax.nn.silu(conv(x, first)), second)
        return x

    def loss(w, images):
        high = run(conv(images, w["in"]), w["down"][0])
        n, h, v, c = high.shape
        low = high.reshape(n, h // 2, 2, v // 2, 2, c).mean((2, 4))
        low = run(conv(low, w["wider"]), w["down"][1])
        low = run(jnp.sin(low), w["up"][0])
        back = jnp.repeat(jnp.repeat(low, 2, axis=1), 2, axis=2)
        x = conv(jnp.concatenate([back, high], axis=-1), w["narrower"])
        return (run(x, w["up"][1]) ** 2).mean()

    return loss, params, normal(8, rows, 8, 8, 3)


def recurrent(rows, steps=512):
    """A gated linear recurrence over time with its outputs."""
    params = {"gate": normal(0, WIDTH, WIDTH), "into": normal(1, WIDTH, WIDTH)}

    def loss(w, x):
        def step(h, x):
            gate = jax.nn.sigmoid(x @ w["gate"])
            h = gate * h + (1 - gate) * jnp.tanh(h @ w["into"] + x)
            return h, h.mean()

        h, ys = jax.lax.scan(step, jnp.zeros_like(x[0]), x)
        return (h**2).mean() + (ys**2).mean()

    return loss, params, normal(2, steps, rows, WIDTH)


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


def _clipped_forward(x):
    return jnp.sin(x), jnp.cos(x)


def _clipped_backward(cos, ct):
    return (jnp.clip(ct * cos, -1e-3, 1e-3),)


clipped.defvjp(_clipped_forward, _clipped_backward)


def with_own_derivative(w, x):
    return x + clipped(norm(x) @ w["up"]) @ w["down"]


def with_a_callback(w, x):
    """Something the compiler cannot see into, with a derivative that is known."""
    on_host = lambda a: np.sin(a)
    shape = jax.ShapeDtypeStruct((x.shape[0], 2 * WIDTH), x.dtype)

    @jax.custom_vjp
    def sine(h):
        return jax.pure_callback(on_host, shape, h, vmap_method="sequential")

    sine.defvjp(lambda h: (sine(h), h), lambda h, ct: (ct * jnp.cos(h),))
    return x + sine(norm(x) @ w["up"]) @ w["down"]


def by_platform(w, x):
    h = norm(x) @ w["up"]
    made = jax.lax.platform_dependent(
        h, cpu=lambda h: jnp.tanh(h), default=lambda h: jnp.tanh(h) * 1.0
    )
    return x + made @ w["down"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def flash(q, k, v, block):
    return _flash_forward(q, k, v, block)[0]


def _flash_forward(q, k, v, block):
    """Attention by blocks of keys; keeps its arguments and one number a row."""

    def iteration(state, kv):
        top, total, out = state
        k, v = kv
        scores = jnp.einsum("btd,bsd->bts", q, k)
        above = jnp.maximum(top, scores.max(-1))
        weights = jnp.exp(scores - above[..., None])
        old = jnp.exp(top - above)
        out = out * old[..., None] + jnp.einsum("bts,bsd->btd", weights, v)
        return (above, total * old + weights.sum(-1), out), None

    blocks = lambda a: jnp.moveaxis(a.reshape(a.shape[0], -1, block, a.shape[-1]), 1, 0)
    low = jnp.full(q.shape[:2], -1e9, q.dtype)
    init = (low, jnp.zeros_like(low), jnp.zeros_like(q))
    (top, total, out), _ = jax.lax.scan(iteration, init, (blocks(k), blocks(v)))
    out = out / total[..., None]
    return out, (q, k, v, out, top + jnp.log(total))


def _flash_backward(block, kept, ct):
    q, k, v, out, log_total = kept
    weights = jnp.exp(jnp.einsum("btd,bsd->bts", q, k) - log_total[..., None])
    ct_weights = jnp.einsum("btd,bsd->bts", ct, v) - (ct * out).sum(-1)[..., None]
    ct_scores = weights * ct_weights
    return (
        jnp.einsum("bts,bsd->btd", ct_scores, k),
        jnp.einsum("bts,btd->bsd", ct_scores, q),
        jnp.einsum("bts,btd->bsd", weights, ct),
    )


flash.defvjp(_flash_forward, _flash_backward)


def flash_attention(rows):
    params = {**layer_weights(0), "qkv": normal(2, LAYERS, WIDTH, 3 * WIDTH)}

    def one(w, x):
        q, k, v = jnp.split(norm(x) @ w["qkv"], 3, axis=-1)
        return layer(w, x + flash(q, k, v, 4))

    def loss(w, x):
        return (in_a_scan(one, w, x) ** 2).mean()

    return loss, params, normal(3, rows, 8, WIDTH)


def with_a_branch(w, x):
    wide = lambda x: jnp.tanh(x @ w["up"]) @ w["down"]
    return x + jax.lax.cond(x[0, 0] > 0, wide, lambda x: 0.5 * jnp.sin(x), norm(x))


def with_a_loop(w, x):
    iteration = lambda _, h: jnp.tanh(h @ w["up"]) @ w["down"] + x
    return jax.lax.fori_loop(0, 3, iteration, x)


def with_a_search(w, x):
    """A loop of unknown length outside of what is differentiated."""
    grow = lambda scale: scale * 2
    large = jax.lax.stop_gradient(jnp.abs(x).max())
    scale = jax.lax.while_loop(lambda scale: scale < large, grow, jnp.ones_like(large))
    return x + jnp.tanh(norm(x) / scale @ w["up"]) @ w["down"]


def mixed_precision(w, x):
    half = jnp.bfloat16
    h = norm(x).astype(half) @ w["up"].astype(half)
    return x + (jnp.tanh(h) @ w["down"].astype(half)).astype(x.dtype)


def each_by_itself(rows):
    """Four networks side by side, by `vmap` over their stacked weights."""
    params = jax.tree.map(
        lambda *a: jnp.stack(a), *(layer_weights(10 * k) for k in range(4))
    )

    def loss(w, x):
        return (jax.vmap(lambda w: in_a_scan(layer, w, x))(w) ** 2).mean()

    return loss, params, normal(5, rows, WIDTH)


def batch_statistics(rows):
    """Running statistics go in with the batch and come out beside the loss."""

    def loss(w, batch):
        x, statistics = batch

        def step(x, wk):
            w, (mean, var) = wk
            own = x.mean(0), x.var(0)
            moved = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, (mean, var), own)
            normed = (x - own[0]) * jax.lax.rsqrt(own[1] + 1e-5)
            return x + jnp.tanh(normed @ w["up"]) @ w["down"], moved

        x, moved = jax.lax.scan(step, x, (w, statistics))
        return (x**2).mean(), moved

    zeros = jnp.zeros((LAYERS, WIDTH), jnp.result_type(float))
    return loss, layer_weights(0), (normal(2, rows, WIDTH), (zeros, 1 + zeros))


def dropout(how):
    def make(rows):
        def one(wk, x):
            w, key = wk
            h = jnp.tanh(norm(x) @ w["up"])
            kept = jax.random.bernoulli(key, 0.8, h.shape)
            return x + jnp.where(kept, h / 0.8, 0) @ w["down"]

        def loss(w, batch):
            x, key = batch
            keys = jax.random.split(key, LAYERS)
            return (how(one, (w, keys), x) ** 2).mean()

        return loss, layer_weights(0), (normal(2, rows, WIDTH), jax.random.key(0))

    return make


def language_model(rows):
    """Tokens in, the embedding tied to the output."""
    params = {"layers": layer_weights(0), "embed": normal(2, 16, WIDTH)}

    def loss(params, tokens):
        x = params["embed"][tokens[:, :-1]]
        x = in_a_scan(layer, params["layers"], x)
        logits = jax.nn.log_softmax(norm(x) @ params["embed"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()

    tokens = np.random.default_rng(3).integers(0, 16, (rows, LENGTH + 1))
    return loss, params, jnp.asarray(tokens)


def odd_leaves(rows):
    """Parameters with a count, a flag and holes among them."""
    params = {
        "layers": [{**at(layer_weights(0), k), "bias": None} for k in range(LAYERS)],
        "steps": jnp.asarray(3, jnp.int32),
        "masks": jnp.asarray([True, False] * (WIDTH // 2)),
    }

    def loss(params, x):
        for w in params["layers"]:
            x = layer(w, x)
        x = jnp.where(params["masks"], x, x / params["steps"])
        return (x**2).mean()

    return loss, params, normal(2, rows, WIDTH)


def optimizer_inside(rows):
    """Two steps of descent on one half of the rows, judged on the other."""

    def fit_one(w, x):
        return (in_a_scan(layer, w, x) ** 2).mean()

    def loss(w, x):
        inner, outer = x[: rows // 2], x[rows // 2 :]
        for _ in range(2):
            gradient = jax.grad(fit_one)(w, inner)
            w = jax.tree.map(lambda a, g: a - 0.1 * g, w, gradient)
        return fit_one(w, outer)

    return loss, layer_weights(0), normal(2, rows, WIDTH)


def over_devices(how):
    """A layer stack inside `shard_map`, the rows spread over eight devices."""

    def make(rows):
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

        @functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
        )
        def loss(w, x):
            return jax.lax.pmean((how(layer, w, x) ** 2).mean(), "data")

        return loss, layer_weights(0), normal(2, rows, WIDTH)

    return make


policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

PLAIN = {
    "scanned": over(layer, in_a_scan),
    "unrolled": over(layer, in_turn),
    "jitted layers": over(jax.jit(layer), in_turn),
    "encoder-decoder, scanned": encoder_decoder(in_a_scan),
    "encoder-decoder, unrolled": encoder_decoder(in_turn),
    "experts by one-hot": experts(by_one_hot),
    "experts by ragged_dot": experts(by_ragged_dot),
    "U-Net": unet,
    "recurrence over 512 steps": recurrent,
    "own derivatives, scanned": over(with_own_derivative, in_a_scan),
    "own derivatives, unrolled": over(with_own_derivative, in_turn),
    "callback": over(with_a_callback, in_a_scan),
    "platform_dependent": over(by_platform, in_a_scan),
    "flash attention": flash_attention,
    "checkpointed, scanned": over(jax.checkpoint(layer), in_a_scan),
    "checkpointed, unrolled": over(jax.checkpoint(layer), in_turn),
    "checkpointed with a policy": over(jax.checkpoint(layer, policy=policy), in_a_scan),
    "cond, scanned": over(with_a_branch, in_a_scan),
    "cond, unrolled": over(with_a_branch, in_turn),
    "fori_loop": over(with_a_loop, in_a_scan),
    "while_loop": over(with_a_search, in_a_scan),
    "mixed precision": over(mixed_precision, in_a_scan),
    "vmapped": each_by_itself,
    "batch statistics": batch_statistics,
    "dropout, scanned": dropout(in_a_scan),
    "dropout, unrolled": dropout(in_turn),
    "language model": language_model,
    "odd leaves": odd_leaves,
    "optimizer inside": optimizer_inside,
    "shard_map, scanned": over_devices(in_a_scan),
    "shard_map, unrolled": over_devices(in_turn),
}
