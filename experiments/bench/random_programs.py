"""Small random training losses, and random plans for them.

Every program is a loss of its own kind (a scan, unrolled layers, blocks, two stacks)
over layers put together at random from what real networks are made of. They are tiny:
what is tested is structure, not size.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr

WIDTH, LENGTH, BATCH = 4, 3, 2

Part = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""`part(weights, x, key) -> x` on `x` of shape `[batch, length, width]`."""


@jax.custom_vjp
def _squash(x: jax.Array) -> jax.Array:
    return x / (1 + x * x)


def _squash_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _squash(x), x


def _squash_backward(x: jax.Array, ct: jax.Array) -> tuple[jax.Array]:
    return (ct * (1 - x * x) / (1 + x * x) ** 2,)


_squash.defvjp(_squash_forward, _squash_backward)


def _tanh(w, x, key):
    return x + rr.name(jnp.tanh(x @ w[0]), "tanh") @ w[1]


def _gelu(w, x, key):
    return x + jax.nn.gelu(rr.name(x @ w[0], "up")) @ w[1]


def _gate(w, x, key):
    return x + jax.nn.sigmoid(x @ w[0]) * jnp.sin(x @ w[1])


def _attend(w, x, key):
    scores = jnp.einsum("btd,bsd->bts", x @ w[0], x @ w[1])
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return x + rr.name(weights @ x, "context")


def _mix(w, x, key):
    return x + jnp.einsum("btd,ts->bsd", jnp.tanh(x), w[0][:LENGTH, :LENGTH])


def _normalize(w, x, key):
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    return rr.name(centred * scale, "normed") * (1 + w[0][0]) + w[1][0]


def _dropout(w, x, key):
    kept = jax.random.bernoulli(key, 0.7, x.shape)
    return jnp.where(kept, x / 0.7, 0) @ (w[0] + jnp.eye(WIDTH, dtype=x.dtype))


def _recur(w, x, key):
    def iteration(h, row):
        h = jnp.tanh(h @ w[0] + row)
        return h, h

    _, rows = jax.lax.scan(iteration, x[:, 0], jnp.moveaxis(x, 1, 0))
    return x + jnp.moveaxis(rows, 0, 1)


def _branch(w, x, key):
    return jax.lax.cond(x[0, 0, 0] > 0, lambda a: a @ w[0], lambda a: jnp.sin(a), x)


def _inner_checkpoint(w, x, key):
    return x + jax.checkpoint(lambda a: jnp.tanh(a @ w[0]) @ w[1])(x)


def _jitted(w, x, key):
    return x + jax.jit(lambda a: jax.nn.silu(a @ w[0]))(x)


def _own_rule(w, x, key):
    return x + _squash(x @ w[0])


def _pool(w, x, key):
    return x + jnp.cumsum(jnp.max(x, axis=-1, keepdims=True) * w[0][0], axis=1)


PARTS: tuple[Part, ...] = (
    *(_tanh, _gelu, _gate, _attend, _mix, _normalize, _dropout, _recur, _branch),
    *(_inner_checkpoint, _jitted, _own_rule, _pool),
)
FORMS = ("scan", "reverse", "stack", "reversible", "unrolled", "blocks", "two", "whole")
"""The ways layers are put together."""


