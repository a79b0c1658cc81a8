"""The roofline: how long a card needs for the work of one kernel.

Arithmetic or memory traffic, whichever takes longer, functions that were measured
beyond their traffic, and the time to start it. How
much of its peaks a card reaches depends on what is done and on how much of it, so a
measured card brings curves: rates by class of work and size, measured instruction by
instruction. A card that nobody measured has its data sheet, one efficiency for each
unit, and what can be said of any card with tiles: a product of matrices that does not
fill them is slower.

Curves, each a list of (size, rate), between which rates are interpolated on
logarithmic axes:

- `matmul.DTYPE`, `convolution.DTYPE`, `filter_gradient.DTYPE`: FLOP/s by FLOPs of one
  product; `dot.DTYPE`: FLOP/s by elements of one result; `turned_dot.DTYPE`: FLOP/s
  by length of the sums.
- `grouped_convolution.DTYPE`, `loop_convolution.DTYPE`, `loop_convolution_rows.DTYPE`:
  FLOP/s by what `Matmul.extent` says.
- `stream`: bytes/s by bytes of a kernel that does little else; what no cache has is
  moved as if the kernel moved all that the step has in memory.
- `reduce.rows`, `reduce.columns`: bytes/s by bytes read.
- `arithmetic`: FLOP/s outside of matrix units.
- `function.NAME`: elements/s of a transcendental function, beyond its traffic.
- `strided`, `scattered`: reads/s across the rows of an operand, writes/s across those
  of the result, by bytes of the lines that an iteration of the loop comes back to;
  `strided.crowded`, `scattered.crowded`: where those are too many for the sets of the
  first-level cache that they fall on, by the number of sets.
- `fresh`: bytes/s of memory that is used for the first time, by bytes of the piece
  it is part of: what that takes beyond writing to it.

`_cpu_kernels` has curves of its own.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from revremat.xla.step_time._access import Access
from revremat.xla.step_time._cost import TRANSCENDENTAL_FLOPS, Cost, Matmul
from revremat.xla.target._cards import Card


def roofline_us(cost: Cost, card: Card) -> float:
    """Time of one kernel: its arithmetic or its traffic, and measured functions."""
    if cost.flops == 0 and cost.bytes == 0:
        return 0.0
    functions = functions_us(cost.functions, card)
    arithmetic = _plain_arithmetic_us(cost, card)
    streamed = max(arithmetic, traffic_us(cost, card)) + functions
    return card.launch_us + max(streamed, _across_us(cost, card))


def arithmetic_us(cost: Cost, card: Card) -> float:
    """Time of a kernel's arithmetic alone."""
    return _plain_arithmetic_us(cost, card) + functions_us(cost.functions, card)


def functions_us(functions: Mapping[str, float], card: Card) -> float:
    """Time of the functions that were measured, beyond traffic.

    Args:
      functions: Elements by name.
      card: Measured or not.
    """
    seconds = sum(
        elements / rate_at(card.curves[f"function.{name}"], elements)
        for name, elements in functions.items()
        if f"function.{name}" in card.curves
    )
    return 1e6 * seconds


def _plain_arithmetic_us(cost: Cost, card: Card) -> float:
    seconds = 0.0
    if cost.matmuls:
        seconds += sum(m.flops / matmul_rate(m, card) for m in cost.matmuls)
    else:
        for dtype, flops in cost.matmul_flops.items():
            seconds += flops / (matmul_peak(dtype, card) * card.matmul_efficiency)
    other = cost.other_flops - TRANSCENDENTAL_FLOPS * sum(
        elements
        for name, elements in cost.functions.items()
        if f"function.{name}" in card.curves
    )
    curve = card.curves.get("arithmetic")
    peak = rate_at(curve, other) if curve else card.peak_flops["float32"]
    return 1e6 * (seconds + max(0.0, other) / peak)


