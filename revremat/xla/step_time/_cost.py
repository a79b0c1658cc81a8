"""What one HLO instruction does: floating-point operations and bytes moved."""

import math
from dataclasses import dataclass, field
from typing import Any

from revremat.xla.hlo._hlo import Module, dtype_of, elements_of, is_tuple, size_of
from revremat.xla.hlo._kernels import is_pallas, work_of
from revremat.xla.hlo._opcodes import (
    FREE,
    MOVES,
    NO_MODEL,
    TRANSCENDENTAL,
    WRITES_ONLY,
)
from revremat.xla.step_time._access import Access, steps_over_rows
from revremat.xla.step_time._convolutions import convolution_of

TRANSCENDENTAL_FLOPS = 8


@dataclass(frozen=True)
class Matmul:
    """One product of matrices, or a convolution.

    Attributes:
      kind: `matmul` (a library's, or in a fusion of one), `dot` (a plain one),
        `turned_dot` (a plain one both of whose operands are transposed),
        `convolution`, `filter_gradient` (a convolution with as large a window),
        `grouped_convolution` (of groups of features),
        `loop_convolution`, `loop_convolution_rows` (a plain loop instead of a
        library's; its sums run along rows, or from row to row),
        `kernel` (all products of one that the compiler did not make).
      dtype: Of the operands.
      flops: A multiply-add as two.
      batch: How many products of matrices it is.
      rows: Of each result.
      columns: Of each result.
      extent: Of convolutions in groups, the input features of one; in plain loops, the
        length of the innermost one; from row to row, how often its lines fill the sets
        of the first-level cache that they fall on.

    Example:
      >>> from revremat import xla
      >>> xla.Matmul("dot", "bfloat16", flops=2.0 * 64**3, rows=64, columns=64).batch
      1
    """

    kind: str
    dtype: str
    flops: float
    batch: int = 1
    rows: int = 0
    columns: int = 0
    extent: float = 0.0

    @property
    def size(self) -> float:
        """What its rate depends on most; the curves of a card are by that."""
        if self.kind == "turned_dot":
            return self.flops / max(1, 2 * self.batch * self.rows * self.columns)
        if self.kind == "dot":
            return float(self.rows * self.columns)
        if self.extent:
            return self.extent
        return self.flops / max(1, self.batch)


@dataclass(frozen=True)
class Cost:
    """Work of one instruction on one device.

    Attributes:
      matmul_flops: In matrix units, a multiply-add as two, by dtype of the operands.
      other_flops: Elsewhere.
      bytes: Read from and written to device memory.
      cold_bytes: Of these, entries of what a loop carries for all its iterations, and
        first writes: no cache has them.
      step_bytes: What the whole step has in memory beside its arguments.
      matmuls: What `matmul_flops` is made of.
      functions: Elements by transcendental function (`tanh`); in `other_flops`, too.
      reduced_bytes: Read by reductions, along `rows` or over `columns`.
      strided: Reads across the rows of operands.
      scattered: Writes across the rows of the result.

    Example:
      >>> from revremat import xla
      >>> xla.Cost({"bfloat16": 2e9}, other_flops=1e6, bytes=4e6).bytes
      4000000.0
    """

    matmul_flops: dict[str, float]
    other_flops: float
    bytes: float
    matmuls: tuple[Matmul, ...] = ()
    functions: dict[str, float] = field(default_factory=dict)
    reduced_bytes: dict[str, float] = field(default_factory=dict)
    strided: tuple[Access, ...] = ()
    scattered: tuple[Access, ...] = ()
    cold_bytes: float = 0.0
    step_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """All of them."""
        return sum(self.matmul_flops.values()) + self.other_flops


@dataclass
class _Tally:
    other_flops: float = 0.0
    matmuls: list[Matmul] = field(default_factory=list)
    functions: dict[str, float] = field(default_factory=dict)
    reduced_bytes: dict[str, float] = field(default_factory=dict)


