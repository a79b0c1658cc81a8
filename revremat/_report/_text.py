"""render: any noun as text for a terminal; write: as HTML or JSON in a file."""

import functools
import io
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from revremat._errors import UserError
from revremat._format import format_bytes, format_us
from revremat._graph import Graph
from revremat._io._files import write_text
from revremat._measurement import PHASES, Buffer, Measurement
from revremat._plan import Plan
from revremat._printable import masked, printable
from revremat._report._what_if import print_what_if
from revremat._report.page import page
from revremat._saved import FitRecord

WIDTH = 100


def render(noun: Any, *, width: int = WIDTH, color: bool = False) -> str:
    """A noun as text.

    Args:
      noun: A `Measurement`, or a list of them (one row each); a `Graph`, `Plan`, `Fit`,
        `FitRecord` or `Frontier`; or a table of the `rich` package.
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
    print_noun(noun, console)
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


def write(noun: Any, path: str | Path) -> Path:
    """Writes a noun to `*.html`, `*.json` or `*.txt`, whole or not at all.

    Args:
      noun: A `Measurement`, or a list of them; as text or JSON, any other noun, too.
      path: Where; the suffix says how.

    Returns:
      The path.

    Raises:
      UserError: Another suffix, or a place that cannot be written.

    Example:
      >>> import os, tempfile, jax.numpy as jnp, revremat as rr
      >>> m = rr.measure(jnp.sin, jnp.ones(256), target="cpu:1", name="sine")
      >>> folder = tempfile.mkdtemp()
      >>> path = rr.write(m, os.path.join(folder, "sine.json"))
      >>> rr.load(path).program
      'sine'
    """
    path = Path(path)
    match path.suffix:
        case ".json" if isinstance(noun, list | tuple):
            text = "[\n" + ",\n".join(map(_json, noun)) + "\n]\n"
        case ".json":
            text = _json(noun) + "\n"
        case ".html":
            text = page(noun)
        case ".txt":
            text = render(noun)
        case _:
            raise UserError(
                f"cannot write {str(path)!r}: write *.html, *.json or *.txt"
            )
    return write_text(path, text)


def _json(noun: Any) -> str:
    if not hasattr(noun, "to_json"):
        raise UserError(f"a {type(noun).__name__} cannot be written as JSON")
    return noun.to_json()


_NUMBERS = ("bytes", "predicted", "step", "share")


def new_table(*columns: str) -> Table:
    """A table in the style of all reports; numbers are aligned on the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    return table


@functools.singledispatch
def print_noun(noun: Any, console: Console) -> None:
    """Prints one kind of noun; more kinds are registered where they are defined."""
    raise UserError(f"nothing is known about how to print a {type(noun).__name__}")


@print_noun.register(Graph)
@print_noun.register(Plan)
def _(noun: Graph | Plan, console: Console) -> None:
    console.print(Text(str(noun)))


@print_noun.register
def _(noun: FitRecord, console: Console) -> None:
    table = new_table("program", "bytes", "step")
    for row in sorted(noun.rows, key=lambda r: r.step_us):
        table.add_row(Text(row.name), format_bytes(row.bytes), format_us(row.step_us))
    console.print(table)
    console.print()
    console.print(Text(str(noun.plan)))


