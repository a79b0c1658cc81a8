"""Where in a program there is something to decide: scans, blocks, repeats ..."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from revremat import _compat
from revremat._action import Facts
from revremat._primitives import MOVES
from revremat.program.engine._keep import Layer, name_values
from revremat.program.engine._split import Chunked, block_chunks
from revremat.program.engine._stack import carried_mask
from revremat.program.ir._fingerprint import ALIKE, block_name, describe, input_order
from revremat.program.ir._inverse import block_inverse, scan_inverse
from revremat.program.ir._linearize import linearize
from revremat.program.ir._ops import (
    Atom,
    Constant,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    lift_constants,
    with_inputs,
)
from revremat.program.units._repeats import Iteration, Repeat
from revremat.program.units._scattered import find_layers
from revremat.program.units._sink import Moves, sink
from revremat.program.units._stretch import Stretch, made_by

REPEATED = ("repeat", "module")
"""Kinds of sites that are found between others, and may have loops inside."""
SEGMENT = "segment"
"""The kind of sites that are parts of a program without equal layers."""


@dataclass(frozen=True, eq=False)
class Site:
    """One place: the operations it covers, and the layer to run in their stead.

    Attributes:
      kind: As in `revremat._graph.Unit.kind`.
      label: What the user called it, "" if nothing.
      ops: What it covers, in program order.
      inputs: What the layer takes from the rest of the program.
      outputs: What the rest of the program takes from it.
      body: The layer, flat. For a scan: constants, carry, `xs` in; carry, `ys` out.
      in_mask: Which of the body's inputs are differentiated; None to see when it
        happens.
      held: Which of the body's inputs are there in the backward pass anyway.
      carried: Which of the body's inputs come from the layer before, as far as known.
      num_consts: For a scan, how many inputs are constants.
      length: For a scan, how many layers; 1 otherwise.
      reverse: For a scan, whether it runs from the last to the first.
      inverse: Takes what the body takes, with what is carried out in place of what is
        carried in, and gives the latter; None if there is no way.
      chunks: The ways to split it, by number of chunks.
      layers: The body's two passes, for each mask that was asked for.
      within: Calls a function where the site stands, if that is inside `shard_map`.
      num_scans: How many scans around it keep what it keeps, for all of their
        iterations.
      parts: Of a group of segments, its segments: sites of the same program, whose
        values the body has, too.
    """

    kind: str
    label: str
    ops: tuple[Op, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    body: Program
    in_mask: tuple[bool, ...] | None
    held: tuple[bool, ...]
    carried: tuple[int, ...] = ()
    num_consts: int = 0
    length: int = 1
    reverse: bool = False
    inverse: Program | None = None
    chunks: dict[int, Chunked] = field(default_factory=dict)
    layers: dict[tuple[bool, ...], Layer] = field(default_factory=dict, repr=False)
    within: Callable[[Callable[[], Any]], Any] = _compat.here
    num_scans: int = 0
    parts: tuple["Site", ...] = ()

    @property
    def is_loop(self) -> bool:
        """Whether its layers are iterations of a `jax.lax.scan`."""
        return self.kind == "scan"

    @property
    def facts(self) -> Facts:
        """What decides which actions its layers may take.

        Names, and what can be run twice, are known once it is differentiated.
        """
        return Facts(
            num_layers=self.length,
            is_loop=self.is_loop,
            is_stack=self.is_loop,
            has_inverse=self.inverse is not None,
            splits=tuple(sorted(self.chunks)),
            names=None,
            listed=(),
            unrepeatable="",
            in_branch=False,
            num_scans=self.num_scans,
        )

    def linearized(self, unit: str) -> Layer:
        """The layer's two passes, every value named."""
        assert self.in_mask is not None
        if self.in_mask not in self.layers:
            mask = self.in_mask
            passes = self.within(lambda: linearize(self.body, mask))
            pairs = zip(passes.forward.inputs, self.held, strict=True)
            held = [v for v, held in pairs if held]
            layer = name_values(passes, held, unit, self.inverse, self.carried)
            self.layers[self.in_mask] = replace(layer, within=self.within)
        return self.layers[self.in_mask]


@dataclass(frozen=True, eq=False)
class Survey:
    """The sites of a flat program, and of the programs inside its operations.

    Attributes:
      program: With blocks left whole, and those checkpoints that are layers.
      sites: Those on its own level, in program order.
      inner: For operations that hold programs of their own: under which parameter, and
        at which place in it (None if it is no tuple), each with its survey.
      own_derivatives: Functions with a derivative of their own, and which of their
        inputs are differentiated.
      keeps_checkpoints: Whether checkpoints stay as they are, and there are any.
      live: Values that have a derivative.
      weights: The program's inputs, and those in another form.
    """

    program: Program
    sites: tuple[Site, ...]
    inner: dict[Op, tuple[tuple[str, int | None, "Survey"], ...]]
    own_derivatives: tuple[tuple[Op, tuple[bool, ...]], ...] = ()
    keeps_checkpoints: bool = False
    live: frozenset[Value] = frozenset()
    weights: frozenset[Value] = frozenset()


