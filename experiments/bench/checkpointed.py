"""Programs whose author wrote `jax.checkpoint` against the same programs without it.

    python -m experiments.bench.checkpointed
    python -m experiments.bench.checkpointed --only "around a scan" --only "in time"

Of every program and both ways to write it: the fastest plan within budgets, which are
shares of what the program without checkpoints takes. Writes
`experiments/results/checkpointed.json`, in which other programs stay; 1 if a program is
more than a percent slower because of its author's checkpoints, or larger where nothing
fits.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import revremat as rr
from experiments.bench.columns import columns
from experiments.records import write_whole
from revremat import format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "checkpointed.json"
MOST_WORSE = 0.01
LAYERS, WIDTH, ROWS = 8, 256, 8192

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Options:
    """Which programs, and budgets as shares of what they take without a plan."""

    only: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    shares: tuple[float, ...] = (0.6, 0.3)
    target: str = "h100:1"
    out: Path = RESULT


def main(options: Options) -> int:
    """Runs all of it and prints a table."""
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = known.get("programs", {})
    for name in options.only or PROGRAMS:
        rows[name] = compared(PROGRAMS[name], options)
        print(f"{name}: {told(rows[name])}", flush=True)
        about = {"target": options.target, "shares": options.shares}
        text = json.dumps(about | {"programs": rows}, indent=1)
        write_whole(options.out, text + "\n")
    worse = [name for name, row in rows.items() if worst(row) > 1 + MOST_WORSE]
    print(f"worse with checkpoints: {', '.join(worse) or 'none'}")
    return 1 if worse else 0


def compared(make: Callable[[Wrap], rr.Problem], options: Options) -> list[Any]:
    """Both ways to write a program, at every budget."""
    problems = {"bare": make(plainly), "checkpointed": make(jax.checkpoint)}
    plain = rr.measure(problems["bare"], target=options.target)
    found = []
    for share in options.shares:
        budget = int(share * plain.memory.total_bytes)
        row: dict[str, Any] = {"budget_bytes": budget}
        for name, problem in problems.items():
            one = rr.fit(
                problem,
                budget=budget,
                target=options.target,
                effort="exhaustive",
            )
            row[name] = {
                "fits": one.plan.fits,
                "bytes": one.plan.compiled_bytes,
                "step_us": one.measurement.time.step_us,
                "compiles": len(one.rows),
                "plan": [str(unit) for unit in one.plan.units],
            }
        found.append(row)
    return found


def worst(rows: list[dict[str, Any]]) -> float:
    """The largest ratio by which checkpoints change time, or bytes if nothing fits."""
    return max(map(ratio, rows))


def ratio(row: dict[str, Any]) -> float:
    """Of time if both fit, of bytes if neither does."""
    one, bare = row["checkpointed"], row["bare"]
    if bare["fits"] != one["fits"]:
        return float("inf") if bare["fits"] else 0.0
    key = "step_us" if bare["fits"] else "bytes"
    return one[key] / bare[key]


def told(rows: list[dict[str, Any]]) -> str:
    """One line on a program."""
    parts = []
    for row in rows:
        both = [
            f"{name} {format_us(row[name]['step_us'])} in "
            f"{format_bytes(row[name]['bytes'])}"
            f"{'' if row[name]['fits'] else ' (does not fit)'}"
            for name in ("bare", "checkpointed")
        ]
        budget = format_bytes(row["budget_bytes"])
        parts.append(f"within {budget} {', '.join(both)}: {ratio(row):.3f}")
    return "; ".join(parts)


def read(file: Path = RESULT) -> dict[str, Any]:
    """What was found so far."""
    return json.loads(file.read_text())


def table(known: dict[str, Any]) -> str:
    """Both ways to write each program, at every budget."""
    lines = [("checkpoints", "budget", "without them", "with them", "ratio")]
    for name, rows in known["programs"].items():
        for row in rows:
            both = (_cell(row["bare"]), _cell(row["checkpointed"]))
            budget = format_bytes(row["budget_bytes"])
            lines.append((name, budget, *both, f"{ratio(row):.3f}"))
    return columns(lines)


def _cell(one: dict[str, Any]) -> str:
    note = "" if one["fits"] else ", does not fit"
    return f"{format_bytes(one['bytes'])}, {format_us(one['step_us'])}{note}"


def plainly(f: Callable[..., Any]) -> Callable[..., Any]:
    """No checkpoint."""
    return f


# Programs -----------------------------------------------------------------------------


def layer(w: Any, x: Any) -> Any:
    """One residual layer."""
    return x + jnp.tanh(jnp.sin(x @ w["up"])) @ w["down"]


def _at(w: Any, k: int) -> Any:
    return jax.tree.map(lambda a: a[k], w)


def _scanned(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]


def _in_turn(*layers: Callable[..., Any]) -> Callable[..., Any]:
    def run(w: Any, x: Any) -> Any:
        for k in range(LAYERS):
            x = layers[k % len(layers)](_at(w, k), x)
        return x

    return run


def _repeated(run: Callable[..., Any]) -> Callable[..., Any]:
    def loop(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (run(w, x), None), x, None, length=4)[0]

    return loop


def _with_loop(w: Any, x: Any) -> Any:
    more = lambda x, _: (x + jnp.sin(jnp.sin(x)), None)
    return jax.lax.scan(more, layer(w, x), None, length=4)[0]


def _half(wrap: Wrap) -> Callable[..., Any]:
    inner = wrap(lambda w, x: jnp.tanh(jnp.sin(x @ w)))
    return lambda w, x: x + inner(w["up"], x) @ w["down"]


def _problem(run: Callable[..., Any]) -> rr.Problem:
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    up, down = array(LAYERS, WIDTH, 4 * WIDTH), array(LAYERS, 4 * WIDTH, WIDTH)
    loss = lambda w, x: jnp.square(run(w, x)).mean()
    return rr.Problem(loss, ({"up": up, "down": down}, array(ROWS, WIDTH)))


def _in_time(wrap: Wrap, *lengths: int) -> rr.Problem:
    def nested(step: Any, lengths: tuple[int, ...], x: Any) -> Any:
        if len(lengths) == 1:
            return jax.lax.scan(step, x, None, length=lengths[0])[0]
        body = wrap(lambda x, _: (nested(step, lengths[1:], x), None))
        return jax.lax.scan(body, x, None, length=lengths[0])[0]

    def run(w: Any, x: Any) -> Any:
        step = lambda x, _: (x + jnp.tanh(jnp.sin(x @ w["up"][0, :, :WIDTH]) * x), None)
        return nested(step, lengths, x)

    return _problem(run)


def _two_at_a_time(wrap: Wrap) -> rr.Problem:
    pair = wrap(lambda w, v, x: layer(v, layer(w, x)))

    def run(w: Any, x: Any) -> Any:
        for k in range(0, LAYERS, 2):
            x = pair(_at(w, k), _at(w, k + 1), x)
        return x

    return _problem(run)


PROGRAMS: dict[str, Callable[[Wrap], rr.Problem]] = {
    "in time, two levels": lambda wrap: _in_time(wrap, 16, 16),
    "in time, three levels": lambda wrap: _in_time(wrap, 8, 4, 4),
    "around a scan": lambda wrap: _problem(wrap(_scanned)),
    "around a scan in a loop": lambda wrap: _problem(_repeated(wrap(_scanned))),
    "around each": lambda wrap: _problem(_in_turn(wrap(layer))),
    "around all and each": lambda wrap: _problem(wrap(_in_turn(wrap(layer)))),
    "around every second": lambda wrap: _problem(_in_turn(layer, wrap(layer))),
    "around two at a time": _two_at_a_time,
    "around half of each": lambda wrap: _problem(_in_turn(_half(wrap))),
    "around layers with loops": lambda wrap: _problem(_in_turn(wrap(_with_loop))),
}


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
