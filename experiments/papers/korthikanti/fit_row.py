"""One plan of the 22B stack, searched or by hand, in a process that ends with it.

    python -m experiments.papers.korthikanti.fit_row fit 7GiB 1 24 h100:8

Prints one JSON object: the plan, bytes on one device, and what its step is estimated to
take.
"""

import dataclasses
import json
import sys
import time
from typing import Any

import revremat as rr
from experiments.papers.korthikanti.fits import FIT
from experiments.papers.korthikanti.model import SCHEMES, problem, step
from experiments.papers.korthikanti.published import SIZES
from experiments.papers.korthikanti.row import figures


def measure(plan: str, budget: str, dropout: int, num_layers: int, spec: str) -> Any:
    """Search one plan, or compile the one that keeps these names."""
    target = rr.target(spec)
    mesh = target.mesh({"data": 1, "model": target.num_devices})
    names = () if plan in (FIT, "nothing") else tuple(plan.split("+"))
    scheme = dataclasses.replace(SCHEMES["tp+sp"], saved=names)
    start = time.perf_counter()
    stack = step(SIZES["22B"], scheme, num_layers, mesh, has_dropout=bool(dropout))
    if plan == FIT:
        # 24 unrolled layers of this size take minutes to compile, each time.
        how: Any = {"target": target, "unroll": False, "progress": _report}
        done = rr.fit(problem(stack), budget=budget, **how)
        found, compiles, units = done.measurement, done.num_compiles, done.plan.units
        stored = {"plan_json": json.loads(done.plan.to_json()), "fits": done.plan.fits}
        stored["tried"] = [[r.name, r.bytes, round(r.time_us, 1)] for r in done.rows]
    else:
        found, compiles, units = rr.measure(stack, target=target), 1, ()
        stored = {}
    return {
        "plan": plan,
        "budget": budget,
        "dropout": dropout,
        "layers": num_layers,
        "target": spec,
        "actions": [str(unit) for unit in units],
        "compiles": compiles,
        **figures(found),
        "seconds": round(time.perf_counter() - start, 1),
        **stored,
    }


def _report(name: str, number: int, expected: int) -> None:
    print(f"{number}/{expected} {name}", file=sys.stderr, flush=True)


def main() -> None:
    """From the command line to a line of JSON."""
    plan, budget, dropout, num_layers, spec = sys.argv[1:]
    row = measure(plan, budget, int(dropout), int(num_layers), spec)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
