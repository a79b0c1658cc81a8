"""Origin: which line of the user's program a buffer's value comes from."""

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from revremat._primitives import ITERATIONS
from revremat._sources import begins_program, is_users
from revremat.xla.hlo._hlo import Module
from revremat.xla.hlo._opcodes import FILLS, PASSES_ON, SLICES


@dataclass(frozen=True)
class Origin:
    """What made a value.

    Attributes:
      op_name: JAX's path of the operation: transforms, scopes, primitive.
      op: The primitive (`dot_general`).
      phase: `forward`, `recompute`, `backward`, `update` or `argument`.
      scope: Module path from named scopes, or else the function's name.
      source: `file:line` of the user's code.
      fills: The value only fills memory (zeros of an accumulator, say).
    """

    op_name: str = ""
    op: str = ""
    phase: str = ""
    scope: str = ""
    source: str = ""
    fills: bool = False


class Origins:
    """Finds origins in one module.

    Args:
      module: The scheduled program.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> type(xla.Origins(module)).__name__
      'Origins'
    """

    def __init__(self, module: Module):
        self.module = module
        self._found: dict[tuple[int, tuple[int, ...]], Origin] = {}
        self._update = _after_backward(module)

    def of(self, instruction: Any, index: tuple[int, ...] = ()) -> Origin:
        """The origin of the value that `instruction` defines at `index`."""
        key = (instruction.id, tuple(index))
        if key not in self._found:
            made = self._walk(instruction, tuple(index), set()) or instruction
            found = self._describe(made)
            if made.opcode in SLICES:
                # A piece of something: the piece's phase, the whole's place.
                whole = self._walk(self.module.operands(made)[0], (), set())
                if whole is not None:
                    place = self._describe(whole)
                    if place.scope or place.source:
                        found = replace(found, scope=place.scope, source=place.source)
            self._found[key] = found
        return self._found[key]

    def own(self, instruction: Any) -> Origin:
        """The origin of an instruction itself, be it a copy or a part of a fusion."""
        return self._describe(instruction)

    def argument_of(self, i: Any) -> str:
        """The path of the argument that a value is, or is a slice of; "" for others."""
        made = self._walk(i, (), set())
        while made is not None and made.opcode in SLICES:
            made = self._walk(self.module.operands(made)[0], (), set())
        if made is None or made.opcode != "parameter":
            return ""
        origin = self._describe(made)
        return origin.scope if origin.phase == "argument" else ""

    def _walk(self, i: Any, index: tuple[int, ...], seen: set) -> Any | None:
        """Follows a value back to the operation that made it; None in a cycle."""
        module = self.module
        while True:
            if (i.id, index) in seen:
                return None
            seen.add((i.id, index))
            operands = module.operands(i)
            match i.opcode:
                case "get-tuple-element":
                    i, index = operands[0], (i.tuple_index, *index)
                case "tuple" if index:
                    i, index = operands[index[0]], index[1:]
                case "dynamic-update-slice":
                    i, index = operands[1], ()
                case "while":
                    body = self._walk(module.called(i)[0].root, index, seen)
                    if body is not None and body.opcode not in FILLS:
                        return body
                    i = operands[0]
                case "fusion" | "call" | "async-start" if module.called(i):
                    inner = index[1:] if i.opcode == "async-start" else index
                    if i.opcode == "async-start" and index[:1] == (0,):
                        i, index = operands[inner[0] if inner else 0], inner[1:]
                        continue
                    i, index = module.called(i)[0].root, inner
                case "async-done" | "async-update":
                    i, index = operands[0], (1, *index)
                case "all-gather-done" | "all-reduce-done" | "collective-permute-done":
                    i, index = operands[0], ()
                case "copy-start":
                    i, index = operands[0], ()
                case "conditional":
                    i = module.called(i)[0].root
                case "parameter":
                    made = self._made_by_iteration(i, index, seen)
                    if made is not None:
                        return made
                    outer = self._argument_of(i, index)
                    if outer is None:
                        return i
                    i, index = outer
                case opcode if opcode in PASSES_ON and operands:
                    i = operands[0]
                case "convert" if not i.metadata.op_name:
                    i = operands[0]
                case opcode if (
                    not i.metadata.op_name and operands and opcode not in FILLS
                ):
                    # Made by the compiler: blame the largest thing it was made from.
                    i, index = max(operands, key=lambda o: len(o.shape.dimensions)), ()
                case _:
                    return i

    def _made_by_iteration(
        self, parameter: Any, index: tuple[int, ...], seen: set
    ) -> Any | None:
        """What the previous iteration of a loop puts in a parameter's place."""
        module = self.module
        for caller in module.callers.get(module.home[parameter.id], ()):
            if caller.opcode == "while":
                made = self._walk(module.called(caller)[0].root, index, seen)
                if made is not None and made.opcode not in FILLS:
                    return made
        return None

    def _argument_of(self, parameter: Any, index: tuple[int, ...]) -> Any | None:
        """What a computation's parameter stands for, None for the program's own."""
        module = self.module
        home = module.home[parameter.id]
        if home == module.entry.id:
            return None
        for caller in module.callers.get(home, ()):
            operands = module.operands(caller)
            number = parameter.parameter_number
            if caller.opcode == "while":
                number = 0
            elif caller.opcode == "conditional":
                number = list(caller.called_computation_ids).index(home) + 1
            if number < len(operands):
                return operands[number], index
        return None

    def _describe(self, i: Any) -> Origin:
        op_name = i.metadata.op_name
        if i.opcode == "parameter" and self.module.home[i.id] == self.module.entry.id:
            return Origin(op_name, "", "argument", op_name, "")
        scopes, op = split_op_name(op_name)
        inside = takewhile(lambda f: not begins_program(f[0]), self.module.frames(i))
        frames = [f for f in inside if is_users(f[0])]
        source = f"{frames[0][0]}:{frames[0][2]}" if frames else ""
        scope = "/".join(scopes)
        if not scope and frames:
            scope = re.sub(r"\.?<(locals|lambda|genexpr|listcomp)>", "", frames[0][1])
        phase = phase_of(op_name) or ("update" if i.id in self._update else "forward")
        return Origin(op_name, op, phase, scope, source, i.opcode in FILLS)


