"""Made-up measurements: a model of bytes and time, off by a little everywhere.

Where compiling would take long, this tells a search what programs take. It knows what a
search finds out: what layers keep, what recomputing and transfers take, that loops copy
what they keep, that gradients may be put off. Each program is off by its own share.
"""

import math
import re
import zlib
from typing import Any

from revremat._action import Action
from revremat._graph import Graph

H100_BYTES = 84_942_979_072
"""Of the targets whose measurements are made up; the others have no remat pass."""


def off(text: str, most: float) -> float:
    """A factor near one, the same for the same text."""
    return 1 + most * (2 * (zlib.crc32(text.encode()) % 10_007) / 10_006 - 1)


def action_of(text: str) -> Action:
    """What `tape.action_text` wrote."""
    kind, _, rest = text.partition("(")
    fields: dict[str, Any] = {}
    for key, value in re.findall(r"(\w+)=(\[[^\]]*\]|\w+)", rest):
        if value.startswith("["):
            fields[key] = tuple(filter(None, value[1:-1].split(",")))
        else:
            fields[key] = value == "True" or int(value)
    return Action(kind.lower(), **fields)


def runs_of(text: str) -> list[Action]:
    """What `tape.runs_text` wrote."""
    found = []
    for run in text.split(" + "):
        number, _, action = run.partition(" ")
        found += [action_of(action)] * int(number)
    return found


def told_of(key: str, graph: Graph, on_host: bool) -> list[Any]:
    """A measurement as `tape.told` writes it.

    Args:
      key: What is asked.
      graph: The program's units.
      on_host: Whether offloaded values leave the device.
    """
    text, *marks = key.split(" | ")
    has_barrier = "gradient barrier" in marks
    passes = [m for m in marks if m.startswith("remat pass ")]
    percent = int(passes[0].removeprefix("remat pass ")) if passes else None
    taken: dict[str, list[Action]] = {}
    rest = 1.0
    if text.startswith("first of "):
        unit, _, runs = text.removeprefix("first of ").partition(": ")
        taken[unit] = runs_of(runs)
        rest = 0.1 if "alone" in marks else 1.0
        for name in marks[0].removeprefix("beside ").split(","):
            if rest == 1.0 and name != "nothing":
                taken[name] = [Action("recompute")] * graph[name].num_layers
    elif text not in ("baseline", ""):
        for part in text.split("; "):
            unit, _, runs = part.partition(": ")
            taken[unit] = runs_of(runs)
    units = [u for u in graph.units if rest == 1.0 or u.name in taken]
    inside = {u.enclosing for u in graph.units}
    argument = sum(
        u.num_layers * u.weight_bytes for u in graph.units if not u.enclosing
    )
    argument = int(rest * (argument + max(u.plain_bytes for u in graph.units)))
    kept, work, host, time_us, put_off = 0.0, 0.0, 0.0, 40.0, 0.0
    for unit in units:
        enclosed = [taken[n] for n in graph.enclosing(unit.name) if n in taken]
        if unit.name not in taken and (unit.name in inside or enclosed):
            continue
        default = [Action("save")] * unit.num_layers
        flops = unit.forward_flops + unit.backward_flops
        outer = graph.enclosing(unit.name)
        times = math.prod(graph[name].num_layers for name in outer)
        alive = 1 if enclosed or not outer else times
        for action in taken.get(unit.name, default):
            one = unit.kept(action)
            stacked = unit.kind == "scan" and action.unroll is not True
            loop = (
                1.25 if stacked and action.kind == "save" else 1.1 if stacked else 1.0
            )
            kept += alive * one.device_bytes * (1.12 if stacked else 1.0)
            kept += 0 if on_host else alive * one.host_bytes
            host += alive * one.host_bytes if on_host else 0
            again = (
                2 * one.recompute_flops
                if action.segment_length > 1
                else one.recompute_flops
            )
            moved = 2e-6 * one.host_bytes + 4e-7 * loop * one.device_bytes
            time_us += times * (2e-6 * loop * (flops + again) + moved)
            recomputed = unit.plain_bytes - one.device_bytes
            peak = unit.plain_bytes / action.chunks + 0.3 * max(0, recomputed)
            work = max(
                work, peak * (action.segment_length if action.segment_length > 1 else 1)
            )
            if unit.kind == "block" and action.kind == "recompute":
                put_off += 0.0 if has_barrier else 0.4 * unit.plain_bytes
    time_us *= 1.03 if has_barrier else 1.0
    kept, work = off(key, 0.015) * kept, off(key[::-1], 0.03) * (work + put_off)
    if percent is not None:  # the pass recomputes what is over its limit
        most = max(0.5 * kept, (percent / 100) * (0.8 * H100_BYTES - argument) - work)
        time_us *= 1 + 0.2 * max(0.0, 1 - most / max(1.0, kept))
        kept = min(kept, most)
    parts = {
        "argument|args": argument,
        "forward|loss": int(kept),
        "recompute|loss": int(put_off),
        "backward|loss": int(work - put_off),
    }
    temp = int(kept) + int(put_off) + int(work - put_off)
    step_us = off(key, 0.01) * time_us * (rest if rest < 1 else 1)
    return [argument, 0, 0, temp, int(host), step_us, parts]
