"""What was measured on cards, for the manual: made of the files of results alone."""

from pathlib import Path

from experiments.calibrate import summary
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


def is_of_a_card(records: list[Record]) -> bool:
    """Whether a run measured a graphics card in full sizes; a dry run did not."""
    notes = [r for r in latest(records).get("doctor", []) if r.get("machine")]
    return bool(notes) and all(
        r["platform"] == "gpu" and "card sizes" in r["machine"] for r in notes
    )


def _run(name: str, records: list[Record]) -> str:
    return f"{name}\n{'=' * len(name)}\n{summary.text(records)}".rstrip()
