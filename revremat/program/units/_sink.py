"""Sink: what one layer makes of its weights is made inside of it, and constants are.

The search for loops sets such operations apart, since the first layer may have them
where others do not. Left outside, their results would be there all the time: weights
in another precision, masks spread over heads and rows. What takes next to nothing stays
outside, where a loop's iterations and what is around them are fused as they were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from revremat.program.ir._costs import num_bytes
from revremat.program.ir._fingerprint import describe_op
from revremat.program.ir._ops import Atom, Constant, Op, Value
from revremat.program.units._repeats import Iteration, Repeat, equal_numbers
from revremat.program.units._stretch import made_by

_LEAST_PART = 1e-5
"""Of what an iteration makes: results smaller than that stay outside."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The operations that give weights and constants another form.

    Attributes:
      ops: They themselves, in program order.
      others: All other operations of the program.
      outputs: What the program gives out.
    """

    ops: Sequence[Op]
    others: Sequence[Op]
    outputs: Iterable[Atom]

    @cached_property
    def makers(self) -> dict[Value, Op]:
        """What makes each value."""
        return {out: op for op in self.ops for out in op.outputs}

    @cached_property
    def place(self) -> dict[Op, int]:
        """Where each stands."""
        return {op: k for k, op in enumerate(self.ops)}

    @cached_property
    def constant(self) -> set[Value]:
        """What is made of constants alone."""
        found: set[Value] = set()
        for op in self.ops:
            if all(isinstance(a, Constant) or a in found for a in op.inputs):
                found.update(op.outputs)
        return found

    @cached_property
    def users(self) -> dict[Value, list[Op | None]]:
        """What uses each value: None for the program's outputs, no dead operation."""
        found: dict[Value, list[Op | None]] = {value: [] for value in self.makers}

        def use(op: Op | None, atoms: Iterable[Atom]) -> None:
            for atom in atoms:
                if isinstance(atom, Value) and atom in found:
                    found[atom].append(op)

        use(None, self.outputs)
        for op in self.others:
            use(op, op.inputs)
        for op in reversed(self.ops):
            if any(found[out] for out in op.outputs):
                use(op, op.inputs)
        return found

    def before(self, values: Iterable[Atom]) -> list[Op]:
        """The moves that values are made by, at once or by way of others."""
        waiting, found = list(values), set[Op]()
        while waiting:
            value = waiting.pop()
            op = self.makers.get(value) if isinstance(value, Value) else None
            if op is not None and op not in found:
                found.add(op)
                waiting += op.inputs
        return sorted(found, key=self.place.__getitem__)


def sink(repeat: Repeat, moves: Moves) -> Repeat:
    """The loop, with the moves that only one of its iterations uses inside of that one.

    Args:
      repeat: What was found.
      moves: Those of the program.
    """
    iteration_of: dict[Op | None, int] = {
        op: n for n, iteration in enumerate(repeat.iterations) for op in iteration.ops
    }
    own: dict[Value, Op] = {}
    taken = {atom for iteration in repeat.iterations for atom in iteration.inputs}
    for op in reversed(moves.before(taken)):
        users = (
            iteration_of.get(user) for out in op.outputs for user in moves.users[out]
        )
        first = next(users, None)
        if first is not None and all(iteration == first for iteration in users):
            iteration_of[op] = first
        for out in op.outputs if len(op.outputs) == 1 else ():
            if out in moves.constant or op in iteration_of:
                own[out] = op
    return _with_inside(repeat, own, moves.makers)


def _with_inside(
    repeat: Repeat, own: dict[Value, Op], makers: dict[Value, Op]
) -> Repeat:
    """The loop whose iterations make these values from what they are made of."""
    slots: dict[tuple[int, ...], tuple[Value, tuple[Atom, ...]]] = {}
    given = list(
        zip(*(iteration.inputs for iteration in repeat.iterations), strict=True)
    )
    least_bytes = _LEAST_PART * sum(map(made_by, repeat.body.ops))
    inside: list[Op] = []
    env: dict[Atom, Atom] = {}

    @cache
    def alike(atoms: tuple[Atom, ...]) -> list[Op]:
        """What makes it in every iteration, if all of it can be made there.

        Half a way inside would only trade one form outside for another one.
        """
        ops = [own[a] for a in atoms if isinstance(a, Value) and a in own]
        if len(ops) < len(atoms) or len({describe_op(op) for op in ops}) > 1:
            return []
        rows = zip(*(op.inputs for op in ops), strict=True)
        ends = all(makers.keys().isdisjoint(row) or alike(row) for row in rows)
        return ops if ends else []

    def enter(atoms: tuple[Atom, ...], least_bytes: float = 0.0) -> Atom:
        """The value in the body for one input of every iteration."""
        if equal_numbers(atoms):
            return atoms[0]
        key = tuple(map(id, atoms))
        if key in slots:
            return slots[key][0]
        value = Value(atoms[0].aval)
        ops = alike(atoms) if num_bytes(value.aval) >= least_bytes else []
        if ops:
            inputs = tuple(map(enter, zip(*(op.inputs for op in ops), strict=True)))
            inside.append(Op(ops[0].eqn, inputs, (value,), ops[0].scope))
        slots[key] = (value, () if ops else atoms)
        return value

    for value, atoms in zip(repeat.body.inputs, given, strict=True):
        env[value] = enter(atoms, least_bytes)
    rename = lambda atom: env.get(atom, atom)
    body = [replace(op, inputs=tuple(map(rename, op.inputs))) for op in repeat.body.ops]
    kept = [(value, atoms) for value, atoms in slots.values() if atoms]
    return replace(
        repeat,
        body=replace(
            repeat.body,
            inputs=tuple(value for value, _ in kept),
            ops=(*inside, *body),
            outputs=tuple(map(rename, repeat.body.outputs)),
        ),
        iterations=tuple(
            Iteration(
                iteration.ops, tuple(atoms[n] for _, atoms in kept), iteration.outputs
            )
            for n, iteration in enumerate(repeat.iterations)
        ),
    )
