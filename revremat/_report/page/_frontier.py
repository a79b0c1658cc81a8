"""The page of a frontier: time against memory, drawn without a script."""

import math
from typing import Any

from revremat._format import format_bytes, format_us
from revremat._frontier import Frontier, Point

WIDTH, HEIGHT = 1000, 460
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 18, 52
_STEPS = (1, 2, 2.5, 5, 10)
_LABEL_GAP = 17
_FAR = 1.5
"""Times the largest program, or below the smallest, the memory is not drawn."""


def chart(frontier: Frontier) -> dict[str, Any]:
    """What the template needs: places in the drawing, ticks and rows of a table."""
    sizes = [p.bytes for p in frontier.points]
    times = [p.step_us for p in frontier.points]
    usable = frontier.usable_bytes
    is_near = min(sizes) / _FAR <= usable <= _FAR * max(sizes)
    drawn = [*sizes, usable] if is_near else sizes
    x = _Axis(min(drawn), max(drawn), 1024.0, LEFT, WIDTH - RIGHT)
    y = _Axis(min(times), max(times), 1000.0, HEIGHT - BOTTOM, TOP)
    best = frontier.best
    steps = []
    for point, after in zip(best, (*best[1:], None), strict=True):
        steps.append((x(point.bytes), y(point.step_us)))
        steps.append((x(after.bytes) if after else WIDTH - RIGHT, y(point.step_us)))
    dots = [_dot(p, x(p.bytes), y(p.step_us), p in best) for p in frontier.points]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "line": " ".join(f"{a:.1f},{b:.1f}" for a, b in steps),
        "dots": sorted(dots, key=lambda d: d["best"]),
        "labels": _labels([d for d in dots if d["label"]]),
        "x_ticks": [(x(v), format_bytes(v)) for v in x.ticks(7)],
        "y_ticks": [(y(v), format_us(v)) for v in y.ticks(5)],
        "usable": x(usable) if is_near else None,
        "rows": [{"point": p, "best": p in best} for p in reversed(frontier.points)],
    }


class _Axis:
    """From values to places, with a margin and round ticks."""

    def __init__(self, low: float, high: float, base: float, start: int, stop: int):
        margin = 0.06 * (high - low) or 0.1 * high or 1.0
        self.low, self.high = max(0.0, low - margin), high + margin
        self.base, self.start, self.stop = base, start, stop

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        unit = self.base ** max(0, math.floor(math.log(self.high, self.base)))
        span = (self.high - self.low) / unit
        power = 10 ** math.floor(math.log10(span / most))
        step = next(s for s in _STEPS if span / (s * power) <= most) * power * unit
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, int(self.high // step) + 1)]


def _dot(point: Point, x: float, y: float, best: bool) -> dict[str, Any]:
    text = f"{point.name}: {format_bytes(point.bytes)}, {format_us(point.step_us)}"
    return {
        "x": x,
        "y": y,
        "kind": point.kind.replace(" ", "-"),
        "best": best,
        "title": text,
        "label": point.name if point.kind in ("baseline", "preset") else "",
    }


def _labels(dots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names beside their dots, moved down where they would lie on one another."""
    placed: list[dict[str, Any]] = []
    for dot in sorted(dots, key=lambda d: d["y"]):
        left = dot["x"] > WIDTH * 0.8
        y = dot["y"] - 9
        near = [p for p in placed if abs(p["x"] - dot["x"]) < 130]
        while any(abs(p["y"] - y) < _LABEL_GAP for p in near):
            y += 2
        placed.append(
            {
                "x": dot["x"] + (-10 if left else 10),
                "y": min(y, HEIGHT - BOTTOM - 4),
                "anchor": "end" if left else "start",
                "text": dot["label"],
            }
        )
    return placed
