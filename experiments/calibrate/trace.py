"""What JAX's profiler saw while something ran."""

import contextlib
import glob
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

Span = tuple[float, float]


def durations_us(run: Callable[[], object], times: int) -> dict[str, list[float]]:
    """Microseconds of all executions of every instruction, in order, by its name.

    Args:
      run: Runs a compiled program once and waits for its results.
      times: How often it is called.
    """
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with _traced(run, times) as planes:
        for plane in planes:
            for line in plane.lines:
                for event in line.events:
                    at = event.start_ns, event.duration_ns / 1e3
                    found[event.name].append(at)
    return {name: [us for _, us in sorted(at)] for name, at in found.items()}


def exposed_copies_s(run: Callable[[], object], times: int) -> dict[str, float] | None:
    """Of one call: seconds of copies to and from the host, and those beside no kernel.

    Args:
      run: Runs a compiled program once and waits for its results.
      times: How often it is called.

    Returns:
      `copying_s`, `exposed_s` and `busy_s` of one call, of one device; None where the
      trace shows no copies of a GPU.
    """
    copies: list[Span] = []
    kernels: list[Span] = []
    with _traced(run, times) as planes:
        for event in _on_streams(planes):
            span = event.start_ns, event.start_ns + event.duration_ns
            (copies if is_copy(event.name) else kernels).append(span)
    if not copies:
        return None
    per_call = 1e-9 / times
    return {
        "copying_s": length(copies) * per_call,
        "exposed_s": (length([*copies, *kernels]) - length(kernels)) * per_call,
        "busy_s": length([*copies, *kernels]) * per_call,
    }


def kernels(run: Callable[[], object], times: int) -> list[dict[str, Any]]:
    """What ran on the streams of a GPU, the longest in sum first; empty on others.

    Args:
      run: Runs a compiled program once and waits for its results.
      times: How often it is called.

    Returns:
      By kernel and instruction: `kernel`, `instruction` (as the module's text names
      it, or the command buffer that the kernel is started in; "" where the trace does
      not say), `number` and `seconds` of one call.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with _traced(run, times) as planes:
        for event in _on_streams(planes):
            op = next((v for k, v in event.stats if k == "hlo_op"), "")
            found[event.name, str(op)].append(event.duration_ns * 1e-9)
    rows = [
        {
            "kernel": kernel,
            "instruction": op,
            "number": len(spans) / times,
            "seconds": sum(spans) / times,
        }
        for (kernel, op), spans in found.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _on_streams(planes: Iterable[Any]) -> Iterator[Any]:
    """What a trace says that the GPUs did."""
    for plane in planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    yield from line.events


def is_copy(name: str) -> bool:
    """Whether an event of a stream copies between a device and its host.

    >>> is_copy("MemcpyD2H"), is_copy("MemcpyD2D"), is_copy("loop_fusion_3")
    (True, False, False)
    """
    return name.startswith("Memcpy") and ("D2H" in name or "H2D" in name)


def length(spans: Iterable[Span]) -> float:
    """What spans cover together, counted once.

    >>> length([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


@contextlib.contextmanager
def _traced(run: Callable[[], object], times: int) -> Iterator[Any]:
    """The planes of a trace of some calls."""
    options = ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(times):
                run()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        yield ProfileData.from_file(path).planes