def cost_of(i: Any, module: Module) -> Cost:
    """Work of one instruction, all of a fusion's together.

    Args:
      i: One of `module.instructions`.
      module: The scheduled program.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> root = list(module.instructions.values())[-1]
      >>> xla.cost_of(root, module).bytes >= 0
      True
    """
    if i.opcode in FREE:
        return Cost({}, 0.0, 0.0)
    tally = _Tally()
    _add(i, module, tally)
    by_dtype: dict[str, float] = {}
    for m in tally.matmuls:
        by_dtype[m.dtype] = by_dtype.get(m.dtype, 0.0) + m.flops
    steps = steps_over_rows(i, module)
    return Cost(
        by_dtype,
        tally.other_flops,
        _bytes(i, module),
        tuple(tally.matmuls),
        tally.functions,
        tally.reduced_bytes,
        steps.reads,
        steps.writes,
        _cold_bytes(i, module),
        module.temp_bytes,
    )


def has_model(i: Any, module: Module) -> bool:
    """Whether the arithmetic of an instruction is known, not its traffic alone."""
    if i.opcode != "custom-call":
        return i.opcode not in NO_MODEL
    if is_pallas(i):  # another note speaks of those
        return True
    if i.called_computation_ids:  # a comparison of two elements is no fusion
        shapes = [c.root.shape for c in module.called(i)]
        return any(is_tuple(s) or elements_of(s) > 1 for s in shapes)
    return _matmul(i, module, None) is not None or work_of(i, module) is not None


def _add(i: Any, module: Module, tally: _Tally, caller: Any = None) -> None:
    """Adds the arithmetic of an instruction, and of all that it calls."""
    if i.opcode in ("fusion", "call") or (
        i.opcode == "custom-call" and i.called_computation_ids
    ):
        for computation in module.called(i):
            for inner in computation.instructions:
                _add(inner, module, tally, i)
        return
    if i.opcode in FREE or i.opcode in MOVES:
        return
    product = _matmul(i, module, caller)
    if product is not None:
        tally.matmuls.append(product)
        return
    work = work_of(i, module)
    if work is not None:
        tally.matmuls.append(Matmul("kernel", work.dtype, work.product_flops))
        tally.other_flops += work.other_flops + TRANSCENDENTAL_FLOPS * work.functions
        return
    if i.opcode in ("reduce", "reduce-window", "select-and-scatter"):
        read = module.operands(i)[0].shape
        tally.other_flops += elements_of(read)
        rows = list(read.layout.minor_to_major[:1]) == list(i.dimensions[-1:])
        way = "rows" if rows else "columns"
        tally.reduced_bytes[way] = tally.reduced_bytes.get(way, 0.0) + size_of(read)
        return
    elements = float(elements_of(i.shape))
    if i.opcode in TRANSCENDENTAL:
        tally.functions[i.opcode] = tally.functions.get(i.opcode, 0.0) + elements
        elements *= TRANSCENDENTAL_FLOPS
    tally.other_flops += elements


def _matmul(i: Any, module: Module, caller: Any) -> Matmul | None:
    if i.opcode == "dot":
        lhs = module.operands(i)[0].shape
        dims, sizes = i.dot, lhs.dimensions
        contracted = math.prod(sizes[d] for d in dims.lhs_contracting)
        batch = math.prod(sizes[d] for d in dims.lhs_batch)
        out = elements_of(i.shape)
        rows = elements_of(lhs) // max(1, batch * contracted)
        columns = out // max(1, batch * rows)
        plain = "turned_dot" if _turned(i, module) else "dot"
        kind, flops = "matmul" if caller is not None else plain, 2.0 * out * contracted
        return Matmul(kind, dtype_of(lhs), flops, batch, rows, columns)
    if i.opcode == "convolution":
        dtype = dtype_of(module.operands(i)[0].shape)
        found = convolution_of(i, module, caller)
        return Matmul(found.kind, dtype, found.flops, extent=found.extent)
    if i.opcode == "custom-call":
        flops = _library_flops(i, module)
        if flops:
            operand = module.operands(i)[0].shape
            conv = "conv" in i.custom_call_target.lower()
            gradient = "BackwardFilter" in i.custom_call_target
            kind = "filter_gradient" if gradient else "convolution"
            out = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
            *batch, rows, columns = [1, 1, *out.dimensions]
            return Matmul(
                kind if conv else "matmul",
                dtype_of(operand),
                flops,
                *(() if conv else (math.prod(batch), rows, columns)),
            )
    return None


