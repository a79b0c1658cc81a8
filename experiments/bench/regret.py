"""How far a searched plan is from the best of all there are, where all can be compiled.

    python -m experiments.bench.regret

Units with eight names have 256 sets of values to keep. Every one is compiled, the same
for all layers, and at six budgets the searched plan is held against the fastest that
fits. Those are iterations of a loop, so that plan may not unroll layers; what the
search gains when it may is printed beside it. Writes `experiments/results/regret.json`.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import revremat as rr
from experiments.bench.searching import Searching
from experiments.files import write_whole
from revremat import format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "regret.json"
LAYERS, WIDTH, ROWS, HEADS, LENGTH = 6, 256, 4096, 4, 256


@dataclass(frozen=True)
class Options:
    """Where, and how many budgets."""

    target: str = "h100:1"
    budgets: int = 6
    out: Path = RESULT


def attention(w: Any, x: Any) -> Any:
    """Attention and a gated MLP: four products with weights, two without."""
    heads = lambda a: a.reshape(-1, LENGTH, HEADS, WIDTH // HEADS)
    q, k, v = (rr.name(x @ w[n], n) for n in ("q", "k", "v"))
    scores = jnp.einsum("bthd,bshd->bhts", heads(q), heads(k)) / 8.0
    scores = rr.name(jax.nn.softmax(scores), "scores")
    ctx = rr.name(jnp.einsum("bhts,bshd->bthd", scores, heads(v)).reshape(x.shape), "c")
    x = x + rr.name(ctx @ w["out"], "out")
    gate, up = rr.name(x @ w["gate"], "gate"), rr.name(x @ w["up"], "up")
    return x + (jax.nn.silu(gate) * up) @ w["down"]


def chain(w: Any, x: Any) -> Any:
    """Products of very different widths, one after the other."""
    h = x
    for name in CHAIN:
        h = jnp.tanh(rr.name(h @ w[name], name))
    return x + h @ w["back"]


def normed(w: Any, x: Any) -> Any:
    """Norms and activations, cheap to recompute, between products."""
    h = x
    for k in range(4):
        centred = h - h.mean(-1, keepdims=True)
        h = rr.name(
            centred * jax.lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6), f"n{k}"
        )
        h = jax.nn.gelu(rr.name(h @ w[f"w{k}"], f"u{k}"))
    return x + h


CHAIN = {
    f"c{k}": width for k, width in enumerate((64, 512, 128, 768, 64, 384, 96, 512))
}
SQUARE = (WIDTH, WIDTH)


def units() -> dict[
    str, tuple[Callable[..., Any], dict[str, tuple[int, int]], list[str]]
]:
    """From name to layer, shapes of its weights, and the eight names."""
    sides = [WIDTH, *CHAIN.values()]
    chained = dict(zip(CHAIN, itertools.pairwise(sides), strict=True))
    return {
        "attention": (
            attention,
            dict.fromkeys(("q", "k", "v", "out"), SQUARE)
            | dict.fromkeys(("gate", "up"), (WIDTH, 4 * WIDTH))
            | {"down": (4 * WIDTH, WIDTH)},
            ["q", "k", "v", "scores", "c", "out", "gate", "up"],
        ),
        "chain": (chain, {**chained, "back": (sides[-1], WIDTH)}, list(CHAIN)),
        "normed": (
            normed,
            {f"w{k}": SQUARE for k in range(4)},
            [f"{a}{k}" for k in range(4) for a in "nu"],
        ),
    }


def main(options: Options) -> int:
    """Compiles everything and prints the regret at each budget."""
    target, results = rr.target(options.target), []
    for name, (layer, shapes, names) in units().items():
        f32 = jnp.float32
        w = {k: jax.ShapeDtypeStruct((LAYERS, *s), f32) for k, s in shapes.items()}
        x = jax.ShapeDtypeStruct((ROWS, WIDTH), f32)
        loss = lambda w, x, layer=layer: (rr.stack(layer, w, x) ** 2).mean()
        problem = rr.Problem(loss, (w, x))
        graph = rr.trace(loss, w, x)
        subsets = [
            list(chosen)
            for size in range(len(names) + 1)
            for chosen in itertools.combinations(names, size)
        ]

        def steps(subsets=subsets, problem=problem, graph=graph):
            for chosen in subsets:
                plan = graph.plan({"stack": rr.RECOMPUTE(save=chosen)})
                step, specs = problem.make_step(rr.apply(problem.loss, plan))
                yield rr.Step(step, tuple(specs), problem.donate)

        found = [
            (m.memory.total_bytes, m.time.step_us, chosen)
            for m, chosen in zip(
                rr.measure_each(steps(), target=target), subsets, strict=True
            )
        ]
        sizes = [size for size, _, _ in found]
        search = Searching(problem, target, unroll=False)
        free = Searching(problem, target)
        for budget in np.geomspace(max(sizes), 1.02 * min(sizes), options.budgets):
            budget = int(budget)
            best = min((t, s, c) for s, t, c in found if s <= budget)
            one = search.fit(budget)
            unrolled = free.fit(budget).measurement.time.step_us
            regret = one.measurement.time.step_us / best[0] - 1
            results.append(
                {
                    "unit": name,
                    "budget_bytes": budget,
                    "best": best[2],
                    "best_us": best[0],
                    "best_bytes": best[1],
                    "plan": [str(unit) for unit in one.plan.units],
                    "step_us": one.measurement.time.step_us,
                    "unrolled_us": unrolled,
                    "bytes": one.plan.compiled_bytes,
                    "fits": one.plan.fits,
                    "regret": regret,
                }
            )
            print(
                f"{name}, {format_bytes(budget)}: {'+'.join(best[2]) or 'nothing'} "
                f"{format_us(best[0])}; searched {format_us(results[-1]['step_us'])}, "
                f"{100 * regret:+.2f} %; layers unrolled {format_us(unrolled)}",
                flush=True,
            )
    worst = max(r["regret"] for r in results)
    fits = all(r["fits"] for r in results)
    print(f"worst: {100 * worst:+.2f} %")
    versions = one.measurement.versions
    result = {"target": options.target, "versions": versions, "results": results}
    write_whole(options.out, json.dumps(result, indent=1) + "\n")
    return 0 if worst <= 0.01 and fits else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
