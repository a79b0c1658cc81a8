"""Plans from elsewhere: taken or refused at once, in one line that can be printed."""

import dataclasses
import functools
import json
import os
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE, Plan, UserError
from revremat._cli import main
from revremat._cli._program import load
from revremat._plan import MOST_LAYERS, MOST_PLAN_BYTES, MOST_UNITS
from tests.calls import counted
from tests.hostile import mutated, plausible

MOST_CALLS = 200_000  # of a plan of a few layers that is taken: drawn, applied, written
MOST_CALLS_REFUSED = 1_000  # whatever its size
NUM_PLANS = {mutated: 140, plausible: 30}  # of each program
W, X = jnp.ones((4, 2, 2)), jnp.ones((3, 2))


def layer(w, x):
    return rr.name(jnp.tanh(x @ w), "hidden")


def stacked(w, x):
    return rr.stack(layer, w, x).sum()


def blocks(w, x):
    for k in range(4):
        x = rr.block(layer, f"layer{k}")(w[k], x)
    return x.sum()


def whole(w, x):
    return layer(w[0], x).sum()


ACTIONS = {
    stacked: [SAVE, SAVE, RECOMPUTE(save=["hidden"], offload=["input"]), OFFLOAD],
    blocks: RECOMPUTE(save=["hidden"]),
    whole: RECOMPUTE,
}


@functools.cache
def graph(loss):
    return rr.trace(loss, W, X)


def plan(loss, **about):
    units = graph(loss).units
    actions = {unit.name: ACTIONS[loss] for unit in units}
    about = {"target": "h100:8", "budget_bytes": 100, "compiled_bytes": 90} | about
    return graph(loss).plan(actions, **about)


def is_clean(text):
    return all(line.isprintable() for line in text.split("\n"))


def uses(loss, found):
    """What a plan from a file is put to."""
    yield lambda: str(found)
    yield lambda: rr.render(found)
    yield lambda: found.target_note("local")
    yield lambda: str(jax.eval_shape(jax.grad(rr.apply(loss, found)), W, X))
    for form in ("jax", "nnx", "maxtext"):
        yield lambda form=form: str(rr.export(found, graph(loss), form))


def told(text, loss):
    """All that a person sees of it."""
    said = []

    def attempt(use):
        try:
            return use()
        except UserError as error:
            assert len(str(error)) <= 400  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            said.append(str(error))

    found = attempt(lambda: Plan.from_json(text, source="plan.json"))
    shown = [attempt(use) for use in (uses(loss, found) if found else ())]
    return [*said, *filter(None, shown)]


@pytest.mark.parametrize("change", [mutated, plausible])
@pytest.mark.parametrize("loss", ACTIONS)
def test_a_changed_plan_is_taken_or_refused_at_once_in_clean_words(
    loss, change, caplog
):
    text = plan(loss).to_json()
    told(text, loss)  # what is done once
    for seed in range(NUM_PLANS[change]):
        changed = change(text, random.Random(f"{loss.__name__} {seed}"))
        with counted() as calls:
            said = told(changed, loss)
        assert all(map(is_clean, (*said, *caplog.messages))), (seed, said)
        assert calls.number < MOST_CALLS, (seed, said)


# One kind at a time ----------------------------------------------------------------


def edited(**changes):
    return json.dumps(json.loads(plan(stacked).to_json()) | changes)


def with_run(**changes):
    data = json.loads(plan(stacked).to_json())
    data["units"][0]["actions"][0] |= changes
    return json.dumps(data)


def with_units(number, layers=1):
    """Of one run each."""
    (unit,) = json.loads(plan(stacked).to_json())["units"]
    unit["actions"] = [unit["actions"][0] | {"layers": layers}]
    return edited(units=[unit | {"name": f"u{k}"} for k in range(number)])


def with_actions(number):
    data = json.loads(plan(stacked).to_json())
    data["units"][0]["actions"] *= number // len(data["units"][0]["actions"])
    return json.dumps(data, indent=None)


def long_number(key):
    return edited(**{key: 0}).replace(f'"{key}": 0', f'"{key}": 1{"0" * 4999}')


