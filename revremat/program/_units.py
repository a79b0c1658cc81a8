"""Where there is something to decide: a program's scans, blocks and checkpoints.

A `Site` is one place in the flat program. Sites of equal blocks, or of equal checkpointed
regions, belong to one unit, whose layers they are; a scan is a unit by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from revremat import _compat
from revremat.program._costs import MOVES
from revremat.program._fingerprint import block_name, fingerprint
from revremat.program._keep import Layer, name_values
from revremat.program._linearize import is_inexact, linearize
from revremat.program._ops import (
    CALLS,
    CHECKPOINTS,
    Atom,
    Constant,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    lift_constants,
)
from revremat.program._stack import carried_mask


@dataclass(frozen=True, eq=False)
class Site:
    """One place: the operations it covers, and the layer to run in their stead.

    Attributes:
      kind: As in `revremat._graph.Unit.kind`.
      label: What the user called it, "" if nothing.
      ops: What it covers, in program order.
      inputs: What the operations take from the rest of the program.
      outputs: What the rest of the program takes from them.
      constants: Arrays the body closes over; they come first among its inputs.
      body: The layer, flat. For a scan: constants, carry, `xs` in; carry, `ys` out.
      in_mask: Which of the body's inputs are differentiated.
      held: Which of the body's inputs are there in the backward pass anyway.
      num_consts: For a scan, how many inputs are constants.
      num_carry: For a scan, how many are carried.
      length: For a scan, how many layers; 1 otherwise.
      reverse: For a scan, whether it runs from the last to the first.
      inverse: As in `Stack.inverse`.
    """

    kind: str
    label: str
    ops: tuple[Op, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    constants: tuple[Any, ...]
    body: Program
    in_mask: tuple[bool, ...]
    held: tuple[bool, ...]
    num_consts: int = 0
    num_carry: int = 0
    length: int = 1
    reverse: bool = False
    inverse: Program | None = None

    def linearized(self, unit: str) -> Layer:
        """The layer's two passes, every value named."""
        passes = linearize(self.body, self.in_mask)
        pairs = zip(passes.forward.inputs, self.held, strict=True)
        return name_values(passes, [v for v, held in pairs if held], unit)


@dataclass(frozen=True, eq=False)
class Survey:
    """The sites of a flat program, and of the programs inside its operations.

    Attributes:
      program: With blocks and checkpoints left whole.
      sites: Those on its own level, in program order.
      inner: For operations that hold programs of their own: under which parameter, and
        at which place in it (None if it is no tuple), each with its survey.
    """

    program: Program
    sites: tuple[Site, ...]
    inner: dict[Op, tuple[tuple[str, int | None, "Survey"], ...]]


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A unit with the sites that are its layers."""

    name: str
    kind: str
    fingerprint: str
    sites: tuple[Site, ...]

    @property
    def num_layers(self) -> int:
        return sum(site.length for site in self.sites)


def survey(closed: Any, in_mask: Sequence[bool]) -> Survey:
    """Find the sites of a closed jaxpr, given which inputs are differentiated."""
    program = flatten(closed, keep_names=True, keep_checkpoints=True, keep_blocks=True)
    return _survey(program, in_mask)


def _survey(program: Program, in_mask: Sequence[bool]) -> Survey:
    live = _differentiated(program, in_mask)
    weights = _weights(program)
    sites, inner = [], {}
    for op in program.ops:
        mask = [atom in live for atom in op.inputs]
        if not any(mask):
            continue
        site = _site(program, op, mask, weights)
        if site is not None:
            sites.append(site)
        if nested := _inner(op, mask):
            inner[op] = nested
    return Survey(program, tuple(sites), inner)


def _differentiated(program: Program, in_mask: Sequence[bool]) -> set[Value]:
    live = {v for v, on in zip(program.inputs, in_mask, strict=True) if on}
    for op in program.ops:
        if op.kind != "stop_gradient" and not live.isdisjoint(op.inputs):
            live.update(out for out in op.outputs if is_inexact(out.aval))
    return live


def _weights(program: Program) -> set[Value]:
    """The program's inputs, and what is the same data in another form."""
    weights = set(program.inputs)
    for op in program.ops:
        if op.kind in MOVES and all(
            atom in weights or isinstance(atom, Constant) for atom in op.inputs
        ):
            weights.update(op.outputs)
    return weights


def _site(
    program: Program, op: Op, mask: Sequence[bool], weights: set[Value]
) -> Site | None:
    if op.kind == "scan":
        return _scan_site(op, mask)
    if not op.is_block and op.kind not in CHECKPOINTS:
        return None
    body, constants = lift_constants(
        flatten(as_closed(op.eqn.params["jaxpr"]), keep_names=True)
    )
    extra = [False] * len(constants)
    return Site(
        kind="block" if op.is_block else "checkpoint",
        label=block_name(op.eqn.params["name"]) if op.is_block else "",
        ops=(op,),
        inputs=op.inputs,
        outputs=op.outputs,
        constants=tuple(constants),
        body=body,
        in_mask=(*extra, *mask),
        held=(
            *(True for _ in extra),
            *(not isinstance(a, Value) or a in weights for a in op.inputs),
        ),
    )


