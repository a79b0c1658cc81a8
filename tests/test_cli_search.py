"""What `search` and `compare` ask for, print, write and answer; nothing is compiled."""
# ruff: noqa: E501 - tables are wide

import contextlib
import dataclasses
import sys
from pathlib import Path

import pytest

import revremat as rr
from revremat._cli import _report, _search, main
from revremat._cli._report import plan_notes, planned
from revremat._frontier import Frontier
from revremat._largest import Largest, Trial
from tests.measurements import GIB
from tests.test_report_texts import CHOSEN, FIT, GRAPH, POINTS, ROWS

PROGRAM = """
import jax.numpy as jnp
import revremat as rr

def problem(target, rows=8):
    return rr.Problem(lambda x: x.sum(), (jnp.ones(rows),))

def named(target):
    return rr.Problem(lambda x: x.sum(), (jnp.ones(8),), name="sums")

def refuses(target):
    raise KeyError("no")
"""
MADE = ("making the problem", "tracing and compiling")
SMALL = dataclasses.replace(CHOSEN, budget_bytes=8 * GIB)
"""The same plan where it does not fit."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("sums", None)


@pytest.fixture
def asked(monkeypatch):
    """What is searched, by names of functions; each call's problem and options."""
    calls = []

    def noting(name, found):
        def call(problem, **how):
            calls.append((name, problem, how))
            how["progress"]("a program", 0, 1)
            return found(how)

        monkeypatch.setattr(_search, name, call)

    small = dataclasses.replace(FIT, plan=SMALL)
    noting("fit", lambda how: small if how["budget"] == "8GiB" else FIT)
    noting("frontier", lambda how: Frontier("gpt", "cpu:1", 4 * GIB, POINTS, 7))
    noting("presets", lambda how: ROWS[:2])
    return calls


def run(capsys, *words):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


HERE = ("--target", "cpu:1")


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {"most_compiles": None, "unroll": True, "keep_checkpoints": False}),
        (["--compiles", "12"], {"most_compiles": 12}),
        (["--no-unroll"], {"unroll": False}),
        (["--keep-checkpoints"], {"keep_checkpoints": True}),
    ],
)
def test_a_search_is_asked_for_as_it_is_written(folder, capsys, asked, flags, options):
    words = ["search", "sums.py:problem", "--budget", "10GiB", *HERE, *flags]
    assert run(capsys, *words) == (0, rr.render(FIT), "")
    ((name, problem, how),) = asked
    assert (name, how["budget"], how["target"].spec) == ("fit", "10GiB", "cpu:1")
    assert {key: how[key] for key in options} == options
    assert problem.name == "sums.py:problem"


@pytest.mark.parametrize(("budget", "code"), [("10GiB", 0), ("8GiB", 1)])
def test_the_smallest_plan_is_written_all_the_same(folder, capsys, asked, budget, code):
    words = ["search", "sums.py:named", "--budget", budget, *HERE, "--out", "p.json"]
    found, out, err = run(capsys, *words)
    assert (found, err) == (code, "")
    applied = "rr.apply(loss, rr.load('p.json')) applies it"
    assert out.endswith(f"plan written to p.json: {applied}\n")
    assert rr.load("p.json") == (SMALL if code else CHOSEN)
    assert asked[0][1].name == "sums"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "write a budget, as in --budget 60GiB, or --pareto out.html"),
        (["--budget", "60"], "'60' has no unit"),
        (["--budget", "101%"], "'101%' is more than there is"),
        (["--budget", "1GiB", "--out", "."], "cannot write '.'"),
        (["--pareto", "f.txt"], "cannot write 'f.txt': write *.html or *.json"),
        (["--pareto", "a/f.html"], "cannot write 'a/f.html'"),
        (["--pareto", "f.html", "--out", "p.json"], "leave out --out"),
        (
            ["--pareto", "f.html", "--out", "p", "--budget", "1GiB", "--compiles", "9"],
            "leave out --budget and --out and --compiles",
        ),
        (["--pareto", "f.html", "--effort", "quick"], "leave out --effort"),
        (["--set", "rows"], "--set 'rows' sets nothing"),
        (["--set", "cols=3", "--budget", "1GiB"], "has no argument 'cols'"),
    ],
)
def test_mistakes_are_told_before_anything_is_searched(
    folder, capsys, asked, flags, told
):
    code, out, err = run(capsys, "search", "sums.py:problem", *HERE, *flags)
    assert (code, out, asked) == (2, "", [])
    assert told in err
    assert {p.name for p in folder.iterdir()} <= {"sums.py", "__pycache__"}


