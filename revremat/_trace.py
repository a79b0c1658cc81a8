"""Trace: what there is to decide in a program; never compiles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from revremat import _compat
from revremat._errors import UserError
from revremat._graph import FixedUnit, Graph, Operation, Unit, Value
from revremat._primitives import is_intensive
from revremat._problem import Problem
from revremat._sources import loops_told, source_line
from revremat.program._fusion import read_whole
from revremat.program._loss import TracedLoss, trace_loss
from revremat.program._undecided import undecided
from revremat.program.engine._keep import Layer
from revremat.program.ir import _costs
from revremat.program.ir._exchanged import CONSTRAINTS, num_sharing, sent_bytes
from revremat.program.ir._ops import Op, cannot_recompute
from revremat.program.ir._ops import Value as ProgramValue
from revremat.program.ir._placement import (
    Cut,
    Placement,
    cut_of,
    parts_of,
)
from revremat.program.units._placed import cuts_in, layer_placement
from revremat.program.units._sites import SEGMENT
from revremat.program.units._units import FoundUnit

BytesOf = Callable[[Any], int]
"""From an array's shape and dtype (`.shape`, `.dtype`) to its size per device."""


def trace(
    loss: Callable[..., Any] | Problem,
    *specs: Any,
    bytes_of: BytesOf | None = None,
    keep_checkpoints: bool = False,
) -> Graph:
    """Find a program's units of decision and their residuals.

    Units are the bodies of `jax.lax.scan`, functions marked with `rr.block`, unrolled
    repeats of the same computation, and `jax.checkpoint` regions. A region of
    `jax.checkpoint` is a proposal: where better layers or loops are in it, those are
    the units. A program without any unit is cut into segments where little is handed
    on; where that is not possible, the whole loss is the one unit.

    Args:
      loss: `loss(*specs) -> scalar`, or `(scalar, auxiliary)`; differentiated in its
        first argument. Or an `rr.Problem`, which has its own arguments.
      *specs: The loss's arguments, as arrays or `jax.ShapeDtypeStruct`s.
      bytes_of: The size per device of one array of the forward pass. By default an
        array is cut as the shardings of arguments, the constraints of the program and
        its `jax.shard_map`s say, and whole where they say nothing.
      keep_checkpoints: Whether the program's own `jax.checkpoint` regions, and loops
        with one inside, stay as they are: no units are in them. For regions
        whose policy sends values to the host, say, and is not to be undone.

    Raises:
      UserError: The loss is not scalar, an argument is not made of arrays, nothing in
        the first argument can be differentiated, or one name tags two values of a unit.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
      >>> x = jax.ShapeDtypeStruct((2, 8), jnp.float32)
      >>> layer = lambda w, x: rr.name(jnp.tanh(x @ w), "hidden")
      >>> graph = rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x)
      >>> [(r.name, r.num_bytes) for r in graph["stack"].residuals if r.given]
      [('hidden', 64)]
    """
    if isinstance(loss, Problem):
        if specs:
            raise UserError("a Problem has its own specs: write no arguments beside it")
        loss, specs = loss.loss, loss.specs
    traced = trace_loss(loss, specs, keep_checkpoints=keep_checkpoints)
    sizes = _Sizes.of(traced, bytes_of)
    numbers = {v: k for k, v in enumerate(_made_in_order(traced))}
    return Graph(
        units=tuple(_unit(found, sizes, numbers) for found in traced.units),
        fingerprint=traced.fingerprint,
        jax_version=_compat.jax_version(),
        fixed_units=_fixed_units(traced, sizes),
        keep_checkpoints=keep_checkpoints,
        undecided=undecided(traced.found, bytes_of or _costs.num_bytes),
        num_devices=traced.num_devices,
    )


def fixed_units(loss: Callable[..., Any], *specs: Any) -> tuple[FixedUnit, ...]:
    """What a program has decided by itself: a part of what `trace` finds."""
    traced = trace_loss(loss, specs)
    return _fixed_units(traced, _Sizes.of(traced, None))


@dataclass(frozen=True)
class _Sizes:
    """What is known of sizes on one device: a function of the user's, or placements."""

    bytes_of: BytesOf | None
    cuts: Mapping[ProgramValue, Cut]

    @staticmethod
    def of(traced: TracedLoss, bytes_of: BytesOf | None) -> "_Sizes":
        inputs, values = traced.found.program.inputs, traced.arguments.values
        given = {
            v: cut_of(getattr(x, "sharding", None), len(v.aval.shape))
            for v, x in zip(inputs, values, strict=True)
        }
        return _Sizes(bytes_of, cuts_in(traced.found, given))

    def num_bytes(self, value: ProgramValue, placed: Placement) -> int:
        if self.bytes_of is not None:
            return self.bytes_of(value.aval)
        return _costs.num_bytes(value.aval) // parts_of(placed.cuts.get(value))


