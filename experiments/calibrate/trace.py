"""What JAX's profiler saw of every instruction while something ran."""

import glob
import tempfile
from collections import defaultdict
from collections.abc import Callable

import jax
from jax.profiler import ProfileData, ProfileOptions


def durations_us(run: Callable[[], object], times: int) -> dict[str, list[float]]:
    """Microseconds of all executions of every instruction, in order, by its name.

    Args:
      run: Runs a compiled program once and waits for its results.
      times: How often it is called.
    """
    options = ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(times):
                run()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        for plane in ProfileData.from_file(path).planes:
            for line in plane.lines:
                for event in line.events:
                    at = event.start_ns, event.duration_ns / 1e3
                    found[event.name].append(at)
    return {name: [us for _, us in sorted(at)] for name, at in found.items()}
