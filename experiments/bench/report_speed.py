"""How long a report takes after the compile, for many layers unrolled.

Command:
    python -m experiments.bench.report_speed --layers 96

Expected: under 20 s for 96 layers, reading, attributing and rendering as text and page.
"""

import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tyro

import revremat as rr
from experiments.configs import gpt
from revremat import xla


@dataclass(frozen=True)
class Figures:
    """Seconds of each part, and how large the program is."""

    instructions: int
    buffers: int
    read_s: float
    text_s: float
    page_s: float

    @property
    def total_s(self) -> float:
        """All that comes after the compile."""
        return self.read_s + self.text_s + self.page_s


def run(layers: int = 96, target: str = "h100:1") -> Figures:
    """Compiles an unrolled GPT of so many layers and times its report."""
    machine = rr.target(target)
    problem = gpt.problem(
        machine,
        num_layers=layers,
        width=512,
        num_heads=8,
        seq_len=512,
        batch_size=8,
        scan=False,
    )
    step, specs = problem.make_step()
    lowered = xla.lower_step(step, specs, machine, donate=problem.donate)
    artifact = lowered.compile()
    times = [time.perf_counter()]
    # Compiled already: from here on it is read.
    found = rr.measure(lowered.program, target=machine, name=f"gpt of {layers} layers")
    times.append(time.perf_counter())
    rr.render(found)
    times.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        rr.write(found, Path(folder) / "report.html")
    times.append(time.perf_counter())
    module = xla.Module.from_bytes(artifact.hlo)
    return Figures(
        len(module.instructions),
        len(found.memory.buffers),
        *(b - a for a, b in pairwise(times)),
    )


if __name__ == "__main__":
    figures = tyro.cli(run)
    print(figures, f"total {figures.total_s:.1f} s")