@print_noun.register
def _(noun: Measurement, console: Console) -> None:
    memory = noun.memory
    devices = f"{noun.num_devices} device{'s' * (noun.num_devices > 1)}"
    _line(console, f"{noun.program} on {noun.target}", f"({noun.device}, {devices})")
    _line(
        console,
        f"{format_bytes(memory.total_bytes)} on each device",
        f"= argument {format_bytes(memory.argument_bytes)}"
        f" + output {format_bytes(memory.output_bytes)}"
        f" - alias {format_bytes(memory.alias_bytes)}"
        f" + temp {format_bytes(memory.temp_bytes)}",
    )
    if memory.host_bytes:
        _line(console, f"{format_bytes(memory.host_bytes)} on its host", "offloaded")
    _line(console, _verdict(noun), _of_the_card(noun))
    if memory.packing is not None:
        packing = memory.packing
        _line(
            console,
            f"{format_bytes(packing.packed_bytes)} at best",
            f"for temporaries: XLA's buffer assignment takes "
            f"{format_bytes(packing.arena_bytes)}, and none takes less than "
            f"{format_bytes(packing.bound_bytes)}",
        )
    time = noun.time
    recompute = ""
    if time.recompute_us:
        hidden = f", {format_us(time.hidden_recompute_us)} hidden"
        recompute = f" ({format_us(time.recompute_us)} recompute" + (
            f"{hidden})" if time.hidden_recompute_us else ")"
        )
    parts = [f"compute {format_us(time.compute_us)}{recompute}"]
    if time.collective_us:
        parts.append(
            f"collectives {format_us(time.collective_us)} "
            f"({format_us(time.exposed_collective_us)} exposed)"
        )
    if time.transfer_us:
        parts.append(
            f"transfers {format_us(time.transfer_us)} "
            f"({format_us(time.exposed_transfer_us)} exposed)"
        )
    basis = "measured" if time.calibrated else "data-sheet"
    _line(console, f"{format_us(time.step_us)} a step", ", ".join(parts))
    console.print()
    if memory.buffers:
        console.print(_by_phase(noun))
        console.print()
        if memory.rules:
            console.print(_by_rule(noun))
            console.print()
        console.print(_largest(memory.buffers))
        console.print()
    if memory.what_if is not None:
        print_what_if(memory.what_if, console)
    _note(console, f"time is an estimate from {basis} rates")
    if time.compiler_us is not None:
        _note(
            console,
            "XLA's own cost model says of the same instructions, without overlap: "
            f"{format_us(time.compiler_us)}",
        )
    for note in noun.notes:
        _note(console, note)


@print_noun.register(list)
@print_noun.register(tuple)
def _(noun: Sequence[Measurement], console: Console) -> None:
    programs = dict.fromkeys(m.program for m in noun)
    _line(console, ", ".join(programs), f"on {len(noun)} targets")
    console.print()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("target", "device", "fits"):
        table.add_column(name)
    for name in ("bytes", "reserve", "headroom", "step", "exposed"):
        table.add_column(name, justify="right", no_wrap=True)
    for m in noun:
        table.add_row(
            m.target,
            m.device,
            "yes" if m.fits else "NO",
            format_bytes(m.memory.total_bytes),
            format_bytes(m.reserve_bytes),
            format_bytes(m.headroom_bytes),
            format_us(m.time.step_us),
            format_us(m.time.exposed_collective_us),
            style="" if m.fits else "red",
        )
    console.print(table)
    console.print()
    for note in (
        "bytes are per device; headroom is what the step and the reserve leave of it",
        "exposed: how long of an estimated step the device only waits for others",
    ):
        _note(console, note)


