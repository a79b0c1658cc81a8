"""Every noun that `rr.write` writes as JSON comes back by `rr.load`."""

import json

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._cli import main
from revremat._report._lock import lock_text
from revremat._saved import TrialRecord, what_is
from tests.measurements import MEASUREMENT, changed
from tests.test_frontier import FRONTIER

W = jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)
X = jax.ShapeDtypeStruct((256, 64), jnp.float32)


def loss(w, x):
    layer = lambda w, x: jnp.sin(rr.name(jnp.tanh(x @ w), "act"))
    return rr.stack(layer, w, x).sum()


GRAPH = rr.trace(loss, W, X)
PLAN = GRAPH.plan(
    {"stack": [rr.SAVE, rr.RECOMPUTE, rr.OFFLOAD, rr.RECOMPUTE(save=["act"])]},
    target="h100:8",
    budget_bytes=10**9,
    compiled_bytes=10**8,
    gradient_barrier=True,
)
TRIALS = (
    TrialRecord("4 x recompute all", 10**8, 900.0),
    TrialRecord("baseline", 10**9, 800.0),
)
NOUNS = {
    "a search's result": rr.FitRecord(PLAN, MEASUREMENT, TRIALS, {"num_compiles": 7}),
    "a plan": PLAN,
    "a report": MEASUREMENT,
    "several reports": [MEASUREMENT, changed(temp_bytes=7 * 2**30)],
    "a frontier": FRONTIER,
    "a graph": GRAPH,
}


@pytest.mark.parametrize("kind", NOUNS)
def test_what_was_written_comes_back_equal(tmp_path, kind):
    path = rr.write(NOUNS[kind], tmp_path / "noun.json")
    assert rr.load(path) == NOUNS[kind]
    assert what_is(path) == kind


@pytest.mark.parametrize(
    "kind", [k for k in NOUNS if k not in ("a graph", "several reports")]
)
def test_files_are_indented_by_one(tmp_path, kind):
    """So that a committed file does not change from one version to the next."""
    first, second, *_ = (
        rr.write(NOUNS[kind], tmp_path / "noun.json").read_text().split("\n")
    )
    assert (first, second[:2]) == ("{", ' "')
    assert lock_text([MEASUREMENT]).split("\n")[1][:2] == ' "'


def test_a_saved_search_prints_what_it_compiled_and_its_plan():
    text = rr.render(NOUNS["a search's result"])
    assert text.index("baseline") < text.index("4 x recompute all")
    assert str(PLAN).splitlines()[0] in text


def test_a_real_measurement_comes_back_equal(tmp_path):
    m = rr.measure(jax.grad(loss), W, X, target="cpu:1", packing=True, what_if=True)
    assert rr.load(rr.write(m, tmp_path / "m.json")) == m
    assert rr.load(str(rr.write([m, m], tmp_path / "ms.json"))) == [m, m]


@pytest.mark.parametrize(
    "change",
    [{"schema": 99}, {"rows": 3}, {"rows": [{"name": "a"}]}, {"plan": 1}],
    ids=str,
)
def test_damaged_text_is_no_record_of_a_search(tmp_path, change):
    path = rr.write(NOUNS["a search's result"], tmp_path / "fit.json")
    text = json.dumps(json.loads(path.read_text()) | change)
    with pytest.raises(ValueError, match=r"^not a search's result: "):
        rr.FitRecord.from_json(text)


OTHERS = {
    "absent.json": (None, "No such file"),
    "text.json": ("x", "cannot be read as JSON"),
    "number.json": ("7", "holds nothing that rr.write writes"),
    "object.json": ('{"schema": 1}', "holds nothing that rr.write writes"),
    "list.json": ('[{"a": 1}]', "holds nothing that rr.write writes"),
    "huge.json": (f'{{"a": {"9" * 5000}}}', "cannot be read as JSON"),
    "deep.json": ("[" * 200_000, "cannot be read as JSON"),
    "lock.json": (lock_text([MEASUREMENT]), "is a lock: rr.load reads no such file"),
    "plan.json": (
        json.dumps({**json.loads(PLAN.to_json()), "schema": 99}),
        "is a plan that is damaged",
    ),
    "graph.json": ('{"units": 3, "fingerprint": ""}', "is a graph that is damaged"),
    "fit.json": ('{"plan": 1, "measurement": {}}', "is a search's result that is dam"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_one_sentence(tmp_path, name):
    text, said = OTHERS[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(rr.UserError, match=said) as raised:
        rr.load(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value).replace(str(tmp_path), "")) <= 400


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, noun in NOUNS.items():
        rr.write(noun, f"{kind.split()[-1]}.json")
    (tmp_path / "lock.json").write_text(lock_text([MEASUREMENT]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report plan.json", "'plan.json' is a plan, no program: write"),
        ("report report.json --target h100:8", "is a report, no program"),
        ("search frontier.json --budget 1GiB", "is a frontier, no program"),
        ("export plan.json plan.json", "'plan.json' is a plan, no program"),
        ("compare lock.json", "is a lock, no program"),
        (
            "report p.py:problem --plan report.json",
            "is a report, no plan: 'revremat se",
        ),
        ("export p.py:problem graph.json", "'graph.json' is a graph, no plan"),
        ("diff plan.json report.json", "'plan.json' is a plan and 'report.json' is a"),
        ("diff report.json plan.json", "'plan.json' is a plan and 'report.json' is a"),
        ("diff report.json graph.json", "is a graph, and diff compares reports or pl"),
        ("diff lock.json report.json", "'lock.json' is a lock"),
        ("diff reports.json report.json", "holds several reports: write one target"),
        ("diff plan.json plan.json --by phase", "--by and --rule add up the bytes of"),
    ],
)
def test_commands_say_what_a_file_is(files, capsys, words, said):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_two_plans_differ_in_their_layers(files, capsys, tmp_path):
    other = GRAPH.plan({"stack": rr.RECOMPUTE}, target="h100:8", budget_bytes=5 * 10**8)
    rr.write(other, "other.json")
    assert main(["diff", "plan.json", "other.json", "--json", "diff.json"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "budget 954 MiB 477 MiB" in text
    assert "gradient barrier yes" in text
    assert "2 x RECOMPUTE" not in text
    assert "4 x RECOMPUTE" in text
    (unit,) = json.loads((tmp_path / "diff.json").read_text())["units"]
    assert unit["before"] == (
        "1 x SAVE, 1 x RECOMPUTE, 1 x OFFLOAD, 1 x RECOMPUTE(save=['act'])"
    )
    assert unit["after"] == "4 x RECOMPUTE"
    assert what_is(tmp_path / "diff.json") == "a difference that 'revremat diff' wrote"


def test_equal_plans_and_plans_of_other_programs_say_so(files, capsys):
    assert main(["diff", "plan.json", "plan.json"]) == 0
    assert "every layer has the same action in both" in capsys.readouterr().out
    graph = rr.trace(lambda w, x: 2 * loss(w, x) ** 2, W, X)
    rr.write(graph.plan({}), "other.json")
    assert main(["diff", "plan.json", "other.json"]) == 0
    out = capsys.readouterr().out
    assert "they are plans of different programs" in out
    assert "not in the plan" in out
