"""page: measurements as one self-contained HTML file."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from revremat._errors import UserError
from revremat._format import format_bytes, format_us
from revremat._frontier import Frontier
from revremat._measurement import PHASES, Measurement
from revremat._report._checks import check_measurements
from revremat._report.page._embedded import drawable, embedded
from revremat._report.page._frontier import chart
from revremat._report.page._what_if import what_if

_MOST_MODULES = 40
_SCRIPTS = ("common", "plot", "curve", "timeline", "treemap", "buffers", "page")


def page(measurements: Measurement | Sequence[Measurement] | Frontier) -> str:
    """An HTML page that opens from disk and sends nothing away.

    Charts are drawn by the page's own script from JSON within it; the page forbids
    its browser to load anything else.

    Args:
      measurements: One, or several (a table that compares them, then one section
        each); or a frontier, which is drawn without a script.

    Returns:
      The text of the file.

    Raises:
      UserError: There is nothing to draw, or something else.
    """
    if isinstance(measurements, Frontier):
        if not measurements.points:
            raise UserError("the frontier has no program: there is nothing to draw")
        return (
            _environment()
            .from_string(_template("frontier.html"))
            .render(
                f=measurements,
                c=chart(measurements),
                style=Markup(_template("page.css")),
            )
        )
    if isinstance(measurements, Measurement):
        measurements = [measurements]
    check_measurements(measurements, "a page")
    programs = list(dict.fromkeys(m.program for m in measurements))
    return (
        _environment()
        .from_string(_template("report.html"))
        .render(
            reports=[_report(m) for m in measurements],
            programs=", ".join(programs),
            several=len(programs) > 1,
            longest_us=max(m.time.step_us for m in measurements),
            most_bytes=max(
                max(m.memory.total_bytes, m.usable_bytes) for m in measurements
            ),
            style=Markup(_template("page.css")),
            data=embedded(measurements),
            script=Markup("\n".join(_template(f"{name}.js") for name in _SCRIPTS)),
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    environment.filters["us"] = format_us
    return environment


def _template(name: str) -> str:
    folder = resources.files("revremat").joinpath("_report/page/templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _report(m: Measurement) -> dict[str, Any]:
    """What the template shows of one measurement; widths are percentages."""
    memory, time = m.memory, m.time
    parts = [
        {"phase": phase, "bytes": memory.where(phase=phase).bytes} for phase in PHASES
    ]
    if not memory.buffers:
        parts = [{"phase": "step", "bytes": memory.total_bytes}]
    parts.append({"phase": "fragmentation", "bytes": memory.fragmentation_bytes})
    parts = [part for part in parts if part["bytes"]]
    used = sum(part["bytes"] for part in parts)
    scale = max(1, m.device_bytes, used + m.reserve_bytes)
    for part in parts:
        part["width"] = 100 * part["bytes"] / scale
        part["shown"] = part["bytes"] >= 0.001 * used
    return {
        "m": m,
        "parts": parts,
        "free": 100 * max(0, m.device_bytes - m.reserve_bytes - used) / scale,
        "reserve": 100 * m.reserve_bytes / scale,
        "end": 100 * m.device_bytes / scale,
        "modules": _modules(m),
        "what_if": what_if(m.memory.what_if),
        "num_buffers": len(memory.buffers),
        "curve": _curve_legend(m),
        "span_phases": [
            phase
            for phase in PHASES
            if any(s.phase == phase and s.stream == "compute" for s in time.spans)
        ],
        "times": _times(m),
        "rate": time.flops / time.step_us * 1e-6 if time.step_us else 0.0,
    }


def _curve_legend(m: Measurement) -> dict[str, Any] | None:
    """Categories that are large enough to be seen in the curve, and fragmentation."""
    curve = m.memory.curve
    if curve is None or not drawable(curve):
        return None
    seen = 0.001 * max(curve.totals_bytes)
    return {
        "parts": [name for name, column in curve.bytes if max(column) >= seen],
        "fragmentation": max(curve.fragmentation_bytes, default=0) >= seen,
    }


def _modules(m: Measurement) -> list[dict[str, Any]]:
    rows = [
        {"phase": phase, "scope": module, "bytes": size}
        for (phase, module), size in m.memory.by("phase", "module").items()
    ]
    shown, rest = rows[:_MOST_MODULES], rows[_MOST_MODULES:]
    if rest:
        size = sum(row["bytes"] for row in rest)
        shown.append({"phase": "", "scope": f"{len(rest)} smaller", "bytes": size})
    for row in shown:
        row["share"] = 100 * row["bytes"] / max(1, m.memory.total_bytes)
    return shown


def _times(m: Measurement) -> list[dict[str, Any]]:
    """Rows of the time table: of each stream, how much is waited for; then bounds."""
    t = m.time
    hidden_us = t.hidden_recompute_us
    waits = (t.exposed_collective_us, t.exposed_transfer_us)
    exposed = [f"{format_us(us)} exposed" for us in waits]
    rows = [
        ("compute", t.compute_us, t.compute_us, ""),
        (
            "of it recompute",
            t.recompute_us,
            t.recompute_us - hidden_us,
            f"{format_us(hidden_us)} hidden" if hidden_us else "",
        ),
        ("collectives", t.collective_us, t.exposed_collective_us, exposed[0]),
        ("host transfers", t.transfer_us, t.exposed_transfer_us, exposed[1]),
        (
            "critical path",
            t.critical_path_us,
            t.critical_path_us,
            "no order of the same work is faster",
        ),
        (
            "XLA's own estimate",
            t.compiler_us or 0.0,
            t.compiler_us or 0.0,
            "of the same work, one thing at a time",
        ),
    ]
    scale = max(1e-9, t.step_us, *(us for _, us, _, _ in rows))
    return [
        {
            "name": name,
            "us": us,
            "solid": 100 * solid / scale,
            "light": 100 * (us - solid) / scale,
            "note": note,
        }
        for name, us, solid, note in rows
        if us
    ]