def weights_first(program: Program, live: set[Value]) -> tuple[Program, set[Value]]:
    """The program with what only gives its inputs another form moved to the front.

    Args:
      program: The program.
      live: Its inputs that are differentiated.

    Returns:
      It, and its inputs with those other forms: what is there at all times anyway.
    """
    computed_with = {a for op in program.ops if op.kind not in MOVES for a in op.inputs}
    # The first layer reads it, as others read what the one before gives them.
    data = computed_with.intersection(program.inputs) - live
    weights, moved, others = set(program.inputs), [], []
    for op in program.ops:
        is_cast = op.kind == "convert_element_type"
        is_move = (
            op.kind in MOVES
            and all(atom in weights or isinstance(atom, Constant) for atom in op.inputs)
            and not (is_cast and op.inputs[0] in data)
        )
        if is_move:
            weights.update(op.outputs)
        (moved if is_move else others).append(op)
    return replace(program, ops=(*moved, *_entries_early(others))), weights


def _entries_early(ops: Sequence[Op]) -> list[Op]:
    """The operations, with entries taken out of an array as soon as it is made.

    Unrolled layers take entries of what was made for all of them, random keys for one;
    which entry is often all that tells the layers apart.
    """
    starts: dict[Atom, set[Any]] = {}
    for op in ops:
        if op.kind == "slice":
            starts.setdefault(op.inputs[0], set()).add(op.eqn.params["start_indices"])
    place: dict[Atom, int] = {}
    entries: set[Atom] = set()
    order = []
    for k, op in enumerate(ops):
        source = op.inputs[0] if op.inputs else None
        one_of_many = op.kind == "slice" and len(starts[op.inputs[0]]) > 1
        if one_of_many or (op.kind in ("squeeze", "reshape") and source in entries):
            entries.update(op.outputs)
            at = place.get(op.inputs[0], -1)
        else:
            at = k
        place.update(dict.fromkeys(op.outputs, at))
        order.append((at, k))
    return [ops[k] for _, k in sorted(order)]


def repeat_sites(
    program: Program, apart: set[Op], live: set[Value], weights: set[Value]
) -> list[Site]:
    """Unrolled loops between the operations in `apart`; their layers."""
    movable = _moves(program, weights)
    sites, made_bytes = [], sum(map(made_by, program.ops))
    for stretch in stretches(program, movable.others, apart):
        for repeat in find_layers(stretch, made_bytes):
            repeat = sink(repeat, movable)
            for iteration in repeat.iterations:
                mask, held = _masks(iteration, live, weights)
                if not any(mask):
                    continue
                sites.append(
                    Site(
                        kind="module" if repeat.module else "repeat",
                        label=repeat.module,
                        ops=iteration.ops,
                        inputs=iteration.inputs,
                        outputs=iteration.outputs,
                        body=repeat.body,
                        in_mask=mask,
                        held=held,
                    )
                )
    return sites


def sink_into(
    layers: Sequence[Site], program: Program, live: set[Value], weights: set[Value]
) -> list[Site]:
    """Calls, with what equal ones make of their weights alone made inside of each.

    As unrolled loops have it: outside, all casts of weights, say, would be there at a
    time. Inputs come in order of first use, as theirs do: compilers schedule gradients
    by it.
    """
    groups: dict[Any, list[Site]] = {}
    for site in layers:
        same = (describe(site.body, how=ALIKE), input_order(site.body))
        groups.setdefault(same, []).append(site)
    movable, sunk = _moves(program, weights), []
    for group in groups.values():
        body, order = group[0].body, input_order(group[0].body)
        ordered = lambda row, order=order: tuple(row[k] for k in order)
        body = replace(body, inputs=ordered(body.inputs))
        iterations = [Iteration(s.ops, ordered(s.inputs), s.outputs) for s in group]
        repeat = sink(Repeat(body, tuple(iterations)), movable)
        for site, iteration in zip(group, repeat.iterations, strict=True):
            mask, held = _masks(iteration, live, weights)
            taken = iteration.inputs
            body = repeat.body
            sunk.append(replace(site, inputs=taken, body=body, in_mask=mask, held=held))
    return sunk


def _moves(program: Program, weights: set[Value]) -> Moves:
    moves, others = moves_apart(program, weights)
    return Moves(moves, others, program.outputs)


