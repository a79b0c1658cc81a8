"""Joining: buffers that fit together without a gap become one larger buffer.

Stacks of buffers over [l, m) and over [m, r) that are equally high form a rectangle
over [l, r). In a packing without waste such pairs are seldom an accident: one that was
cut up by straight cuts can be put together again from them. A packing of what was
joined is one of the buffers; that there is none proves nothing.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

_STACKED = 3
"""Buffers in one stack at most."""

_STACKS = 400
"""Stacks over one range that are compared at most."""


@dataclass(frozen=True)
class Piece:
    """Buffers at fixed places within a rectangle.

    Attributes:
      begin, end: Its sections.
      size: Its height.
      members: `(buffer, offset within the piece)`.
    """

    begin: int
    end: int
    size: int
    members: tuple[tuple[int, int], ...]


def join(
    begin: Int[np.ndarray, " n"],
    end: Int[np.ndarray, " n"],
    size: Int[np.ndarray, " n"],
    stacked: int,
    rng: np.random.Generator,
    skipped: float,
) -> list[Piece]:
    """Joins buffers until no two stacks are left that fit.

    Args:
      begin, end, size: `int64[n]` each.
      stacked: How many buffers the two stacks may have together.
      rng: Decides what is skipped.
      skipped: The share of the fits that are taken for accidents.

    Returns:
      The pieces, which hold every buffer once.
    """
    ranges: dict[tuple[int, int], list[Piece]] = {}
    for i in range(len(size)):
        piece = Piece(int(begin[i]), int(end[i]), int(size[i]), ((i, 0),))
        ranges.setdefault((piece.begin, piece.end), []).append(piece)
    refused: set[tuple[tuple[int, int], tuple[int, int], int]] = set()
    for most in range(2, stacked + 1):
        again = True
        while again:
            again = False
            ending: dict[int, list[tuple[int, int]]] = {}
            for span, pieces in ranges.items():
                if pieces:
                    ending.setdefault(span[1], []).append(span)
            spans = [span for span, pieces in ranges.items() if pieces]
            for at in rng.permutation(len(spans)):
                right = spans[at]
                for left in ending.get(right[0], ()):
                    if not ranges[left] or not ranges[right]:
                        continue
                    fit = _fit(ranges[left], ranges[right], most)
                    if fit is None:
                        continue
                    key = (left, right, sum(p.size for p in fit[0]))
                    if key in refused:
                        continue
                    if rng.random() < skipped:
                        refused.add(key)
                        continue
                    for span, stack in zip((left, right), fit, strict=True):
                        ranges[span] = [p for p in ranges[span] if p not in stack]
                    piece = _joined(left[0], right[1], fit)
                    ranges.setdefault((left[0], right[1]), []).append(piece)
                    again = True
    return [piece for pieces in ranges.values() for piece in pieces]


def _fit(left: list[Piece], right: list[Piece], most: int):
    """The highest pair of equally high stacks with `most` pieces at most, or None."""
    best = None
    stacks = _stacks(right, most - 1)
    for size, one in _stacks(left, most - 1).items():
        other = stacks.get(size)
        if other is None or len(one) + len(other) > most:
            continue
        if best is None or size > best[0]:
            best = (size, one, other)
    return None if best is None else best[1:]


def _stacks(pieces: list[Piece], most: int) -> dict[int, tuple[Piece, ...]]:
    """Heights of the stacks of a few pieces, each with the shortest list of them."""
    found: dict[int, tuple[Piece, ...]] = {}
    for count in range(1, min(most, _STACKED, len(pieces)) + 1):
        for stack in itertools.islice(itertools.combinations(pieces, count), _STACKS):
            found.setdefault(sum(p.size for p in stack), stack)
    return found


def _joined(begin: int, end: int, stacks) -> Piece:
    members, height = [], 0
    for stack in stacks:
        height = 0
        for piece in stack:
            members += [(i, height + offset) for i, offset in piece.members]
            height += piece.size
    return Piece(begin, end, height, tuple(members))
