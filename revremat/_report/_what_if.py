"""The section of a report that says what would fall."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from revremat._format import format_bytes
from revremat._measurement._what_if import WhatIf
from revremat._report._text import new_table, note

_MOST_ROWS = 10
_MOST_NAME = 52


def print_what_if(result: WhatIf, console: Console) -> None:
    """Prints residuals, donations and checkpoints; a sentence where there are none."""
    if result.residuals:
        table = new_table(
            *("made by", "count", "bytes", "falls by"),
            title="if one residual were dropped",
            no_wrap=True,
        )
        for r in result.residuals[:_MOST_ROWS]:
            table.add_row(
                _name("/".join(filter(None, (r.scope, r.op)))),
                str(r.count),
                format_bytes(r.bytes),
                format_bytes(r.saves_bytes),
            )
        _print(console, table)
        note(
            console,
            "falls by: an upper bound, without what recomputing it needs and without "
            "fragmentation; only a compile is exact",
        )
    else:
        note(console, "no value of the forward pass is alive at the peak")
    if result.donations:
        console.print()
        table = new_table(
            *("argument", "result like it", "saves at most"),
            title="if it were donated",
            no_wrap=True,
        )
        for d in result.donations[:_MOST_ROWS]:
            size = format_bytes(d.saves_bytes) + "*" * d.scratch
            table.add_row(_name(d.argument), _name(d.result), size)
        _print(console, table)
        number = len(result.donations)
        total = sum(d.saves_bytes for d in result.donations)
        together = "it saves" if number == 1 else f"all {number} together save"
        note(
            console,
            f"{together} at most {format_bytes(total)}: "
            "write donate_argnums, or Problem(donate=...)",
        )
        if any(d.scratch for d in result.donations):
            note(
                console,
                "*: perhaps less: the result's memory holds other values before it",
            )
    else:
        note(
            console,
            "donating more arguments saves nothing: none of them is like a result, and "
            "XLA gives a donated argument's memory to nothing else",
        )
    _print_checkpoints(result, console)
    console.print()


def _print_checkpoints(result: WhatIf, console: Console) -> None:
    if not result.checkpoints:
        note(console, "nothing is checkpointed")
        return
    idle = [c for c in result.checkpoints if c.twice_bytes or not c.again]
    freeing = len(result.checkpoints) - len(idle)
    if idle:
        console.print()
        table = new_table(
            "region",
            "computed again",
            "kept all the same",
            "kept beside",
            title="checkpoints that free less than they could",
            no_wrap=True,
        )
        for c in idle[:_MOST_ROWS]:
            table.add_row(
                _name(c.scope),
                "yes" if c.again else "NO",
                format_bytes(c.twice_bytes),
                format_bytes(c.kept_bytes),
            )
        _print(console, table)
        note(
            console,
            "kept all the same: computed a second time although it is still there; "
            "kept beside: by a policy, as an input, or merged by the compiler",
        )
    if freeing:
        regions = "1 region frees" if freeing == 1 else f"{freeing} regions free"
        note(console, f"checkpoints: {regions} all that is computed again")


def _name(text: str) -> Text:
    """A path, cut from the left where it is long."""
    text = text or "(unnamed)"
    return Text(text if len(text) <= _MOST_NAME else "…" + text[1 - _MOST_NAME :])


def _print(console: Console, table: Table) -> None:
    console.print(table)
    console.print()
