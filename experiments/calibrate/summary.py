"""The tables of a run, made from its records and from nothing else.

    python -m experiments.calibrate.summary DIR/results.jsonl

Every row ends with the lines of the file that it is made of. Columns called `measured`
are of the device that ran; what was said before stands under `predicted` or `estimate`.
Of the standard library alone.
"""

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.calibrate.records import (
    Record,
    error_of,
    latest,
    read,
    state_of,
)
from experiments.calibrate.refuted import sentences

GIB, MIB = 2**30, 2**20
_NONE = "-"


@dataclass(frozen=True)
class Cell:
    """One figure.

    Attributes:
      text: As it is printed.
      sources: The records it is made of.
    """

    text: str
    sources: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
      title: What it is about, in a sentence.
      columns: Heads; the lines of the records are the last column.
      rows: Each as long as the columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def text(records: list[Record]) -> str:
    """All tables of a run, and before them what machine it was."""
    found = latest(records)
    lines = [*head(found), ""]
    if against := sentences(found):
        lines += ["What this refutes:", "", *(f"- {one}" for one in against), ""]
    for table in tables(records):
        lines += [*_printed(table), ""]
    return "\n".join(lines)


def head(found: dict[str, list[Record]]) -> list[str]:
    """What ran, in a line or two."""
    notes = [r for r in found.get("doctor", []) if r.get("machine")]
    if not notes:
        return ["No device answered: nothing was measured."]
    note = notes[-1]
    lines = [
        f"{note['device']}, {note['total_bytes'] / GIB:.1f} GiB; jax {note['jax']}, "
        f"Python {note['python']}, {note['cores']} cores [line {note.line}]"
    ]
    if note["platform"] == "cpu":
        lines.append("This is a CPU: no figure here is of a graphics card.")
    if "quick sizes" in note["machine"]:
        lines.append("A dry run in tiny sizes: its times say nothing.")
    return lines


def tables(records: list[Record]) -> list[Table]:
    """All tables that have rows."""
    found = latest(records)
    made = [
        _jobs(found),
        _races(found),
        _orders(found),
        _checks(found),
        _fits(found),
        _exact(found),
        _gradients(found),
        _copies(found),
        _kernels(found),
        _memory(found),
        _card(found),
    ]
    return [table for table in made if table.rows]


def _jobs(found: dict[str, list[Record]]) -> Table:
    rows = []
    for job, records in found.items():
        last = records[-1]
        took = last.get("seconds")
        parts = [r for r in records if r.kind == "failed" and not r.get("whole")]
        failed = f", {len(parts)} failed" if parts else ""
        why = error_of(records) or "; ".join(
            f"{r.get('variant') or r.get('kernel') or r.get('program')}: {r['error']}"
            for r in parts
        )
        rows.append(
            (
                Cell(job, (last,)),
                Cell(state_of(records) + failed, (last, *parts)),
                Cell(_NONE if took is None else f"{took:.0f} s", (last,)),
                Cell(" ".join(why.split())[:160], (last, *parts)),
            )
        )
    columns = ("job", "state", "took", "why not")
    return Table("Jobs: each in a process of its own.", columns, tuple(rows))


def _races(found: dict[str, list[Record]]) -> Table:
    """Steps of all variants of all programs."""
    rows = []
    for job, records in found.items():
        kind, _, program = job.partition(" ")
        if kind not in ("race", "run", "alternatives", "offload"):
            continue
        again = _calibrated(found.get(f"again {program}", []))
        for variant in _names(records):
            of = [r for r in records if r.get("variant") == variant]
            timed = [r for r in of if r.get("what") == "steps"]
            compiled = [r for r in of if r.kind == "compiled"]
            said = [r for r in of if r.kind == "predicted"]
            if not timed and not compiled:
                continue
            rows.append(
                (
                    Cell(job, (of[0],)),
                    Cell(variant, (of[0],)),
                    _median(timed),
                    _spread(timed),
                    _estimate(said, timed),
                    _estimate(again.get(variant, []), timed),
                    _bytes(compiled, "bytes"),
                    _bytes(said, "bytes"),
                    _peak(timed, records),
                    _bad(timed),
                )
            )
    columns = (
        "job",
        "variant",
        "step, measured",
        "spread",
        "step, estimate",
        "estimate by measured card",
        "compiled",
        "predicted",
        "peak",
        "not finite",
    )
    title = (
        "Steps. The time is the median of the last round, the spread is between "
        "rounds; an estimate stands with its ratio to the measured time."
    )
    return Table(title, columns, tuple(rows))