REFUSED = {
    "schema below one": (edited(schema=-1), "schema version -1, which there is not"),
    "schema zero": (edited(schema=0), "schema version 0, which there is not"),
    "schema a number with a point": (edited(schema=4.0), "no schema version"),
    "10^300 bytes": (edited(budget_bytes=10**300), "a number of 301 digits"),
    "2^63 bytes": (edited(compiled_bytes=2**63), "a number of 19 digits"),
    "5000 digits": (long_number("predicted_bytes"), "a number of 5000 digits"),
    "5000 digits of schema": (long_number("schema"), "a number of 5000 digits"),
    "bytes that are no number": (edited(budget_bytes=float("nan")), "number NaN"),
    "bytes without end": (edited(budget_bytes=float("inf")), "number Infinity"),
    "bytes with a point": (edited(budget_bytes=1e300), "'budget_bytes' is 1e"),
    "no chunks": (with_run(chunks=0), "'chunks' is 0"),
    "no layers in a segment": (with_run(segment_length=0), "'segment_length' is 0"),
    "more layers than there are": (with_run(layers=200_000), "100,000 are the most"),
    "20,000 units": (with_units(20_000), "it has 20,000 units, and 10,000 are"),
    "200,000 actions": (with_actions(200_000), "at most 8,388,608"),
    "100,001 short actions": (
        edited(units=[{"name": "stack", "actions": [{}] * 100_001}]),
        "'actions' has 100,001 entries",
    ),
    "100,000 actions of a wrong kind": (
        edited(units=[{"name": "stack", "actions": [{}] * 100_000}]),
        "'layers' is missing",
    ),
    "lists in lists": (edited(units=eval("[" * 90 + "]" * 90)), "'actions' is missing"),
    "lists without end": ("[" * 1_000_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_can_be_is_refused_at_once(case):
    text, message = REFUSED[case]
    with counted() as calls, pytest.raises(UserError) as caught:
        Plan.from_json(text)
    assert calls.number < MOST_CALLS_REFUSED
    assert message in str(caught.value)
    assert len(str(caught.value)) <= 400


def test_the_largest_plans_are_read():
    text = with_units(MOST_UNITS, MOST_LAYERS // MOST_UNITS)
    assert len(text) < MOST_PLAN_BYTES
    assert len(Plan.from_json(text).units) == MOST_UNITS


@pytest.mark.parametrize("name", ["a\x1b[31m", "b\u202ec", "d\n", "e\x9b", "f\ud800"])
@pytest.mark.parametrize("field", ["target", "held_by", "jax_version"])
def test_names_are_shown_without_control_characters(name, field):
    found = Plan.from_json(edited(**{field: name}, compiled_bytes=101))
    shown = [str(found), repr(found), rr.render(found, color=True)]
    shown += [found.version_note, found.target_note("local")]
    assert all(map(is_clean, shown))
    assert name not in "".join(shown)


# Plans made elsewhere --------------------------------------------------------------


def test_a_plan_of_another_jax_is_taken_and_says_so(caplog):
    other = Plan.from_json(edited(jax_version="0.11.9"))
    loss = rr.apply(stacked, other)
    (line,) = caplog.messages
    assert "made with JAX 0.11.9 and this is" in line
    expected = jax.grad(stacked)(W, X)
    assert jnp.allclose(jax.grad(loss)(W, X), expected)


def test_a_plan_of_this_jax_says_nothing(caplog):
    rr.apply(stacked, plan(stacked))
    assert caplog.messages == []
    assert plan(stacked).version_note == ""
    assert plan(stacked).target_note("h100:8") == ""
    assert plan(stacked, target="").target_note("cpu:1") == ""


PROGRAM = """
import jax, jax.numpy as jnp
import revremat as rr

def problem(target):
    ws = jax.ShapeDtypeStruct((4, 16, 16), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 16), jnp.float32)
    layer = lambda w, x: jnp.tanh(x @ w)
    loss = lambda ws, x: rr.stack(layer, ws, x).sum()
    return rr.Problem(loss=loss, specs=(ws, x), name="small")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    problem = load("program.py:problem", rr.target("cpu:1"), {})
    made = rr.trace(problem).plan({"stack": RECOMPUTE}, target="cpu:1")
    (tmp_path / "own.json").write_text(made.to_json())
    other = dataclasses.replace(made, target="h100:8", jax_version="0.11.9")
    (tmp_path / "other.json").write_text(other.to_json())
    return "program.py:problem"


def test_the_report_of_a_plan_made_elsewhere_says_so_and_compiles_it(program, capsys):
    texts = []
    for name in ("own", "other"):
        words = ["report", program, "--target", "cpu:1", "--plan", f"{name}.json"]
        assert main(words) == 0
        texts.append(" ".join(capsys.readouterr().out.split()))
    notes = ("made with JAX 0.11.9 and this", "made for h100:8 and is used on cpu:1")
    assert not any(note in texts[0] for note in notes)
    assert all(note in texts[1] for note in notes)
    sizes = [text.partition(" on each device")[0] for text in texts]
    assert sizes[0] == sizes[1]


def test_an_export_of_a_plan_made_elsewhere_says_so(program, capsys):
    assert main(["export", program, "other.json"]) == 0
    assert "made with JAX 0.11.9" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["\x1b[2J", "[" * 100_000, "\x00", "1" * 5000])
def test_a_damaged_plan_is_one_clean_line_on_the_command_line(program, capsys, damage):
    name = "a\x1b]0;owned\x07\u202e.json"
    Path(name).write_text(damage)
    for words in (["report", program, "--plan", name], ["export", program, name]):
        assert main(words) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        assert is_clean(told.err)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
def test_what_is_no_file_is_refused_at_once(kind, tmp_path):
    path = tmp_path / "plan.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
    with pytest.raises(UserError, match="cannot read a plan from it") as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
