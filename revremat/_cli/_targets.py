"""`revremat targets`: the devices revremat knows."""

import sys
from dataclasses import dataclass

from revremat import xla
from revremat._report._targets import render_targets


@dataclass(frozen=True)
class Targets:
    """The devices revremat knows, and what is missing to use each."""

    def run(self) -> int:
        xla.request_cpu_devices(8)
        here = xla.target("local")
        specs = ["local"] if here.platform != "cpu" else ["cpu:1"]
        specs += ["cpu:8", *(f"{key}:8" for key in xla.GPU_CARDS)]
        specs += ["v4:2x2x1", "v5e:4x4", "v5p:2x2x1", "v6e:4x4"]
        rows = [(t, t.missing()) for t in map(xla.target, specs)]
        sys.stdout.write(render_targets(rows, color=sys.stdout.isatty()))
        return 0