@pytest.mark.parametrize("suffix", [".html", ".json"])
@pytest.mark.parametrize(
    ("flags", "unroll", "keeps"),
    [([], True, False), (["--no-unroll", "--keep-checkpoints"], False, True)],
)
def test_a_frontier_is_drawn_or_written(
    folder, capsys, asked, suffix, flags, unroll, keeps
):
    path = Path(f"f{suffix}")
    words = ["search", "sums.py:problem", "--pareto", str(path), *HERE, *flags]
    code, out, err = run(capsys, *words)
    found = Frontier("gpt", "cpu:1", 4 * GIB, POINTS, 7)
    assert (code, err) == (0, "")
    assert out == f"{rr.render(found)}written to {path}\n"
    assert (
        rr.load(path) == found if suffix == ".json" else "<circle" in path.read_text()
    )
    ((name, _, how),) = asked
    assert (name, how["unroll"], how["keep_checkpoints"]) == ("frontier", unroll, keeps)


COMPARED = """\
sums.py:problem on cpu:1

program                                                            bytes      step   fits the device
────────────────────────────────────────────────────────────────────────────────────────────────────
8 x recompute all                                               8.00 GiB   50.0 ms   yes
baseline                                                        16.0 GiB   30.0 ms   yes
searched, 10GiB: 6 x recompute all + 2 x save all               9.00 GiB   40.0 ms   yes
searched, 8GiB (does not fit): 6 x recompute all + 2 x save     9.00 GiB   40.0 ms   yes
all

- bytes are per device; steps are estimates
- dots, dots_no_batch: every layer saves what dots_saveable and
  dots_with_no_batch_dims_saveable of jax.checkpoint_policies save
"""


def test_presets_and_searched_plans_are_compared(folder, capsys, asked):
    words = ["compare", "sums.py:problem", "--budget", "10GiB", "--budget", "8GiB"]
    assert run(capsys, *words, *HERE) == (0, COMPARED, "")
    assert [name for name, *_ in asked] == ["presets", "fit", "fit"]
    assert [how.get("budget") for _, _, how in asked] == [None, "10GiB", "8GiB"]


def test_what_does_not_fit_the_device_is_told(folder, capsys, asked, monkeypatch):
    large = dataclasses.replace(ROWS[0].measurement, device_bytes=9 * GIB)
    rows = (dataclasses.replace(ROWS[0], measurement=large),)
    monkeypatch.setattr(_search, "presets", lambda problem, **how: rows)
    _, out, _ = run(capsys, "compare", "sums.py:problem", *HERE)
    rows = out.split("\n\n")[1].splitlines()
    assert rows[-1].split()[-1] == "no"


def test_a_budget_that_is_none_is_refused_before_presets_are_compiled(
    folder, capsys, asked
):
    words = ["compare", "sums.py:problem", "--budget", "1GiB", "--budget", "x"]
    code, _, err = run(capsys, *words, *HERE)
    assert (code, asked) == (2, [])
    assert "'x' is no number of bytes" in err


@pytest.mark.parametrize("command", ["search", "compare"])
def test_what_the_program_raises_is_its_own_traceback(folder, capsys, asked, command):
    code, out, err = run(capsys, command, "sums.py:refuses", "--budget", "1GiB", *HERE)
    assert (code, out) == (1, "")
    assert "sums.py:refuses raised while making its problem" in err
    assert "KeyError: 'no'" in err


