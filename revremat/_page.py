"""page: measurements as one self-contained HTML file."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2

from revremat._bytes import format_bytes, format_us
from revremat._measurement import PHASES, Measurement

COLORS = {
    "argument": "#4c6a92",
    "forward": "#3d9970",
    "recompute": "#e0a030",
    "backward": "#c8553d",
    "update": "#7b5ea7",
    "output": "#5fa8d3",
    "constant": "#9a9a9a",
    "holes": "#dddddd",
}


def page(measurements: Measurement | Sequence[Measurement]) -> str:
    """An HTML page that opens from disk and sends nothing away.

    Args:
      measurements: One, or several (a table of targets, then one section each).

    Returns:
      The text of the file.
    """
    if isinstance(measurements, Measurement):
        measurements = [measurements]
    template = resources.files("revremat").joinpath("templates", "report.html")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["bytes"] = format_bytes
    environment.filters["us"] = format_us
    return environment.from_string(template.read_text()).render(
        reports=[_report(m) for m in measurements], colors=COLORS
    )


def _report(m: Measurement) -> dict[str, Any]:
    memory, total = m.memory, max(1, m.memory.total_bytes)
    scale = max(total, m.usable_bytes)
    parts = []
    for phase in PHASES:
        found = memory.where(phase=phase)
        if found.bytes:
            parts.append({"phase": phase, "bytes": found.bytes, "count": len(found)})
    if memory.fragmentation_bytes:
        parts.append(
            {"phase": "holes", "bytes": memory.fragmentation_bytes, "count": 0}
        )
    at = 0.0
    for part in parts:
        part["width"] = 100 * part["bytes"] / scale
        part["at"] = at
        at += part["width"]
    modules: dict[tuple[str, str], int] = {}
    for b in memory.where():
        key = (b.phase, b.scope or "(unnamed)")
        modules[key] = modules.get(key, 0) + b.bytes
    rows = sorted(modules.items(), key=lambda item: -item[1])
    time = m.time
    return {
        "m": m,
        "parts": parts,
        "limit": 100 * max(0, m.usable_bytes) / scale,
        "modules": [
            {"phase": p, "scope": s, "bytes": size, "share": 100 * size / total}
            for (p, s), size in rows[:60]
        ],
        "buffers": [
            {
                "bytes": b.bytes,
                "share": 100 * b.bytes / total,
                "array": f"{b.dtype}[{', '.join(map(str, b.shape))}]",
                "phase": b.phase,
                "scope": b.scope,
                "op": b.op,
                "source": b.source,
                "space": b.space,
            }
            for b in memory.buffers[:200]
        ],
        "times": [
            (name, us)
            for name, us in (
                ("compute", time.compute_us),
                ("of it recompute", time.recompute_us),
                ("recompute hidden under collectives", time.hidden_recompute_us),
                ("collectives", time.collective_us),
                ("collectives exposed", time.exposed_collective_us),
                ("transfers", time.transfer_us),
                ("transfers exposed", time.exposed_transfer_us),
            )
            if us
        ],
    }
