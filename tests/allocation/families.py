"""Makers of problems whose optimum is known, or known to be hard to reach."""

import itertools
import random
from collections.abc import Callable

from revremat.allocation import AllocationProblem, Buffer, Relation
from revremat.allocation._blocks import to_blocks


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
    """The least makespan: every offset of every block, capacity by capacity."""
    blocks = to_blocks(problem)
    for capacity in itertools.count():
        if _fits(problem, blocks, capacity, []):
            return capacity
    raise AssertionError


def _fits(problem, blocks, capacity, bases) -> bool:
    k = len(bases)
    if k == blocks.count:
        return True
    highest = capacity - int(blocks.height[k])
    return any(
        all(not _clash(problem, blocks, k, base, j, b) for j, b in enumerate(bases))
        and _fits(problem, blocks, capacity, [*bases, base])
        for base in range(0, highest + 1, int(blocks.alignment[k]))
    )


def _clash(problem, blocks, k, base_k, j, base_j) -> bool:
    members: Callable = lambda x: range(blocks.start[x], blocks.start[x + 1])
    for m, p in itertools.product(members(k), members(j)):
        i, o = int(blocks.buffer[m]), int(blocks.buffer[p])
        a, b = problem.buffers[i], problem.buffers[o]
        apart = a.upper <= b.lower or b.upper <= a.lower
        if apart and problem.relation is not None:
            apart = not problem.relation.conflicts(i, o)
        low, other = base_k + blocks.shift[m], base_j + blocks.shift[p]
        overlap = low < other + b.size_bytes and other < low + a.size_bytes
        if not apart and overlap and a.size_bytes and b.size_bytes:
            return True
    return False