# ---- Plans of other machines ---------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "number", "told"),
    [
        (rr.RECOMPUTE(offload=["a"]), 1, "offloads a of 1 layer to host memory"),
        (rr.RECOMPUTE(offload=["b", "a"]), 3, "offloads a, b of 3 layers to host"),
        (rr.RECOMPUTE, 0, None),
    ],
)
def test_a_plan_that_offloads_needs_a_host_apart(action, number, told):
    rest = 8 - number
    plan = GRAPH.plan({"u": (*(action,) * number, *(rr.RECOMPUTE,) * rest)})
    problem = rr.Problem(lambda x: x, ())
    if told is None:
        assert planned(problem, plan, rr.target("cpu:1")).loss is not problem.loss
    else:
        with pytest.raises(rr.UserError, match=f"{told}.* cpu:1 has none apart"):
            planned(problem, plan, rr.target("cpu:1"))
    assert planned(problem, plan, rr.target("h100:1")).loss is not problem.loss


@pytest.mark.parametrize(("target", "refused"), [("cpu:1", True), ("h100:1", False)])
def test_a_plan_for_xlas_own_pass_needs_a_target_that_has_it(target, refused):
    plan = GRAPH.plan({"u": rr.SAVE(unroll=True)}, remat_pass_percent=90)
    problem = rr.Problem(lambda x: x, ())
    if refused:
        with pytest.raises(rr.UserError, match="no rematerialization pass for CPUs"):
            planned(problem, plan, rr.target(target))
    else:
        assert planned(problem, plan, rr.target(target)).specs == ()


@pytest.mark.parametrize(
    ("made_on", "version", "number"),
    [("", "", 0), ("cpu:1", "", 0), ("h100:8", "", 1), ("h100:8", "0.0.1", 2)],
)
def test_what_is_to_be_known_of_a_plan_is_told(made_on, version, number):
    plan = dataclasses.replace(CHOSEN, target=made_on, jax_version=version)
    notes = plan_notes(plan, rr.target("cpu:1"))
    told = ["was made with JAX 0.0.1", "was made for h100:8"][2 - number :]
    assert len(notes) == number
    assert all(part in note for part, note in zip(told, notes, strict=True))


# ---- Reports of several targets ------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """What is measured, with its options; each on its target."""
    calls = []

    def measure(step, *, target, **how):
        calls.append((step, target.spec, how))
        return dataclasses.replace(ROWS[0].measurement, target=target.spec)

    monkeypatch.setattr(_report, "measure", measure)
    return calls


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {"packing": False, "what_if": False, "rules": {}}),
        (["--packing"], {"packing": True}),
        (["--what-if"], {"what_if": True}),
        (["--rule", "a=x", "--rule", "b=y=z"], {"rules": {"a": "x", "b": "y=z"}}),
    ],
)
def test_a_report_is_measured_as_it_is_written(
    folder, capsys, measured, flags, options
):
    code, _, err = run(capsys, "report", "sums.py:problem", *HERE, *flags)
    assert (code, err) == (0, "")
    ((step, spec, how),) = measured
    assert (step.name, step.plan, spec) == ("sums.py:problem", None, "cpu:1")
    assert {key: how[key] for key in options} == options


