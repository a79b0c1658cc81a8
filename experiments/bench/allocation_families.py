"""Relatives of the published instances: same families, but of our own making.

Perfect packings known from how they are made (of minimalloc's kind, 1048576 bytes), and
traces of models (of the kind of SOMAS and the IOPDDL comparison), some made from
published ones and some from nothing. Lifetimes are `lower, upper`, sizes in bytes;
every maker takes a seed and gives the same problem for it everywhere.
"""

from collections.abc import Callable, Sequence

import numpy as np

from revremat.allocation import AllocationProblem, Buffer

CAPACITY = 1 << 20
_CELLS = 1024
_CELL_BYTES = CAPACITY // _CELLS


def problem_of(lower, upper, size) -> AllocationProblem:
    """A problem from three sequences, with ids by position."""
    rows = zip(lower, upper, size, strict=True)
    return AllocationProblem(
        tuple(
            Buffer(f"b{i}", int(a), int(b), int(c)) for i, (a, b, c) in enumerate(rows)
        )
    )


def _arrays(problem: AllocationProblem):
    return problem.lower.copy(), problem.upper.copy(), problem.sizes_bytes.copy()


# From published packings. `placed` is int64[n, 4]: lower, upper, bottom, top.


def placed_of(problem: AllocationProblem, offsets: Sequence[int]) -> np.ndarray:
    """A packing as `int64[n, 4]`: lower, upper, bottom, top of each buffer."""
    bottom = np.array(offsets, np.int64)
    return np.stack(
        [problem.lower, problem.upper, bottom, bottom + problem.sizes_bytes], axis=1
    )


def unplaced(placed: np.ndarray, seed: int) -> AllocationProblem:
    """Forgets the offsets and shuffles the rows."""
    rows = np.random.default_rng(seed).permutation(len(placed))
    lower, upper, bottom, top = placed[rows].T
    return problem_of(lower, upper, top - bottom)


def mirrored(placed: np.ndarray) -> np.ndarray:
    """Time runs backwards."""
    out = placed.copy()
    out[:, 0], out[:, 1] = CAPACITY - placed[:, 1], CAPACITY - placed[:, 0]
    return out


def transposed(placed: np.ndarray) -> np.ndarray:
    """Time becomes memory and memory time."""
    return placed[:, [2, 3, 0, 1]]


def crossed(left: np.ndarray, right: np.ndarray, at: int) -> np.ndarray:
    """One packing before a time and another one after it."""
    before, after = left[left[:, 0] < at].copy(), right[right[:, 1] > at].copy()
    before[:, 1] = np.minimum(before[:, 1], at)
    after[:, 0] = np.maximum(after[:, 0], at)
    return np.concatenate([before, after])


