"""A packing drawn to scale: time to the right, memory upwards."""

import html
import os
from collections.abc import Sequence

from revremat._io._files import write_text
from revremat._printable import printable
from revremat.allocation._problem import AllocationProblem
from revremat.allocation._solution import Allocation

_WIDTH, _HEIGHT = 960, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 40, 40
# Okabe and Ito's colours, told apart by the colour-blind too.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00")
_LABELLED_WIDTH, _LABELLED_HEIGHT = 30, 11


def draw(
    problem: AllocationProblem, allocation: Allocation, title: str = "allocation"
) -> str:
    """An SVG drawing: a rectangle a buffer, and a line at the lower bound.

    Buffers of one group have one colour; hovering over one names it.

    Args:
      problem: The buffers.
      allocation: Where they are.
      title: Stands above.

    Returns:
      The text of an SVG file.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate, draw
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4),))
      >>> draw(problem, allocate(problem)).startswith("<svg")
      True
    """
    top = max(allocation.makespan_bytes, 1)
    first = int(problem.lower.min()) if problem.buffers else 0
    last = int(problem.upper.max()) if problem.buffers else 1
    across = (_WIDTH - _LEFT - _RIGHT) / (last - first)
    up = (_HEIGHT - _TOP - _BOTTOM) / top

    def x(time: float) -> float:
        return round(_LEFT + (time - first) * across, 2)

    def y(offset: float) -> float:
        return round(_HEIGHT - _BOTTOM - offset * up, 2)

    names = list(dict.fromkeys(b.group or b.id for b in problem.buffers))
    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    excess = f"{100 * allocation.excess:.3f}".rstrip("0").rstrip(".")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="10" role="img">',
        f"<title>{html.escape(printable(title))}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{html.escape(printable(title))}: '
        f"{format_bytes(allocation.makespan_bytes)}, {excess} % above the lower bound, "
        f"{len(problem.buffers)} buffers</text>",
        '<g stroke="#333" stroke-width="0.3">',
    ]
    labels = []
    for buffer, offset in zip(problem.buffers, allocation.offsets_bytes, strict=True):
        if not buffer.size_bytes:
            continue
        left, right = x(buffer.lower), x(buffer.upper)
        high, low = y(offset + buffer.size_bytes), y(offset)
        name = html.escape(printable(buffer.id))
        parts.append(
            f'<rect x="{left}" y="{high}" width="{round(right - left, 2)}" '
            f'height="{round(low - high, 2)}" '
            f'fill="{colour[buffer.group or buffer.id]}"><title>{name}: '
            f"{format_bytes(buffer.size_bytes)} at {offset}, "
            f"time {buffer.lower} to {buffer.upper}</title></rect>"
        )
        fits = right - left >= max(_LABELLED_WIDTH, 6 * len(buffer.id))
        if fits and low - high >= _LABELLED_HEIGHT:
            labels.append(
                f'<text x="{round((left + right) / 2, 2)}" '
                f'y="{round((high + low) / 2 + 3.5, 2)}" '
                f'text-anchor="middle">{name}</text>'
            )
    parts += ["</g>", *labels]
    for offset, label, colour_of in _ticks(top, allocation.bound.size_bytes):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(offset)}" '
            f'y2="{y(offset)}" stroke="{colour_of}" stroke-width="0.7"/>'
            f'<text x="{_LEFT - 6}" y="{y(offset) + 3.5}" text-anchor="end">{label}'
            "</text>"
        )
    for time in (first, last):
        anchor = "start" if time == first else "end"
        parts.append(
            f'<text x="{x(time)}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="{anchor}">time {time}</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def write_drawing(
    path: str | os.PathLike,
    problem: AllocationProblem,
    allocation: Allocation,
    title: str = "allocation",
) -> None:
    """Writes the drawing to a file.

    Args:
      path: What is written.
      problem: The buffers.
      allocation: Where they are.
      title: Stands above.

    Raises:
      UserError: A file that cannot be written.

    Example:
      >>> import os, tempfile
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate
      >>> from revremat.allocation import write_drawing
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4),))
      >>> path = os.path.join(tempfile.mkdtemp(), "packing.svg")
      >>> write_drawing(path, problem, allocate(problem))
      >>> os.path.getsize(path) > 100
      True
    """
    write_text(path, draw(problem, allocation, title))


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit, exact where it is below 1 KiB."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{value:.2f} {unit}"


def _ticks(top: int, bound: int) -> Sequence[tuple[int, str, str]]:
    ticks = [(0, "0", "#333"), (bound, format_bytes(bound), "#c00")]
    if top - bound > top // 40:
        ticks.append((top, format_bytes(top), "#333"))
    return ticks