def _fixed_units(traced: TracedLoss, sizes: _Sizes) -> tuple[FixedUnit, ...]:
    return tuple(
        FixedUnit(_unit(found.unit, sizes), found.actions)
        for found in traced.fixed_units
    )


def _made_in_order(traced: TracedLoss) -> Iterator[ProgramValue]:
    """The values of a program."""
    program = traced.found.program
    yield from program.inputs
    for op in program.ops:
        yield from op.outputs


def _crossing(
    found: FoundUnit,
    layer: Layer,
    position: Mapping[ProgramValue, int],
    numbers: Mapping[ProgramValue, int],
) -> dict[int, int]:
    """Positions of a segment's values that others share, and the program's numbers."""
    if found.kind != SEGMENT:
        return {}
    (site,), forward = found.sites, layer.passes.forward
    inside = (*forward.inputs, *forward.outputs)
    pairs = zip(inside, (*site.inputs, *site.outputs), strict=True)
    return {
        position[v]: numbers[of]
        for v, of in pairs
        if isinstance(v, ProgramValue) and v not in layer.held
        if isinstance(of, ProgramValue) and of in numbers
    }


def _unit(
    found: FoundUnit,
    sizes: _Sizes,
    numbers: Mapping[ProgramValue, int] = MappingProxyType({}),
) -> Unit:
    site = found.sites[0]
    with loops_told(f"unit {found.name!r}"):
        layer = site.linearized(f"unit {found.name!r}")
    forward = layer.passes.forward
    placed = layer_placement(site, forward, sizes.cuts)
    num_bytes = lambda value: sizes.num_bytes(value, placed)
    order = [*forward.inputs, *(out for op in forward.ops for out in op.outputs)]
    position = {value: k for k, value in enumerate(order)}
    at = lambda atoms: tuple(position[a] for a in atoms if isinstance(a, ProgramValue))
    facts = found.facts
    crossing = _crossing(found, layer, position, numbers)
    return Unit(
        name=found.name,
        kind=found.kind,
        fingerprint=found.fingerprint,
        num_layers=found.num_layers,
        values=tuple(_value(layer, v, num_bytes(v)) for v in order),
        operations=tuple(_operation(op, placed, at) for op in forward.ops),
        residuals_of=tuple(dict.fromkeys(at(layer.passes.residuals))),
        weight_bytes=sum(num_bytes(v) for v in forward.inputs if v in layer.held),
        forward_flops=_costs.program_flops(forward),
        backward_flops=_costs.program_flops(layer.passes.backward),
        invertible=facts.is_stack and facts.has_inverse,
        skippable=facts.is_stack,
        chained=facts.is_stack,
        splits=facts.splits,
        enclosing=found.enclosing,
        in_branch=facts.in_branch,
        carried_out=at(layer.carried_out) if facts.has_inverse else (),
        outputs=tuple(dict.fromkeys(at(forward.outputs))),
        read_whole=tuple(dict.fromkeys(at(read_whole(layer.passes)))),
        crossing=tuple(crossing),
        crossing_ids=tuple(crossing.values()),
    )


def _operation(
    op: Op, placed: Placement, at: Callable[[Sequence[Any]], tuple[int, ...]]
) -> Operation:
    sent = sent_bytes(op, placed)
    is_exchange = sent > 0 and op.kind in CONSTRAINTS
    return Operation(
        kind=op.kind,
        inputs=at(op.inputs),
        outputs=at(op.outputs),
        num_flops=_costs.num_flops(op),
        compute_intensive=is_intensive(op.kind) or is_exchange,
        effectful=cannot_recompute(op) or "",
        source=source_line(op),
        batch_dims=_costs.num_batch_dims(op),
        num_devices=num_sharing(op, placed),
        sent_bytes=sent,
    )


def _value(layer: Layer, value: ProgramValue, num_bytes: int) -> Value:
    name = layer.called.get(value, "")
    role = "made"
    if value in layer.held:
        role = "held"
    elif value in layer.free:
        role = "free"
    elif value in layer.passes.forward.inputs:
        role = "input"
    return Value(
        name=name,
        given=name in layer.given,
        shape=tuple(value.aval.shape),
        dtype=str(value.aval.dtype),
        num_bytes=num_bytes,
        role=role,
    )
