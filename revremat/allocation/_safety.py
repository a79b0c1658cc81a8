"""Which tensors may share memory when streams of operators run in parallel.

Tensor `a` may give its memory to `b` if every operator that uses `a` has finished
before the one that writes `b` can begin, in every run that respects the dependencies:
every user of `a` is a strict ancestor of the producer of `b` (SOMAS: Lamprou et al.,
MLSys 2023). On one stream that is exactly the overlap of lifetimes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt64

from revremat._errors import UserError
from revremat._numba import njit
from revremat.allocation._problem import AllocationProblem, Buffer
from revremat.allocation._relation import Relation


@dataclass(frozen=True)
class Tensor:
    """What operators read and write.

    Attributes:
      id: Its name.
      size_bytes: Its size.
      alignment_bytes: Its offset is a multiple of this.
      group: Tensors of one group lie back to back, in the order listed.
      lifelong: Whether its memory is its own from beginning to end.

    Example:
      >>> from revremat.allocation import Tensor
      >>> Tensor("x", size_bytes=1024).lifelong
      False
    """

    id: str
    size_bytes: int
    alignment_bytes: int = 1
    group: str = ""
    lifelong: bool = False


@dataclass(frozen=True)
class Operator:
    """Work on one stream.

    It begins when the operator before it on its stream, the producers of what it reads
    and all those in `after` have finished; nothing else holds it back.

    Attributes:
      id: Its name.
      stream: The stream it runs on.
      reads: Tensors it reads. One that no operator writes is there from the start.
      writes: Tensors it writes. The first to write a tensor produces it.
      after: Operators that must have finished.
      in_place: Pairs `(read, written)` that are to share one place.

    Example:
      >>> from revremat.allocation import Operator
      >>> Operator("send", "copies", reads=("x",)).stream
      'copies'
    """

    id: str
    stream: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()


def safe_problem(
    operators: Sequence[Operator], tensors: Sequence[Tensor]
) -> AllocationProblem:
    """Decides which tensors may share memory, and states the rest as a problem.

    Time counts operators in the order listed, from 1; what is there from the start is
    live from 0. So the problem's lower bound is that of running them one by one, and
    its relation holds the pairs that only parallel streams keep apart.

    Args:
      operators: In an order in which they could run one by one.
      tensors: What they read and write.

    Returns:
      A problem with one buffer for each tensor, in their order.

    Raises:
      UserError: An unknown or repeated name, an operator listed before one that it
        waits for, or an in-place pair that would overwrite a tensor still in use.

    Example:
      >>> from revremat.allocation import Operator, Tensor, safe_problem
      >>> problem = safe_problem(
      ...     [Operator("f", "main", writes=("x",)),
      ...      Operator("send", "copies", reads=("x",)),
      ...      Operator("g", "main", writes=("y",))],
      ...     [Tensor("x", 4), Tensor("y", 4)],
      ... )
      >>> problem.relation.conflicts(0, 1)  # x may still be on its way
      True
    """
    graph = _Graph.of(operators, tensors)
    after = _written_after(graph)
    _check_in_place(operators, graph, after)
    words = _conflicts(graph, after, np.array([t.lifelong for t in tensors], bool))
    relation = Relation(words, len(tensors))
    last = len(operators) + 1
    buffers = []
    for i, tensor in enumerate(tensors):
        lower = 0 if tensor.lifelong else int(graph.producer[i])
        users = graph.users[graph.user_start[i] : graph.user_start[i + 1]]
        upper = last if tensor.lifelong else int(users.max()) + 1
        buffers.append(
            Buffer(
                tensor.id,
                lower,
                upper,
                tensor.size_bytes,
                tensor.alignment_bytes,
                tensor.group,
            )
        )
    return AllocationProblem(tuple(buffers), relation, _chains(operators))


@dataclass(frozen=True)
class _Graph:
    """The operators as numbers; operator 0 comes before all and makes the inputs."""

    count: int
    edge_start: Int[np.ndarray, " edge_starts"]  # into `edges`: what waits for each
    edges: Int[np.ndarray, " edges"]
    producer: Int[np.ndarray, " tensors"]
    user_start: Int[np.ndarray, " tensors+1"]  # into `users`
    users: Int[np.ndarray, " users"]
    tensor: dict[str, int]
    operator: dict[str, int]

    @classmethod
    def of(cls, operators, tensors) -> "_Graph":
        tensor = {t.id: i for i, t in enumerate(tensors)}
        if len(tensor) < len(tensors):
            raise UserError("two tensors have one id; give each its own")
        number: dict[str, int] = {}
        edges: set[tuple[int, int]] = set()
        producer = [0] * len(tensors)
        writer: dict[int, int] = {}
        users: list[list[int]] = [[] for _ in tensors]
        latest: dict[str, int] = {}
        written = {name for op in operators for name in op.writes}
        for v, op in enumerate(operators, start=1):
            if op.id in number:
                raise UserError(f"two operators are called {op.id!r}")
            for name in (*op.reads, *op.writes):
                if name not in tensor:
                    raise UserError(
                        f"operator {op.id!r} uses {name!r}, which is no tensor"
                    )
            edges.add((latest.get(op.stream, 0), v))
            latest[op.stream] = v
            for name in op.after:
                if name not in number:
                    raise UserError(
                        f"operator {op.id!r} waits for {name!r}, which is not listed "
                        "before it"
                    )
                edges.add((number[name], v))
            for name in op.reads:
                i = tensor[name]
                if i in writer:
                    edges.add((writer[i], v))
                elif name in written:
                    raise UserError(
                        f"operator {op.id!r} reads {name!r} before any operator writes "
                        "it; list its producer first"
                    )
                users[i].append(v)
            for name in op.writes:
                i = tensor[name]
                if i in writer:
                    edges.add((writer[i], v))
                else:
                    producer[i] = v
                writer[i] = v
                users[i].append(v)
            number[op.id] = v
        for i, of in enumerate(users):
            if not of:
                of.append(producer[i])
        count = len(operators) + 1
        pairs = np.array(sorted(edges), np.int64).reshape(-1, 2)
        return cls(
            count,
            np.searchsorted(pairs[:, 0], np.arange(count + 1)).astype(np.int64),
            np.ascontiguousarray(pairs[:, 1]),
            np.array(producer, np.int64),
            np.concatenate([[0], np.cumsum([len(of) for of in users])]).astype(
                np.int64
            ),
            np.array(list(itertools.chain.from_iterable(users)), np.int64),
            tensor,
            number,
        )


def _written_after(graph: _Graph) -> UInt64[np.ndarray, "operators words"]:
    """`uint64[operators, words]`: the tensors produced by what must follow each."""
    words = (len(graph.producer) + 63) // 64
    after = np.zeros((graph.count, words), np.uint64)
    order = np.argsort(graph.producer, kind="stable")
    start = np.searchsorted(graph.producer[order], np.arange(graph.count + 1))
    _collect(graph.edge_start, graph.edges, start, order, after)
    return after


@njit
def _collect(edge_start, edges, made_start, made, after):
    words = after.shape[1]
    for v in range(after.shape[0] - 1, -1, -1):
        for e in range(edge_start[v], edge_start[v + 1]):
            w = edges[e]
            for k in range(words):
                after[v, k] |= after[w, k]
            for x in range(made_start[w], made_start[w + 1]):
                i = made[x]
                after[v, i >> 6] |= np.uint64(1) << np.uint64(i & 63)


def _check_in_place(operators, graph, after):
    for op in operators:
        for old, new in op.in_place:
            if old not in op.reads or new not in op.writes:
                raise UserError(
                    f"operator {op.id!r} writes {new!r} in place of {old!r}, but does "
                    "not read the one and write the other"
                )
            i, j = graph.tensor[old], graph.tensor[new]
            v = graph.operator[op.id]
            if graph.producer[j] != v:
                raise UserError(
                    f"operator {op.id!r} writes {new!r} in place of {old!r}, but "
                    f"{new!r} was written before"
                )
            for user in graph.users[graph.user_start[i] : graph.user_start[i + 1]]:
                if user == v or int(after[user, j // 64]) >> (j % 64) & 1:
                    continue
                raise UserError(
                    f"operator {op.id!r} would overwrite {old!r} in place while "
                    f"operator {operators[user - 1].id!r} may still use it"
                )


def _chains(operators) -> tuple[tuple[str, ...], ...]:
    """In-place pairs joined into the tensors that share one place."""
    chain_of: dict[str, list[str]] = {}
    for op in operators:
        for old, new in op.in_place:
            joined = chain_of.get(old, [old])
            joined += [name for name in chain_of.get(new, [new]) if name not in joined]
            for name in joined:
                chain_of[name] = joined
    distinct = {id(chain): chain for chain in chain_of.values()}
    return tuple(tuple(chain) for chain in distinct.values())


def _conflicts(
    graph: _Graph,
    after: UInt64[np.ndarray, "operators words"],
    lifelong: Bool[np.ndarray, " tensors"],
) -> UInt64[np.ndarray, "tensors words"]:
    """Bits of the pairs of which neither may give its memory to the other."""
    count = len(graph.producer)
    words = after.shape[1]
    # Rows up to a multiple of 64, so that the matrix falls into square blocks.
    reuse = np.zeros((64 * words, words), np.uint64)
    _meet(graph.user_start, graph.users, after, reuse)
    reuse[:count][lifelong] = 0
    clear = np.zeros(64 * words, bool)
    clear[:count] = lifelong
    keep = np.packbits(~clear, bitorder="little").view("<u8")
    reuse &= keep.astype(np.uint64)
    _symmetric_complement(reuse, count)
    return np.ascontiguousarray(reuse[:count])


@njit
def _meet(user_start, users, after, reuse):
    """A tensor gives its memory to what is written after each of its users."""
    words = after.shape[1]
    for i in range(user_start.shape[0] - 1):
        first = user_start[i]
        for k in range(words):
            reuse[i, k] = after[users[first], k]
        for x in range(first + 1, user_start[i + 1]):
            for k in range(words):
                reuse[i, k] &= after[users[x], k]


@njit
def _transpose(block):
    """Transposes 64 words of 64 bits in place (Warren, Hacker's Delight, 7-3)."""
    width = 32
    mask = np.uint64(0x00000000FFFFFFFF)
    while width > 0:
        shift = np.uint64(width)
        k = 0
        while k < 64:
            swap = ((block[k] >> shift) ^ block[k + width]) & mask
            block[k + width] ^= swap
            block[k] ^= swap << shift
            k = (k + width + 1) & ~width
        width >>= 1
        mask ^= mask << np.uint64(width)


@njit
def _symmetric_complement(words, count):
    """Overwrites `m` with the bits of neither `m` nor its transpose, diagonal off."""
    blocks = words.shape[1]
    one, other = np.empty(64, np.uint64), np.empty(64, np.uint64)
    for i in range(blocks):
        for j in range(i, blocks):
            for k in range(64):
                one[k] = words[64 * i + k, j]
                other[k] = words[64 * j + k, i]
            _transpose(other)
            inside = np.uint64(0xFFFFFFFFFFFFFFFF)
            if 64 * j + 64 > count:
                inside = (np.uint64(1) << np.uint64(count - 64 * j)) - np.uint64(1)
            for k in range(64):
                one[k] = ~(one[k] | other[k]) & inside
                if i == j:
                    one[k] &= ~(np.uint64(1) << np.uint64(k))
                if 64 * i + k >= count:
                    one[k] = np.uint64(0)
                words[64 * i + k, j] = one[k]
            if i != j:
                _transpose(one)
                for k in range(64):
                    words[64 * j + k, i] = one[k]