def recut(placed: np.ndarray, times: int, seed: int) -> np.ndarray:
    """Joins neighbours that share a whole edge and cuts as many others in two."""
    rng = np.random.default_rng(seed)
    pieces = [tuple(int(x) for x in row) for row in placed]
    for _ in range(times):
        by_edge: dict[tuple, int] = {}
        joinable = []
        for i, (a, b, c, d) in enumerate(pieces):
            by_edge["time", a, c, d] = i
            by_edge["memory", c, a, b] = i
        for i, (a, b, c, d) in enumerate(pieces):
            for edge in (("time", b, c, d), ("memory", d, a, b)):
                if edge in by_edge:
                    joinable.append((i, by_edge[edge]))
        if joinable and rng.random() < 0.5:
            i, j = joinable[rng.integers(len(joinable))]
            low = np.minimum(pieces[i], pieces[j])
            high = np.maximum(pieces[i], pieces[j])
            pieces[i] = (int(low[0]), int(high[1]), int(low[2]), int(high[3]))
            del pieces[j]
        area = np.array([float(b - a) * (d - c) for a, b, c, d in pieces])
        if len(pieces) >= len(placed):
            continue
        i = int(rng.choice(len(pieces), p=area / area.sum()))
        a, b, c, d = pieces[i]
        if rng.random() < 0.5 and d - c > _CELL_BYTES:
            cut = c + _CELL_BYTES * int(rng.integers(1, -(-(d - c) // _CELL_BYTES)))
            pieces[i : i + 1] = [(a, b, c, cut), (a, b, cut, d)]
        elif b - a > 512:
            cut = a + 512 * int(rng.integers(1, -(-(b - a) // 512)))
            pieces[i : i + 1] = [(a, cut, c, d), (cut, b, c, d)]
    return np.array(pieces, np.int64)


# From nothing.


def cut_up(
    count: int, seed: int, *, long: float = 0.5, dropped: float = 0.0, steps=_CELLS
) -> np.ndarray:
    """Time x memory cut up recursively, partly in pinwheels instead of straight.

    Args:
      count: Pieces.
      seed: Of all choices.
      long: How often a cut goes along time; near one, lifetimes are long.
      dropped: The share of the pieces that is left out, but never over the first time
        step, so that the capacity stays the bound.
      steps: How many time steps there are.
    """
    rng = np.random.default_rng(seed)
    pieces = [(0, steps, 0, _CELLS)]
    wanted = round(count / (1 - dropped))
    while len(pieces) < wanted:
        area = np.array([float(b - a) * (d - c) for a, b, c, d in pieces])
        i = int(rng.choice(len(pieces), p=area / area.sum()))
        a, b, c, d = pieces[i]
        if rng.random() < 0.15 and b - a > 2 and d - c > 2:
            x, y = np.sort(rng.choice(np.arange(a + 1, b), 2, replace=False)).tolist()
            u, v = np.sort(rng.choice(np.arange(c + 1, d), 2, replace=False)).tolist()
            pieces[i : i + 1] = [
                (a, y, c, u), (y, b, c, v), (x, b, v, d), (a, x, u, d), (x, y, u, v),
            ]  # fmt: skip
        elif rng.random() >= long and b - a > 1:
            cut = int(rng.integers(a + 1, b))
            pieces[i : i + 1] = [(a, cut, c, d), (cut, b, c, d)]
        elif d - c > 1:
            cut = int(rng.integers(c + 1, d))
            pieces[i : i + 1] = [(a, b, c, cut), (a, b, cut, d)]
    rows = np.array(pieces, np.int64)
    spare = np.flatnonzero(rows[:, 0] > 0)
    out = rng.choice(spare, min(len(spare), len(rows) - count), replace=False)
    rows = np.delete(rows, out, axis=0)
    return rows * [CAPACITY // steps, CAPACITY // steps, _CELL_BYTES, _CELL_BYTES]


def bricks(count: int, seed: int, *, size=(32, 110), gaps: float = 0.3) -> np.ndarray:
    """Pieces of like sizes laid one after another wherever memory is free the earliest.

    Args:
      count: Pieces.
      seed: Of all choices.
      size: Least and greatest size, in 1024ths of the capacity.
      gaps: How often a piece begins later than it could.
    """
    rng = np.random.default_rng(seed)
    free = np.zeros(_CELLS, np.int64)  # when each cell is free
    mean = count * (size[0] + size[1]) / 2 / _CELLS
    longest = int(2048 / mean * 1.5)
    rows = []
    while len(rows) < count:
        at = int(np.argmin(free))
        room = at
        while room < _CELLS and free[room] == free[at]:
            room += 1
        width = int(rng.integers(size[0], size[1] + 1))
        if room - at < width or room - at - width < size[0]:
            width = room - at
        if width < size[0]:
            beside = [free[x] for x in (at - 1, room) if 0 <= x < _CELLS]
            free[at:room] = min(beside)
            continue
        width = min(width, size[1])
        start = int(free[at]) + (int(rng.integers(1, 12)) if rng.random() < gaps else 0)
        stop = start + int(rng.integers(max(2, longest // 4), longest + 1))
        rows.append((start, stop, at, at + width))
        free[at : at + width] = stop
    return np.array(rows, np.int64) * [512, 512, _CELL_BYTES, _CELL_BYTES]


# Traces of models.


def backwards(problem: AllocationProblem) -> AllocationProblem:
    """Time runs backwards."""
    lower, upper, size = _arrays(problem)
    return problem_of(upper.max() - upper, upper.max() - lower, size)


def resized(problem: AllocationProblem, seed: int, unit: int = 1) -> AllocationProblem:
    """Buffers of one size take another one together; some go their own way."""
    rng = np.random.default_rng(seed)
    lower, upper, size = _arrays(problem)
    kinds, kind = np.unique(size, return_inverse=True)
    factor = np.exp(rng.normal(0, 0.5, len(kinds)))[kind]
    factor *= np.where(rng.random(len(size)) < 0.1, rng.uniform(0.5, 2, len(size)), 1)
    return problem_of(lower, upper, np.maximum(1, size * factor // unit) * unit)


def window(problem: AllocationProblem, seed: int) -> AllocationProblem:
    """A part of the trace; what lives longer is cut off."""
    rng = np.random.default_rng(seed)
    lower, upper, size = _arrays(problem)
    span = upper.max()
    begin = int(rng.integers(0, span // 2))
    end = begin + int(rng.integers(span // 4, span // 2))
    inside = (lower < end) & (upper > begin)
    return problem_of(
        np.maximum(lower, begin)[inside], np.minimum(upper, end)[inside], size[inside]
    )


def copies(
    problem: AllocationProblem, count: int, seed: int, unit: int = 1
) -> AllocationProblem:
    """Several runs of one model, shifted and scaled, over one another in time."""
    rng = np.random.default_rng(seed)
    lower, upper, size = _arrays(problem)
    span = int(upper.max())
    parts = []
    for _ in range(count):
        shift = int(rng.integers(0, count * span // 3 + 1))
        scale = rng.uniform(0.3, 3)
        scaled = np.maximum(1, size * scale // unit).astype(np.int64) * unit
        parts.append((lower + shift, upper + shift, scaled))
    return problem_of(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def training_trace(
    layers: int, width: int, seed: int, balance: float = 0.5, unit: int = 512
) -> AllocationProblem:
    """One training step: weights, residuals, temporaries, gradients and the update.

    Residuals of a layer live until its backward pass, some only for a few layers
    (skips, attention masks); temporaries for a few operators; gradients of weights from
    the layer's backward pass until the update at the end; many buffers are tiny.

    Args:
      layers: How many.
      width: Operators in a layer, each way.
      seed: Of all choices.
      balance: Bytes of gradients made for each byte of residuals freed. At one, memory
        stays full through all of the backward pass, while what fills it changes size.
      unit: Every size is a multiple of it.
    """
    rng = np.random.default_rng(seed)
    hidden = int(rng.integers(64, 1024)) * unit
    sizes = np.array([1, 1, 1, 2, 3, 4, 4, 8]) * hidden
    tiny = np.array([1, 1, 2, 4, 9]) * unit
    per_op = rng.choice(sizes, width)  # layers are alike
    kept = rng.random(width) < 0.35
    weights = rng.integers(1, 64, -(-width // 4)).astype(np.float64)
    weights *= balance * float(per_op[kept].sum()) / weights.sum()
    forward, backward = layers * width, 3 * layers * width
    update = backward
    rows: list[tuple[int, int, int]] = []

    def add(lower: int, upper: int, size) -> None:
        rows.append((lower, max(upper, lower + 1), int(size)))

    for layer in range(layers):
        grow = 1 if layer < layers // 2 or rng.random() < 0.9 else 2
        for op in range(width):
            at = layer * width + op
            back = backward - 2 * at - 2
            size = per_op[op] * grow
            if kept[op]:
                add(at, back + int(rng.integers(1, 4)), size)
            else:
                add(at, at + int(rng.integers(1, 5)), size)
            if rng.random() < 0.3:
                add(at, at + 1, rng.choice(sizes) // 2 // unit * unit + unit)
            for _ in range(2):
                add(back, back + int(rng.integers(1, 5)), size)
            if op % 4 == 0:
                weight = int(weights[op // 4]) // unit * unit + unit
                add(back, update + layer * 2 + 2, weight)
                add(update + layer * 2, update + layer * 2 + 2, weight)
            if rng.random() < 0.5:
                until = back if rng.random() < 0.5 else at + 3
                add(at, until, rng.choice(tiny))
        if rng.random() < 0.3:
            at = layer * width
            add(at, min(forward, at + int(rng.integers(1, 6)) * width), 2 * hidden)
    return problem_of(*np.array(rows, np.int64).T)


Maker = Callable[[int], AllocationProblem]


def packing_makers(published: Sequence[np.ndarray]) -> dict[str, Maker]:
    """Families that fit into `CAPACITY`, as functions of a seed.

    `published` are packings of published instances, `placed_of` each.
    """

    def pick(seed: int, salt: int = 0) -> np.ndarray:
        rng = np.random.default_rng([seed, salt])
        return published[int(rng.integers(len(published)))]

    def cross(seed: int) -> AllocationProblem:
        at = 512 * int(np.random.default_rng(seed).integers(512, 1536))
        left, right = pick(seed), pick(seed, 1)
        return unplaced(crossed(left, mirrored(right), at), seed)

    def count(seed: int) -> int:
        return 200 + 260 * (seed % 20) // 19

    made: dict[str, Maker] = {
        "cut up": lambda s: unplaced(cut_up(count(s), s), s),
        "cut up, tenth dropped": lambda s: unplaced(
            cut_up(count(s), s, dropped=0.1), s
        ),
        "cut up, long lives": lambda s: unplaced(
            cut_up(count(s), s, long=0.65, dropped=0.05), s
        ),
        "cut up, 128 steps": lambda s: unplaced(
            cut_up(count(s), s, steps=128, dropped=0.03), s
        ),
        "bricks": lambda s: unplaced(bricks(count(s), s), s),
        "bricks without gaps": lambda s: unplaced(bricks(count(s), s, gaps=0.1), s),
    }
    if not published:
        return made
    return made | {
        "mirrored": lambda s: unplaced(mirrored(published[s % len(published)]), s),
        "transposed": lambda s: unplaced(transposed(published[s % len(published)]), s),
        "crossed": cross,
        "recut": lambda s: unplaced(recut(pick(s), 200, s), s),
        "recut thrice": lambda s: unplaced(
            recut(published[s % len(published)], 600, s), s
        ),
        "mirrored, recut": lambda s: unplaced(
            recut(mirrored(published[s % len(published)]), 200, s), s
        ),
        "transposed, recut": lambda s: unplaced(recut(transposed(pick(s)), 200, s), s),
    }


def trace_makers(published: AllocationProblem) -> dict[str, Maker]:
    """Relatives of one published trace, as functions of a seed."""
    made: dict[str, Maker] = {
        "backwards": lambda s: backwards(published),
        "resized": lambda s: resized(published, s, (1, 512)[s % 2]),
        "window": lambda s: window(published, s),
    }
    if len(published.buffers) > 10_000:
        return made
    return made | {
        "3 copies": lambda s: copies(published, 3, s),
        "6 copies": lambda s: copies(published, 6, s),
        "20 copies": lambda s: copies(published, 20, s),
    }


def training_makers() -> dict[str, Maker]:
    """Training steps of thousands of buffers, as functions of a seed."""
    return {
        "training, 8,000 buffers": lambda s: training_trace(32, 60, s, 1.0),
        "training, 21,000 buffers": lambda s: training_trace(48, 100, s, 1.0),
        "training, 29,000 buffers": lambda s: training_trace(48, 140, s, 0.9),
    }
