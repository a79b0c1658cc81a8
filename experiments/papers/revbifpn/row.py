"""One row of the table, in a process that ends with it.

    python -m experiments.papers.revbifpn.row S0 inverted 16 h100:1

Prints one JSON object.
"""

import json
import sys
import time
from typing import Any

import revremat as rr
from experiments.papers.revbifpn.detectors import detection_step
from experiments.papers.revbifpn.networks import network, training_step
from revremat import xla


def measure(name: str, way: str, batch: int, spec: str) -> dict[str, Any]:
    """Compile one network's step; bytes on one device."""
    if name.endswith("detector"):
        step = detection_step(name, way, batch)
    else:
        step = training_step(network(name, way), batch)
    target = rr.target(spec)
    start = time.perf_counter()
    found = xla.compile_step(step.function, step.specs, target)
    stats = found.stats
    total = stats["argument"] + stats["output"] - stats["alias"] + stats["temp"]
    return {
        "network": name,
        "way": way,
        "batch": batch,
        "target": spec,
        "total_bytes": total,
        "own_bytes": step.own_bytes,
        "seconds": round(time.perf_counter() - start, 1),
        "remarks": found.remarks,
        "versions": found.versions,
    }


def main() -> None:
    """From the command line to a line of JSON."""
    name, way, batch, spec = sys.argv[1:]
    print(json.dumps(measure(name, way, int(batch), spec)), flush=True)


if __name__ == "__main__":
    main()