def render_targets(rows: Sequence[tuple[Any, str]], *, color: bool = False) -> str:
    """Targets and what is missing to use each, as text.

    Args:
      rows: Each a `Target` and what it lacks, `""` for nothing.
      color: With terminal colours.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("target", "device"):
        table.add_column(name, no_wrap=True)
    for name in ("memory", "reserve"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("a run needs", no_wrap=True)
    table.add_column("ready", no_wrap=True)
    lacking: dict[str, list[str]] = {}
    for target, missing in rows:
        if missing:
            lacking.setdefault(missing, []).append(target.spec)
        table.add_row(
            target.spec,
            target.card.name,
            format_bytes(target.memory_bytes),
            format_bytes(target.reserve_bytes) + "*" * target.card.measured,
            " ".join(f"{k}={v}" for k, v in target.environment.items()),
            "no" if missing else "yes",
        )
    lines = [render(table, color=color)]
    for missing, specs in lacking.items():
        sentence = f"- to use {', '.join(specs)}: {missing}"
        lines.append(_fill(sentence, WIDTH))
    measured = any(target.card.measured for target, _ in rows)
    told = "* measured on such a device, the others are defaults"
    told = told if measured else "defaults, none measured on such a device"
    lines.append(f"- bytes are per device; reserves: {told}")
    return "\n".join(lines) + "\n"


@print_noun.register
def _(noun: Table, console: Console) -> None:
    console.print(noun)


def _line(console: Console, head: str, rest: str) -> None:
    head, rest = printable(head), printable(rest)
    if cell_len(head) + 2 + cell_len(rest) <= console.width:
        console.print(Text.assemble((head, "bold"), "  ", rest))
        return
    console.print(Text(head, style="bold"))
    console.print(Text(textwrap.indent(textwrap.fill(rest, console.width - 2), "  ")))


def _note(console: Console, note: str) -> None:
    console.print(Text(_fill(f"- {note}", console.width), style="dim"))


def _fill(text: str, width: int) -> str:
    # A command to copy must not be broken at its hyphens.
    return textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _verdict(noun: Measurement) -> str:
    if noun.fits:
        return f"fits, {format_bytes(noun.headroom_bytes)} to spare"
    return f"DOES NOT FIT by {format_bytes(-noun.headroom_bytes)}"


def _of_the_card(noun: Measurement) -> str:
    return (
        f"of {format_bytes(noun.usable_bytes)} usable: device "
        f"{format_bytes(noun.device_bytes)}, reserve {format_bytes(noun.reserve_bytes)}"
    )


def _by_phase(noun: Measurement) -> Table:
    total = max(1, noun.memory.total_bytes)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title="alive at the peak",
        title_justify="left",
    )
    table.add_column("phase")
    table.add_column("module", overflow="fold", max_width=48)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for phase in PHASES:
        sums: dict[str, int] = {}
        for b in noun.memory.where(phase=phase):
            sums[b.module] = sums.get(b.module, 0) + b.bytes
        rows = sorted(sums.items(), key=lambda item: -item[1])
        large = [r for r in rows if r[1] >= 0.01 * total][:6]
        rest = sum(size for _, size in rows) - sum(size for _, size in large)
        for number, (module, size) in enumerate(large):
            table.add_row(
                phase * (number == 0),
                Text(module),
                format_bytes(size),
                _share(size, total),
            )
        if rest >= 0.001 * total:
            table.add_row(
                phase * (not large),
                Text(f"{len(rows) - len(large)} smaller", style="dim"),
                format_bytes(rest),
                _share(rest, total),
            )
    fragmentation = noun.memory.fragmentation_bytes
    if fragmentation >= 0.001 * total:
        table.add_row(
            "",
            "fragmentation",
            format_bytes(fragmentation),
            _share(fragmentation, total),
        )
    return table


def _by_rule(noun: Measurement) -> Table:
    total = max(1, noun.memory.total_bytes)
    table = new_table("category", "bytes", "share")
    table.title, table.title_justify = "alive at the peak, by rule", "left"
    for name, size in noun.memory.by_rule(dict(noun.memory.rules)).items():
        table.add_row(Text(name), format_bytes(size), _share(size, total))
    return table


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %"


def _largest(buffers: Sequence[Buffer], count: int = 10) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title=f"the {min(count, len(buffers))} largest buffers",
        title_justify="left",
    )
    rows = [
        (
            format_bytes(b.bytes) + (" host" if b.space == "host" else ""),
            f"{_DTYPE.get(b.dtype, b.dtype)}[{','.join(map(str, b.shape))}]",
            b.phase,
            "/".join(filter(None, (b.scope, b.op))),
            _short(b.source),
        )
        for b in buffers[:count]
    ]
    # The width that is left goes to the module path, which is cut from the left.
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    left = WIDTH - sum(widths) + widths[3] - 3 * 4
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("array", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("made by", no_wrap=True)
    table.add_column("at", no_wrap=True)
    for size, array, phase, made_by, at in rows:
        cut = "…" + made_by[len(made_by) - max(12, left) + 1 :]
        table.add_row(
            size,
            Text(array),
            phase,
            Text(made_by if len(made_by) <= max(12, left) else cut),
            Text(at),
        )
    return table


_DTYPE = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int32": "i32",
    "int64": "i64",
    "uint32": "u32",
    "uint8": "u8",
}


def _short(source: str) -> str:
    """A source line's place, the last folder and the file."""
    here = os.getcwd() + os.sep
    parts = source.removeprefix(here).split(os.sep)
    return os.sep.join(parts[-2:])
