"""Records, and the tables that are made of them: no figure without a line."""

import json
import re

import pytest

from experiments.calibrate import findings, page, refuted, schedule, summary
from experiments.calibrate.records import (
    Writer,
    error_of,
    in_one_line,
    latest,
    read,
    state_of,
)

GIB = 2**30
MEMORY = {
    "stage": "steps",
    "allocator": {
        "peak_bytes_in_use": 20 * GIB,
        "bytes_in_use": 9 * GIB,
        "bytes_limit": 76 * GIB,
        "pool_bytes": 77 * GIB,
    },
    "driver_free_bytes": 1 * GIB,
    "driver_total_bytes": 80 * GIB,
}
NOTE = {
    "machine": "H100, jax 0.11.2, card sizes",
    "device": "NVIDIA H100",
    "platform": "gpu",
    "total_bytes": 80 * GIB,
    "jax": "0.11.2",
    "python": "3.12.3",
    "cores": 16,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


@pytest.fixture
def whole(path):
    """A run with a line of every kind."""
    doctor = Writer(path, "doctor", 1)
    doctor("begun", limit_s=45)
    doctor("note", **NOTE)
    doctor("measured", what="memory", memory=MEMORY)
    doctor("ended", seconds=21.0)
    race = Writer(path, "race gpt2_xl_24", 1)
    race("begun", limit_s=190)
    race("checked", program="gpt2_xl_24", agrees=True, sentence="as planned")
    for name, us, size in (("baseline", 266_200, 64), ("unrolled", 146_600, 42)):
        about = {"variant": name, "target": "h100:1", "program": "gpt2_xl_24"}
        race("predicted", estimate_us=us, bytes=size * GIB, jax="0.11.2", **about)
    for name, first, second, size in (
        ("unrolled", 0.171, 0.170, 43),
        ("baseline", 0.301, 0.300, 65),
    ):
        race("compiled", variant=name, bytes=size * GIB)
        race("measured", what="memory", variant=name, memory=MEMORY)
        for number, median in enumerate((first, second)):
            about = {"median_s": median, "round": number, "not_finite": 0}
            race("measured", what="steps", variant=name, memory=MEMORY, **about)
    race("failed", variant="dots", error="ValueError: no dots", tail="...")
    race("ended", seconds=150.0)
    fit = Writer(path, "fit gpt2_xl_24", 1)
    fit("begun", limit_s=50, memory_fraction=0.242)
    ran = {"variant": "searched 24GiB", "ran_out": False, "steps": 20, "memory": MEMORY}
    fit("measured", what="fit", **ran)
    fit("ended", seconds=33.0)
    exact = Writer(path, "exact", 1)
    exact("measured", what="exact inverse", dtype="bfloat16", depth=1000, numbers=2048,
          wrong_after_inverse=0, wrong_after_pull_back=3)  # fmt: skip
    exact("ended", seconds=40.0)
    kernels = Writer(path, "kernels", 1)
    kernels("measured", what="kernel", group="matmul", kernel="8192 bfloat16",
            seconds=0.002, flops=1.1e12, bytes=4e8, dtype="bfloat16")  # fmt: skip
    kernels("ended", error="stopped after 75 s", is_cut=True, seconds=75.0)
    card = Writer(path, "card", 1)
    card("derived", what="card", field="launch_us", value=3.1, data_sheet=2.0,
         from_lines=[3])  # fmt: skip
    card("ended", seconds=4.0)
    return path


def test_every_figure_of_a_table_is_of_a_record(whole):
    records = read(whole)
    cells = [c for table in summary.tables(records) for row in table.rows for c in row]
    assert len(cells) > 100
    assert [cell.text for cell in cells if re.search(r"\d", cell.text)] == [
        cell.text for cell in cells if re.search(r"\d", cell.text) and cell.sources
    ]


def test_a_line_that_is_named_is_the_line_of_the_file(whole):
    lines = whole.read_text().splitlines()
    for table in summary.tables(read(whole)):
        for row in table.rows:
            for cell in row:
                for record in cell.sources:
                    assert json.loads(lines[record.line - 1])["kind"] == record.kind


def test_no_estimate_stands_under_measured_and_no_measurement_under_estimate(whole):
    seen = set()
    for table in summary.tables(read(whole)):
        is_measured = table.title.endswith("measured.")
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                kinds = {record.kind for record in cell.sources}
                if column == "predicted":
                    assert kinds <= {"predicted"}
                elif column in ("step, measured", "spread", "peak", "time, measured"):
                    assert kinds <= {"measured"}
                    seen |= kinds
                elif "estimate" in column and kinds:
                    assert "predicted" in kinds
                    seen |= kinds
                elif column == "compiled":
                    assert kinds == {"compiled"}
                elif is_measured:
                    assert "predicted" not in kinds
    assert seen == {"measured", "predicted"}


def test_a_measured_step_stands_beside_its_estimate_and_their_ratio(whole):
    text = summary.text(read(whole))
    (row,) = re.findall(r".*gpt2_xl_24  baseline .*h100.*", text)
    assert "300.00 ms" in row
    assert "266.20 ms (h100:1, x 0.89)" in row
    assert "65.00 GiB  64.00 GiB" in row
    (order,) = re.findall(r".*unrolled < baseline .*", text)
    assert "1 of 1" in order


def test_the_head_says_what_ran_and_whether_it_was_a_card(path, whole):
    assert summary.text(read(whole)).startswith("NVIDIA H100, 80.0 GiB; jax 0.11.2,")
    path.unlink()
    small = NOTE | {"platform": "cpu", "machine": "EPYC, jax 7, quick sizes"}
    Writer(path, "doctor", 1)("note", **small)
    head = "\n".join(summary.head(latest(read(path))))
    assert "no figure here is of a graphics card" in head
    assert "its times say nothing" in head
    assert summary.head({}) == ["No device answered: nothing was measured."]


def test_what_a_run_refutes_is_said_first_with_its_lines(whole):
    records = read(whole)
    (exact,) = refuted.sentences(latest(records))
    assert exact.startswith("exact, maps in bfloat16: 3 numbers are not exact [lines ")
    assert exact in summary.text(records).split("Jobs:")[0]
    race = Writer(whole, "race mlp", 1)
    for name, us, median in (("scan", 5.0, 2e-6), ("unrolled", 4.0, 3e-6)):
        race("predicted", variant=name, estimate_us=us, bytes=1, target="h100:1")
        timed = {"median_s": median, "round": 0, "not_finite": 0}
        race("measured", what="steps", variant=name, **timed)
    race("checked", variant="scan", agrees=False, sentence="2 bytes, and 1 was said")
    for job, ran_out in (("fit mlp", True), ("over mlp", False)):
        about = {"in_stage": "steps", "steps": 0, "memory": MEMORY}
        Writer(whole, job, 1)(
            "measured", what="fit", variant="searched", ran_out=ran_out, **about
        )
    told = [one.split(" [")[0] for one in refuted.sentences(latest(read(whole)))]
    assert told[1:] == [
        "race mlp: scan is the fastest, the estimates say unrolled",
        "race mlp, scan: 2 bytes, and 1 was said",
        "fit mlp: searched runs out of memory with what its plan takes",
        "over mlp: searched runs with 5 % less than its plan takes",
    ]


def test_what_a_run_says_is_counted_from_its_records(whole):
    assert findings.sentences(latest(read(whole))) == [
        "Time: estimates of 2 steps were 0.86 to 0.89 of the measured time, 0 of them "
        "within 5%.",
        "Order: 1 of 1 pairs of variants of one program came in the order of the "
        "estimates.",
        "Bytes: 2 compiles on the card differed by +1.6% to +2.4% from what was said "
        "ahead of time, 0 of them by at most 1%.",
        "Fit: given the bytes of its compile, 1 of 1 plans ran.",
        "Exact mode, maps in bfloat16, of 2,048 numbers these were wrong: 0 after the "
        "inverse alone, 3 after a backward pass alone.",
    ]


def timed(variant, median_s, peak, not_finite=0):
    about = {"median_s": median_s, "not_finite": not_finite, "variant": variant}
    memory = {"stage": "steps", "allocator": {"peak_bytes_in_use": peak}}
    return "measured", {"what": "steps", "memory": memory, **about}


@pytest.mark.parametrize(
    ("job", "lines", "said"),
    [
        ("run mlp", [], None),
        ("run mlp", [timed("a", 1.0, 7, 3)], "run mlp computed 3 numbers that are not"),
        (
            "run mlp",
            [("predicted", {"variant": "a", "estimate_us": 1e6, "bytes": 1}),
             timed("a", 1.0, 7, 3)],
            "Without meaning",
        ),
        (
            "run mlp",
            [("compiled", {"variant": "a", "bytes": 1000}), timed("a", 1.0, 1001),
             ("compiled", {"variant": "b", "bytes": 10}), timed("b", 1.0, 1001)],
            "Peak: steps of 1 compiles raised the allocator's peak. It was what the "
            "compile says, 0.10% off at most.",
        ),
        (
            "over mlp",
            [("measured", {"what": "fit", "ran_out": True})],
            "Fit: given 5% less, 0 of 1 plans ran.",
        ),
        (
            "offload",
            [("measured", {"what": "copies", "variant": "a", "copying_s": 0.124,
                           "exposed_s": 0.0776})],
            "Copies, a: 77.6 of 124.0 ms ran beside no kernel.",
        ),
    ],
)  # fmt: skip
def test_a_sentence_stands_where_there_are_records_of_it(path, job, lines, said):
    for kind, data in lines:
        Writer(path, job, 1)(kind, **data)
    told = findings.sentences(latest(read(path)))
    assert [said in one for one in told] == ([True] if said else [])


@pytest.mark.parametrize(
    ("peaks", "shown"),
    [
        ((7 * GIB, 9 * GIB), ["7.00 GiB", "9.00 GiB"]),
        ((9 * GIB, 9 * GIB), ["9.00 GiB", "at most 9.00 GiB"]),
        ((None, 9 * GIB), ["-", "9.00 GiB"]),
    ],
)
def test_a_peak_that_another_variant_made_is_a_bound(path, peaks, shown):
    run = Writer(path, "offload", 1)
    for name, peak in zip("ab", peaks, strict=True):
        run("compiled", variant=name, bytes=1)
        kind, about = timed(name, 1.0, peak)
        run(kind, round=0, **about)
    (table,) = [t for t in summary.tables(read(path)) if t.title.startswith("Steps.")]
    peak = table.columns.index("peak")
    assert [row[peak].text for row in table.rows] == shown


@pytest.mark.parametrize(
    ("about", "is_shown"),
    [
        ({}, True),
        ({"platform": "cpu"}, False),
        ({"machine": "H100, jax 0.11.2, quick sizes"}, False),
    ],
)
def test_the_manual_shows_runs_of_cards_alone(whole, tmp_path, about, is_shown):
    folder = tmp_path / "cards" / "h100-first"
    folder.mkdir(parents=True)
    text = whole.read_text().replace(
        json.dumps(NOTE)[1:-1], json.dumps(NOTE | about)[1:-1]
    )
    (folder / "results.jsonl").write_text(text)
    shown = page.text(folder.parent)
    assert shown.startswith("h100-first\n==========\nNVIDIA H100") is is_shown
    assert (shown == "None yet.") is not is_shown
    assert page.text(tmp_path / "nothing") == "None yet."


@pytest.mark.parametrize("left", ['{"job": "exa', "", "[]", "7", '{"job": "a"}'])
def test_half_a_line_is_no_record_and_the_next_one_is_whole(path, left):
    write = Writer(path, "exact", 1)
    write("begun")
    with path.open("a") as file:
        file.write(left)
    write("ended")
    assert [r.kind for r in read(path)] == ["begun", "ended"]
    lines = path.read_text().splitlines()
    assert all(json.loads(lines[r.line - 1])["kind"] == r.kind for r in read(path))


GOOD, BAD = ("ended", {}), ("ended", {"error": "ValueError: no"})
CUT = ("ended", {"error": "stopped after 9 s", "is_cut": True})
BEGUN, FOUND = ("begun", {}), ("measured", {"what": "steps"})


@pytest.mark.parametrize(
    ("attempts", "counts", "state", "error"),
    [
        ([[BEGUN, GOOD]], 1, "done", ""),
        ([[BEGUN, BAD]], 1, "failed", "ValueError: no"),
        ([[BEGUN, FOUND, CUT], [BEGUN, BAD]], 1, "stopped", "stopped after 9 s"),
        ([[BEGUN, CUT], [BEGUN, BAD]], 2, "failed", "ValueError: no"),
        ([[BEGUN, FOUND, GOOD], [BEGUN]], 1, "done", ""),
        ([[BEGUN]], 1, "stopped", "the run was stopped while it ran"),
        ([[("skipped", {"why": "9 s are left"})]], 1, "skipped", "9 s are left"),
    ],
)
def test_the_attempt_that_counts_is_the_best_one(path, attempts, counts, state, error):
    for number, lines in enumerate(attempts, 1):
        write = Writer(path, "exact", number)
        for kind, data in lines:
            write(kind, **data)
    found = latest(read(path))["exact"]
    assert {r.attempt for r in found} == {counts}
    assert (state_of(found), error_of(found)) == (state, error)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("too large\nallocator: 1"), "ValueError: too large"),
        (RuntimeError("\n\n  RESOURCE: x\n"), "RuntimeError: RESOURCE: x"),
        (OSError(), "OSError: no message"),
        (KeyError("a" * 400), "KeyError: '" + "a" * 289),
    ],
)
def test_an_error_is_one_line_of_some_length(error, line):
    assert in_one_line(error) == line