def _masks(
    iteration: Iteration, live: set[Value], weights: set[Value]
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which inputs are differentiated, and which are there in the backward pass."""
    held = (isinstance(a, Constant) or a in weights for a in iteration.inputs)
    return tuple(atom in live for atom in iteration.inputs), tuple(held)


def moves_apart(program: Program, weights: Set[Value]) -> tuple[list[Op], list[Op]]:
    """What only gives inputs another form, and all other operations."""
    moves, others = [], []
    for op in program.ops:
        is_move = bool(op.outputs) and weights >= {*op.outputs}
        (moves if is_move else others).append(op)
    return moves, others


def stretches(program: Program, ops: Sequence[Op], apart: set[Op]) -> list[Stretch]:
    """The operations between those in `apart`, and what the rest uses of theirs."""
    rows: list[list[Op]] = [[]]
    for op in ops:
        if op in apart:
            rows.append([])
        else:
            rows[-1].append(op)
    home = {op: k for k, row in enumerate(rows) for op in row}
    made_in = {out: k for op, k in home.items() for out in op.outputs}
    used: list[set[Value]] = [set() for _ in rows]
    users = [(op, op.inputs) for op in program.ops]
    for op, atoms in [*users, (None, program.outputs)]:
        for atom in atoms:
            k = made_in.get(atom) if isinstance(atom, Value) else None
            if k is not None and k != home.get(op):
                used[k].add(atom)
    pairs = zip(rows, used, strict=True)
    return [Stretch(row, after) for row, after in pairs if row]


def whole(program: Program, in_mask: Sequence[bool]) -> Site:
    """A program as one site, where there is no other."""
    outputs = tuple(out for out in program.outputs if isinstance(out, Value))
    body, constants = lift(replace(program, outputs=outputs))
    return Site(
        kind="whole",
        label="",
        ops=program.ops,
        inputs=(*constants, *program.inputs),
        outputs=outputs,
        body=body,
        in_mask=(*(False for _ in constants), *in_mask),
        held=(True,) * len(body.inputs),
    )


def lift(program: Program) -> tuple[Program, list[Constant]]:
    """The program with its arrays as inputs in front, and those arrays."""
    body, arrays = lift_constants(program)
    avals = [v.aval for v in body.inputs[: len(arrays)]]
    return body, list(map(Constant, avals, arrays))


def call_site(op: Op, mask: Sequence[bool], held: Sequence[bool]) -> Site:
    closed = as_closed(op.eqn.params["jaxpr"])
    body, constants = lift(flatten(closed, keep_names=True, of=op))
    extra = len(constants)
    positions, inverse = block_inverse(op) or ((), None)
    if inverse is not None:
        inverse = with_inputs(inverse, [c.aval for c in constants], 0)
    return Site(
        kind="block" if op.is_block else "checkpoint",
        label=block_name(op.called),
        ops=(op,),
        inputs=(*constants, *op.inputs),
        outputs=op.outputs,
        body=body,
        in_mask=(*[False] * extra, *mask),
        held=(*[True] * extra, *held),
        carried=tuple(k + extra for k in positions),
        inverse=inverse,
        chunks={n: way.after(extra) for n, way in block_chunks(op).items()},
    )


def scan_site(op: Op, mask: Sequence[bool]) -> Site:
    closed = as_closed(op.eqn.params["jaxpr"])
    body, constants = lift(flatten(closed, keep_names=True, of=op))
    extra = len(constants)
    num_consts, num_carry = _compat.scan_counts(op.eqn)
    n, k = num_consts, num_consts + num_carry
    consts = (*[False] * extra, *mask[:n])
    carried = tuple(range(n + extra, k + extra))
    blocks = flatten(closed, keep_blocks=True).ops
    labels = [block_name(inside.called) for inside in blocks if inside.is_block]
    return Site(
        kind="scan",
        label=labels[0] if len(labels) == 1 else "",
        ops=(op,),
        inputs=(*constants, *op.inputs),
        outputs=op.outputs,
        body=body,
        in_mask=carried_mask(body, consts, mask[n:k], mask[k:]),
        held=tuple(at not in carried for at in range(len(body.inputs))),
        carried=carried,
        num_consts=n + extra,
        length=op.eqn.params["length"],
        reverse=op.eqn.params["reverse"],
        inverse=scan_inverse(closed, n, num_carry, [c.aval for c in constants]),
    )


def with_body(site: Site, closed: Any) -> Site:
    """The site of a scan whose iterations run another program of the same arguments."""
    assert site.in_mask is not None
    (op,) = site.ops
    changed = op.eqn.replace(params={**op.eqn.params, "jaxpr": closed})
    mask = site.in_mask[len(site.inputs) - len(op.inputs) :]
    made = scan_site(replace(op, eqn=changed), mask)
    return replace(made, within=site.within, num_scans=site.num_scans)
