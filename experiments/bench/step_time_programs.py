"""Programs and policies on which the step-time estimator is judged."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.bench import step_time_others
from experiments.configs import gpt, vit_digits
from revremat.policies import candidates


@dataclass(frozen=True)
class Policy:
    """One way to run a program.

    Attributes:
      name: What tables call it.
      step: The step.
      specs: Its arguments; the first is replaced by its first result.
      donate: Which of them may be overwritten.
    """

    name: str
    step: Callable[..., Any]
    specs: tuple[Any, ...]
    donate: tuple[int, ...]


def policies(problem: rr.Problem, number: int = 10) -> list[Policy]:
    """So many policies of a program: presets, sets of names, and splits of the layers.

    All but save all and recompute all have their layers unrolled, as plans mostly do.

    Args:
      problem: A program of layers. Its largest unit decides which policies there are;
        others do the same, or save all where they have no such set of names.
      number: How many; 1 is the baseline.

    Returns:
      No two alike; fewer where there are fewer.
    """
    if number == 1:
        step, specs = problem.make_step()
        return [Policy("baseline", step, specs, problem.donate)]
    graph = rr.trace(problem.loss, *problem.specs)
    unit = max(graph.units, key=lambda u: u.num_layers)
    n = unit.num_layers
    uniform = {c.name: c.action for c in candidates(unit, most=number + 4)}
    chosen = {name: (action,) * n for name, action in uniform.items()}
    extra = [name for name in chosen if name not in ("save all", "recompute all")]
    splits = min(3, max(0, number - 2), n - 1)
    room = max(0, number - 2 - splits)
    order = ["save all", "recompute all", *_spread(extra, unit, uniform, room)]
    chosen = {name: chosen[name] for name in order if name in chosen}
    places = sorted({round((j + 1) * n / (splits + 1)) for j in range(splits)})
    # Full beside the others only where there are few sets of names.
    for other, k in itertools.product(
        (n for n in order if n != "recompute all"), places
    ):
        if len(chosen) < number:
            actions = (uniform[other],) * k + (uniform["recompute all"],) * (n - k)
            chosen[f"{k} x {other}, {n - k} x recompute all"] = actions
    names = {id(action): name for name, action in uniform.items()}
    found = []
    for name, actions in chosen.items():
        plan: dict[str, Any] = {unit.name: actions}
        for other in graph.units:
            if other is not unit and other.num_layers == n:
                its = {c.name: c.action for c in candidates(other, most=number + 4)}
                called = (names[id(action)] for action in actions)
                plan[other.name] = tuple(its.get(c, its["save all"]) for c in called)
        if unit.is_loop and name not in ("save all", "recompute all"):
            name = f"{name} (unrolled)"
            for loop in graph.units:
                if loop.is_loop and loop.name in plan:
                    unrolled = (action(unroll=True) for action in plan[loop.name])
                    plan[loop.name] = tuple(unrolled)
        loss = rr.apply(problem.loss, graph.plan(plan))
        step, specs = problem.make_step(loss)
        found.append(Policy(name, step, specs, problem.donate))
    return found


def _spread(
    names: list[str], unit: Any, actions: dict[str, rr.Action], number: int
) -> list[str]:
    """So many of them, spread evenly over the bytes that they keep."""
    left = {name: unit.kept(actions[name]).device_bytes for name in names}
    if not left or not number:
        return []
    low, high = min(left.values()), max(left.values())
    found = []
    for k in range(min(number, len(left))):
        wanted = high - (high - low) * k / max(1, number - 1)
        found.append(min(left, key=lambda name: (abs(left[name] - wanted), name)))
        del left[found[-1]]
    return found


def make(name: str, target: Any, size: str) -> rr.Problem:
    """One of the programs.

    Args:
      name: One of `NAMES`.
      target: Has `num_devices` and `mesh(axes)`.
      size: `cpu`: 20 to 200 ms on one core; `gpu`: the same on a large card; `tiny`.
    """
    number = ("tiny", "cpu", "gpu").index(size)
    if name in step_time_others.PROGRAMS:
        return step_time_others.PROGRAMS[name](number, _sgd)
    return _PROGRAMS[name](target, number)


def _spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _gpt(target: Any, size: int, **changes: Any) -> rr.Problem:
    small = {"num_layers": 2, "width": 16, "mlp_width": 32, "seq_len": 16}
    cpu = {"num_layers": 4, "batch_size": 4}
    large = {
        "num_layers": 12,
        "width": 1024,
        "mlp_width": 4096,
        "num_heads": 16,
        "seq_len": 1024,
        "batch_size": 8,
        "vocab_size": 32_768,
        "model.dtype": "bfloat16",
    }
    found = gpt.problem(target, **((small, cpu, large)[size] | changes))
    return found if size == 2 else _sgd(found.loss, found.specs)


def _vit(target: Any, size: int, **changes: Any) -> rr.Problem:
    small = {"num_layers": 2, "batch_size": 4}
    cpu = {"num_layers": 4, "batch_size": 64, "width": 96, "mlp_width": 384}
    large = {
        "num_layers": 12,
        "width": 768,
        "mlp_width": 3072,
        "num_heads": 12,
        "image_size": 224,
        "patch_size": 16,
        "batch_size": 128,
        "model.dtype": "bfloat16",
    }
    chosen = {"model.dropout": 0.0} | (small, cpu, large)[size] | changes
    found = vit_digits.problem(target, **chosen)
    return found if size == 2 else _sgd(found.loss, found.specs)


def _sgd(loss: Callable[..., Any], specs: tuple[Any, ...]) -> rr.Problem:
    def make_step(loss):
        def step(params, *batch):
            value, grads = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

        return step, specs

    return rr.Problem(loss, specs, step=make_step, donate=(0,))


def _norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _conv_net(target: Any, size: int) -> rr.Problem:
    """Residual blocks of two 3 x 3 convolutions."""
    features, side, batch, depth = ((4, 8, 2, 2), (24, 16, 16, 4), (256, 56, 64, 8))[
        size
    ]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32

    def convolve(x, kernel):
        dims = ("NHWC", "HWIO", "NHWC")
        kernel = kernel.astype(x.dtype)
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=dims
        )

    def loss(params, images):
        def block(x, kernels):
            with jax.named_scope("block"):
                up = rr.name(convolve(_norm(x), kernels[0]), "up")
                return x + rr.name(convolve(jax.nn.gelu(up), kernels[1]), "down"), None

        out, _ = jax.lax.scan(block, images, params)
        return jnp.mean(out.astype(jnp.float32) ** 2)

    kernel = _spec(depth, 3, 3, features, features)
    images = _spec(batch, side, side, features, dtype=dtype)
    return _sgd(loss, ((kernel, kernel), images))


def _mixer(target: Any, size: int) -> rr.Problem:
    """MLPs over patches and over features in turn (Tolstikhin et al. 2021)."""
    rows, patches, width, depth = (
        (2, 8, 16, 2),
        (8, 64, 256, 4),
        (128, 256, 1024, 12),
    )[size]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32

    def mlp(x, weights, name):
        up, down = (w.astype(x.dtype) for w in weights)
        hidden = rr.name(x @ up, f"{name}_up")
        return rr.name(jax.nn.gelu(hidden) @ down, f"{name}_down")

    def loss(params, x):
        def layer(x, weights):
            over_patches, over_features = weights
            mixed = mlp(_norm(x).swapaxes(1, 2), over_patches, "patches")
            x = x + mixed.swapaxes(1, 2)
            return x + mlp(_norm(x), over_features, "features"), None

        return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32) ** 2)

    def pair(n):
        return _spec(depth, n, 2 * n), _spec(depth, 2 * n, n)

    x = _spec(rows, patches, width, dtype=dtype)
    return _sgd(loss, ((pair(patches), pair(width)), x))


_PROGRAMS: dict[str, Callable[[Any, int], rr.Problem]] = {
    "gpt": _gpt,
    "vit": _vit,
    "conv_net": _conv_net,
    "mixer": _mixer,
    "gpt_gated": partial(_gpt, gated=True, norm="rms", positions="rotary"),
    "gpt_unrolled": partial(_gpt, scan=False, num_layers=4),
    "gpt_float32": partial(_gpt, **{"model.dtype": "float32"}),
    "gpt_one_sequence": partial(_gpt, batch_size=1),
    "gpt_wide": partial(_gpt, width=2048, mlp_width=8192, num_layers=4),
    "gpt_long": partial(_gpt, seq_len=2048, batch_size=4),
    "vit_deep": partial(_vit, num_layers=24, batch_size=64),
    "vit_float32": partial(_vit, **{"model.dtype": "float32"}),
}
ON_GPU = tuple(_PROGRAMS)
ON_CPU = ("gpt", "vit", "mixer", *step_time_others.PROGRAMS)
NAMES = (*ON_GPU, *step_time_others.PROGRAMS)
