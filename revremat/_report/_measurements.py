"""What a step takes on a target, as text; on several targets, a row each."""

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from revremat._format import format_bytes, format_us
from revremat._measurement import PHASES, Buffer, Collective, Measurement
from revremat._report._checks import check_measurements
from revremat._report._text import WIDTH, line, new_table, note, print_result
from revremat._report._what_if import print_what_if


@print_result.register
def _(result: Measurement, console: Console) -> None:
    memory = result.memory
    devices = f"{result.num_devices} device{'s' * (result.num_devices > 1)}"
    about = f"({result.device}, {devices})"
    line(console, f"{result.program} on {result.target}", about)
    line(
        console,
        f"{format_bytes(memory.total_bytes)} on each device",
        f"= argument {format_bytes(memory.argument_bytes)}"
        f" + output {format_bytes(memory.output_bytes)}"
        f" - alias {format_bytes(memory.alias_bytes)}"
        f" + temp {format_bytes(memory.temp_bytes)}",
    )
    if memory.host_bytes:
        line(console, f"{format_bytes(memory.host_bytes)} on its host", "offloaded")
    line(console, _verdict(result), _of_the_card(result))
    if memory.packing is not None:
        packing = memory.packing
        line(
            console,
            f"{format_bytes(packing.packed_bytes)} at best",
            f"for temporaries: XLA's buffer assignment takes "
            f"{format_bytes(packing.arena_bytes)}, and none takes less than "
            f"{format_bytes(packing.bound_bytes)}",
        )
    time = result.time
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
    line(console, f"{format_us(time.step_us)} a step", ", ".join(parts))
    console.print()
    if memory.buffers:
        console.print(_by_phase(result))
        console.print()
        if memory.rules:
            console.print(_by_rule(result))
            console.print()
        console.print(_largest(memory.buffers))
        console.print()
    if result.collectives:
        console.print(_exchanged(result.collectives))
        console.print()
    if memory.what_if is not None:
        print_what_if(memory.what_if, console)
    of = "its parts are estimates" if time.measured else "time is an estimate"
    note(console, f"{'the step was measured; ' * time.measured}{of} from {basis} rates")
    if time.compiler_us is not None:
        note(
            console,
            "XLA's own cost model says of the same instructions, without overlap: "
            f"{format_us(time.compiler_us)}",
        )
    for one in result.notes:
        note(console, one)


@print_result.register(list)
@print_result.register(tuple)
def _(result: Sequence[Measurement], console: Console) -> None:
    check_measurements(result, "a table")
    programs = dict.fromkeys(m.program for m in result)
    line(console, ", ".join(programs), f"on {len(result)} targets")
    console.print()
    columns = ("bytes", "reserve", "headroom", "step", "exposed")
    table = new_table("target", "device", "fits", *columns)
    for m in result:
        table.add_row(
            m.target,
            m.device,
            "yes" if m.fits else "NO",
            format_bytes(m.memory.total_bytes),
            format_bytes(m.reserve_bytes),
            format_bytes(m.headroom_bytes),
            format_us(m.time.step_us),
            format_us(m.time.exposed_us),
            style="" if m.fits else "red",
        )
    console.print(table)
    console.print()
    for one in (
        "bytes are per device; headroom is what the step and the reserve leave of it",
        "exposed: how long of a step the device only waits, for others or its host",
    ):
        note(console, one)


def _verdict(result: Measurement) -> str:
    if result.fits:
        return f"fits, {format_bytes(result.headroom_bytes)} to spare"
    return f"DOES NOT FIT by {format_bytes(-result.headroom_bytes)}"


def _of_the_card(result: Measurement) -> str:
    usable, device, reserve = map(
        format_bytes, (result.usable_bytes, result.device_bytes, result.reserve_bytes)
    )
    return f"of {usable} usable: device {device}, reserve {reserve}"


def _by_phase(result: Measurement) -> Table:
    total = max(1, result.memory.total_bytes)
    table = new_table("phase", title="alive at the peak")
    table.add_column("module", overflow="fold", max_width=48)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for phase in PHASES:
        sums: dict[str, int] = {}
        for b in result.memory.where(phase=phase):
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
    fragmentation = result.memory.fragmentation_bytes
    if fragmentation >= 0.001 * total:
        table.add_row(
            "",
            "fragmentation",
            format_bytes(fragmentation),
            _share(fragmentation, total),
        )
    return table


def _by_rule(result: Measurement) -> Table:
    total = max(1, result.memory.total_bytes)
    title = "alive at the peak, by rule"
    table = new_table("category", "bytes", "share", title=title)
    for name, size in result.memory.by_rule(dict(result.memory.rules)).items():
        table.add_row(Text(name), format_bytes(size), _share(size, total))
    return table


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %"


def _largest(buffers: Sequence[Buffer], count: int = 10) -> Table:
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
    title = f"the {min(count, len(buffers))} largest buffers"
    return _places(("bytes", "array", "phase", "made by", "at"), rows, title)


def _places(
    columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], title: str
) -> Table:
    """A table of which one column is "made by"; long module paths are cut from left."""
    at = columns.index("made by")
    widths = [
        max(map(len, (name, *(row[i] for row in rows))))
        for i, name in enumerate(columns)
    ]
    # The width that is left goes to the module path.
    left = max(12, WIDTH - sum(widths) + widths[at] - 3 * (len(columns) - 1))
    table = new_table(*columns, title=title, no_wrap=True)
    for row in rows:
        made_by = row[at]
        if len(made_by) > left:
            made_by = "…" + made_by[len(made_by) - left + 1 :]
        table.add_row(*map(Text, (*row[:at], made_by, *row[at + 1 :])))
    return table


def _exchanged(collectives: Sequence[Collective], most: int = 12) -> Table:
    """What devices exchange, those that take longest."""
    slowest = sorted(collectives, key=lambda one: -one.times * one.us)
    rows = [
        (
            one.kind,
            one.phase,
            one.argument or one.scope,
            format_bytes(one.bytes),
            f"{one.count} x {one.iterations}" if one.iterations > 1 else str(one.count),
            format_us(one.times * one.us),
            _short(one.source),
        )
        for one in collectives
        if one in slowest[:most]
    ]
    if rest := slowest[most:]:
        us = format_us(sum(one.times * one.us for one in rest))
        rows.append((f"{len(rest)} more", "", "", "", "", us, ""))
    columns = ("collective", "phase", "made by", "bytes", "count", "step", "at")
    return _places(columns, rows, "collectives, and what they take of a step")


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