def traffic_us(cost: Cost, card: Card) -> float:
    """Time of a kernel's memory traffic alone, along rows."""
    stream = card.curves.get("stream")
    seconds = cost.bytes / card.stream_bandwidth
    if stream:
        warm = rate_at(stream, cost.bytes)
        cold = min(warm, rate_at(stream, max(cost.bytes, cost.step_bytes)))
        cold_bytes = min(cost.cold_bytes, cost.bytes)
        seconds = (cost.bytes - cold_bytes) / warm + cold_bytes / cold
    for way, size in cost.reduced_bytes.items():
        curve = card.curves.get(f"reduce.{way}")
        if curve:
            seconds = max(seconds, size / rate_at(curve, size))
    return 1e6 * seconds


def _across_us(cost: Cost, card: Card) -> float:
    """Time of the steps over rows: waiting for lines, under which functions hide."""
    ways = ("strided", cost.strided), ("scattered", cost.scattered)
    return 1e6 * max(
        sum(_across_seconds(a, way, card) for a in accesses) for way, accesses in ways
    )


def _across_seconds(access: Access, way: str, card: Card) -> float:
    seconds = 0.0
    if curve := card.curves.get(way):
        seconds = access.number / rate_at(curve, access.lines_bytes)
    if access.crowded and (curve := card.curves.get(f"{way}.crowded")):
        seconds = max(seconds, access.number / rate_at(curve, access.sets))
    return seconds


def first_touch_us(num_bytes: float, card: Card) -> float:
    """Time that a piece of memory costs when a step uses it for the first time.

    On a CPU the step's memory comes from the operating system and goes back to it; on
    cards it is a pool's, and costs nothing.
    """
    curve = card.curves.get("fresh")
    return 1e6 * num_bytes / rate_at(curve, num_bytes) if curve and num_bytes else 0.0


def rate_at(curve: Sequence[tuple[float, float]], size: float) -> float:
    """The rate at a size: between measured ones on logarithmic axes, else the nearest.

    Args:
      curve: Pairs of size and rate, the sizes ascending.
      size: In the unit of the curve.

    Example:
      >>> round(rate_at([(1, 10), (100, 1000)], 10))
      100
    """
    size = max(size, 1e-30)
    if size <= curve[0][0]:
        return curve[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if size <= x1:
            share = math.log(size / x0) / math.log(x1 / x0)
            return y0 * (y1 / y0) ** share
    return curve[-1][1]


def matmul_rate(m: Matmul, card: Card) -> float:
    """FLOP/s that a card reaches in such a product."""
    curve = card.curves.get(f"{m.kind}.{m.dtype}")
    if curve:
        return rate_at(curve, m.size)
    if f"{m.kind}_flops" in card.description:
        return float(card.description[f"{m.kind}_flops"])
    curve = card.curves.get(f"matmul.{m.dtype}")
    if curve:
        return rate_at(curve, m.flops / max(1, m.batch))
    return matmul_peak(m.dtype, card) * card.matmul_efficiency * _filling(m, card)


_TILE = 128


def _filling(m: Matmul, card: Card) -> float:
    """The share of the matrix units that the tiles of a product keep busy.

    Tiles of 128 x 128, or smaller where the result is; they are done in waves, one on
    every multiprocessor, and a last wave that is not full takes as long. Few tiles are
    cut along the sum as well (split-k), in pieces of at least 512.
    """
    cores = int(card.description.get("core_count", 0))
    if not cores or not m.rows or not m.columns:
        return 1.0
    height, width = (_tile(n) for n in (m.rows, m.columns))
    across, down = -(-m.rows // height), -(-m.columns // width)
    padding = m.rows * m.columns / (across * height * down * width)
    tiles = m.batch * across * down
    waves = -(-tiles // cores)
    full = tiles / (waves * cores)
    if tiles < cores:
        depth = m.flops / (2 * m.batch * m.rows * m.columns)
        full = min(1.0, full * max(1, depth // 512))
    return max(padding * full, 1 / 64)


def _tile(size: int) -> int:
    """The smallest power of two from 16 to 128 that holds so many."""
    return min(_TILE, max(16, 2 ** (size - 1).bit_length()))


def matmul_peak(dtype: str, card: Card) -> float:
    """FLOP/s of the units that multiply matrices of this dtype."""
    peak = card.peak_flops
    if dtype == "float32":
        return peak.get("tf32", peak["float32"])
    if dtype.startswith(("float8", "int8")):
        return 2 * peak["bfloat16"]
    return peak.get(dtype, peak["float32"])