def _scan_site(op: Op, mask: Sequence[bool]) -> Site:
    closed = as_closed(op.eqn.params["jaxpr"])
    body, constants = lift_constants(flatten(closed, keep_names=True))
    num_consts, num_carry = _compat.scan_counts(op.eqn)
    n, k, extra = num_consts, num_carry, [False] * len(constants)
    consts, carry, xs = mask[:n], mask[n : n + k], mask[n + k :]
    held = [True] * len(body.inputs)
    num_consts += len(extra)
    held[num_consts : num_consts + num_carry] = [False] * num_carry
    blocks = flatten(closed, keep_blocks=True).ops
    whole = len(blocks) == 1 and blocks[0].is_block
    return Site(
        kind="scan",
        label=block_name(blocks[0].eqn.params["name"]) if whole else "",
        ops=(op,),
        inputs=op.inputs,
        outputs=op.outputs,
        constants=tuple(constants),
        body=body,
        in_mask=carried_mask(body, [*extra, *consts], carry, xs),
        held=tuple(held),
        num_consts=num_consts,
        num_carry=num_carry,
        length=op.eqn.params["length"],
        reverse=op.eqn.params["reverse"],
    )


def _whole(program: Program, in_mask: Sequence[bool]) -> Site:
    body, constants = lift_constants(program)
    extra = [False] * len(constants)
    return Site(
        kind="whole",
        label="",
        ops=program.ops,
        inputs=program.inputs,
        outputs=tuple(out for out in program.outputs if isinstance(out, Value)),
        constants=tuple(constants),
        body=body,
        in_mask=(*extra, *in_mask),
        held=(True,) * len(body.inputs),
    )


def _inner(op: Op, mask: Sequence[bool]) -> tuple[tuple[str, int | None, Survey], ...]:
    """Surveys of the programs inside an operation, where any has a site."""
    params = op.eqn.params
    if op.kind in CALLS and not op.is_block:
        key = "jaxpr" if "jaxpr" in params else "call_jaxpr"
        found = [(key, None, survey(as_closed(params[key]), mask))]
    elif op.kind == "cond":
        found = [
            ("branches", k, survey(as_closed(branch), mask[1:]))
            for k, branch in enumerate(params["branches"])
        ]
    elif op.kind == "scan":
        n, k = _compat.scan_counts(op.eqn)
        closed = as_closed(params["jaxpr"])
        body = flatten(closed, keep_names=True)
        carried = carried_mask(body, mask[:n], mask[n : n + k], mask[n + k :])
        found = [("jaxpr", None, survey(closed, carried))]
        found = [
            (key, at, replace(inside, sites=_nested_scans(inside)))
            for key, at, inside in found
        ]
    else:
        return ()
    return tuple(item for item in found if item[2].sites or item[2].inner)


def _nested_scans(inside: Survey) -> tuple[Site, ...]:
    """In a scan's body only scans are units; its blocks are part of the layer."""
    return tuple(site for site in inside.sites if site.kind == "scan")


def units_of(found: Survey, in_mask: Sequence[bool]) -> tuple[FoundUnit, ...]:
    """The units of a program: its sites, those of equal blocks together."""
    sites = list(_walk(found, ""))
    if not sites:
        sites = [("", _whole(found.program, in_mask))]
    groups: dict[Any, list[Site]] = {}
    for number, (path, site) in enumerate(sites):
        print_ = fingerprint(site.body, site.in_mask, f"{site.length} {site.reverse}")
        alone = number if site.kind in ("scan", "whole") else -1
        key = (path, site.kind, site.label, print_, site.held, alone)
        groups.setdefault(key, []).append(site)
    names: dict[str, int] = {}
    found_units = []
    for (path, kind, label, print_, _, _), members in groups.items():
        base = path + (label or kind)
        number = names[base] = names.get(base, -1) + 1
        name = base if label and number == 0 else f"{base}_{number}"
        found_units.append(FoundUnit(name, kind, print_, tuple(members)))
    return tuple(found_units)


def _walk(found: Survey, path: str) -> Iterator[tuple[str, Site]]:
    sites = {site.ops[0]: site for site in found.sites}
    counts: dict[str, int] = {}
    for op in found.program.ops:
        number = counts[op.kind] = counts.get(op.kind, -1) + 1
        if op in sites:
            yield path, sites[op]
        for _, place, inside in found.inner.get(op, ()):
            branch = "" if place is None else f"branch_{place}/"
            deeper = "" if op.kind in CALLS else f"{op.kind}_{number}/{branch}"
            yield from _walk(inside, path + deeper)
