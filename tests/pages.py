"""A large measurement, generated: what a page must still show in small."""

import math
import random

from revremat import Buffer, Curve, Span
from tests.measurements import GIB, MIB, changed

_PHASES = ("argument", "forward", "recompute", "backward")


def large(num_buffers=1000, num_positions=400, num_spans=300, **fields):
    """A measurement with that many buffers, places of its curve, and spans."""
    rng = random.Random(0)
    buffers = tuple(
        Buffer(
            bytes=rng.randrange(1, 64 * MIB),
            shape=(rng.randrange(1, 4096), 1024, rng.randrange(1, 64)),
            dtype=rng.choice(("bfloat16", "float32", "int32")),
            phase=rng.choice(_PHASES),
            scope=f"encoder/layer_{rng.randrange(48)}/attention/projection_{n}",
            op=rng.choice(("dot_general", "exp", "mul", "transpose")),
            source=f"/home/someone/project/models/part_{n % 7}.py:{rng.randrange(999)}",
        )
        for n in range(num_buffers)
    )
    buffers = tuple(sorted(buffers, key=lambda b: -b.bytes))
    used = sum(b.bytes for b in buffers)
    whole = {p: sum(b.bytes for b in buffers if b.phase == p) for p in _PHASES}
    columns = {
        phase: tuple(
            int(whole[phase] * share)
            for i in range(num_positions)
            for share in (0.1 + 0.9 * abs(math.sin((i + 9 * len(phase)) / 60)),)
        )
        for phase in _PHASES
    }
    totals = [sum(column) for column in zip(*columns.values(), strict=True)]
    curve = Curve(
        positions=tuple(25 * i for i in range(num_positions)),
        bytes=tuple(columns.items()),
        fragmentation_bytes=tuple(used - total for total in totals),
        labels=tuple(f"encoder/layer_{i // 9}/attn" for i in range(num_positions)),
    )
    step = 43_200.0
    spans = tuple(
        Span(
            stream=stream,
            phase=_PHASES[1 + n % 3],
            scope=f"encoder/layer_{n}",
            op="dot_general",
            start_us=n * step / num_spans,
            duration_us=0.8 * step / num_spans,
            exposed_us=0.0 if stream == "compute" else 0.3 * step / num_spans,
            times=1 + n % 5,
        )
        for n in range(num_spans)
        for stream in (("compute", "collective", "compute", "transfer")[n % 4],)
    )
    return changed(
        **{
            "argument_bytes": 0,
            "output_bytes": 0,
            "alias_bytes": 0,
            "temp_bytes": used,
            "host_bytes": 0,
            "fragmentation_bytes": 0,
            "buffers": buffers,
            "curve": curve,
            "spans": spans,
            "step_us": step,
            "device_bytes": max(80 * GIB, used + 8 * GIB),
        }
        | fields
    )
