"""What a step moves through memory beside its arithmetic, by class of kernel.

    python -m experiments.bench.moved_bytes

Each program is compiled as a plain `lax.scan` in JAX, and with its layers in loops of
revremat's, both keeping everything. Kernels that write residuals into stacks, fill
stacks with zeros, or only cut slices out do nothing that the program asks for. Prints
the estimated time of each class, and of those three the bytes. Writes
`experiments/results/moved-bytes.json`, a program as it is done.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import revremat as rr
from experiments.bench.programs import PROGRAMS, Size, refusal
from experiments.files import write_whole
from revremat import format_bytes, format_us, xla

RESULT = Path(__file__).parents[1] / "results" / "moved-bytes.json"
CLASSES = (
    "residual writes",
    "zero fills",
    "slice copies",
    "other copies",
    "products",
    "reductions",
    "elementwise",
    "other",
)
OVERHEAD = CLASSES[:3]
"""What a program asks for in no line of its own."""

_MARKS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
_FILLS = {"broadcast", "iota"}
_WRITES = {"dynamic-update-slice"}
_COPIES = {"copy", "convert", "transpose", "reshape", "slice", "dynamic-slice"}
_PRODUCTS = {"dot", "convolution"}


@dataclass(frozen=True)
class Options:
    """What is compiled.

    Attributes:
      programs: Which.
      size: Of each.
      target: Where they would run.
      out: The file of the results.
    """

    programs: tuple[str, ...] = ("gpt2_xl", "vit_l_384")
    size: Size = "real"
    target: str = "h100:1"
    out: Path = RESULT


def main(options: Options) -> int:
    """Compiles all of it."""
    if unknown := refusal(options.programs, PROGRAMS):
        print(unknown)
        return 2
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    target = rr.target(options.target)
    for name in options.programs:
        problem = PROGRAMS[name].make(target, options.size)
        graph = rr.trace(problem)
        save = {unit.name: rr.SAVE for unit in graph.units}
        forms = {
            "lax.scan": problem.loss,
            "revremat": rr.apply(problem.loss, graph.plan(save)),
        }
        found[name] = {
            form: moved(problem, loss, target) for form, loss in forms.items()
        }
        print(table(name, found[name]), flush=True)
        write_whole(options.out, json.dumps(found, indent=1) + "\n")
    return 0


def moved(problem: rr.Problem, loss: Any, target: rr.Target) -> dict[str, Any]:
    """Microseconds of each class in one step, and the bytes of the overhead."""
    step, specs = problem.make_step(loss)
    artifact = xla.compile_step(step, tuple(specs), target, donate=problem.donate)
    module = xla.Module.from_bytes(artifact.hlo)
    found = {name: {"us": 0.0} for name in CLASSES}
    found |= {name: {"us": 0.0, "bytes": 0} for name in OVERHEAD}
    for one in xla.instruction_times(module, target):
        if one.stream == "compute":
            kernel = _apart(one.instruction, module)
            of = found[class_of(kernel, module)]
            of["us"] += one.times * one.us
            if "bytes" in of:
                of["bytes"] += one.times * xla.cost_of(kernel, module).bytes
    return found


def _apart(i: Any, module: xla.Module) -> Any:
    """The kernel itself, of one that other kernels may run beside."""
    if i.opcode != "async-start":
        return i
    (computation,) = module.called(i)
    return computation.root


def class_of(i: Any, module: xla.Module) -> str:
    """The class of a kernel, by what it is made of."""
    inside = [x for x in _inside(i, module) if x.opcode not in _MARKS]
    kinds = {x.opcode for x in inside if not _is_index(x)}
    if kinds & _PRODUCTS or (
        i.opcode == "custom-call" and "gemm" in i.custom_call_target
    ):
        return "products"
    if "dynamic-update-slice" in kinds and kinds <= {*_WRITES, *_COPIES, *_FILLS}:
        return "residual writes"
    if kinds <= _FILLS:
        return "zero fills"
    if kinds <= _COPIES | _FILLS:
        is_slice = kinds & {"slice", "dynamic-slice"}
        return "slice copies" if is_slice else "other copies"
    if kinds & {"reduce", "reduce-window"}:
        return "reductions"
    return "other" if i.opcode == "custom-call" else "elementwise"


def _inside(i: Any, module: xla.Module) -> Iterator[Any]:
    """What a kernel is made of."""
    if i.opcode != "fusion":
        yield i
        return
    for computation in module.called(i):
        for inner in computation.instructions:
            yield from _inside(inner, module)


def _is_index(i: Any) -> bool:
    """Whether it makes one number, where a slice begins for one."""
    return i.opcode != "reduce" and not i.shape.dimensions and not i.shape.tuple_shapes


def _cell(of: dict[str, float]) -> str:
    us = format_us(of["us"])
    return f"{format_bytes(int(of['bytes']))}, {us}" if "bytes" in of else us


def table(name: str, forms: dict[str, Any]) -> str:
    """One program: bytes and time of each class, side by side."""
    lines = [f"{name:<16}" + "".join(f"{form:>24}" for form in forms)]
    for kind in CLASSES:
        cells = (_cell(one[kind]) for one in forms.values())
        lines.append(f"{kind:<16}" + "".join(f"{cell:>24}" for cell in cells))
    sums = [sum(one[kind]["bytes"] for kind in OVERHEAD) for one in forms.values()]
    lines.append(
        f"writes, fills and slices: {format_bytes(int(sums[1]))} of "
        f"{format_bytes(int(sums[0]))}, {sums[1] / max(1, sums[0]):.0%}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
