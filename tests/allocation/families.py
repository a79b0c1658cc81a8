"""Makers of problems whose optimum is known, or known to be hard to reach."""

import itertools
import random

from revremat.allocation import AllocationProblem, Buffer, Relation


def guillotine(
    count: int, seed: int, *, capacity: int = 1 << 20, span: int = 1 << 20, unit=1024
) -> AllocationProblem:
    """A rectangle of time x memory cut up recursively: its optimum is `capacity`."""
    rng = random.Random(seed)
    pieces = [(0, span // unit, 0, capacity // unit)]
    while len(pieces) < count:
        weights = [(b - a) * (d - c) for a, b, c, d in pieces]
        at = rng.choices(range(len(pieces)), weights)[0]
        a, b, c, d = pieces[at]
        if rng.random() < 0.5 and b - a > 1:
            cut = rng.randint(a + 1, b - 1)
            pieces[at], new = (a, cut, c, d), (cut, b, c, d)
        elif d - c > 1:
            cut = rng.randint(c + 1, d - 1)
            pieces[at], new = (a, b, c, cut), (a, b, cut, d)
        else:
            continue
        pieces.append(new)
    rng.shuffle(pieces)
    return AllocationProblem(
        tuple(
            Buffer(f"b{i}", a * unit, b * unit, (d - c) * unit)
            for i, (a, b, c, d) in enumerate(pieces)
        )
    )


def training_step(layers: int, seed: int, branches: int = 3) -> AllocationProblem:
    """Activations kept from forward to backward, with short temporaries at each end."""
    rng = random.Random(seed)
    buffers: list[Buffer] = []

    def add(lower: int, upper: int, size: int) -> None:
        buffers.append(Buffer(f"t{len(buffers)}", lower, upper, size))

    sizes = [rng.choice((1, 2, 3, 4, 6, 8)) * 4096 for _ in range(8)]
    steps = 6
    end = 2 * layers * steps
    for layer in range(layers):
        forward, backward = layer * steps, end - (layer + 1) * steps
        for _ in range(branches):
            size = rng.choice(sizes)
            add(forward + rng.randint(0, 3), backward + rng.randint(1, steps), size)
        for start in (forward, backward):
            for _ in range(2 * branches):
                at = start + rng.randint(0, steps - 2)
                add(at, at + rng.randint(1, 4), rng.choice(sizes) * rng.randint(1, 3))
    return AllocationProblem(tuple(buffers))


def small(seed: int, kind: str) -> AllocationProblem:
    """A few small buffers; `kind` names what else there is.

    u: one alignment, a: many alignments, g: groups, r: a relation, i: in place.
    """
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    buffers = []
    for i in range(count):
        lower = rng.randint(0, 6)
        align = rng.choice((1, 2, 4)) if "a" in kind else 2 if "u" in kind else 1
        group = rng.choice(("", "", "g", "h")) if "g" in kind else ""
        upper = lower + rng.randint(1, 5)
        buffers.append(
            Buffer(f"b{i}", lower, upper, rng.randint(0, 5), align, group=group)
        )
    relation = None
    if "r" in kind:
        pairs = itertools.combinations(range(count), 2)
        relation = Relation.from_pairs(count, [p for p in pairs if rng.random() < 0.3])
    loose = [b.id for b in buffers if not b.group]
    in_place = ()
    if "i" in kind and len(loose) > 1:
        in_place = (tuple(rng.sample(loose, 2)),)
    return AllocationProblem(tuple(buffers), relation, in_place)


def full_sections(seed: int, steps: int, load: int) -> AllocationProblem:
    """Always exactly `load` bytes live; whether they fit into that is left open."""
    rng = random.Random(seed)
    live: list[tuple[int, int]] = []
    buffers: list[Buffer] = []
    for time in range(steps + 1):
        ends = [b for b in live if time == steps or rng.random() < 0.5]
        for lower, size in ends:
            live.remove((lower, size))
            buffers.append(Buffer(f"b{len(buffers)}", lower, time, size))
        free = load - sum(size for _, size in live)
        while free and time < steps:
            size = rng.randint(1, free)
            live.append((time, size))
            free -= size
    return AllocationProblem(tuple(buffers))


def least_by_trying_all(problem: AllocationProblem) -> int:
    """The least makespan by the rules alone: every offset, capacity by capacity."""
    for capacity in itertools.count():
        if _fits(problem, capacity, {}):
            return capacity
    raise AssertionError


def _fits(problem, capacity, placed: dict[int, int]) -> bool:
    buffers = problem.buffers
    i = next((i for i in range(len(buffers)) if i not in placed), None)
    if i is None:
        return True
    tied = problem.groups.get(buffers[i].group, (i,))
    for ids in problem.in_place:
        if buffers[i].id in ids:
            tied = tuple(problem.index[id] for id in ids)
    # Alone and empty, it lies anywhere.
    highest = 0 if tied == (i,) and not buffers[i].size_bytes else capacity
    for first in range(highest + 1):
        offsets, at = {}, first
        for j in tied:
            if buffers[i].group and j != i:
                at = -(-at // buffers[j].alignment_bytes) * buffers[j].alignment_bytes
            offsets[j] = at
            at += buffers[j].size_bytes if buffers[i].group else 0
        if all(_may_lie(problem, capacity, placed, j, offsets[j]) for j in tied) and (
            _fits(problem, capacity, placed | offsets)
        ):
            return True
    return False


def _may_lie(problem, capacity, placed, i, offset) -> bool:
    a = problem.buffers[i]
    if offset % a.alignment_bytes or offset + a.size_bytes > capacity:
        return False
    for j, other in placed.items():
        b = problem.buffers[j]
        apart = a.upper <= b.lower or b.upper <= a.lower
        if apart and problem.relation is not None:
            apart = not problem.relation.conflicts(i, j)
        overlap = offset < other + b.size_bytes and other < offset + a.size_bytes
        if not apart and overlap and a.size_bytes and b.size_bytes:
            return False
    return True
