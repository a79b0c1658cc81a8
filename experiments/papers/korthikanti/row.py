"""One compile, in a process that ends with it.

    python -m experiments.papers.korthikanti.row 22B tp+sp 12 4 h100:8

Prints one JSON object: of a stack of so many layers with that batch, bytes on one
device and what its step is estimated to take.
"""

import json
import sys
import time
from dataclasses import replace
from typing import Any

import revremat as rr
from experiments.papers.korthikanti import flax_models
from experiments.papers.korthikanti.model import SCHEMES, step
from experiments.papers.korthikanti.published import size_of


def measure(name: str, scheme: str, num_layers: int, batch: int, spec: str) -> Any:
    """Compile one stack's gradient."""
    target = rr.target(spec)
    size = replace(size_of(name), micro_batch=batch)
    mesh = target.mesh({"data": 1, "model": target.num_devices})
    start = time.perf_counter()
    if scheme in flax_models.MODELS:
        made = SCHEMES[flax_models.SCHEME], num_layers, mesh
        stack = flax_models.step(scheme, size, *made)
    else:
        stack = step(size, SCHEMES[scheme], num_layers, mesh)
    found = rr.measure(stack, target=target)
    return {
        "size": name,
        "scheme": scheme,
        "layers": num_layers,
        "batch": batch,
        "target": spec,
        "temp_bytes": found.memory.temp_bytes,
        **figures(found),
        "seconds": round(time.perf_counter() - start, 1),
    }


def figures(found: rr.Measurement) -> dict[str, Any]:
    """Bytes and times of a step, as rows store them."""
    took = found.time
    return {
        "total_bytes": found.memory.total_bytes,
        "step_us": round(took.step_us, 1),
        "recompute_us": round(took.recompute_us, 1),
        "hidden_recompute_us": round(took.hidden_recompute_us, 1),
        "collective_us": round(took.collective_us, 1),
        "exposed_collective_us": round(took.exposed_collective_us, 1),
        "versions": found.versions,
    }


def main() -> None:
    """From the command line to a line of JSON."""
    name, scheme, num_layers, batch, spec = sys.argv[1:]
    print(json.dumps(measure(name, scheme, int(num_layers), int(batch), spec)))


if __name__ == "__main__":
    main()
