"""Every figure of the stored summaries stands in the raw lines that its row names."""

import json
import re
from pathlib import Path

import pytest

from experiments.calibrate import summary
from experiments.calibrate.records import read
from tests.experiments import traced

CARDS = Path(__file__).parents[2] / "experiments" / "results" / "cards"
RUNS = sorted(path.parent.name for path in CARDS.glob("*/results.jsonl"))


def stored(run):
    """The text of a summary, and the lines of its results."""
    folder = CARDS / run
    lines = (folder / "results.jsonl").read_text().splitlines()
    return (folder / "summary.txt").read_text(), lines


def test_there_is_a_run_of_a_card():
    assert "h100" in RUNS


@pytest.mark.parametrize("run", RUNS)
def test_a_stored_summary_is_what_its_results_say_today(run):
    made = summary.text(read(CARDS / run / "results.jsonl"))
    assert made.rstrip() == stored(run)[0].rstrip()


@pytest.mark.parametrize("run", RUNS)
def test_each_figure_is_a_number_of_the_lines_that_its_row_names(run):
    found = list(traced.rows(*stored(run)))
    assert len(found) > 100
    assert {row.title for row in found} >= {
        "Exact inversion, measured.",
        "Kernels: the fastest of ten rounds.",
        "Memory, stage by stage, measured.",
    }
    assert [one for row in found for one in traced.untraced(row)] == []


CHANGES = [
    ("260.42 ms", "261.42 ms", "step, measured: 261.42 ms"),
    ("266.15 ms", "260.42 ms", "step, estimate: 260.42 ms"),  # a measurement
    ("x 1.02", "x 1.03", "step, estimate: 1.03"),
    ("64.75 GiB   65.71", "65.71 GiB   65.71", "predicted: 65.71 GiB"),  # compiled
    ("  0.4%  ", "  0.5%  ", "spread: 0.5%"),
    ("6 of 6", "5 of 6", "pairs in one order: 5"),
    ("0.2734", "0.2735", "share of the card: 0.2735"),
    ("ran out in steps, step 0", "ran out in steps, step 7", "what happened: 7"),
    ("1,976,043        ", "1,976,044        ", "after pull back: 1,976,044"),
    ("77.65 ms", "61.23 ms", "of it beside no kernel: 61.23 ms"),  # of another row
    ("475      696 ", "475      697 ", "GB/s: 697"),
    ("558.81 MiB  ", "558.82 MiB  ", "outside of the pool: 558.82 MiB"),
    ("9.16 GiB    15\n", "9.17 GiB    15\n", "in use: 9.17 GiB"),
    ("0.9044", "0.9045", "measured: 0.9045"),
]


@pytest.mark.parametrize(("figure", "other", "told"), CHANGES)
def test_a_figure_that_is_in_no_record_is_found(figure, other, told):
    text, lines = stored("h100")
    assert figure in text
    changed = text.replace(figure, other, 1)
    wrong = [one for row in traced.rows(changed, lines) for one in traced.untraced(row)]
    assert told in wrong


@pytest.mark.parametrize("run", RUNS)
def test_what_is_refuted_and_the_head_name_the_lines_they_are_of(run):
    text, lines = stored(run)
    head = re.search(r"^(.*), ([\d.]+) GiB; .* \[line (\d+)\]$", text, re.MULTILINE)
    assert head is not None
    note = json.loads(lines[int(head[3]) - 1])
    assert (head[1], head[2]) == (note["device"], f"{note['total_bytes'] / 2**30:.1f}")
    sentences = re.findall(r"^- (.*) \[lines ([\d ]+)\]$", text, re.MULTILINE)
    assert sentences
    for sentence, named in sentences:
        told = " ".join(lines[int(number) - 1] for number in named.split())
        about = sentence.split(": ", 1)[1]
        for figure in re.findall(r"\d[\d,.]*\d", about):
            assert figure in told or figure.replace(",", "") in told, sentence


@pytest.mark.parametrize("run", RUNS)
def test_bytes_that_a_sentence_compares_are_those_of_raw_lines(run):
    _, lines = stored(run)
    records = [json.loads(line) for line in lines if line.startswith("{")]
    said = re.compile(r"([\d,]+) bytes were said .*here takes ([\d,]+) \((.*)%\)")
    number = 0
    for record in records:
        if record["kind"] != "checked" or not (found := said.match(record["sentence"])):
            continue
        number += 1
        ahead, here = (int(found[k].replace(",", "")) for k in (1, 2))
        same = ("job", "attempt", "variant")
        beside = [r for r in records if all(r.get(k) == record[k] for k in same)]
        assert [r["bytes"] for r in beside if r["kind"] == "predicted"] == [ahead]
        assert [r["bytes"] for r in beside if r["kind"] == "compiled"] == [here]
        assert float(found[3]) == pytest.approx(100 * (here / ahead - 1), abs=0.005)
        assert record["agrees"] == (abs(here / ahead - 1) <= 0.01)
    assert number > 10


def test_the_cards_file_holds_what_was_derived_last():
    file = json.loads((CARDS / "h100" / "card.json").read_text())["card"]
    records = [r for r in read(CARDS / "h100" / "results.jsonl") if r.job == "card"]
    last = max(r.attempt for r in records if r.kind == "derived")
    derived = [r for r in records if (r.kind, r.attempt) == ("derived", last)]
    assert file == {r["field"]: r["value"] for r in derived}
    kinds = {r.line: r.kind for r in read(CARDS / "h100" / "results.jsonl")}
    for record in derived:
        assert {kinds[n] for n in record["from_lines"]} <= {"measured", "note"}
