"""The table of the comparison, from its rows."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from experiments.models.efficientnet import EFFICIENTNET
from experiments.papers.revbifpn.detectors import DETECTORS
from experiments.papers.revbifpn.networks import HEAD_TOO, INVERTED, STORED, WAYS
from revremat.reversible import REVBIFPN

KEY = ("network", "way", "batch", "target")
Row = Mapping[str, Any]

# The pairs of the paper's chart, and how many times less it measured.
PUBLISHED = {
    ("S4", "B5"): 13.0,
    ("S5", "B6"): 11.0,
    ("S6", "B7"): 19.8,
    ("S3 detector", "W18 detector"): 2.4,
}


def sample_bytes(row: Row) -> float:
    """A sample's share, without parameters, state and their gradients."""
    return (row["total_bytes"] - row["own_bytes"]) / row["batch"]


def slope_bytes(rows: Sequence[Row]) -> float | None:
    """What another sample adds, from the smallest batch to the largest."""
    few = min(rows, key=lambda row: row["batch"])
    many = max(rows, key=lambda row: row["batch"])
    more = many["batch"] - few["batch"]
    return (many["total_bytes"] - few["total_bytes"]) / more if more else None


def table(found: Sequence[Row]) -> str:
    """Rows by target, network and way, and the pairs of the paper."""
    by: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        by.setdefault((row["target"], row["network"], row["way"]), []).append(row)
    lines: list[str] = []
    for target in dict.fromkeys(row["target"] for row in found):
        batches = sorted({row["batch"] for row in found if row["target"] == target})
        heads = "".join(f"{f'batch {batch}':>11}" for batch in batches)
        lines += [f"{target}: MiB a sample", f"{'':30}{heads}{'slope':>11}"]
        for name in (*REVBIFPN, *EFFICIENTNET, *DETECTORS):
            for way in WAYS:
                if rows := by.get((target, name, way)):
                    lines.append(_line(name, way, rows, batches))
        lines += ["", *_pairs(target, by, batches)]
    remarks = dict.fromkeys(text for row in found for text in row.get("remarks", ()))
    lines += [fill(f"* {text}", 88, subsequent_indent="  ") for text in remarks]
    return "\n".join(lines) + ("\n" if remarks else "")


def _line(name: str, way: str, rows: Sequence[Row], batches: Sequence[int]) -> str:
    size = {row["batch"]: sample_bytes(row) for row in rows}
    cells = [size.get(batch) for batch in batches] + [slope_bytes(rows)]
    texts = ("" if cell is None else f"{cell / 2**20:.1f}" for cell in cells)
    star = " *" if any(row.get("remarks") for row in rows) else ""
    label = f"{name} {way}{star}"
    return f"{label:30}" + "".join(f"{text:>11}" for text in texts)


def _pairs(
    target: str,
    by: Mapping[tuple[str, str, str], Sequence[Row]],
    batches: Sequence[int],
) -> list[str]:
    """How many times less, at each batch and by the slopes."""
    lines = [f"{target}: times less than what it is paired with"]
    for (name, peer), published in PUBLISHED.items():
        theirs = {row["batch"]: row for row in by.get((target, peer, STORED), ())}
        for way in (INVERTED, HEAD_TOO):
            ours = {row["batch"]: row for row in by.get((target, name, way), ())}
            both = [batch for batch in batches if batch in ours and batch in theirs]
            if not both:
                continue
            texts = [
                f"{sample_bytes(theirs[b]) / sample_bytes(ours[b]):.1f} at batch {b}"
                for b in both
            ]
            if len(both) > 1:
                few = [[side[b] for b in both] for side in (theirs, ours)]
                slopes = [slope_bytes(rows) or 0.0 for rows in few]
                texts.append(f"{slopes[0] / slopes[1]:.1f} by slope")
            label = f"{name} {way} / {peer}"
            lines.append(f"{label:36}{', '.join(texts)} (published {published})")
    return [*lines, ""]
