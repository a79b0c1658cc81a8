"""render: a result as text for a terminal, and what its lines and tables look like."""

import functools
import io
import textwrap
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from revremat._errors import UserError
from revremat._graph import Graph
from revremat._plan import Plan
from revremat._printable import masked, printable

WIDTH = 100


def render(result: Any, *, width: int = WIDTH, color: bool = False) -> str:
    """A result as text.

    Args:
      result: A `Measurement`, or a list of them (one row each); a `Graph`, `Plan`,
        `Fit`, `FitRecord` or `Frontier`; or a table of the `rich` package.
      width: Columns at most.
      color: With terminal colours.

    Returns:
      Lines of at most `width` columns.

    Raises:
      UserError: Nothing is known about how to print such a thing.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> m = rr.measure(jnp.sin, jnp.ones(256), target="cpu:1", name="sine")
      >>> rr.render(m).split()[:3]
      ['sine', 'on', 'cpu:1']
    """
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,  # brackets in names are brackets
        emoji=False,
        legacy_windows=False,
    )
    console.push_render_hook(_MaskEverything())
    print_result(result, console)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


class _MaskEverything(RenderHook):
    """Takes control characters from whatever is printed; colours are added later."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Masked(one) for one in renderables]


@dataclass(frozen=True)
class _Masked:
    renderable: Any

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield Segment(masked(segment.text), segment.style)


_NUMBERS = {
    *("bytes", "predicted bytes", "step", "share", "count"),
    *("memory", "reserve", "headroom", "exposed"),
    *("falls by", "saves at most", "computed again", "kept all the same"),
    "kept beside",
}


def new_table(*columns: str, title: str = "", no_wrap: bool = False) -> Table:
    """A table in the style of all reports; numbers are aligned on the right.

    Args:
      *columns: Their headers.
      title: A line above, on the left.
      no_wrap: Whether every cell stays on one line.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title=title or None,
        title_justify="left",
    )
    for name in columns:
        right = name in _NUMBERS
        table.add_column(
            name, justify="right" if right else "left", no_wrap=no_wrap or right
        )
    return table


@functools.singledispatch
def print_result(result: Any, console: Console) -> None:
    """Prints one kind of result; more kinds are registered where they are defined."""
    raise UserError(f"nothing is known about how to print a {type(result).__name__}")


@print_result.register(Graph)
@print_result.register(Plan)
def _(result: Graph | Plan, console: Console) -> None:
    console.print(Text(str(result)))


@print_result.register
def _(result: Table, console: Console) -> None:
    console.print(result)


def line(console: Console, head: str, rest: str) -> None:
    """Prints what matters in bold and the rest beside it, or below where it is long."""
    head, rest = printable(head), printable(rest)
    if cell_len(head) + 2 + cell_len(rest) <= console.width:
        console.print(Text.assemble((head, "bold"), "  ", rest))
        return
    console.print(Text(head, style="bold"))
    console.print(Text(textwrap.indent(textwrap.fill(rest, console.width - 2), "  ")))


def note(console: Console, sentence: str) -> None:
    """Prints a remark below a table."""
    console.print(Text(filled(f"- {sentence}", console.width), style="dim"))


def filled(text: str, width: int) -> str:
    """A remark in lines; a command to copy is not broken at its hyphens."""
    return textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)