def test_jobs_come_in_the_order_of_what_they_tell_and_fit_into_a_run():
    found = schedule.jobs("gpu")
    order = [job.name for job in (schedule.DOCTOR, *found[:9])]
    assert order == [
        "doctor",
        "race gpt2_xl_24",
        "fit gpt2_xl_24",
        "over gpt2_xl_24",
        "exact",
        "race tiny_matmuls",
        "offload",
        "kernels",
        "alternatives gpt2_xl_24",
        "race t5_large",
    ]
    assert [job.limit_s for job in found[:9]] == [230, 50, 40, 90, 50, 60, 75, 80, 150]
    assert all(job.least_s <= job.limit_s <= 240 for job in found)
    assert len({job.name for job in found}) == len(found)
    # What an H100's machine compiles for minutes is begun when all else is done.
    slow = [order for order, job in enumerate(found) if job.limit_s == 240]
    quick = [order for order, job in enumerate(found) if job.kind in ("run", "fit")]
    assert slow
    assert max(set(quick) - set(slow)) < min(slow)


def test_what_failed_comes_again_after_what_was_never_begun(path):
    listed = [schedule.Job(kind) for kind in ("race", "exact", "offload", "kernels")]
    for job, lines in {"race": [BEGUN, BAD], "exact": [BEGUN, CUT]}.items():
        for kind, data in lines:
            Writer(path, job, 1)(kind, **data)
    left = schedule.next_jobs(listed, read(path))
    assert [job.kind for job in left] == ["exact", "offload", "kernels", "race"]


