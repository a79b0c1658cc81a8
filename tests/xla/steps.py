"""Small steps, each with something else for a liveness analysis to get wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import revremat as rr
from revremat import Target, reversible

WIDTH, ROWS, DEPTH = 128, 512, 6


def spec(*shape: int, dtype: Any = "float32", sharding: Any = None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


W, X = spec(WIDTH, WIDTH), spec(ROWS, WIDTH)
STACK = spec(DEPTH, WIDTH, WIDTH)


@dataclass(frozen=True)
class Step:
    """A step, its arguments, and which of them it may overwrite."""

    function: Callable[..., Any]
    specs: tuple[Any, ...]
    donate: tuple[int, ...] = ()


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w)), None


def scan(target: Target) -> Step:
    return Step(
        jax.grad(lambda w, x: jnp.sum(jax.lax.scan(layer, x, w)[0])), (STACK, X)
    )


def scan_remat(target: Target) -> Step:
    body = jax.checkpoint(layer)
    return Step(jax.grad(lambda w, x: jnp.sum(jax.lax.scan(body, x, w)[0])), (STACK, X))


def nested_scan(target: Target) -> Step:
    def outer(x, w):
        return jax.lax.scan(lambda x, _: layer(x, w), x, None, length=3)

    def loss(w, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(outer), x, w)[0])

    return Step(jax.grad(loss), (STACK, X))


def while_loop(target: Target) -> Step:
    """The number of trips depends on the data."""

    def step(w, x):
        def more(state):
            x, steps = state
            return (jnp.sum(x**2) > 1.0) & (steps < 100)

        def once(state):
            x, steps = state
            return jnp.tanh(x @ w) @ w.T, steps + 1

        return jax.lax.while_loop(more, once, (x, 0))

    return Step(step, (W, X))


def conditional(target: Target) -> Step:
    def loss(w, x):
        def long(x):
            return jnp.sort(jnp.tanh(x @ w) @ w, axis=0)

        return jnp.sum(jax.lax.cond(x[0, 0] > 0, long, lambda x: x @ w, x))

    return Step(jax.value_and_grad(loss), (W, X))


def switch_in_scan(target: Target) -> Step:
    def loss(w, x, which):
        def body(x, now):
            w, index = now
            branches = (lambda x: layer(x, w)[0], lambda x: x, lambda x: (x @ w) @ w)
            return jax.lax.switch(index, branches, x), None

        return jnp.sum(jax.lax.scan(body, x, (w, which))[0])

    return Step(jax.grad(loss), (STACK, X, spec(DEPTH, dtype="int32")))


def offload(target: Target) -> Step:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def body(x, w):
        h = jax.ad_checkpoint.checkpoint_name(jnp.tanh(x @ w), "h")
        return jnp.sin(h) @ w, None

    def loss(w, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(body, policy=policy), x, w)[0])

    return Step(jax.grad(loss), (STACK, X))


def donation(target: Target) -> Step:
    """Parameters and two moments are overwritten, the batch is not."""

    def step(state, x):
        w, m, v = state
        g = jax.grad(lambda w: jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2))(w)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        return (w - m / (1e-6 + jnp.sqrt(v)), m, v), jnp.sum(x)

    return Step(step, ((STACK, STACK, STACK), X), (0,))


def reversible_chain(target: Target) -> Step:
    def dense(w, x):
        return jnp.tanh(x @ w)

    coupling = reversible.additive(dense, dense)
    half = spec(WIDTH // 2, WIDTH // 2)
    params = [{"f": half, "g": half}] * DEPTH

    def loss(params, x):
        halves = tuple(jnp.split(x, 2, axis=-1))
        y = reversible.chain([coupling] * DEPTH, params, halves)
        return sum(jnp.sum(stream**2) for stream in y)

    return Step(jax.grad(loss), (params, X))


def accumulation(target: Target) -> Step:
    def step(w, batches):
        def add(total, x):
            grads = jax.grad(lambda w: jnp.sum(jax.lax.scan(layer, x, w)[0]))(w)
            return total + grads, None

        return w - jax.lax.scan(add, jnp.zeros_like(w), batches)[0]

    return Step(step, (STACK, spec(4, ROWS, WIDTH)), (0,))


def unrolled(target: Target) -> Step:
    def loss(weights, x):
        for w in weights:
            x = jax.checkpoint(layer)(x, w)[0]
        return jnp.sum(x)

    return Step(jax.grad(loss), ((W,) * DEPTH, X))


def stacked(target: Target) -> Step:
    def loss(w, x):
        return jnp.sum(rr.stack(lambda w, x: layer(x, w)[0], w, x) ** 2)

    return Step(jax.value_and_grad(loss), (STACK, X), ())


def mixed_types(target: Target) -> Step:
    """Narrow, odd and empty arrays: padding, and values without bytes."""

    def step(a, b, c, empty):
        total = jnp.cumsum(a.astype("int32") * 3, axis=0)
        wide = jnp.sort(b.astype("float32") @ b.astype("float32").T, axis=1)
        return total.astype("int8"), wide.astype("bfloat16"), ~c, empty, jnp.sum(c)

    specs = (
        spec(77, 3, dtype="int8"),
        spec(129, 65, dtype="bfloat16"),
        spec(1001, dtype="bool"),
        spec(0, 4),
    )
    return Step(step, specs)


def called(target: Target) -> Step:
    """Functions that stay functions, a loop inside, and the same one twice."""

    @jax.jit
    def inner(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, x: layer(x, w)[0], x)

    @jax.custom_jvp
    def twice(x):
        return jnp.sort(x, axis=0) * 2

    twice.defjvp(lambda x, t: (twice(x[0]), t[0] * 2))

    def step(w, x):
        a = inner(x, w)
        b = inner(jnp.flip(x), w)
        return jax.grad(lambda x: jnp.sum(twice(x) * b))(a), jnp.argsort(b, axis=0)

    return Step(step, (W, X))


def sharded(target: Target) -> Step:
    """Split over all devices: gathered weights, scattered gradients."""
    many = target.num_devices > 1
    mesh = target.mesh({"data": target.num_devices}) if many else None

    def place(*axes: str | None) -> NamedSharding | None:
        return NamedSharding(mesh, PartitionSpec(*axes)) if mesh is not None else None

    w = spec(DEPTH, WIDTH, WIDTH, sharding=place(None, "data"))
    x = spec(ROWS, WIDTH, sharding=place("data"))

    def step(w, x):
        g = jax.grad(lambda w: jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2))(w)
        return w - g

    return Step(step, (w, x), (0,))


STEPS: dict[str, Callable[[Target], Step]] = {
    f.__name__: f
    for f in (
        scan,
        scan_remat,
        nested_scan,
        while_loop,
        conditional,
        switch_in_scan,
        offload,
        donation,
        reversible_chain,
        accumulation,
        unrolled,
        stacked,
        mixed_types,
        called,
        sharded,
    )
}
