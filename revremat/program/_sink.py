"""Sink: what one layer makes of its weights is made inside of it, and constants are.

The search for loops sets such operations apart, since the first layer may have them
where others do not. Left outside, their results would be there all the time: weights
in another precision, masks spread over heads and rows. What takes next to nothing stays
outside, where a loop's turns and what is around them are fused as they were.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from revremat.program._costs import num_bytes
from revremat.program._fingerprint import describe_op
from revremat.program._ops import Atom, Constant, Op, Value
from revremat.program._repeats import Repeat, Turn, equal_numbers, made_by

_ELSEWHERE = -1
_LEAST_PART = 1e-5
"""Of what a turn makes: results smaller than that stay outside."""
_Users = Mapping[Value, set[int]]


def sink(
    repeat: Repeat, moves: Sequence[Op], others: Iterable[Op], outputs: Iterable[Atom]
) -> Repeat:
    """The loop, with the moves that only one of its turns uses inside of that turn.

    Args:
      repeat: What was found.
      moves: What gives weights and constants another form, in program order.
      others: All other operations of the program.
      outputs: What the program gives out.
    """
    turn_of = {op: n for n, turn in enumerate(repeat.turns) for op in turn.ops}
    users = _users(moves, others, outputs, turn_of)
    makers = {out: op for op in moves for out in op.outputs}
    constant: set[Value] = set()
    own: dict[Value, Op] = {}
    for op in moves:
        if all(isinstance(a, Constant) or a in constant for a in op.inputs):
            constant.update(op.outputs)
        if len(op.outputs) == 1:
            (out,) = op.outputs
            if out in constant or len(users[out]) == 1:
                own[out] = op
    return _with_inside(repeat, own, makers)


def _users(
    moves: Sequence[Op],
    others: Iterable[Op],
    outputs: Iterable[Atom],
    turn_of: Mapping[Op, int],
) -> _Users:
    """Which turns use what a move makes, at once or by other moves."""
    users: dict[Value, set[int]] = {out: set() for op in moves for out in op.outputs}
    for op in others:
        for atom in op.inputs:
            if atom in users:
                users[atom].add(turn_of.get(op, _ELSEWHERE))
    for atom in outputs:
        if atom in users:
            users[atom].add(_ELSEWHERE)
    for op in reversed(moves):
        further = set[int]().union(*(users[out] for out in op.outputs))
        for atom in op.inputs:
            if atom in users:
                users[atom] |= further
    return users


def _with_inside(
    repeat: Repeat, own: Mapping[Value, Op], makers: Mapping[Value, Op]
) -> Repeat:
    """The loop whose turns make these values from what they are made of."""
    slots: dict[tuple[int, ...], tuple[Value, tuple[Atom, ...]]] = {}
    given = list(zip(*(turn.inputs for turn in repeat.turns), strict=True))
    least_bytes = _LEAST_PART * sum(map(made_by, repeat.body.ops))
    inside: list[Op] = []
    env: dict[Atom, Atom] = {}

    def alike(atoms: tuple[Atom, ...]) -> list[Op]:
        """The operation that makes it in every turn, if the turn can make all of it.

        Half a way inside would only trade one form outside for another one.
        """
        ops = [own[a] for a in atoms if isinstance(a, Value) and a in own]
        if len(ops) < len(atoms) or len({describe_op(op) for op in ops}) > 1:
            return []
        rows = zip(*(op.inputs for op in ops), strict=True)
        ends = all(makers.keys().isdisjoint(row) or alike(row) for row in rows)
        return ops if ends else []

    def enter(atoms: tuple[Atom, ...], least_bytes: float = 0.0) -> Atom:
        """The value in the body for one input of every turn."""
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
        turns=tuple(
            Turn(turn.ops, tuple(atoms[n] for _, atoms in kept), turn.outputs)
            for n, turn in enumerate(repeat.turns)
        ),
    )
