"""Where the time of a layer goes, with everything kept and with recompute.

    python -m experiments.papers.korthikanti.kernels

Sums the time model's estimates of all kernels of a 22B layer on eight H100, by phase.
Copies into and out of a loop's stacks are apart: they are what keeping costs there. Of
what is computed again, products and draws of masks are apart as well.
"""

import sys
from collections import defaultdict

import revremat as rr
from experiments.papers.korthikanti.model import SCHEMES, step
from experiments.papers.korthikanti.published import SIZES
from revremat import xla

LAYERS = 12
SHOWN = "tp+sp", "tp+sp+selective", "full, sharded", "tp+sp, cudnn"
COPIES = "dynamic_update_slice", "dynamic_slice"
OF_RECOMPUTE = {"dot_general": ", products", "lt": ", draws of masks"}
"""By the operation that a kernel ends with."""


def of_a_layer(scheme: str, spec: str = "h100:8") -> dict[str, float]:
    """Microseconds of a layer's kernels, whatever runs beside them.

    Args:
      scheme: A name in `SCHEMES`.
      spec: Eight devices.
    """
    target = rr.target(spec)
    mesh = target.mesh({"data": 1, "model": target.num_devices})
    stack = step(SIZES["22B"], SCHEMES[scheme], LAYERS, mesh)
    artifact = xla.compile_step(stack.function, stack.specs, target)
    module = xla.Module.from_bytes(artifact.hlo)
    origins, found = xla.Origins(module), defaultdict(float)
    for one in xla.instruction_times(module, target):
        if one.times < LAYERS - 1:
            continue
        name = one.instruction.metadata.op_name
        label = origins.own(one.instruction).phase
        if one.stream == "collective":
            label += ", collectives"
        elif name.endswith(COPIES):
            label = "copies of what is kept"
        elif label == "recompute":
            label += OF_RECOMPUTE.get(name.rpartition("/")[2], ", other kernels")
        found[label] += one.us * one.times / LAYERS
    found["a step, by the time model"] = xla.estimate(module, target).step_us / LAYERS
    return dict(found)


def main() -> int:
    """A table of all schemes."""
    found = {scheme: of_a_layer(scheme) for scheme in SHOWN}
    labels = sorted({label for one in found.values() for label in one})
    print(f"{'us of a layer':30}" + "".join(f"{scheme:>18}" for scheme in SHOWN))
    for label in labels:
        row = (found[scheme].get(label, 0.0) for scheme in SHOWN)
        print(f"{label:30}" + "".join(f"{us:>18.0f}" for us in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
