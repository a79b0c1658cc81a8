"""XProf's memory viewer, asked about a dump of ours."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class View:
    """What the viewer says of one memory space.

    Attributes:
      peak_bytes: The highest moment, arguments and results included.
      unpadded_bytes: The same without padding.
      over_time_bytes: Before each event of the heap's trace, and after the last.
      indefinite_bytes: What lasts for the whole step.
      total_bytes: All allocations.
      blocks: The regions of the arena.
    """

    peak_bytes: int
    unpadded_bytes: int
    over_time_bytes: tuple[int, ...]
    indefinite_bytes: int
    total_bytes: int
    blocks: tuple[dict[str, Any], ...]


def memory_viewer(hlo: bytes, space: int = 0) -> View:
    """What XProf shows of a serialized `HloProto`."""
    from xprof.convert import raw_to_tool_data

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "plugins", "profile", "run")
        run.mkdir(parents=True)
        (run / "jit_f(1).hlo_proto.pb").write_bytes(hlo)
        (run / "host.xplane.pb").write_bytes(b"")
        text, _ = raw_to_tool_data.xspace_to_tool_data(
            [str(run / "host.xplane.pb")],
            "memory_viewer",
            {
                "module_name": "jit_f(1)",
                "host": "host",
                "memory_space": str(space),
                "graph_viewer_options": {},
            },
        )
    data = json.loads(text)
    return View(
        _bytes(data.get("peakHeapMib", 0)),
        _bytes(data.get("peakUnpaddedHeapMib", 0)),
        tuple(map(_bytes, data.get("heapSizes", ()))),
        _bytes(data.get("indefiniteBufferAllocationMib", 0)),
        _bytes(data.get("totalBufferAllocationMib", 0)),
        tuple(data.get("bufferBlocks", ())),
    )


def _bytes(mib: float) -> int:
    found = round(mib * 2**20)
    assert abs(found - mib * 2**20) < 1e-3, "XProf's figure is no number of bytes"
    return found
