"""XLA's own remat pass as a part of a plan: found, told, set, and refused."""

import contextlib
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import SAVE, Plan, UserError, xla
from revremat._report._diff_plans import diff_plans, plans_text
from tests.xla.programs import spec

LAYERS = 8
W, X = spec(LAYERS, 64, 64), spec(8192, 64)


def small_card():
    """An H100 with 24 MiB, of which XLA gets 19 and the step takes 20."""
    card, size = rr.target("h100:1").card, 24 << 20
    card = dataclasses.replace(card, device_memory_size=size, reserve_bytes=size // 5)
    return dataclasses.replace(rr.target("h100:1"), card=card)


TARGET = small_card()


def loss(w, x):
    layer = lambda x, w: (jnp.sin(x) @ w, None)
    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()


def graph():
    return rr.trace(loss, W, X)


def plan(percent=60):
    return graph().plan({"scan_0": SAVE(unroll=True)}, remat_pass_percent=percent)


def step_of(plan):
    step = jax.value_and_grad(rr.apply(loss, plan))
    return rr.Step(step, (W, X), name="step", plan=plan)


def test_it_is_a_part_of_the_plan_and_of_its_text():
    found = plan(80)
    assert Plan.from_json(found.to_json()) == found
    assert "with XLA's own remat pass at 80 %" in str(found)
    assert "remat pass" not in str(plan(None))


@pytest.mark.parametrize("schema", [4, 5])
def test_older_plans_have_it_off(schema):
    data = json.loads(plan(None).to_json())
    del data["remat_pass_percent"]
    found = Plan.from_json(json.dumps(data | {"schema": schema}))
    assert found == plan(None)


@pytest.mark.parametrize("percent", [0, -3, 1.5, "95", True])
def test_a_limit_that_is_none_is_refused(percent):
    data = json.loads(plan(80).to_json()) | {"remat_pass_percent": percent}
    with pytest.raises(UserError, match="damaged plan: 'remat_pass_percent' is"):
        Plan.from_json(json.dumps(data))
    with pytest.raises(UserError, match=r"is no limit: write a whole number"):
        plan(percent)


def test_a_plan_of_this_schema_says_whether_it_is_on():
    data = json.loads(plan(80).to_json())
    del data["remat_pass_percent"]
    with pytest.raises(UserError, match="'remat_pass_percent' is missing"):
        Plan.from_json(json.dumps(data))


@pytest.fixture(scope="module")
def sizes():
    """What the step takes with the pass off, and with a limit below that."""
    return {
        percent: rr.measure(step_of(plan(percent)), target=TARGET).memory.total_bytes
        for percent in (None, 60)
    }


def test_the_limit_says_what_the_step_takes(sizes):
    assert sizes[60] < sizes[None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [pytest.param("compiler_options", marks=pytest.mark.slow), "compiling"]
)
def test_a_plan_hands_out_what_makes_a_compile_the_measured_one(how, sizes):
    """By the bytes of an executable that JAX itself made, no matter for which card."""
    for percent, size in sizes.items():
        found = plan(percent)
        given = found.compiler_options if how == "compiler_options" else None
        within = found.compiling if how == "compiling" else contextlib.nullcontext
        asked = {"xla_gpu_autotune_level": 0}  # there is no card to tune on
        with within():
            step = jax.jit(jax.value_and_grad(rr.apply(loss, found)))
            lowered = xla.lower_step(step, (W, X), TARGET).program
            made = lowered.compile({**asked, **(given or {})}).memory_analysis()
        total = made.argument_size_in_bytes + made.output_size_in_bytes
        assert total - made.alias_size_in_bytes + made.temp_size_in_bytes == size


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("cpu:1", "XLA has no rematerialization pass for CPUs"),
        ("cpu:8", "XLA has no rematerialization pass for CPUs"),
        ("v5e:2x2", "takes no limit for its rematerialization pass"),
    ],
)
def test_where_it_cannot_be_set_a_sentence_says_so(target, reason):
    with pytest.raises(UserError, match=reason) as told:
        rr.measure(step_of(plan()), target=target)
    assert "search again" in str(told.value)
    assert "60 %" in str(told.value)


@pytest.mark.parametrize("percent", [None, 60])
def test_who_applies_such_a_plan_is_told_how_to_compile(percent, caplog):
    rr.apply(loss, plan(percent))
    told = "give plan.compiler_options to jax.jit" in caplog.text
    assert told == (percent is not None)


def test_export_says_what_is_lost():
    (one,) = [s for s in rr.export(plan(), graph()).lost if "remat pass" in s]
    assert "60 %" in one
    assert "plan.compiler_options" in one


def test_a_difference_of_two_plans_tells_it():
    text = plans_text(diff_plans(plan(None), plan(60)))
    assert "XLA's remat pass" in text
    assert "60 %" in text


@pytest.mark.parametrize(
    ("total", "fixed", "percent"),
    [
        (12 << 20, 3 << 20, 55),
        (24 << 20, 3 << 20, 129),  # more than XLA would take by itself
        (3 << 20, 3 << 20, None),  # nothing is left for temporaries
        (12 << 20, 20 << 20, None),  # XLA has no limit for those
    ],
)
def test_the_limit_for_a_size_is_a_share_of_what_is_left(total, fixed, percent):
    assert xla.remat_pass_percent(TARGET, total, fixed) == percent
    assert xla.remat_pass_percent(rr.target("cpu:1"), total, fixed) is None


def test_a_search_finds_it(sizes):
    budget = (sizes[60] + sizes[None]) // 2
    fit = rr.fit(loss, W, X, budget=budget, target=TARGET, most_compiles=16)
    rows = [r for r in fit.rows if r.plan and r.plan.remat_pass_percent]
    assert rows
    assert all("XLA's remat pass at" in row.name for row in rows)
    text = " ".join(rr.render(fit).split())
    told = f"remat pass on, with a limit of {fit.plan.remat_pass_percent} %" in text
    assert told == (fit.plan.remat_pass_percent is not None)
    assert fit.compiler_options == fit.plan.compiler_options