def _orders(found: dict[str, list[Record]]) -> Table:
    """Whether the variants of a race come in as the estimates say."""
    rows = []
    for job, records in found.items():
        timed = {r["variant"]: r for r in records if r.get("what") == "steps"}
        said = {r["variant"]: r for r in records if r.kind == "predicted"}
        both = [name for name in timed if name in said]
        if len(both) < 2:
            continue
        of = tuple(r for name in both for r in (timed[name], said[name]))
        by_time = sorted(both, key=lambda name: timed[name]["median_s"])
        by_estimate = sorted(both, key=lambda name: said[name]["estimate_us"])
        alike = sum(
            (by_time.index(a) < by_time.index(b))
            == (by_estimate.index(a) < by_estimate.index(b))
            for a, b in itertools.combinations(both, 2)
        )
        pairs = len(both) * (len(both) - 1) // 2
        rows.append(
            (
                Cell(job, of),
                Cell(" < ".join(by_time), of),
                Cell(" < ".join(by_estimate), of),
                Cell(f"{alike} of {pairs}", of),
            )
        )
    columns = ("job", "order, measured", "order, estimate", "pairs in one order")
    return Table("The order of variants, the fastest first.", columns, tuple(rows))


def _names(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(r["variant"] for r in records if r.get("variant")))


def _calibrated(records: list[Record]) -> dict[str, list[Record]]:
    by_name: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == "predicted":
            by_name.setdefault(record["variant"], []).append(record)
    return by_name


def _median(timed: list[Record]) -> Cell:
    if not timed:
        return Cell(_NONE)
    return Cell(_ms(timed[-1]["median_s"]), (timed[-1],))


def _spread(timed: list[Record]) -> Cell:
    if len(timed) < 2:
        return Cell(_NONE)
    first, last = timed[0]["median_s"], timed[-1]["median_s"]
    return Cell(f"{abs(first / last - 1):.1%}", (timed[0], timed[-1]))


def _estimate(said: list[Record], timed: list[Record]) -> Cell:
    if not said:
        return Cell(_NONE)
    seconds = said[-1]["estimate_us"] / 1e6
    if not timed:
        return Cell(f"{_ms(seconds)} ({said[-1]['target']})", (said[-1],))
    ratio = seconds / timed[-1]["median_s"]
    shown = f"{_ms(seconds)} ({said[-1]['target']}, x {ratio:.2f})"
    return Cell(shown, (said[-1], timed[-1]))


def _bytes(records: list[Record], name: str) -> Cell:
    if not records:
        return Cell(_NONE)
    return Cell(size(records[-1][name]), (records[-1],))


def _peak(timed: list[Record], records: list[Record]) -> Cell:
    """Of the first round: in the second the peak is that of all variants.

    It is the process's and only grows. Where a variant did not raise it, it is another
    one's or that of autotuning, and this one took no more.
    """
    if not timed or (peak := _peak_of(timed[0])) is None:
        return Cell(_NONE)
    before = [r for r in records if r.line < timed[0].line and _peak_of(r) == peak]
    if before:
        return Cell(f"at most {size(peak)}", (before[0], timed[0]))
    return Cell(size(peak), (timed[0],))