def phase_of(op_name: str) -> str:
    """The phase that JAX's own marks in an operation's path name, `""` without any.

    >>> phase_of("jit(step)/transpose(jvp(layer))/rematted_computation/dot_general")
    'recompute'
    """
    if "rematted_computation" in op_name:
        return "recompute"
    if "transpose(" in op_name:
        return "backward"
    if "jvp(" in op_name:
        return "forward"
    return ""


_TRANSFORM = re.compile(r"^(jvp|transpose|vmap|remat|checkpoint|pmap)\((.*)\)$")
_CALL = re.compile(r"^(jit|pjit|custom_vjp_call|custom_jvp_call)\(.*\)$")
_PLUMBING = {
    "while",
    "body",
    "cond",
    "closed_call",
    "checkpoint",
    "rematted_computation",
    "remat",
    "remat2",
    "eval_jaxpr",
    "custom_vjp_call",
    "custom_jvp_call",
    "custom_vjp_call_jaxpr",
    "shard_map",
    "pjit",
    "core_call",
    "",
}
_BRANCH = re.compile(r"^branch_\d+_fun$")


def split_op_name(op_name: str) -> tuple[list[str], str]:
    """Named scopes and primitive of an operation's path.

    >>> split_op_name("jit(f)/transpose(jvp(gpt))/while/body/attn/dot_general")
    (['gpt', 'attn'], 'dot_general')
    """
    parts = _split_outside_parentheses(op_name)
    op = parts[-1] if parts else ""
    scopes = []
    for part in parts[:-1]:
        while match := _TRANSFORM.match(part):
            part = match[2]
        for piece in _split_outside_parentheses(part):
            if piece in _PLUMBING or piece.startswith(ITERATIONS):
                continue
            if _CALL.match(piece) or _BRANCH.match(piece):
                continue
            if "->" in piece:  # an einsum's equation
                continue
            scopes.append(piece)
    return scopes, _CALL.sub(r"\1", op) if op else ""


def _split_outside_parentheses(path: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, char in enumerate(path):
        depth += (char == "(") - (char == ")")
        if char == "/" and depth == 0:
            parts.append(path[start:position])
            start = position + 1
    return [*parts, path[start:]] if path else []


def _after_backward(module: Module) -> set[int]:
    """Instructions that need a gradient but are part of no transform: the update.

    Ids in the entry computation only, and in the computations it calls once it is
    past the backward pass.
    """
    found: set[int] = set()
    needs: set[int] = set()

    def is_backward(i: Any) -> bool:
        if phase_of(i.metadata.op_name) in ("backward", "recompute"):
            return True
        return any(
            is_backward(inner)
            for c in module.called(i)
            for inner in c.instructions
            if not phase_of(i.metadata.op_name)
        )

    def add(i: Any) -> None:
        found.add(i.id)
        for c in module.called(i):
            for inner in c.instructions:
                add(inner)

    visited: set[int] = set()

    def visit(computation: Any) -> None:
        if computation.id in visited:
            return
        visited.add(computation.id)
        for i in computation.instructions:
            if i.opcode == "while":
                for body in module.called(i):
                    visit(body)
            backward = is_backward(i)
            after = any(o in needs for o in i.operand_ids)
            if backward or after:
                needs.add(i.id)
            if after and not phase_of(i.metadata.op_name):
                add(i)

    visit(module.entry)
    return found
