"""RevBiFPN on one H100 by its compiler: bytes a sample, inverted and stored.

    python -m experiments.bench.reversible --variants S0 S1 --batch 16

Compiles the gradient of the cross-entropy; nothing is allocated. Convolution workspaces
are not in the figures, they are in the target's reserve. Parameters, statistics and
their gradients are not in the bytes of a sample.

Expected for S0 at batch 16: 65.5 MiB a sample stored, 5.6 inverted.

Writes results/reversible.json and results/reversible.txt.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import tyro
from flax import nnx

import revremat as rr
from experiments.records import write_whole
from revremat.reversible import REVBIFPN, RevBiFPN, RevBiFPNConfig

RESULTS = Path(__file__).parents[1] / "results"
TWINS = ("stored", "inverted", "inverted, head recomputed")


@dataclass(frozen=True)
class Bench:
    """What to compile.

    Attributes:
      variants: Of the seven.
      batch: Images a step.
      target: Whose compiler is asked.
      out: Folder for the results.
    """

    variants: tuple[str, ...] = ("S0",)
    batch: int = 16
    target: str = "h100:1"
    out: Path = RESULTS


def gradient(config: RevBiFPNConfig, batch: int, *, reversible: bool):
    """The gradient step of one twin, and what it takes, in the abstract."""
    make = lambda: RevBiFPN(config, rngs=nnx.Rngs(0), reversible=reversible)
    graph, params, state = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    size = config.image_size
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def loss(params: Any, state: Any, images: jax.Array, labels: jax.Array):
        model = nnx.merge(graph, params, state, copy=True)
        model.train()
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(
            model(images), labels
        )
        return losses.mean(), nnx.split(model, nnx.Param, ...)[2]

    step = jax.grad(loss, has_aux=True)
    return step, (params, state, images, labels)


def measure(variant: str, twin: str, batch: int, target: str) -> dict[str, Any]:
    """One row: total bytes, and bytes a sample without parameters and gradients."""
    config = replace(REVBIFPN[variant], recompute_head="head" in twin)
    step, specs = gradient(config, batch, reversible=twin != "stored")
    start = time.perf_counter()
    memory = rr.measure(step, *specs, target=target).memory
    size = lambda tree: sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))
    own = 2 * (size(specs[0]) + size(specs[1]))
    return {
        "variant": variant,
        "twin": twin,
        "batch": batch,
        "target": target,
        "total_bytes": memory.total_bytes,
        "sample_bytes": (memory.total_bytes - own) // batch,
        "compile_seconds": round(time.perf_counter() - start, 1),
    }


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """One for each variant and twin."""
    for variant in bench.variants:
        for twin in TWINS:
            yield measure(variant, twin, bench.batch, bench.target)


def table(found: list[dict[str, Any]]) -> str:
    """The rows for people: MiB a sample."""
    lines = [
        f"{'variant':8}{'twin':28}{'batch':>6}{'MiB a sample':>14}{'total GiB':>11}"
    ]
    lines += [
        f"{row['variant']:8}{row['twin']:28}{row['batch']:6}"
        f"{row['sample_bytes'] / 2**20:14.1f}{row['total_bytes'] / 2**30:11.2f}"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compile, print, write."""
    bench = tyro.cli(Bench)
    found = []
    for row in rows(bench):
        found.append(row)
        print(table([row]).splitlines()[1], f"{row['compile_seconds']} s", flush=True)
    write_whole(bench.out / "reversible.json", json.dumps(found, indent=1) + "\n")
    write_whole(bench.out / "reversible.txt", table(found))


if __name__ == "__main__":
    main()
