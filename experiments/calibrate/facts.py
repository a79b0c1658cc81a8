"""From timings to the factors of a card, and all of it as a table."""

import dataclasses
import math
import statistics
from typing import Any

from rich import box
from rich.table import Table

from revremat import format_bytes, format_us, render
from revremat.xla import MEASURABLE, load_card

MIB = 2**20

Json = dict[str, Any]


def data_sheet(key: str) -> Json:
    """The measurable fields of a card before anything was measured."""
    if not key:
        return {}
    card = dataclasses.asdict(load_card(key))
    return {name: card[name] for name in MEASURABLE}


def card(done: Json, machine: Json) -> Json:
    """The fields of a card that these results replace.

    Args:
      done: Results by job; failed ones are left out of account.
      machine: What `probe` found.
    """
    found: Json = {}
    sheet = data_sheet(machine["key"])
    kernels = {
        job.removeprefix("kernels "): [k for k in result.values() if "seconds" in k]
        for job, result in done.items()
        if job.startswith("kernels ") and "error" not in result
    }
    launch = sorted(kernels.get("launch", []), key=lambda k: k["flops"])
    if len(launch) == 2:
        fewer, more = launch
        number = (more["flops"] - fewer["flops"]) / (2.0 * 32**3)
        per_kernel = 1e6 * (more["seconds"] - fewer["seconds"]) / number
        found["launch_us"] = round(max(0.05, per_kernel), 3)
    if "curves" in done.get("curves", {}):
        found |= done["curves"]
    rates = _fastest(kernels.get("matmul", []), "flops")
    peaks: dict[str, float] = {}
    main = "bfloat16" if machine["platform"] == "gpu" else "float32"
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
    if streams and machine["key"]:
        bandwidth = load_card(machine["key"]).memory_bandwidth
        mean = statistics.harmonic_mean(streams)
        found["memory_efficiency"] = round(mean / bandwidth, 4)
    copies = [k["bytes"] / k["seconds"] for k in kernels.get("transfer", [])]
    if copies and machine["key"]:
        # Both ways are used alike: fetching and storing.
        pcie = load_card(machine["key"]).pcie_bandwidth
        found["transfer_efficiency"] = round(statistics.harmonic_mean(copies) / pcie, 4)
    return found | _reserve(done)


def _fastest(kernels: list[Json], work: str) -> dict[str, float]:
    """Work per second by dtype, of the kernel that reaches most."""
    rates: dict[str, float] = {}
    for k in kernels:
        rates[k["dtype"]] = max(rates.get(k["dtype"], 0.0), k[work] / k["seconds"])
    return rates


def _reserve(done: Json) -> Json:
    """Outside of the pool, and what programs took from the pool beyond the compile."""
    outside = done.get("reserve", {})
    if "outside_bytes" not in outside:
        return {}
    beyond = [0]
    for job, run in done.items():
        said = done.get(job.replace("run ", "predict "), {}).get("bytes")
        peak = run.get("allocator_peak_bytes") if job.startswith("run ") else None
        if said and peak:
            beyond.append(peak - said)
    needed = max(0, outside["outside_bytes"]) + max(beyond)
    return {
        "reserve_bytes": MIB * math.ceil(needed / MIB),
        "device_memory_size": outside["total_bytes"],
    }


def table(result: Json) -> str:
    """All results as text of at most 100 columns."""
    machine, done = result["machine"], result["jobs"]
    lines = [
        f"{machine['kind']}: {machine['about']}",
        f"jax {machine['jax']}, Python {machine['python']}; "
        f"measured in {result['seconds']:.0f} s; load average before it: "
        f"{result['load_before']:.1f}",
        "",
        render(_kernel_table(done)),
        render(_program_table(result)),
    ]
    if machine["missing"]:
        lines.append(f"no predictions to compare with: {machine['missing']}\n")
    lines.append(render(_card_table(result)))
    return "\n".join(lines)


def _new_table(*columns: str) -> Table:
    """A table in the style of revremat's reports; steps are aligned on the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name == "step" else "left")
    return table


def _kernel_table(done: Json) -> Any:
    rows = _new_table("kernel", "size", "time", "TFLOP/s", "GB/s")
    for job, kernels in done.items():
        if not job.startswith("kernels ") or "error" in kernels:
            continue
        for name, k in kernels.items():
            group = job.removeprefix("kernels ")
            if "failed" in k:
                rows.add_row(group, name, k["failed"][:40], "", "")
                continue
            us = 1e6 * k["seconds"]
            rows.add_row(
                group,
                name,
                f"{us:.1f} us" if us < 100 else format_us(us),
                f"{k['flops'] / k['seconds'] * 1e-12:.3g}",
                f"{k['bytes'] / k['seconds'] * 1e-9:.3g}" if k["bytes"] else "",
            )
    return rows


def _program_table(result: Json) -> Any:
    """Of each program what was said before it ran, and what it took."""
    done = result["jobs"]
    rows = _new_table(
        "program",
        "said",
        "compiled",
        "allocator",
        "step",
        "estimate",
        "calibrated estimate",
    )
    for job, run in done.items():
        if not job.startswith("run "):
            continue
        name = job.removeprefix("run ")
        if "error" in run:
            rows.add_row(name, run["error"][:60])
            continue
        said = done.get(f"predict {name}", {})
        again = result["calibrated"].get(name, {})
        peak = run["allocator_peak_bytes"]
        rows.add_row(
            name,
            format_bytes(said["bytes"]) if "bytes" in said else "-",
            format_bytes(run["compiled_bytes"]),
            format_bytes(peak) if peak else "-",
            format_us(1e6 * run["seconds"]),
            *(_beside(estimate, run["seconds"]) for estimate in (said, again)),
        )
    return rows


def _short(number: float) -> str:
    """With a letter for thousands: k, M, G, T.

    >>> _short(61.7e9)
    '61.7 G'
    """
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:.3g}"


def _beside(estimate: Json, seconds: float) -> str:
    if "seconds" not in estimate:
        return "-"
    off = 100 * (estimate["seconds"] / seconds - 1)
    return f"{format_us(1e6 * estimate['seconds'])} ({off:+.0f} %)"


def _card_table(result: Json) -> Any:
    rows = _new_table("fact of the card", "data sheet", "measured")
    for name, value in result["card"].items():
        before = result["data_sheet"].get(name)
        if name == "peak_flops":
            for dtype, rate in value.items():
                old = (before or {}).get(dtype)
                told = f"{old * 1e-12:.4g} TFLOP/s" if old else "-"
                rows.add_row(f"peak {dtype}", told, f"{rate * 1e-12:.4g} TFLOP/s")
        elif name == "curves":
            for label, points in value.items():
                ends = f"{_short(points[0][0])} to {_short(points[-1][0])}"
                rates = [_short(y) for y in sorted(y for _, y in points)]
                rows.add_row(f"{label}, {ends}", "-", f"{rates[0]} to {rates[-1]}/s")
        elif name.endswith(("_bytes", "_size")):
            told = "-" if before is None else format_bytes(before)
            rows.add_row(name, told, format_bytes(value))
        else:
            rows.add_row(name, "-" if before is None else f"{before}", f"{value}")
    return rows
