"""What was said ahead of time and is not so, in sentences that name their lines."""

from collections.abc import Iterator

from experiments.calibrate.records import Record

Said = tuple[str, tuple[Record, ...]]


def sentences(found: dict[str, list[Record]]) -> list[str]:
    """All that the records of a run refute, job by job.

    Args:
      found: Of each job the records of the attempt that counts.
    """
    notes = [r for r in found.get("doctor", []) if r.get("machine")]
    is_card = bool(notes) and notes[-1]["platform"] == "gpu"
    # Times of tiny sizes say nothing.
    is_quick = bool(notes) and "quick sizes" in notes[-1]["machine"]
    said: list[Said] = []
    for job, records in found.items():
        if not is_quick:
            said += _of_times(job, records)
        for record in records:
            said += _of_one(job, record, is_card)
    return [
        f"{text} [lines {' '.join(str(record.line) for record in of)}]"
        for text, of in said
    ]


def _of_times(job: str, records: list[Record]) -> Iterator[Said]:
    """Where another variant is the fastest than the estimates say."""
    timed = {r["variant"]: r for r in records if r.get("what") == "steps"}
    guess = {r["variant"]: r for r in records if r.kind == "predicted"}
    both = [name for name in timed if name in guess]
    if not both:
        return
    fastest = min(both, key=lambda name: timed[name]["median_s"])
    chosen = min(both, key=lambda name: guess[name]["estimate_us"])
    if fastest != chosen:
        text = f"{job}: {fastest} is the fastest, the estimates say {chosen}"
        yield text, (timed[fastest], timed[chosen], guess[fastest], guess[chosen])


def _of_one(job: str, record: Record, is_card: bool) -> Iterator[Said]:
    of = record.get("variant") or record.get("program")
    if record.kind == "checked" and not record["agrees"]:
        yield f"{job}, {of}: {record['sentence']}", (record,)
    if record.get("what") == "fit" and is_card:  # nothing limits a CPU
        must_run = job.startswith("fit ")
        if must_run and record["ran_out"]:
            yield f"{job}: {of} runs out of memory with what its plan takes", (record,)
        if not must_run and not record["ran_out"]:
            yield f"{job}: {of} runs with 5 % less than its plan takes", (record,)
    ways = ("inverse", "pull_back", "step")
    wrong = [record.get(f"wrong_after_{way}", 0) for way in ways]
    if any(wrong):
        text = f"{job}, maps in {record['dtype']}: {max(wrong):,} numbers are not exact"
        yield text, (record,)
    if record.get("not_finite"):
        yield f"{job}, {of}: {record['not_finite']:,} numbers are not finite", (record,)
