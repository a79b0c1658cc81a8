"""Gradients of random programs under random plans, against plain autodiff in float64.

    python -m experiments.bench.gradients --count 2000

Expected: 0 wrong; the largest relative error is far below 1e-10. Programs are evaluated
operation by operation, so what is compared is the arithmetic that plans ask for and not
what a compiler makes of it; that is measured elsewhere.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

import revremat as rr
from experiments.bench.random_programs import FORMS, make_plan, make_program
from experiments.files import write_whole

# Private: equations are evaluated one by one, and what JAX's versions call their parts
# is written down in one place.
from revremat import _compat

TOLERANCE = 1e-10


@dataclass(frozen=True)
class Check:
    """One plan for one program.

    Attributes:
      seed: Of the program.
      form: How its layers are put together.
      plan: What was decided, as text.
      error: Largest relative error of a gradient, against plain autodiff.
    """

    seed: int
    form: str
    plan: str
    error: float


def evaluate(f: Any, *args: Any) -> list[np.ndarray]:
    """A function's results, one operation after the other, loops unrolled."""
    closed = jax.make_jaxpr(f)(*args)
    return [np.asarray(x) for x in _evaluate(closed, jax.tree.leaves(args))]


def _evaluate(closed: Any, args: list[Any]) -> list[Any]:
    env = dict(zip(closed.jaxpr.invars, args, strict=True))
    env.update(_compat.constants_of(closed))
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]
    for eqn in closed.jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        name, params = eqn.primitive.name, eqn.params
        if name in ("jit", "pjit", "closed_call"):
            outs = _evaluate(params["jaxpr"], values)
        elif name == "scan":
            outs = _scan(eqn, values)
        elif name == "cond":
            outs = _evaluate(params["branches"][int(values[0])], values[1:])
        elif name in ("device_put", "move_to_memory", "optimization_barrier"):
            outs = values
        else:
            outs = _compat.bind(eqn, values, _compat.Scope().within(eqn))
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _scan(eqn: Any, values: list[Any]) -> list[Any]:
    num_consts, num_carry = _compat.scan_counts(eqn)
    consts, carry = values[:num_consts], values[num_consts : num_consts + num_carry]
    xs, length = values[num_consts + num_carry :], eqn.params["length"]
    rows: list[list[Any]] = []
    iterations = range(length)
    for t in reversed(iterations) if eqn.params["reverse"] else iterations:
        outs = _evaluate(eqn.params["jaxpr"], [*consts, *carry, *(x[t] for x in xs)])
        carry = outs[:num_carry]
        rows.append(outs[num_carry:])
    if eqn.params["reverse"]:
        rows.reverse()
    return [*carry, *(jnp.stack(column) for column in zip(*rows, strict=True))]


def check(
    seed: int,
    plans: int,
    make: Callable[[int], Any] = make_program,
    choose: Callable[[rr.Graph, np.random.Generator], rr.Plan] = make_plan,
) -> Iterator[Check]:
    """Compare gradients of one program under some plans; float64 must be on.

    Args:
      seed: Of the program.
      plans: How many.
      make: Makes the program.
      choose: Makes a plan for it.
    """
    loss, params, batch = make(seed)
    rng = np.random.default_rng(seed)
    graph = rr.trace(loss, params, batch)
    expected = evaluate(jax.value_and_grad(loss), params, batch)
    for _ in range(plans):
        plan = choose(graph, rng)
        found = evaluate(jax.value_and_grad(rr.apply(loss, plan)), params, batch)
        error = max(map(relative_error, found, expected))
        yield Check(seed, FORMS[seed % len(FORMS)], str(plan), error)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected magnitude; 0 where both are 0."""
    difference = np.max(np.abs(found - expected), initial=0.0)
    scale = np.max(np.abs(expected), initial=0.0)
    if not np.isfinite(difference):
        return float("inf")
    return float(difference / scale) if scale else float(difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="pairs to check")
    parser.add_argument("--plans", type=int, default=10, help="plans for each program")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    args = parser.parse_args()
    started, checks = time.monotonic(), []
    with jax.enable_x64(True):
        for seed in range(args.start, args.start + -(-args.count // args.plans)):
            checks += check(seed, args.plans)
            if seed % 10 == 9:
                worst = max(c.error for c in checks)
                print(f"{len(checks)} of {args.count}, worst {worst:.1e}", flush=True)
    checks = checks[: args.count]
    wrong = [asdict(c) for c in checks if not c.error <= TOLERANCE]
    result = {
        "command": "python -m experiments.bench.gradients "
        f"--count {args.count} --plans {args.plans}",
        "jax": jax.__version__,
        "checks": len(checks),
        "programs": len({c.seed for c in checks}),
        "tolerance": TOLERANCE,
        "worst_error": max(c.error for c in checks),
        "wrong": wrong,
        "worst_by_form": {
            form: max((c.error for c in checks if c.form == form), default=None)
            for form in FORMS
        },
        "seconds": round(time.monotonic() - started, 1),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = write_whole(args.out / "gradients.json", json.dumps(result, indent=1) + "\n")
    worst = result["worst_error"]
    print(f"{len(wrong)} wrong of {len(checks)}, worst {worst:.1e}: {path}")


if __name__ == "__main__":
    main()
