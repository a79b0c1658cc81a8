"""From timings to the factors of a card."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from experiments.calibrate.records import Json
from revremat.xla import MEASURABLE, load_card

MIB = 2**20


def data_sheet(key: str) -> Json:
    """The measurable fields of a card before anything was measured."""
    if not key:
        return {}
    card = dataclasses.asdict(load_card(key))
    return {name: card[name] for name in MEASURABLE}


def card(
    kernels: Mapping[str, Sequence[Json]],
    key: str,
    platform: str,
    curves: Json | None = None,
    needed_beside: int | None = None,
    total_bytes: int | None = None,
) -> Json:
    """The fields of a card that measurements replace; none where nothing was measured.

    Args:
      kernels: By group what was timed: `seconds`, `flops`, `bytes` and `dtype`.
      key: As targets write the card; "" for one that revremat does not know.
      platform: `gpu` or `cpu`.
      curves: On a CPU: `curves` and `launch_us`.
      needed_beside: Bytes that are needed beside the program; see `beside`.
      total_bytes: Of the card's memory.
    """
    found: Json = {}
    sheet = data_sheet(key)
    launch = sorted(kernels.get("launch", []), key=lambda k: k["flops"])
    # Of a GPU a chain of small products times the products, twice what the kernels of a
    # step took that did as little.
    if len(launch) == 2 and platform != "gpu":
        fewer, more = launch
        number = (more["flops"] - fewer["flops"]) / (2.0 * 32**3)
        per_kernel = 1e6 * (more["seconds"] - fewer["seconds"]) / number
        found["launch_us"] = round(max(0.05, per_kernel), 3)
    if curves:
        found |= curves
    rates = _fastest(kernels.get("matmul", []), "flops")
    peaks: dict[str, float] = {}
    main = "bfloat16" if platform == "gpu" else "float32"
    if main in rates:
        peak = sheet.get("peak_flops", {}).get(main, rates[main] / 0.75)
        share = rates[main] / peak
        found["matmul_efficiency"] = round(share, 4)
        # Of the others only the product of peak and efficiency counts.
        for dtype, rate in rates.items():
            name = "tf32" if dtype == "float32" else dtype
            if dtype != main or name == "tf32":
                peaks[name] = round(rate / share)
    arithmetic = _fastest(kernels.get("arithmetic", []), "flops")
    if arithmetic:
        peaks["float32"] = round(arithmetic["float32"])
    if peaks:
        found["peak_flops"] = peaks
    streams = [
        max(_fastest(kernels[group], "bytes").values())
        for group in ("elementwise", "reduction")  # reading and writing, reading alone
        if kernels.get(group)
    ]
    if streams and key:
        mean = statistics.harmonic_mean(streams)
        bandwidth = load_card(key).memory_bandwidth
        found["memory_efficiency"] = round(mean / bandwidth, 4)
    copies = [k["bytes"] / k["seconds"] for k in kernels.get("transfer", [])]
    if copies and key:
        # Both ways are used alike: fetching and storing.
        pcie = load_card(key).pcie_bandwidth
        found["transfer_efficiency"] = round(statistics.harmonic_mean(copies) / pcie, 4)
    if needed_beside is not None and total_bytes:
        found["reserve_bytes"] = MIB * math.ceil(max(0, needed_beside) / MIB)
        found["device_memory_size"] = total_bytes
    return found


def _fastest(kernels: Iterable[Json], work: str) -> dict[str, float]:
    """Work per second by dtype, of the kernel that reaches most."""
    rates: dict[str, float] = {}
    for k in kernels:
        rates[k["dtype"]] = max(rates.get(k["dtype"], 0.0), k[work] / k["seconds"])
    return rates


def outside_bytes(memory: Json) -> int | None:
    """Bytes in use on a card that are not in XLA's pool; None without such figures.

    Args:
      memory: What `device.memory` found.
    """
    if "driver_total_bytes" not in memory:
        return None
    stats = memory["allocator"]
    pool = stats.get("pool_bytes") or stats.get("bytes_reserved") or 0
    return memory["driver_total_bytes"] - memory["driver_free_bytes"] - pool


def beyond_bytes(compiled: Json, before: Json, after: Json) -> int | None:
    """What a program's steps took from the pool beyond what its compile says.

    None where that cannot be told. The allocator's peak is the process's and only
    grows: where these steps did not raise it, it is another program's, or that of
    autotuning, which runs within the compile.

    Args:
      compiled: The record of the compile.
      before: What `device.memory` found last before the steps.
      after: And after them.
    """
    peaks = [memory["allocator"].get("peak_bytes_in_use") for memory in (before, after)]
    if peaks[0] is None or peaks[1] is None or peaks[1] <= peaks[0]:
        return None
    return peaks[1] - compiled["bytes"]
