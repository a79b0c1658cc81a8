"""Whether a compiled program evaluates the maps of exact mode alike in both passes.

Exact mode undoes `y = x + f(z)` by the value that `f(z)` had in the forward pass. Both
evaluations have to round alike, so they have to be the same kernels with the same
configuration. `python -m experiments.calibrate.isolated` compiles a training step for
`h100:1` and prints, for every map, the kernels of each evaluation.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from revremat.xla import Module, kernel_key

_SCOPE = "isolated"
_WRAPPED = re.compile(r"\w+\(([^()]*)\)")
_LOOKED_INTO = {"while", "call", "conditional"}
_GIVEN = {"parameter", "infeed", "rng", "partition-id", "replica-id"}
_NO_KERNELS = {"parameter", "tuple", "get-tuple-element", "bitcast"}


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a map, as it was compiled.

    Attributes:
      scope: Where it stands in the program.
      undoes: Whether it is made in the backward pass.
      kernels: `(name, key)` of each in order; equal keys are equal kernels.
    """

    scope: str
    undoes: bool
    kernels: tuple[tuple[str, str], ...]

    @property
    def keys(self) -> list[str]:
        """What has to be equal in both passes."""
        return sorted(key for _, key in self.kernels)


def evaluations(module: Module) -> dict[str, list[Evaluation]]:
    """The evaluations of each map of exact mode, by the map's scope.

    Those of the backward pass that are made for a gradient are left out: their values
    undo nothing.

    Args:
      module: A step that computes a loss and its gradient.
    """
    found: dict[tuple[int, str], list[tuple[str, str]]] = defaultdict(list)
    for computation in _that_run(module):
        for i in _not_constant(computation.instructions):
            if i.opcode in _NO_KERNELS | _LOOKED_INTO or i.opcode.endswith("-done"):
                continue
            for scope in sorted(_scopes(i, module)):
                kernel = (i.name, kernel_key(i, module))
                found[computation.id, scope].append(kernel)
    maps: dict[str, list[Evaluation]] = defaultdict(list)
    for (_, scope), kernels in found.items():
        one = Evaluation(scope, _is_backward(scope), tuple(kernels))
        maps[_plain(scope)].append(one)
    return dict(maps)


def differing(maps: Mapping[str, list[Evaluation]]) -> list[str]:
    """The maps that are undone by other kernels than the forward pass ran, or never.

    Args:
      maps: Of `evaluations`.
    """
    found = []
    for name, all_of_it in maps.items():
        forward = [one.keys for one in all_of_it if not one.undoes]
        undoing = [one.keys for one in all_of_it if one.undoes]
        if not undoing or any(keys not in forward for keys in undoing):
            found.append(name)
    return found


def _that_run(module: Module) -> Iterator[Any]:
    """Computations whose instructions are kernels: those not inside of one."""
    waiting, seen = [module.entry], set()
    while waiting:
        computation = waiting.pop()
        if computation.id in seen:
            continue
        seen.add(computation.id)
        yield computation
        for i in computation.instructions:
            if i.opcode in _LOOKED_INTO:
                waiting += module.called(i)


def _not_constant(instructions: Iterable[Any]) -> list[Any]:
    """Those not made of constants alone: that is done once, under one place's name."""
    constant: set[int] = set()
    found = []
    for i in instructions:
        if i.opcode not in _GIVEN and constant.issuperset(i.operand_ids):
            constant.add(i.id)
        else:
            found.append(i)
    return found


def _scopes(i: Any, module: Module) -> set[str]:
    """The evaluations of maps that a kernel belongs to."""
    if not (found := _isolated(_results(i, module))):
        inside = (_not_constant(c.instructions) for c in _called(i, module))
        found = _isolated([one for some in inside for one in some])
    # In the backward pass `jvp(f)/isolated` is evaluated for its gradient.
    return {
        s for s in found if s.rpartition("/")[2].isidentifier() or not _is_backward(s)
    }


def _called(i: Any, module: Module) -> list[Any]:
    return [] if i.opcode in _LOOKED_INTO else module.called(i)


def _results(i: Any, module: Module) -> list[Any]:
    roots = [computation.root for computation in _called(i, module)] or [i]
    return [
        one
        for root in roots
        for one in (module.operands(root) if root.opcode == "tuple" else [root])
    ]


def _isolated(instructions: Iterable[Any]) -> set[str]:
    parts = (i.metadata.op_name.partition(f"/{_SCOPE}/") for i in instructions)
    return {scope for scope, found, _ in parts if found}


def _is_backward(scope: str) -> bool:
    return "transpose(" in scope


def _plain(scope: str) -> str:
    """The scope without what says in which pass it stands."""
    scope = re.sub(r"^jit\(\w+\)/", "", scope)
    while (inner := _WRAPPED.sub(r"\1", scope)) != scope:
        scope = inner
    dropped = ("", "while", "body", "eval_jaxpr", "closed_call", "rematted_computation")
    return "/".join(part for part in scope.split("/") if part not in dropped)


def main() -> int:
    """Prints each map's evaluations; 1 if any two of a map differ."""
    # Here, as a task of a run reads its own programs by this file.
    import jax

    import revremat as rr
    from experiments.calibrate.tasks.exact import DTYPES, Program
    from revremat import xla

    different = []
    for dtype in DTYPES:
        program = Program(dtype, width=512, depth=1000, rows=2048)
        step = jax.value_and_grad(program.loss, (0, 1))
        specs = jax.eval_shape(program.inputs)
        artifact = xla.compile_step(step, specs, rr.target("h100:1"))
        maps = evaluations(Module.from_bytes(artifact.hlo))
        for name, found in maps.items():
            for one in found:
                print(f"{dtype} {name}: {one.scope}")
                for kernel, key in one.kernels:
                    print(f"    {key}  {kernel}")
        different += [f"{dtype} {name}" for name in differing(maps)]
    print(f"not alike: {', '.join(different) or 'none'}")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