def test_without_a_target_it_is_this_machine_and_of_several_one_each(
    folder, capsys, measured
):
    assert run(capsys, "report", "sums.py:named")[0] == 0
    assert run(capsys, "report", "sums.py:named", *HERE, "--target", "h100:1")[0] == 0
    assert [spec for _, spec, _ in measured] == ["local", "cpu:1", "h100:1"]
    assert {step.name for step, *_ in measured} == {"sums"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tolerance", "-0.1"], "a tolerance of -0.1 is no share"),
        (["--tolerance", "inf"], "a tolerance of inf is no share"),
        (["--tolerance", "0"], None),
        (["--module", "m"], "--module 'm' picks from a dump"),
        (["--html", "m.json"], "cannot write 'm.json': write *.html"),
        (["--largest-batch", "cols"], "has no argument 'cols': it has rows"),
        (["--largest-batch", "rows", "--set", "rows=True"], "its value is True"),
        (["--step", "2"], "--step 2 is for the largest batch"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    folder, capsys, measured, flags, told
):
    code, _, err = run(capsys, "report", "sums.py:problem", *HERE, *flags)
    assert (code, len(measured)) == ((2, 0) if told else (0, 1))
    assert (told or "") in err


def test_targets_are_listed_with_the_smallest_first(capsys):
    _, out, _ = run(capsys, "targets")
    found = [
        line.split()[0] for line in out.splitlines()[2:] if ":" in line.split(" ")[0]
    ]
    assert found[:3] == ["cpu:1", "cpu:8", "v100:8"]
    assert found[-4:] == ["v4:2x2x1", "v5e:4x4", "v5p:2x2x1", "v6e:4x4"]


TRIED = """\
rows      bytes   fits
──────────────────────
4      4.00 KiB   yes
8      8.00 KiB   yes
9      9.00 KiB   no
12      refused   no

rows=8 is the largest that fits 8.50 KiB on cpu:1

"""


def test_sizes_that_were_tried_come_before_the_report_of_the_largest(
    folder, capsys, measured, monkeypatch
):
    asked = []

    def largest(make, **how):
        asked.append((make(3).specs[0].shape, how))
        return Largest(8, 1, 8704, TRIALS, None)

    monkeypatch.setattr(_report, "largest", largest)
    words = ["report", "sums.py:problem", "--largest-batch", "rows", *HERE]
    code, out, err = run(capsys, *words, "--budget", "8.5KiB", "--step", "2")
    assert (code, err) == (0, "")
    assert out.startswith(TRIED)
    ((shape, how),) = asked
    assert shape == (3,)
    assert (how["start"], how["budget"], how["step"]) == (8, "8.5KiB", 2)
    ((step, *_),) = measured
    assert step.specs[0].shape == (8,)
    assert run(capsys, *words, "--set", "rows=5")[0] == 0
    assert (asked[1][1]["start"], asked[1][1]["budget"]) == (5, None)
    monkeypatch.setattr(
        _report, "largest", lambda make, **how: Largest(0, 1, 2048, TRIALS[:1], None)
    )
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "no rows fits 2.00 KiB on cpu:1, not even 4" in err
    cut = Largest(8, 1, 8704, TRIALS, None, is_cut_short=True)
    monkeypatch.setattr(_report, "largest", lambda make, **how: cut)
    _, out, _ = run(capsys, *words)
    assert "rows=8 is the largest of 4 that were compiled and fits 8.50 KiB" in out


TRIALS = (
    Trial(4, 4096, True),
    Trial(8, 8192, True),
    Trial(9, 9216, False),
    Trial(12, None, False),
)


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("report", ["making the problem", "tracing and compiling"]),
        ("report --largest-batch rows", [*["tracing and compiling rows=8"] * 2, *MADE]),
        ("search --budget 1GiB", ["making the problem", "a program"]),
        ("search --pareto f.html", ["making the problem", "a program"]),
        ("compare --budget 1GiB", ["making the problem", *["a program"] * 2]),
    ],
)
def test_of_what_is_done_first_nobody_knows_how_much_there_is(
    folder, capsys, asked, measured, monkeypatch, command, steps
):
    told = []

    @contextlib.contextmanager
    def progress(title):
        yield lambda *what: told.append(what)

    def largest(make, **how):
        make(8), make(8)
        return Largest(8, 1, 8704, TRIALS, None)

    monkeypatch.setattr(_report, "largest", largest)
    for module in (_report, _search):
        monkeypatch.setattr(module, "progress", progress)
    name, *flags = command.split()
    assert run(capsys, name, "sums.py:problem", *HERE, *flags)[0] == 0
    of_search = {"a program": (0, 1)}
    assert told == [(step, *of_search.get(step, (0, 0))) for step in steps]
