"""What the measurements make of the card's figures, and of the estimates."""

import json
import os
import shutil
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

import jax

import revremat as rr
from experiments.calibrate import facts, plan_files, programs, variants
from experiments.calibrate.device import Job
from experiments.calibrate.records import Json, Record, latest, read
from experiments.calibrate.runner import CARD, RESULTS, TUNING
from experiments.files import write_whole


def card(job: Job) -> None:
    """The fields of the card that this run replaces, as a file that reports read."""
    found = latest(read(job.out / RESULTS))
    note = next(r for r in found["doctor"] if r.kind == "note")
    timed: dict[str, list[Json]] = defaultdict(list)
    sources = []
    for record in found.get("kernels", []):
        if record.get("what") == "kernel":
            timed[record["group"]].append(record.data)
            sources.append(record.line)
    curves = [r for r in found.get("curves", []) if r.get("what") == "curves"]
    needed = _needed_beside(found)
    fields = facts.card(
        timed,
        note["card"],
        job.platform,
        {key: curves[-1][key] for key in ("curves", "launch_us")} if curves else None,
        needed[0] if needed else None,
        note["total_bytes"],
    )
    if not fields:
        job.tell("note", what="nothing was measured yet that a card's file holds")
        return
    sheet = facts.data_sheet(note["card"])
    job.tell(
        "note",
        what=f"computed by a CPU and jax {jax.__version__} from the records above; "
        "nothing was measured for it",
    )
    sources += [r.line for r in curves] + (needed[1] if needed else [])
    for name, value in fields.items():
        before = sheet.get(name)
        if name == "curves":
            value, before = sorted(value), None
        job.tell(
            "derived", what="card", field=name, value=value, data_sheet=before,
            from_lines=sorted({note.line, *sources}),
        )  # fmt: skip
    whole = {"card": fields, "machine": note.data}
    text = json.dumps(whole, indent=1) + "\n"
    write_whole(job.out / CARD, text)
    if job.cards is not None and note["card"]:
        job.cards.mkdir(parents=True, exist_ok=True)
        _unpack_tuning(job, job.cards / f"{note['card']}.tuning")
        place = write_whole(job.cards / f"{note['card']}.json", text)
        # Its folder is this machine's, and records name none.
        what = f"reports use {place.name} from now on, among the measured cards"
        job.tell("note", what=what)


def _unpack_tuning(job: Job, place: Path) -> None:
    """What autotuning chose here, for compiles where the card is not.

    It is in its place as a whole, or not at all.
    """
    packed = job.out / TUNING
    if job.platform != "gpu" or not packed.exists():
        return
    new = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{place.name}-"))
    try:
        with tarfile.open(packed) as tar:
            tar.extractall(new, filter="data")
        shutil.rmtree(place, ignore_errors=True)
        os.replace(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _needed_beside(found: dict[str, list[Record]]) -> tuple[int, list[int]] | None:
    """Bytes beside a program: outside of the pool, and beyond what compiles say."""
    outside: list[tuple[int, int]] = []
    beyond: list[tuple[int, int]] = []
    for records in found.values():
        compiled: dict[str, Record] = {}
        tuned: set[str] = set()  # those whose autotuning the last peak has in it
        last: Json | None = None
        for record in records:
            name, memory = record.get("variant", ""), record.get("memory")
            if record.kind == "compiled":
                compiled[name] = record
            if not memory:
                continue
            if (size := facts.outside_bytes(memory)) is not None:
                outside.append((size, record.line))
            if memory["stage"] == "compiled":
                tuned.add(name)
            elif record.get("what") == "steps" and last and name in tuned:
                size = facts.beyond_bytes(compiled[name].data, last, memory)
                if size is not None:
                    beyond.append((size, record.line))
            last = memory
    if not outside:
        return None
    largest = [max(sizes) for sizes in (outside, beyond) if sizes]
    return sum(max(0, size) for size, _ in largest), [line for _, line in largest]


def again(job: Job) -> None:
    """The estimates of a program once more, by the figures just measured."""
    found = latest(read(job.out / RESULTS))
    key = next(r for r in found["doctor"] if r.kind == "note")["card"]
    try:
        text = (job.out / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise rr.UserError("no figures of the card were measured yet") from None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{key}.json").write_text(text, encoding="utf-8")
        _unpack_tuning(job, Path(folder, f"{key}.tuning"))
        os.environ["REVREMAT_CARDS"] = folder
        target = rr.target(f"{key}:1")
        if missing := target.missing():
            job.tell("note", what=f"no estimates can be made here: {missing}")
            return
        problem = programs.make(job.subject, target, job.scale)
        made = plan_files.read(job.subject, job.scale)
        for variant in variants.variants(problem, made):
            step, specs = problem.make_step(variant.loss)
            m = rr.measure(step, *specs, target=target, donate=problem.donate)
            job.tell(
                "predicted",
                program=job.subject,
                variant=variant.name,
                target=target.spec,
                bytes=m.memory.total_bytes,
                estimate_us=round(m.time.step_us, 1),
                by_measured_card=m.time.calibrated,
                notes=m.notes,
            )
