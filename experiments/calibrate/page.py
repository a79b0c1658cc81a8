"""What was measured on cards, for the manual: made of the files of results alone."""

from pathlib import Path

from experiments.calibrate import findings, plan_files, schedule, summary
from experiments.calibrate.records import Record, latest, read

RESULTS = Path(__file__).parents[1] / "results" / "cards"


def text(folder: Path = RESULTS) -> str:
    """The tables of every run on a graphics card, and first what each of them refutes.

    Args:
      folder: Has one folder for each run, named for its card, with `results.jsonl`.
    """
    runs = {
        path.parent.name: read(path) for path in sorted(folder.glob("*/results.jsonl"))
    }
    of_cards = {
        name: records for name, records in runs.items() if is_of_a_card(records)
    }
    if not of_cards:
        return "None yet."
    return "\n\n".join(_run(name, records) for name, records in of_cards.items())


def found(run: str) -> str:
    """What a run says about predictions, a sentence a line."""
    sentences = findings.sentences(latest(_records(run)))
    return "\n".join(f"- {sentence}" for sentence in sentences)


def left(run: str) -> str:
    """What a run leaves to be measured, in the order of the next one."""
    return schedule.text(schedule.jobs("gpu"), _records(run))


def bytes_by_tuning(run: str) -> str:
    """What compiles took on the card, and what plans made with its tuning say now.

    Of the variants that are the same programs still: those that were not searched.
    """
    rows = []
    for job, records in latest(_records(run)).items():
        kind, _, program = job.partition(" ")
        made = plan_files.read(program, "card")
        if kind not in ("race", "run", "alternatives") or made is None:
            continue
        now = {v["name"]: v for v in made["variants"]}
        before = {r["variant"]: r["bytes"] for r in records if r.kind == "predicted"}
        for record in records:
            name = record.get("variant", "")
            is_said = name in before and name in now
            if record.kind != "compiled" or not is_said or plan_files.is_searched(name):
                continue
            sizes = (record["bytes"], before[name], now[name]["bytes"])
            rows.append((f"{program} / {name}", *sizes, now[name]["untuned"]))
    lines = [_HEADS.format("program", "on the card", "ahead, then", "with its tuning")]
    lines.append("-" * 92)
    for name, here, then, tuned, untuned in rows:
        lacks = f"lacks {untuned}" if untuned else ""
        of = [f"{size:,} {size / here - 1:+.2%}" for size in (then, tuned)]
        lines.append(_HEADS.format(name, f"{here:,}", *of) + lacks)
    return "\n".join(line.rstrip() for line in lines)


_HEADS = "{:32}{:>15}{:>23}{:>23}  "


def _records(run: str) -> list[Record]:
    return read(RESULTS / run / "results.jsonl")


def is_of_a_card(records: list[Record]) -> bool:
    """Whether a run measured a graphics card in full sizes; a dry run did not."""
    notes = [r for r in latest(records).get("doctor", []) if r.get("machine")]
    return bool(notes) and all(
        r["platform"] == "gpu" and "card sizes" in r["machine"] for r in notes
    )


def _run(name: str, records: list[Record]) -> str:
    return f"{name}\n{'=' * len(name)}\n{summary.text(records)}".rstrip()