def _peak_of(record: Record) -> int | None:
    memory = record.get("memory") or {}
    return memory.get("allocator", {}).get("peak_bytes_in_use")


def _bad(timed: list[Record]) -> Cell:
    if not timed:
        return Cell(_NONE)
    return Cell(str(max(r["not_finite"] for r in timed)), tuple(timed))


def _checks(found: dict[str, list[Record]]) -> Table:
    rows = [
        (
            Cell(job, (record,)),
            Cell(record.get("variant") or record.get("program") or "", (record,)),
            Cell("agrees" if record["agrees"] else "DIFFERS", (record,)),
            Cell(record["sentence"], (record,)),
        )
        for job, records in found.items()
        for record in records
        if record.kind == "checked"
    ]
    title = "What was said ahead of time, held to what is here before it is timed."
    return Table(title, ("job", "of", "verdict", "sentence"), tuple(rows))


def _fits(found: dict[str, list[Record]]) -> Table:
    rows = []
    for job, records in found.items():
        begun = [r for r in records if r.kind == "begun"]
        for record in records:
            if record.get("what") != "fit":
                continue
            stats = record["memory"]["allocator"]
            share = begun[-1].get("memory_fraction") if begun else None
            ended = (
                f"ran out in {record['in_stage']}, step {record['steps']}"
                if record["ran_out"]
                else f"{record['steps']} steps"
            )
            limit, peak = (stats.get(k) for k in ("bytes_limit", "peak_bytes_in_use"))
            rows.append(
                (
                    Cell(job, (record,)),
                    Cell(record["variant"], (record,)),
                    Cell(_NONE if share is None else f"{share:.4f}", (*begun[-1:],)),
                    Cell(_NONE if limit is None else size(limit), (record,)),
                    Cell(_NONE if peak is None else size(peak), (record,)),
                    Cell(ended, (record,)),
                )
            )
    columns = ("job", "variant", "share of the card", "limit", "peak", "what happened")
    return Table("What fits, with no more memory than its plan.", columns, tuple(rows))


def _exact(found: dict[str, list[Record]]) -> Table:
    rows = [
        (
            Cell(record["dtype"], (record,)),
            Cell(f"{record['depth']}", (record,)),
            Cell(f"{record['numbers']:,}", (record,)),
            Cell(f"{record['wrong_after_inverse']:,}", (record,)),
            Cell(f"{record['wrong_after_pull_back']:,}", (record,)),
            *(
                Cell(
                    _NONE if name not in record.data else form(record[name]), (record,)
                )
                for name, form in _OF_A_STEP.items()
            ),
        )
        for record in found.get("exact", [])
        if record.get("what") == "exact inverse"
    ]
    columns = ("maps in", "depth", "numbers", "wrong after inverse", "after pull back")
    columns += ("in one step", "largest error", "gradients differ by")
    return Table("Exact inversion, measured.", columns, tuple(rows))


# Of a chain within a training step; the first runs did not ask.
_OF_A_STEP = {
    "wrong_after_step": "{:,}".format,
    "largest_error_after_step": "{:.2g}".format,
    "gradient_error_to_saved": "{:.2g}".format,
}


def _gradients(found: dict[str, list[Record]]) -> Table:
    rows = [
        (
            Cell(record["program"], (record,)),
            Cell(record["variant"], (record,)),
            Cell(f"{record['worst_relative_error']:.2g}", (record,)),
        )
        for record in found.get("gradients", [])
        if record.get("what") == "gradients"
    ]
    columns = ("program", "plan", "largest relative error")
    title = "Gradients of plans beside plain ones in float32, measured."
    return Table(title, columns, tuple(rows))


