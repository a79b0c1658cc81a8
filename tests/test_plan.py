"""Plans as data: what is written is read again, and nothing else is."""

import json

import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, Plan, UserError
from revremat._plan import SCHEMA_VERSION

ACTIONS = [SAVE, SAVE, RECOMPUTE(save=["hidden"], offload=["input"]), OFFLOAD]


def graph():
    layer = lambda w, x: rr.name(jnp.tanh(x @ w), "hidden")
    loss = lambda w, x: rr.stack(layer, w, x).sum()
    return rr.trace(loss, jnp.ones((4, 2, 2)), jnp.ones((3, 2)))


def plan(**about):
    about = {"target": "h100:8", "budget_bytes": 100, "compiled_bytes": 90} | about
    return graph().plan({"stack": ACTIONS}, **about)


def test_a_plan_comes_back_from_its_file(tmp_path):
    plan().save(tmp_path / "a" / "plan.json")
    assert Plan.load(tmp_path / "a" / "plan.json") == plan()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["plan.json"]


@pytest.mark.parametrize("place", [".", "file/plan.json", "/proc/none/plan.json"])
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").write_text("here before")
    with pytest.raises(UserError, match="cannot write"):
        plan().save(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_gradient_barrier_is_a_part_of_the_plan():
    ordered = plan(gradient_barrier=True)
    assert Plan.from_json(ordered.to_json()) == ordered
    assert "with a gradient barrier" in str(ordered)
    data = json.loads(plan().to_json())
    assert data.pop("gradient_barrier") is False
    assert Plan.from_json(json.dumps(data | {"schema": 3})) == plan()


def test_the_number_of_devices_is_a_part_of_the_plan():
    """Older files do not say it."""
    cut = plan(num_devices=8)
    assert Plan.from_json(cut.to_json()) == cut
    data = json.loads(plan().to_json())
    assert data.pop("num_devices") == 1
    assert Plan.from_json(json.dumps(data | {"schema": 7})) == plan()
    with pytest.raises(UserError, match="a damaged plan: 'num_devices'"):
        Plan.from_json(json.dumps(data))


def test_gradients_that_are_put_off_are_a_part_of_the_plan():
    off = plan(puts_gradients_off=True)
    assert Plan.from_json(off.to_json()) == off
    assert "with gradients put off" in str(off)
    with pytest.raises(UserError, match="exclude each other"):
        plan(puts_gradients_off=True, gradient_barrier=True)


@pytest.mark.parametrize("number", [0, True, 2.0, "8"])
def test_a_number_of_devices_is_a_whole_number(number):
    with pytest.raises(UserError, match=r"num_devices=.* is no number of devices"):
        plan(num_devices=number)


def test_keys_of_older_schemas_are_read():
    data = json.loads(plan(gradient_barrier=True).to_json())
    runs = data["units"][0]["actions"]
    runs[0]["segment_length"] = 2
    new = Plan.from_json(json.dumps(data))
    assert new.units[0].actions[0].segment_length == 2
    for run in runs:
        run["every"] = run.pop("segment_length")
    data["in_order"] = data.pop("gradient_barrier")
    assert Plan.from_json(json.dumps(data | {"schema": 4})) == new


def test_a_key_that_says_nothing_is_refused():
    data = json.loads(plan().to_json())
    data["units"][0]["actions"][0]["every"] = 2
    with pytest.raises(UserError, match="'every' is no part of an action"):
        Plan.from_json(json.dumps(data))


def test_a_flag_is_true_or_false():
    with pytest.raises(
        UserError, match="gradient_barrier='no' is neither True nor False"
    ):
        plan(gradient_barrier="no")


def test_equal_layers_are_written_once():
    runs = json.loads(plan().to_json())["units"][0]["actions"]
    assert [run["layers"] for run in runs] == [2, 1, 1]


def test_a_file_is_read_by_people_too():
    lines = graph().plan({"stack": SAVE}, budget_bytes=7).to_json().split("\n")
    assert lines[:2] == ["{", f' "schema": {SCHEMA_VERSION},']
    assert ' "budget_bytes": 7,' in lines
    assert '   "name": "stack",' in lines


@pytest.mark.parametrize(
    ("about", "fits", "shortfall_bytes"),
    [
        ({}, True, 0),
        ({"compiled_bytes": 101}, False, 1),
        ({"compiled_bytes": None, "predicted_bytes": 130}, False, 30),
        ({"compiled_bytes": 90, "predicted_bytes": 130}, True, 0),
        ({"compiled_bytes": None}, False, 0),
        ({"compiled_bytes": 10**12, "budget_bytes": None}, True, 0),
    ],
)
def test_whether_it_fits_is_what_the_compiler_said(about, fits, shortfall_bytes):
    assert plan(**about).fits is fits
    assert plan(**about).shortfall_bytes == shortfall_bytes


def test_actions_print_as_they_are_written():
    assert repr(RECOMPUTE) == "RECOMPUTE"
    action = RECOMPUTE(save=["b", "a"], ahead=["c"], chunks=4)
    assert repr(action) == "RECOMPUTE(save=['a', 'b'], ahead=['c'], chunks=4)"
    assert eval(repr(action), {"RECOMPUTE": RECOMPUTE}) == action


def written():
    return json.loads(plan().to_json())


def edited(**changes):
    return json.dumps(written() | changes)


def without(key):
    return json.dumps({k: v for k, v in written().items() if k != key})


def with_run(**changes):
    data = written()
    data["units"][0]["actions"][0] |= changes
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a plan: it is not JSON"),
        (plan().to_json()[:-30], "is not a plan: it is not JSON"),
        ("[1]", "it has no schema version"),
        ("{}", "it has no schema version"),
        ("[" * 100_000, "is not a plan: it is not JSON"),
        (
            edited(schema=99),
            "schema version 99 and this revremat reads versions up to 8",
        ),
        (edited(units=None), "damaged plan: 'units' is None"),
        (edited(budget_bytes="60GiB"), "damaged plan: 'budget_bytes' is '60GiB'"),
        (edited(units=[{"name": "x"}]), "damaged plan: 'actions' is missing"),
        (with_run(kind="__import__('os')"), "is no action; there are save, recompute"),
        (with_run(layers=10**12), "'layers' is 1000000000000"),
        (with_run(layers=True), "'layers' is True"),
        (with_run(save=[1]), r"'save' is \[1\]"),
        (edited(gradient_barrier="no"), "damaged plan: 'gradient_barrier' is 'no'"),
        (without("gradient_barrier"), "damaged plan: 'gradient_barrier' is missing"),
        (edited(num_devices=0), "damaged plan: 'num_devices' is 0"),
        (edited(num_devices=True), "damaged plan: 'num_devices' is True"),
        (
            edited(gradient_barrier=True, puts_gradients_off=True),
            "damaged plan: it has a gradient barrier and puts gradients off",
        ),
        (edited(schema=True), "it has no schema version"),
        (edited(compiled_bytes=-1), "damaged plan: 'compiled_bytes' is -1"),
        (
            edited(units=2 * written()["units"]),
            "damaged plan: unit 'stack' is there twice",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match="cannot read a plan"):
        Plan.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"stak": SAVE}, "no unit is called 'stak'; the units are: stack"),
        ({"stack": [SAVE]}, "has 4 layers and was given 1 actions"),
        ({"stack": INVERT}, "cannot take INVERT: it has no inverse"),
        ({"stack": RECOMPUTE(save=["x"])}, "it has no value named 'x'; it has: "),
        ({"stack": RECOMPUTE(chunks=2)}, "chunks=2.: it cannot be split"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(actions, message):
    with pytest.raises(UserError, match=message):
        graph().plan(actions)


@pytest.mark.parametrize("length", [0, -3, True, 2.0, "4"])
def test_segments_have_a_whole_number_of_layers(length):
    with pytest.raises(
        UserError, match=f"segment_length={length}|segment_length='{length}'"
    ):
        RECOMPUTE(segment_length=length)
