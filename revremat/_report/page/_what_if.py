"""The section of a page that says what would fall."""

from dataclasses import dataclass

from revremat._format import format_bytes
from revremat._measurement._what_if import WhatIf

_MOST_ROWS = 12
_LONGEST = 120


@dataclass(frozen=True)
class Part:
    """One table of the section, and the sentence below it.

    Attributes:
      key: What a script or a test finds it by.
      columns: Their headings; the first is of text.
      texts: Further columns of text.
      rows: Cells: text, or bytes.
      note: What the figures mean, or why there are none.
    """

    key: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    rows: tuple[tuple[str | int, ...], ...]
    note: str


def what_if(result: WhatIf | None) -> tuple[Part, ...]:
    """The section's tables; nothing where it was not asked for."""
    if result is None:
        return ()
    return (_residuals(result), _donations(result), _checkpoints(result))


def _residuals(result: WhatIf) -> Part:
    rows = tuple(
        (_path(r.scope, r.op), f"{r.count}", r.bytes, r.saves_bytes)
        for r in result.residuals[:_MOST_ROWS]
    )
    note = "No value of the forward pass is alive at the peak."
    if rows:
        note = "Falls by: without what recomputing it needs, and without fragmentation."
    columns = ("if one residual were dropped", "count", "bytes", "falls by")
    return Part("residual", columns, ("count",), rows, note + _rest(result.residuals))


def _donations(result: WhatIf) -> Part:
    rows = tuple(
        (_name(d.argument), _name(d.result) + "*" * d.scratch, d.saves_bytes)
        for d in result.donations[:_MOST_ROWS]
    )
    note = "Donating more arguments saves nothing: none of them is like a result."
    if rows:
        total = format_bytes(sum(d.saves_bytes for d in result.donations))
        note = f"All {len(result.donations)} together save at most {total}."
        if any(d.scratch for d in result.donations):
            note += " *: perhaps less: its memory holds other values before."
    columns = ("if it were donated", "result like it", "saves at most")
    texts = ("result like it",)
    return Part("donation", columns, texts, rows, note + _rest(result.donations))


def _checkpoints(result: WhatIf) -> Part:
    idle = [c for c in result.checkpoints if c.twice_bytes or not c.again]
    rows = tuple(
        (_name(c.scope), "yes" if c.again else "NO", c.twice_bytes, c.kept_bytes)
        for c in idle[:_MOST_ROWS]
    )
    freeing = len(result.checkpoints) - len(idle)
    note = "Nothing is checkpointed."
    if result.checkpoints:
        note = f"{freeing} of {len(result.checkpoints)} checkpointed regions free all "
        note += "that is computed again."
    columns = ("checkpoint", "computed again", "kept all the same", "kept beside")
    return Part("checkpoint", columns, ("computed again",), rows, note + _rest(idle))


def _rest(everything: tuple | list) -> str:
    more = len(everything) - _MOST_ROWS
    return f" {more} smaller ones are left out." if more > 0 else ""


def _path(*parts: str) -> str:
    return _name("/".join(filter(None, parts)))


def _name(text: str) -> str:
    """A path, cut from the left where it is long."""
    text = text or "(unnamed)"
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]