def _copies(found: dict[str, list[Record]]) -> Table:
    rows = [
        (
            Cell(record["variant"], (record,)),
            Cell(_ms(record["copying_s"]), (record,)),
            Cell(_ms(record["exposed_s"]), (record,)),
            Cell(_ms(record["busy_s"]), (record,)),
        )
        for record in found.get("offload", [])
        if record.get("what") == "copies"
    ]
    columns = ("variant", "copying", "of it beside no kernel", "device busy")
    title = "Copies to and from the host in a trace, measured."
    return Table(title, columns, tuple(rows))


def _kernels(found: dict[str, list[Record]]) -> Table:
    rows = []
    for record in found.get("kernels", []):
        if record.get("what") != "kernel":
            continue
        flops, moved = (record[k] / record["seconds"] for k in ("flops", "bytes"))
        rows.append(
            (
                Cell(record["group"], (record,)),
                Cell(record["kernel"], (record,)),
                Cell(_ms(record["seconds"]), (record,)),
                Cell(f"{flops * 1e-12:.3g}" if flops else _NONE, (record,)),
                Cell(f"{moved * 1e-9:.3g}" if moved else _NONE, (record,)),
            )
        )
    columns = ("group", "kernel", "time, measured", "TFLOP/s", "GB/s")
    return Table("Kernels: the fastest of ten rounds.", columns, tuple(rows))


def _memory(found: dict[str, list[Record]]) -> Table:
    """What the reserve is made of, job by job, as the allocator and the driver say."""
    rows = []
    for job, records in found.items():
        for record in records:
            memory: Any = record.get("memory")
            if not isinstance(memory, dict) or "driver_total_bytes" not in memory:
                continue
            stats = memory["allocator"]
            pool = stats.get("pool_bytes") or stats.get("bytes_reserved") or 0
            used = memory["driver_total_bytes"] - memory["driver_free_bytes"]
            sizes = (
                used - pool,
                pool,
                stats.get("bytes_limit"),
                stats.get("peak_bytes_in_use"),
                stats.get("bytes_in_use"),
            )
            stage = f"{record.get('variant') or ''} {memory['stage']}".strip()
            cells = (Cell(_NONE if n is None else size(n), (record,)) for n in sizes)
            rows.append((Cell(job, (record,)), Cell(stage, (record,)), *cells))
    columns = ("job", "after", "outside of the pool", "pool", "limit", "peak", "in use")
    return Table("Memory, stage by stage, measured.", columns, tuple(rows))


def _card(found: dict[str, list[Record]]) -> Table:
    rows = [
        (
            Cell(record["field"], (record,)),
            Cell(_value(record["data_sheet"]), (record,)),
            Cell(_value(record["value"]), (record,)),
        )
        for record in found.get("card", [])
        if record.kind == "derived"
    ]
    columns = ("fact of the card", "without it", "measured")
    title = "The card's file, made of the kernels above, and what stands without it."
    return Table(title, columns, tuple(rows))


def _value(value: Any) -> str:
    if value is None:
        return _NONE
    if isinstance(value, dict):
        return ", ".join(f"{k} {_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        return f"{len(value)} curves"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def size(number: int) -> str:
    """Bytes for people.

    >>> size(20_570_348_072)
    '19.16 GiB'
    """
    if abs(number) >= GIB:
        return f"{number / GIB:.2f} GiB"
    if abs(number) >= MIB:
        return f"{number / MIB:.2f} MiB"
    return f"{number / 1024:.2f} KiB"


def _ms(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def lines_of(row: Iterable[Cell]) -> list[int]:
    """The lines of a row's records, in order."""
    return sorted({source.line for cell in row for source in cell.sources})


def _printed(table: Table) -> list[str]:
    rows = [
        (*(cell.text for cell in row), " ".join(map(str, lines_of(row))))
        for row in table.rows
    ]
    heads = (*table.columns, "lines")
    widths = [max(len(r[k]) for r in (heads, *rows)) for k in range(len(heads))]
    made = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return [table.title, "", made[0], "-" * len(made[0]), *made[1:]]


if __name__ == "__main__":
    print(text(read(Path(sys.argv[1]))), end="")
