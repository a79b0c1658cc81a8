"""Action and Plan: how each layer's residuals come back, as data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

KINDS = ("save", "recompute", "offload", "invert")


@dataclass(frozen=True)
class Action:
    """How one layer's residuals come back for the backward pass.

    The kind says what happens to everything not listed; use `SAVE`, `RECOMPUTE`,
    `OFFLOAD` and `INVERT`, and call them to make exceptions:

    >>> RECOMPUTE(save=["attn_out"], offload=["qkv"])
    RECOMPUTE(save=['attn_out'], offload=['qkv'])

    Attributes:
      kind: `"save"` keeps on the device whatever plain autodiff would; `"recompute"`
        keeps what is listed and the layer's input, and rebuilds the rest from those;
        `"offload"` keeps in host memory whatever plain autodiff would; `"invert"` is
        recompute with the layer's input rebuilt from its output by the layer's inverse.
      save: Names of values kept on the device.
      offload: Names of values kept in host memory.
      ahead: Names of values rebuilt one layer early, while the gradients of the layer
        above are computed, so that the rebuilding can hide under communication.
      chunks: For a unit that can be split (`rr.block(..., split=...)`): how many pieces
        it is computed in, one after the other; 1 computes it whole.
    """

    kind: str
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    chunks: int = 1

    def __call__(
        self,
        save: Iterable[str] = (),
        offload: Iterable[str] = (),
        ahead: Iterable[str] = (),
        chunks: int | None = None,
    ) -> "Action":
        """This action, with these values treated otherwise (names are sorted)."""
        return replace(
            self,
            save=tuple(sorted({*self.save, *save})),
            offload=tuple(sorted({*self.offload, *offload})),
            ahead=tuple(sorted({*self.ahead, *ahead})),
            chunks=self.chunks if chunks is None else chunks,
        )

    @property
    def names(self) -> frozenset[str]:
        """Every name the action mentions."""
        return frozenset(self.save + self.offload + self.ahead)

    def __repr__(self) -> str:
        listed = [
            f"{key}={list(value)!r}"
            for key in ("save", "offload", "ahead")
            if (value := getattr(self, key))
        ]
        if self.chunks != 1:
            listed.append(f"chunks={self.chunks}")
        return self.kind.upper() + (f"({', '.join(listed)})" if listed else "")


SAVE = Action("save")
RECOMPUTE = Action("recompute")
OFFLOAD = Action("offload")
INVERT = Action("invert")
