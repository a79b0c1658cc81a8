"""What the page's charts are drawn from: a measurement as small JSON."""

import json
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from revremat._measurement import PHASES, Buffer, Measurement
from revremat._measurement._history import Curve
from revremat._report.page._colours import tones

_MOST_ROWS = 1500
_MOST_TEXT = 200_000
_MOST_POSITIONS = 1200
_MOST_MODULES = 60
_MOST_CATEGORIES = 7
_LONGEST = 200


def embedded(measurements: Sequence[Measurement]) -> Markup:
    """JSON for a script element: it cannot end the element, whatever names it holds.

    Args:
      measurements: All that the page shows; together they share what it may weigh.

    Returns:
      An object with `strings`, `tones` (the colour of each category) and `reports`.
    """
    share = len(measurements)
    strings = _Strings()
    reports = [_report(m, strings, share) for m in measurements]
    categories = [
        name for r in reports if r["curve"] for name, _ in r["curve"]["series"]
    ]
    data = {
        "strings": list(strings.index),
        "tones": tones(categories),
        "reports": reports,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


class _Strings:
    """Texts, each kept once and spoken of by its number."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.size = 0

    def __call__(self, text: str) -> int:
        text = clipped(text)
        if text not in self.index:
            self.index[text] = len(self.index)
            self.size += len(text)
        return self.index[text]


def clipped(text: str) -> str:
    """A name of bearable length: a very long one loses its middle.

    >>> len(clipped("layer/" * 100))
    200
    """
    if len(text) <= _LONGEST:
        return text
    return f"{text[:60]}…{text[len(text) - _LONGEST + 61 :]}"


def _report(m: Measurement, strings: _Strings, share: int) -> dict[str, Any]:
    time = m.time
    rows, rest = _rows(m.memory.buffers, strings, share)
    curve = m.memory.curve
    return {
        "total_bytes": m.memory.total_bytes,
        "usable_bytes": m.usable_bytes,
        "fragmentation_bytes": m.memory.fragmentation_bytes,
        "time": {
            "step": _us(time.step_us),
            "compute": _us(time.compute_us),
            "collective": _us(time.collective_us),
            "transfer": _us(time.transfer_us),
        },
        "buffers": rows,
        "rest": rest,
        "curve": _curve(curve, strings, share) if curve and drawable(curve) else None,
        "spans": [
            [
                *map(strings, (s.stream, s.phase, s.scope, s.op)),
                *map(_us, (s.start_us, s.duration_us, s.exposed_us)),
                s.times,
            ]
            for s in time.spans
        ],
    }


def _us(microseconds: float) -> float:
    # Six significant figures draw and print the same, in half the text.
    return float(f"{microseconds:.6g}")


def _rows(
    buffers: Sequence[Buffer], strings: _Strings, share: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Equal buffers as one row, the largest first; what is too much, by module.

    Where they lie and how long is left out: no two would be equal, and none of the
    charts shows it.

    Returns:
      Rows of (bytes each, count, array, phase, module, scope, op, source, on host),
      and rows of (bytes, count, phase, module, on host) for what is left.
    """
    counts: dict[Buffer, int] = {}
    for b in buffers:
        alike = Buffer(
            b.bytes, b.shape, b.dtype, b.phase, b.scope, b.op, b.source, b.space
        )
        counts[alike] = counts.get(alike, 0) + 1
    most_text = strings.size + _MOST_TEXT // share
    rows, left = [], []
    for b, count in counts.items():
        if len(rows) >= max(20, _MOST_ROWS // share) or strings.size > most_text:
            left.append((b, count))
            continue
        texts = (array_text(b), b.phase, b.module, b.scope, b.op, b.source)
        rows.append([b.bytes, count, *map(strings, texts), int(b.space == "host")])
    return rows, _rest(left, strings, rows)


def _rest(
    left: list[tuple[Buffer, int]], strings: _Strings, rows: list[list[int]]
) -> list[list[int]]:
    sums: dict[tuple[str, str, bool], list[int]] = {}
    known = {row[4] for row in rows}
    for b, count in left:
        module = clipped(b.module)
        if strings.index.get(module) not in known and len(sums) >= _MOST_MODULES:
            module = "(other modules)"
        entry = sums.setdefault((b.phase, module, b.space == "host"), [0, 0])
        entry[0] += b.bytes * count
        entry[1] += count
    return [
        [size, count, strings(phase), strings(module), int(host)]
        for (phase, module, host), (size, count) in sums.items()
    ]


def array_text(buffer: Buffer) -> str:
    """An array's dtype and shape in short; "" for a buffer that holds none.

    >>> array_text(Buffer(8, (2, 2), "bfloat16", "forward", ""))
    'bf16[2,2]'
    """
    if not buffer.dtype:
        return ""
    dtype = re.sub(r"^(b?f)loat|^(u)int|^(i)nt|^(c)omplex", r"\1\2\3\4", buffer.dtype)
    return f"{dtype}[{','.join(map(str, buffer.shape))}]"


def drawable(curve: Curve) -> bool:
    """Whether there is anything to draw at all."""
    return bool(curve.positions) and any(map(any, (c for _, c in curve.bytes)))


def _curve(curve: Curve, strings: _Strings, share: int) -> dict[str, Any]:
    """The curve at fewer positions where many curves share a page."""
    totals = curve.totals_bytes
    count = len(curve.positions)
    stretch = -(-count // max(50, _MOST_POSITIONS // share))
    # The position that stands for a stretch is the one with most in use.
    picked = [
        max(range(i, min(i + stretch, count)), key=totals.__getitem__)
        for i in range(0, count, stretch)
    ]

    def thin(column: Sequence[int]) -> list[int]:
        return [column[i] for i in picked] if column else []

    series = [(clipped(name), thin(column)) for name, column in curve.bytes]
    return {
        "positions": thin(curve.positions),
        "series": [[n, c] for n, c in _largest(series) if any(c)],
        "fragmentation": thin(curve.fragmentation_bytes),
        "labels": [strings(curve.labels[i] if curve.labels else "") for i in picked],
    }


def _largest(series: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """At most as many categories as there are colours; the small ones as one."""
    if len(series) <= _MOST_CATEGORIES or all(name in PHASES for name, _ in series):
        return series
    order = sorted(series, key=lambda item: -max(item[1]))[: _MOST_CATEGORIES - 1]
    kept = [item for item in series if item in order]
    others = [column for name, column in series if (name, column) not in order]
    return [*kept, ("others", [sum(column) for column in zip(*others, strict=True)])]
