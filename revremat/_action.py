"""Action: how one layer's residuals come back, as data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from revremat._errors import UserError
from revremat._io._json import flag, names, typed

KINDS = ("save", "recompute", "offload", "invert")


@dataclass(frozen=True)
class Action:
    """How one layer's residuals come back for the backward pass.

    The kind says what happens to everything not listed; use `SAVE`, `RECOMPUTE`,
    `OFFLOAD` and `INVERT`, and call them to make exceptions:

    Example:
      >>> RECOMPUTE(save=["attn_out"], offload=["qkv"])
      RECOMPUTE(save=['attn_out'], offload=['qkv'])

    Attributes:
      kind: `"save"` keeps on the device whatever plain autodiff would; `"recompute"`
        keeps what is listed and the layer's input, and recomputes the rest from those;
        `"offload"` keeps in host memory whatever plain autodiff would; `"invert"` is
        recompute with the layer's input recomputed from its output by the layer's
        inverse.
      save: Names of values kept on the device.
      offload: Names of values kept in host memory.
      ahead: Names of values recomputed one layer early, while the gradients of the
        layer above are computed, so that the recomputing can hide under communication.
        With INVERT the layer is undone then, and all that this makes is at hand (Zhu
        and Mangalam, 2023, PaReprop).
      chunks: For a unit that can be split (`rr.block(..., split=...)`): how many pieces
        it is computed in, one after the other; 1 computes it whole.
      segment_length: For a stack: neighbouring layers of this action form segments of
        so many, and only a segment's input is kept. In the backward pass a segment is
        run forward once more, and the rest of the action says what its layers keep from
        there on (Chen et al., 2016: of N layers, segments of sqrt(N)). 1 means that
        there are no segments.
      unroll: For a stack: its layers are written out one after the other, where they
        would be iterations of a loop. What they keep then lies where it was made and is
        not copied into a stack of all layers' values and out of it again; the program
        is longer, and so is compiling it.
    """

    kind: str
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    chunks: int = 1
    segment_length: int = 1
    unroll: bool = False

    def __post_init__(self):
        if not isinstance(self.unroll, bool):
            raise UserError(f"unroll={self.unroll!r} is neither True nor False")
        if type(self.chunks) is not int or self.chunks < 1:
            raise UserError(
                f"chunks={self.chunks!r} is no number of pieces: write 1 for the "
                "whole, or how many"
            )
        if isinstance(self.segment_length, bool) or not isinstance(
            self.segment_length, int
        ):
            raise UserError(
                f"segment_length={self.segment_length!r} is no number of layers; "
                "write 2 or 8"
            )
        if self.segment_length < 1:
            raise UserError(
                f"segment_length={self.segment_length} forms no segments: write 1 for "
                "none, or how many layers a segment has"
            )

    def __call__(
        self,
        save: Iterable[str] = (),
        offload: Iterable[str] = (),
        ahead: Iterable[str] = (),
        chunks: int | None = None,
        segment_length: int | None = None,
        unroll: bool | None = None,
    ) -> "Action":
        """This action, with these values treated otherwise (names are sorted)."""
        return replace(
            self,
            save=tuple(sorted({*self.save, *save})),
            offload=tuple(sorted({*self.offload, *offload})),
            ahead=tuple(sorted({*self.ahead, *ahead})),
            chunks=self.chunks if chunks is None else chunks,
            segment_length=self.segment_length
            if segment_length is None
            else segment_length,
            unroll=self.unroll if unroll is None else unroll,
        )

    @property
    def on_host(self) -> bool:
        """Whether anything is kept in host memory."""
        return self.kind == "offload" or bool(self.offload)

    @property
    def recomputes_all(self) -> bool:
        """Whether a layer keeps nothing but its input."""
        return self.kind == "recompute" and not self.names and self.chunks == 1

    @property
    def can_group(self) -> bool:
        """Whether layers of this action can form segments, as `segment_length` says."""
        plain = self.kind in ("save", "recompute") and self.chunks == 1
        return plain and not self.offload and not self.ahead

    @property
    def can_unroll(self) -> bool:
        """Whether writing layers of this action out can gain anything."""
        return not self.ahead and self.segment_length == 1 and self.chunks == 1

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
        if self.segment_length != 1:
            listed.append(f"segment_length={self.segment_length}")
        if self.unroll:
            listed.append("unroll=True")
        return self.kind.upper() + (f"({', '.join(listed)})" if listed else "")


SAVE = Action("save")
RECOMPUTE = Action("recompute")
OFFLOAD = Action("offload")
INVERT = Action("invert")


def read_action(data: dict[str, Any]) -> Action:
    """The action that `dataclasses.asdict` wrote; older plans have fewer fields.

    Raises:
      ValueError: A field is missing, or is not what it can be.
    """
    kind = typed(data, "kind", str)
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no action; there are {', '.join(KINDS)}")
    chunks = typed(data, "chunks", int)
    segment_length = data.get("segment_length", 1)
    for key, number in (("chunks", chunks), ("segment_length", segment_length)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{key!r} is {number!r}")
    listed = {key: names(data, key) for key in ("save", "offload", "ahead")}
    unroll = flag(data, "unroll")
    return Action(
        kind, chunks=chunks, segment_length=segment_length, unroll=unroll, **listed
    )


def check_sent(
    unit: str, actions: Iterable[Action], *, in_branch: bool, num_scans: int
) -> None:
    """Refuses to send to the host what compilers cannot hand on from where it is made.

    Args:
      unit: Its name.
      actions: Of its layers.
      in_branch: Whether it runs in a branch.
      num_scans: How many scans around it keep what it keeps, for all of their
        iterations.

    Raises:
      UserError: An action offloads in a branch, or inside of two scans.
    """
    sent = [action for action in actions if action.on_host]
    if sent and in_branch:
        raise UserError(
            f"unit {unit!r} runs in a branch of lax.cond or lax.switch, and XLA hands "
            f"on nothing in host memory from there, where {sent[0]!r} would send "
            "values; write SAVE or RECOMPUTE."
        )
    if sent and num_scans > 1:
        raise UserError(
            f"unit {unit!r} runs inside of {num_scans} scans, which would all keep in "
            f"host memory what {sent[0]!r} sends there, and XLA only manages one; give "
            "RECOMPUTE to the unit around it, or write SAVE or RECOMPUTE."
        )
