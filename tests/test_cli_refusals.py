"""Wrong input on every command: one sentence after `revremat:`, and an exit code."""

import json
import sys

import pytest

import revremat as rr
from revremat._cli import main
from revremat._cli._main import _KINDS
from revremat._cli._program import load
from revremat._cli._refusals import refusal
from tests.measurements import MEASUREMENT

PROGRAM = """
import jax, jax.numpy as jnp
import revremat as rr

def problem(target, rows=8):
    w = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((rows, 8), jnp.float32)
    layer = lambda w, x: jnp.tanh(x @ w)
    return rr.Problem(loss=lambda w, x: rr.stack(layer, w, x).sum(), specs=(w, x))

def broken(target):
    raise ValueError("not today")
"""

REPORT = ["report", "p.py:problem", "--target", "cpu:1"]
SEARCH = ["search", "p.py:problem", "--target", "cpu:1"]
COMPARE = ["compare", "p.py:problem", "--target", "cpu:1"]
EXPORT = ["export", "p.py:problem"]
LARGEST = [*REPORT, "--largest-batch", "rows"]

UNREADABLE = {
    "absent": "No such file or directory",
    "folder": "it is a folder",
}
NO_PLANS = {
    **UNREADABLE,
    "empty.json": "is not a plan: it is not JSON",
    "text.json": "is not a plan: it is not JSON",
    "list.json": "is not a plan",
    "object.json": "it has no schema version",
    "report.json": "is a report, no plan",
    "lock.json": "is a lock, no plan",
}
NO_NOUNS = {
    **UNREADABLE,
    "empty.json": "holds no report and no plan",
    "text.json": "holds no report and no plan",
    "object.json": "holds no report and no plan",
    "cut.json": "holds no report and no plan, or only a part of one",
    "lock.json": "is a lock, and diff compares reports or plans",
    "reports.json": "holds several reports",
    "plan.json": "is a plan and 'report.json' is a report",
}
NO_PROGRAMS = {
    "": "'' names no program: write 'package.module:problem'",
    "p.py": "write a function of it too, as in 'p.py:problem'",
    "p.py:": "names no program",
    "p.py:other": "p.py has no function 'other': it has problem, broken",
    "absent.py:problem": "there is no file 'absent.py'",
    "absent.module:problem": "there is no module 'absent.module'",
    "plan.json": "is a plan, no program",
    "text.json": "names no program",
}
NO_BUDGETS = {
    "-1": "has no unit: write one like '60GiB'",
    "-1GiB": "is not above zero: write one like '60GiB'",
    "0MiB": "is not above zero",
    "200%": "is more than there is",
    "lots": "is no number of bytes",
}
NO_TARGETS = {
    "": "unknown device ''",
    "rtx": "unknown device 'rtx': write one of v100",
    "cpu:0": "names no number of devices",
    "cpu:-1": "names no number of devices",
}
NO_TABLES = {
    **UNREADABLE,
    "empty.json": "has no column 'id'",
    "text.json": "has a column 'no JSON' that is not known",
}
NO_CAPACITIES = {
    "-1": "a capacity of -1 bytes",
    "1": "the buffers do not fit into 1 bytes",
    "60GG": "'60GG' is no number of bytes such as 4096 or 60GiB",
    "75%": "'75%' is no number of bytes",
}
OPTIONS = [
    (["report"], "report needs PROGRAM: see 'revremat report --help'"),
    (["search"], "search needs PROGRAM"),
    (["compare"], "compare needs PROGRAM"),
    (["export", "p.py:problem"], "export needs PLAN"),
    (["diff", "plan.json"], "diff needs AFTER"),
    (["diff"], "diff needs BEFORE and AFTER"),
    (["allocate"], "allocate needs FILE"),
    (["largest"], "there is no command 'largest': write one of report, diff, search"),
    (["--budjet"], "unrecognized options: --budjet"),
    (["targets", "all"], "unrecognized options: all: see 'revremat targets --help'"),
    ([*SEARCH, "--budjet", "3"], "--budjet, 3; perhaps --budget"),
    ([*SEARCH, "--" + "x" * 99], f"unrecognized options: --{'x' * 99}: see"),
    ([*SEARCH, "--budget"], "missing value for argument '--budget': see"),
    (["report", "--colour"], "missing value for argument 'PROGRAM': see"),
    ([*SEARCH, "--compiles", "3.5"], "--compiles: '3.5' is no whole number"),
    ([*REPORT, "--step", "x"], "--step: 'x' is no whole number"),
    ([*REPORT, "--tolerance", "x"], "--tolerance: 'x' is no number"),
    (["allocate", "b.csv", "--seconds", "x"], "--seconds: 'x' is no number"),
    ([*EXPORT, "plan.json", "--form", "torch"], "('jax', 'nnx', 'maxtext')"),
]
OTHERS = [
    ([*REPORT, "--set", "row=4"], "has no argument 'row': it has rows"),
    ([*REPORT, "--set", "rows"], "--set 'rows' sets nothing"),
    ([*REPORT, "--set", "rows=-1"], "(-1, 8); sizes are zero or more"),
    ([*REPORT, "--set", "rows=few"], "('few', 8); sizes are whole numbers"),
    ([*REPORT, "--plan", "other.json"], "it has a unit 'other', this one has stack"),
    ([*REPORT, "--json", "m.html"], "cannot write 'm.html': write *.json"),
    ([*REPORT, "--module", "x"], "--module 'x' picks from a dump"),
    ([*REPORT, "--check", "plan.json"], "'plan.json' is no lock"),
    (["report", "folder", "--target", "cpu:1"], "'folder' holds no dump of XLA's"),
    (["report", "folder"], "write --target"),
    (
        ["report", "folder", "--target", "cpu:1", "--largest-batch", "rows"],
        "--largest-batch compiles a program anew, but a dump is compiled already",
    ),
    ([*REPORT, "--largest-batch", "row"], "has no argument 'row': it has rows"),
    ([*LARGEST, "--step", "-3"], "sizes are positive: step is -3"),
    ([*LARGEST, "--set", "rows=0"], "sizes are positive: start is 0"),
    (SEARCH, "write a budget, as in --budget 60GiB"),
    ([*SEARCH, "--budget", "1GiB", "--compiles", "-2"], "a search needs"),
    ([*SEARCH, "--budget", "1GiB", "--out", "folder"], "cannot write 'folder'"),
    ([*SEARCH, "--pareto", "f.txt"], "write *.html or *.json"),
    ([*EXPORT, "other.json"], "no unit is called 'other'; the units are: stack"),
    (["diff", "report.json", "report.json", "--by", "x"], "--by 'x': write one of"),
    (["diff", "report.json", "report.json", "--rule", "x=("], "no regular expression"),
    (["diff", "plan.json", "plan.json", "--by", "op"], "these are plans"),
    (["diff", "plan.json", "plan.json", "--json", "d.txt"], "write *.json"),
    (["allocate", "b.csv", "--out", "folder"], "cannot write 'folder'"),
    (["allocate", "b.csv", "--seconds", "0"], "it must be above zero"),
]
MISTAKES = [
    *(([*REPORT, "--plan", f], says) for f, says in NO_PLANS.items()),
    *(([*EXPORT, f], says) for f, says in NO_PLANS.items()),
    *((["diff", f, "report.json"], says) for f, says in NO_NOUNS.items()),
    *(
        ([command, program], says)
        for command in ("report", "search", "compare")
        for program, says in NO_PROGRAMS.items()
    ),
    *((["export", p, "plan.json"], says) for p, says in NO_PROGRAMS.items()),
    *(
        ([*command, "--budget", budget], says)
        for command in (LARGEST, SEARCH, COMPARE)
        for budget, says in NO_BUDGETS.items()
    ),
    *(
        ([command, "p.py:problem", "--target", target], says)
        for command in ("report", "search", "compare")
        for target, says in NO_TARGETS.items()
    ),
    *((["allocate", f], says) for f, says in NO_TABLES.items()),
    *(
        (["allocate", "b.csv", "--capacity", c], says)
        for c, says in NO_CAPACITIES.items()
    ),
    *((["allocate", "b.csv", "--deps", f], says) for f, says in UNREADABLE.items()),
    *OPTIONS,
    *OTHERS,
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    report = MEASUREMENT.to_json()
    (folder / "p.py").write_text(PROGRAM)
    problem = load(f"{folder}/p.py:problem", rr.target("cpu:1"), {})
    plan = rr.trace(problem.loss, *problem.specs).plan({"stack": rr.SAVE}).to_json()
    other = plan.replace('"stack"', '"other"')
    texts = {
        "b.csv": "id,lower,upper,size\na,0,2,4\nb,1,3,8\n",
        "empty.json": "",
        "text.json": "no JSON\n",
        "list.json": "[1]",
        "object.json": "{}",
        "cut.json": report[:-30],
        "report.json": report,
        "reports.json": json.dumps([json.loads(report)] * 2),
        "lock.json": '{"schema": 1, "tolerance": 0.01, "entries": []}',
        "plan.json": plan,
        "other.json": other,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    return folder


@pytest.fixture
def say(files, monkeypatch, capsys):
    """Exit code and standard error of a command, run beside the files."""
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {path.name for path in files.iterdir()}

    def run(words):
        code = main(words)
        left = {path.name for path in files.iterdir()} - {"__pycache__"}
        assert left == before - {"__pycache__"}
        return code, capsys.readouterr().err

    yield run
    sys.modules.pop("p", None)


@pytest.mark.parametrize(
    ("words", "says"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES]
)
def test_a_mistake_is_one_sentence(say, words, says):
    code, err = say(words)
    assert code == 2
    assert err.startswith("revremat: ")
    assert says in err
    assert err.count("\n") == 1
    assert len(err) <= len("revremat: ") + 400 + 1


def test_every_command_is_tried():
    assert {words[0] for words, _ in MISTAKES} >= set(_KINDS)


@pytest.mark.parametrize("command", ["report", "search", "compare", "export"])
def test_what_the_program_raises_is_told_as_its_own(say, command):
    plan = ["plan.json"] if command == "export" else []
    code, err = say([command, "p.py:broken", *plan])
    assert code == 1
    assert err.startswith("revremat: p.py:broken raised while making its problem:")
    assert err.endswith("ValueError: not today\n")


@pytest.mark.parametrize(
    ("box", "told"),
    [
        (
            "╭─ Invalid choice ────╮\n│ invalid choice 'x'. │\n"
            "│ ─────────────────── │\n"
            "│ For help, run it    │\n╰─────────────────────╯",
            "invalid choice 'x': see 'revremat report --help'",
        ),
        ("", "this cannot be read: see 'revremat report --help'"),
        ("\x1b[31mWhat?\x1b[0m", "what?: see 'revremat report --help'"),
    ],
)
def test_a_box_of_the_parser_becomes_a_sentence(box, told):
    assert refusal(box, ["report", "x"]) == told
