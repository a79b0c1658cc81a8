"""What a run says about revremat's predictions, in a sentence each.

Every figure is counted from the run's records, those of the attempts that count. What
is refuted line by line is in `refuted`. Of the standard library alone.
"""

from collections.abc import Iterator

from experiments.calibrate.records import Record

Found = dict[str, list[Record]]
NEARLY = 0.05
"""Of a measured time: how far off an estimate may be that is called near."""


def sentences(found: Found) -> list[str]:
    """All that can be said of a run's records."""
    parts = (_times, _orders, _bytes, _peaks, _fits, _exact, _copies, _not_finite)
    return [sentence for part in parts for sentence in part(found)]


def _times(found: Found) -> Iterator[str]:
    ratios = [
        said["estimate_us"] * 1e-6 / timed["median_s"]
        for said, timed in _estimated(found)
    ]
    if ratios:
        near = sum(abs(ratio - 1) <= NEARLY for ratio in ratios)
        yield (
            f"Time: estimates of {len(ratios)} steps were {min(ratios):.2f} to "
            f"{max(ratios):.2f} of the measured time, {near} of them within "
            f"{NEARLY:.0%}."
        )


def _estimated(found: Found) -> Iterator[tuple[Record, Record]]:
    """Predictions made before a step was measured, and the step's last round."""
    for records in found.values():
        said = {r["variant"]: r for r in records if r.kind == "predicted"}
        timed = {r["variant"]: r for r in records if r.get("what") == "steps"}
        for variant, record in timed.items():
            if variant in said and not record["not_finite"]:
                yield said[variant], record


def _orders(found: Found) -> Iterator[str]:
    alike = pairs = 0
    for records in found.values():
        both = list(_estimated({"": records}))
        for place, (said, timed) in enumerate(both):
            for other_said, other_timed in both[:place]:
                by_estimate = said["estimate_us"] < other_said["estimate_us"]
                by_time = timed["median_s"] < other_timed["median_s"]
                alike, pairs = alike + (by_estimate == by_time), pairs + 1
    if pairs:
        yield (
            f"Order: {alike} of {pairs} pairs of variants of one program came in the "
            "order of the estimates."
        )


def _compiled(found: Found) -> Iterator[tuple[str, Record, list[Record]]]:
    for job, records in found.items():
        for record in records:
            if record.kind == "compiled":
                yield job, record, records


def _bytes(found: Found) -> Iterator[str]:
    off = {}
    for job, record, records in _compiled(found):
        said = [
            r["bytes"]
            for r in records
            if r.kind == "predicted" and r["variant"] == record["variant"]
        ]
        if said:
            program = job.split(maxsplit=1)[-1]
            off[program, record["variant"]] = record["bytes"] / said[-1] - 1
    if off:
        near = sum(abs(one) <= 0.01 for one in off.values())
        yield (
            f"Bytes: {len(off)} compiles on the card differed by "
            f"{min(off.values()):+.1%} to {max(off.values()):+.1%} from what was said "
            f"ahead of time, {near} of them by at most 1%."
        )


def _peaks(found: Found) -> Iterator[str]:
    """Where a variant's steps raised the allocator's peak, it is the variant's own."""
    off = []
    for _, compiled, records in _compiled(found):
        peaks = [
            (r.line, _peak(r), r.get("what") == "steps" and r["variant"])
            for r in records
            if _peak(r) is not None
        ]
        for place, (_, peak, variant) in enumerate(peaks):
            before = max((p for _, p, _ in peaks[:place] if p), default=0)
            if variant == compiled["variant"] and peak and peak > before:
                off.append(peak / compiled["bytes"] - 1)
    if off:
        yield (
            f"Peak: steps of {len(off)} compiles raised the allocator's peak. It was "
            f"what the compile says, {max(map(abs, off)):.2%} off at most."
        )


def _peak(record: Record) -> int | None:
    memory = record.get("memory") or {}
    return memory.get("allocator", {}).get("peak_bytes_in_use")


def _fits(found: Found) -> Iterator[str]:
    ran = {True: [0, 0], False: [0, 0]}
    for job, records in found.items():
        for record in records:
            if record.get("what") == "fit":
                counted = ran[job.startswith("fit ")]
                counted[0] += 1
                counted[1] += not record["ran_out"]
    for is_fit, (number, good) in ran.items():
        if number:
            room = "the bytes of its compile" if is_fit else "5% less"
            yield f"Fit: given {room}, {good} of {number} plans ran."


def _exact(found: Found) -> Iterator[str]:
    for record in found.get("exact", []):
        if record.get("what") == "exact inverse":
            told = [
                f"{record[f'wrong_after_{way}']:,} after {words}"
                for way, words in _WAYS.items()
                if f"wrong_after_{way}" in record.data
            ]
            yield (
                f"Exact mode, maps in {record['dtype']}, of {record['numbers']:,} "
                f"numbers these were wrong: {', '.join(told)}."
            )


_WAYS = {
    "inverse": "the inverse alone",
    "pull_back": "a backward pass alone",
    "step": "a training step",
}


def _copies(found: Found) -> Iterator[str]:
    for record in found.get("offload", []):
        if record.get("what") == "copies":
            copying, bare = (1e3 * record[k] for k in ("copying_s", "exposed_s"))
            yield (
                f"Copies, {record['variant']}: {bare:.1f} of {copying:.1f} ms ran "
                "beside no kernel."
            )


def _not_finite(found: Found) -> Iterator[str]:
    for job, records in found.items():
        timed = [r for r in records if r.get("what") == "steps" and r["not_finite"]]
        if timed:
            yield (
                f"Without meaning: {job} computed {timed[-1]['not_finite']:,} numbers "
                "that are not finite. Its time counts nowhere above."
            )