def make_program(seed: int) -> tuple[Callable[..., Any], Any, Any]:
    """A loss with its parameters and batch: `(loss, params, batch)`."""
    rng = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    chosen = rng.choice(len(PARTS), size=rng.integers(1, 3), replace=False)
    parts = [PARTS[k] for k in chosen]
    depth = int(rng.integers(2, 5))
    frozen, shared, counted = (bool(b) for b in rng.integers(0, 2, 3))
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.4)
    params = {
        "layers": [
            (normal(depth, WIDTH, WIDTH), normal(depth, WIDTH, WIDTH)) for _ in parts
        ],
        "second": normal(depth, WIDTH, WIDTH),
        "shared": normal(WIDTH),
        "head": normal(WIDTH, WIDTH),
    }
    batch = {
        "x": normal(BATCH, LENGTH, WIDTH),
        "keys": jax.random.split(jax.random.key(seed), depth),
    }

    def make_layer(common: jax.Array) -> Callable[..., jax.Array]:
        def layer(w, x, key):
            for number, (part, own) in enumerate(zip(parts, w, strict=True)):
                if frozen and number == 0:
                    own = jax.lax.stop_gradient(own)
                x = part(own, x, jax.random.fold_in(key, number))
            return x * (1 + common) if shared else x

        return layer

    def loss(params, batch):
        layer = make_layer(params["shared"])
        x, extra = _run(form, layer, params, batch, depth, counted)
        logits = rr.block(lambda w, x: jnp.tanh(x @ w), "head")(params["head"], x)
        return (logits**2).mean() + jnp.mean(extra)

    if form == "whole":
        whole = lambda params, batch: _run(
            form, make_layer(params["shared"]), params, batch, depth, counted
        )[0].var()
        return whole, params, batch
    return loss, params, batch


def _run(form, layer, params, batch, depth, counted):
    w, x, keys = params["layers"], batch["x"], batch["keys"]
    at = lambda tree, k: jax.tree.map(lambda a: a[k], tree)
    if form in ("scan", "reverse", "two"):

        def step(carry, xs):
            (x, n), (w, key) = carry, xs
            key = jax.random.fold_in(key, n) if counted else key
            x = layer(w, x, key)
            return (x, n + 1), x.sum(axis=-1)

        scan = lambda x: jax.lax.scan(
            step, (x, jnp.int32(0)), (w, keys), reverse=form == "reverse"
        )
        (x, _), ys = scan(x)
        if form != "two":
            return x, ys
        second = lambda c, w: (c + jnp.tanh(c @ w) * x, None)
        return jax.lax.scan(second, jnp.ones_like(x), params["second"])[0], ys
    if form == "stack":
        return rr.stack(lambda w, x, k: layer(w, x, k), w, x, keys), 0.0
    if form == "reversible":

        def couple(w, pair, key):
            a, b = pair
            a = a + layer(w, b, key)
            return a, b + jnp.sin(a)

        def uncouple(w, pair, key):
            a, b = pair
            b = b - jnp.sin(a)
            return a - layer(w, b, key), b

        a, b = rr.stack(couple, w, (x, x), keys, inverse=uncouple)
        return a * b, 0.0
    mark = (lambda f: rr.block(f, "layer")) if form == "blocks" else (lambda f: f)
    for k in range(1 if form == "whole" else depth):
        x = mark(layer)(at(w, k), x, keys[k])
    return x, 0.0


def make_plan(graph: rr.Graph, rng: np.random.Generator) -> rr.Plan:
    """A plan that gives every unit random actions, layer by layer."""
    actions = {}
    for unit in graph.units:
        if "/" in unit.name or rng.random() < 0.1:
            continue
        few = [random_action(unit, rng) for _ in range(rng.integers(1, 4))]
        picks = rng.integers(0, len(few), unit.num_layers)
        actions[unit.name] = [few[k] for k in picks]
    return graph.plan(actions)


def random_action(unit: Any, rng: np.random.Generator) -> rr.Action:
    """What layers of a unit may do, at random."""
    kinds = [rr.SAVE, rr.RECOMPUTE, rr.RECOMPUTE, rr.OFFLOAD]
    if unit.invertible:
        kinds += [rr.INVERT, rr.INVERT]
    action = kinds[rng.integers(len(kinds))]
    names = [r.name for r in unit.residuals]
    pools = {"save": [], "offload": [], "ahead": []}
    for name in names:
        pool = rng.choice(["save", "offload", "ahead", "", "", ""])
        if pool:
            pools[pool].append(name)
    if not unit.chained or action.kind == "invert" or rng.random() < 0.5:
        pools["ahead"] = []
    return action(pools["save"], pools["offload"], pools["ahead"])