JOB = schedule.Job("exact", limit_s=60, revision=2)


@pytest.mark.parametrize(
    ("attempts", "why", "is_late"),
    [
        ([], "never begun", False),
        ([[("skipped", {"why": "9 s are left"})]], "never begun", False),
        ([[("begun", {"revision": 2}), GOOD]], None, False),
        ([[BEGUN, GOOD]], "what it measures was changed since", False),
        ([[("begun", {"revision": 1}), BAD]], "what it measures was changed since", 0),
        ([[("begun", {"revision": 2}), BAD]], "ValueError: no", True),
        ([[("begun", {"revision": 2, "limit_s": 9}), CUT]], "stopped after 9 s", False),
        ([[("begun", {"revision": 2, "limit_s": 60}), CUT]], "stopped after 9 s", True),
        (
            [[("begun", {"revision": 2, "limit_s": 99, "is_rest": True}), CUT]],
            "stopped after 9 s",
            False,
        ),
        ([[("begun", {"revision": 2})]], "the run was stopped while it ran", False),
        ([[BEGUN, GOOD], [("begun", {"revision": 2}), GOOD]], None, False),
    ],
)
def test_what_is_left_is_what_was_not_answered_as_it_is_asked_now(
    path, attempts, why, is_late
):
    for number, lines in enumerate(attempts, 1):
        for kind, data in lines:
            Writer(path, "exact", number)(kind, **data)
    found = schedule.left([JOB, schedule.Job("offload")], read(path))
    late = [one.job.kind for one in found]
    assert late == (["offload"] if why is None else sorted(late, reverse=is_late))
    assert {one.job.kind: one.why for one in found}.get("exact") == why


def test_what_is_left_is_a_table_in_its_order(path):
    text = schedule.text([JOB, schedule.Job("offload", limit_s=45)], read(path))
    assert text.splitlines() == [
        "job      at most  why",
        "-----------------------------",
        "exact    60 s     never begun",
        "offload  45 s     never begun",
    ]
    assert schedule.text([], []) == "Nothing is left."


def test_the_next_run_on_an_h100_begins_with_what_was_never_answered():
    records = read(page.RESULTS / "h100" / "results.jsonl")
    left = [job.name for job in schedule.next_jobs(schedule.jobs("gpu"), records)]
    order = ["exact", "gradients", "race vit_l_384", "race efficientnet_b7"]
    order += [f"{kind} {name}" for name in FITTED for kind in ("fit", "over")]
    order += ["run unet", "run revbifpn_s0", "run revbifpn_s2"]
    order += ["again gpt2_xl_24", "again t5_large"]
    assert [name for name in left if name in order] == [n for n in order if n in left]
    assert "race gpt2_xl_24" not in left


FITTED = ("tiny_matmuls", "t5_large", "vit_l_384")
