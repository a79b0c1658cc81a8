"""Which pairs must not share memory, one bit a pair."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt64


@dataclass(frozen=True, eq=False)
class Relation:
    """A symmetric relation on `count` buffers: set bits must not share memory.

    Attributes:
      words: `uint64[count, ceil(count / 64)]`; bit `j % 64` of `words[i, j // 64]` says
        whether `i` and `j` conflict. The diagonal is clear.
      count: How many buffers it is about.

    Example:
      >>> import numpy as np
      >>> from revremat.allocation import Relation
      >>> words = np.zeros((2, 1), np.uint64)
      >>> words[0, 0], words[1, 0] = 0b10, 0b01  # the two must not share memory
      >>> Relation(words, 2).conflicts(0, 1)
      True
    """

    words: UInt64[np.ndarray, "count words"]
    count: int

    @classmethod
    def from_pairs(cls, count: int, pairs: Iterable[tuple[int, int]]) -> "Relation":
        """From pairs of positions."""
        words = np.zeros((count, (count + 63) // 64), np.uint64)
        for i, j in pairs:
            if i != j:
                words[i, j // 64] |= np.uint64(1 << (j % 64))
                words[j, i // 64] |= np.uint64(1 << (i % 64))
        return cls(words, count)

    def conflicts(self, i: int, j: int) -> bool:
        """Whether `i` and `j` must not share memory."""
        return bool(int(self.words[i, j // 64]) >> (j % 64) & 1)

    def row(self, i: int) -> Bool[np.ndarray, " count"]:
        """`bool[count]`: the buffers that must not share memory with `i`."""
        bits = np.unpackbits(self.words[i].view(np.uint8), bitorder="little")
        return bits[: self.count].astype(bool)

    def dense(self) -> Bool[np.ndarray, "count count"]:
        """`bool[count, count]`."""
        bits = np.unpackbits(self.words.view(np.uint8), axis=1, bitorder="little")
        return bits[:, : self.count].astype(bool)

    def pairs(self) -> int:
        """How many pairs conflict."""
        return int(np.bitwise_count(self.words).sum()) // 2

    def take(self, positions: Int[np.ndarray, " kept"]) -> "Relation":
        """The relation among some of the buffers, in the order given."""
        n = len(positions)
        words = np.zeros((n, (n + 63) // 64), np.uint64)
        for new, old in enumerate(positions):
            row = np.zeros(64 * words.shape[1], bool)
            row[:n] = self.row(old)[positions]
            words[new] = np.packbits(row, bitorder="little").view("<u8")
        return Relation(words, n)