def _library_flops(i: Any, module: Module) -> float:
    """Calls of cuBLAS, cuDNN and oneDNN: their FLOPs follow from their shapes."""
    target = i.custom_call_target
    if "conv" in target.lower() and i.convolution.kernel_spatial:
        first, second = (o.shape for o in module.operands(i)[:2])
        out = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
        if "BackwardFilter" in target:
            features, kernel = second, out
        elif "BackwardInput" in target:
            features, kernel = first, second
        else:
            features, kernel = out, second
        outputs = kernel.dimensions[i.convolution.kernel_output_feature]
        return 2.0 * elements_of(features) * elements_of(kernel) / max(1, outputs)
    if "gemm" in target or "matmul" in target:
        operands = [o.shape for o in module.operands(i)[:2]]
        out = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
        if len(operands) == 2 and elements_of(out):
            # (m k) (k n) -> (m n): k^2 is their product over the result's square,
            # batch dimensions in all three.
            a, b, c = map(elements_of, (*operands, out))
            batch = 1
            if len(out.dimensions) > 2:
                batch = math.prod(out.dimensions[:-2])
            return 2.0 * c * math.sqrt(a * b / c / batch)
    return 0.0


def _turned(dot: Any, module: Module) -> bool:
    """Whether neither operand of a product lies as a library wants it.

    That is by rows on the left, summed along each; by columns on the right.
    """
    left, right = (o.shape for o in module.operands(dot))
    along = lambda shape, dims: shape.layout.minor_to_major[:1] == list(dims)
    one = along(left, dot.dot.lhs_contracting)
    return not one and along(right, dot.dot.rhs_contracting)


def _bytes(i: Any, module: Module) -> float:
    if i.opcode == "fusion":
        return _fusion_bytes(i, module)
    operands = module.operands(i)
    match i.opcode:
        case "dynamic-update-slice":
            return 2.0 * size_of(operands[1].shape)
        case "copy-start":
            return 2.0 * size_of(operands[0].shape)
        case "dynamic-slice" | "slice" | "gather":
            return 2.0 * size_of(i.shape)
        case "scatter":
            return 3.0 * size_of(operands[-1].shape)
        case "broadcast" | "iota":
            return float(size_of(i.shape))
        case _:
            return float(size_of(i.shape) + sum(size_of(o.shape) for o in operands))


def _cold_bytes(i: Any, module: Module) -> float:
    inside = module.called(i)[0].instructions if i.opcode == "fusion" else [i]
    if all(x.opcode in WRITES_ONLY for x in inside):
        return float(size_of(i.shape))
    total = 0.0
    for x in inside:
        if x.opcode == "dynamic-slice":
            total += size_of(x.shape)
        elif x.opcode == "dynamic-update-slice":
            total += size_of(module.operands(x)[1].shape)
    return total


def _fusion_bytes(i: Any, module: Module) -> float:
    computation = module.called(i)[0]
    users: dict[int, list[Any]] = {}
    for inner in computation.instructions:
        for operand in inner.operand_ids:
            users.setdefault(operand, []).append(inner)
    total = sum(_read_bytes(p, users, module) for p in computation.parameters.values())
    roots = [computation.root]
    while roots:
        root = roots.pop()
        if root.opcode == "tuple":
            roots += module.operands(root)
        elif root.opcode in ("bitcast", "copy", "convert") and root.operand_ids:
            inner = module.operands(root)[0]
            in_place = inner.opcode == "dynamic-update-slice"
            roots += [inner] if in_place else []
            total += 0 if in_place else size_of(root.shape)
        elif root.opcode == "dynamic-update-slice":
            total += size_of(module.operands(root)[1].shape)
        elif root.opcode != "parameter":
            total += size_of(root.shape)
    return total


def _read_bytes(value: Any, users: dict[int, list[Any]], module: Module) -> float:
    """Bytes of a fusion's input that are really read."""
    whole, read = float(size_of(value.shape)), 0.0
    for user in users.get(value.id, ()):
        if user.opcode in ("dynamic-slice", "slice", "gather"):
            read += size_of(user.shape)
        elif user.opcode == "dynamic-update-slice" and user.operand_ids[0] == value.id:
            continue
        elif user.opcode in ("bitcast", "reshape", "convert", "copy"):
            read += _read_bytes(user, users, module) * (
                whole / max(1.0, size_of(user.shape))
            )
        else:
            return whole
    return min(whole, read)
