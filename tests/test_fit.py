"""A searched plan stays within its budget, says so truly, and computes the same."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._fit import fit, presets
from revremat._saved import what_is
from revremat.policies import PRESETS

DEPTH, WIDTH, ROWS = 9, 64, 1024


def layer(ws, x):
    up, down = ws
    h = rr.name(x @ up, "up")
    return x + jax.nn.gelu(h) @ down


def loss(ws, x):
    return jnp.mean(rr.stack(layer, ws, x) ** 2)


def specs(depth=DEPTH):
    return (
        (
            jax.ShapeDtypeStruct((depth, WIDTH, 4 * WIDTH), jnp.float32),
            jax.ShapeDtypeStruct((depth, 4 * WIDTH, WIDTH), jnp.float32),
        ),
        jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
    )


def plain_bytes(target):
    return rr.measure(jax.value_and_grad(loss), *specs(), target=target).memory


@pytest.fixture(scope="module")
def searched():
    """Plans at falling budgets on a card that is not there, and what was compiled."""
    plain = plain_bytes("h100:1").total_bytes
    shares = (1.2, 0.6, 0.42)
    return plain, {
        share: rr.fit(loss, *specs(), budget=int(share * plain), target="h100:1")
        for share in shares
    }


def test_a_returned_plan_never_exceeds_its_budget(searched):
    """Nor does the loss that comes back take more than the plan says."""
    plain, found = searched
    for share, one in found.items():
        again = rr.measure(jax.value_and_grad(one.loss), *specs(), target="h100:1")
        assert again.memory.total_bytes == one.plan.compiled_bytes
        assert one.plan.compiled_bytes <= share * plain
        assert one.plan.fits
        assert one.measurement.memory.total_bytes == one.plan.compiled_bytes


def test_lowering_the_budget_never_makes_the_step_faster(searched):
    """Of equally fast plans any may be found, a few alignments larger or smaller."""
    _, found = searched
    times = [found[share].measurement.time.step_us for share in sorted(found)]
    for less, more in itertools.pairwise(times):
        assert less >= more * (1 - 1e-9)
    assert times[0] > times[-1]
    assert found[0.42].plan.compiled_bytes < found[1.2].plan.compiled_bytes


def test_the_chosen_program_is_the_fastest_compiled_one_that_fits(searched):
    _, found = searched
    for one in found.values():
        fitting = [r for r in one.rows if r.bytes <= one.plan.budget_bytes]
        if fitting:
            assert one.measurement.time.step_us == min(r.time_us for r in fitting)
        assert one.bound_us > 0
        # Where plain unrolled loops end a search nothing is assigned.
        assert one.greedy_us is None or one.greedy_us >= one.bound_us


def test_no_uniform_preset_that_fits_is_faster(searched):
    _, found = searched
    rows = presets(rr.Problem(loss, specs()), target="h100:1")
    assert [row.name for row in rows] == ["baseline", *PRESETS]
    for one in found.values():
        for row in rows:
            if row.bytes <= one.plan.budget_bytes:
                assert one.measurement.time.step_us <= row.time_us * (1 + 1e-9)


@pytest.mark.slow
def test_layers_are_unrolled_unless_loops_are_to_stay(searched):
    def unrolled(one):
        plans = [row.plan for row in one.rows if row.plan is not None]
        return any(a.unroll for p in plans for unit in p.units for a in unit.actions)

    plain, found = searched
    budget = int(0.6 * plain)
    loops = rr.fit(loss, *specs(), budget=budget, target="h100:1", unroll=False)
    assert unrolled(found[0.6])
    assert not unrolled(loops)
    assert found[0.6].measurement.time.step_us <= loops.measurement.time.step_us


def test_what_was_found_is_written_whole(searched, tmp_path):
    _, found = searched
    data = json.loads(rr.write(found[0.6], tmp_path / "fit.json").read_text())
    assert rr.Plan.from_json(json.dumps(data["plan"])) == found[0.6].plan
    measured = rr.Measurement.from_json(json.dumps(data["measurement"]))
    assert measured == found[0.6].measurement
    assert len(data["rows"]) == len(found[0.6].rows)


def test_a_fit_comes_back_as_a_record_of_it(searched, tmp_path):
    """All but the loss, which is a function."""
    fit = searched[1][0.6]
    path = rr.write(fit, tmp_path / "fit.json")
    record = rr.load(path)
    assert isinstance(record, rr.FitRecord)
    assert (record.plan, record.measurement) == (fit.plan, fit.measurement)
    trials = [(row.name, row.bytes, row.step_us) for row in record.rows]
    assert trials == [(row.name, row.bytes, row.time_us) for row in fit.rows]
    assert record.facts["num_compiles"] == fit.num_compiles
    assert rr.write(record, tmp_path / "again.json").read_text() == path.read_text()
    assert what_is(path) == "a search's result"


def test_prediction_is_close_before_the_last_compile(searched):
    _, found = searched
    rows = {id(row): row for one in found.values() for row in one.rows if row.plan}
    predicted = [row for row in rows.values() if row.predicted_bytes is not None]
    assert predicted
    for row in predicted:
        assert row.predicted_bytes == pytest.approx(row.bytes, rel=0.02)
    # Measured before unrolled layers have a cost.
    unasked = [row for row in rows.values() if row.predicted_bytes is None]
    assert all(row.takes("unroll") for row in unasked)


def test_the_loss_that_comes_back_computes_the_same(searched):
    keys = iter(jax.random.split(jax.random.key(0), 3))
    ws, x = jax.tree.map(
        lambda s: 0.1 * jax.random.normal(next(keys), s.shape, s.dtype), specs()
    )
    want = jax.grad(loss)(ws, x)
    for one in searched[1].values():
        assert one.plan.units
        got = jax.grad(one.loss)(ws, x)
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
            assert jnp.allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_arrays_and_numbers_among_the_arguments_are_arguments():
    scaled = lambda ws, x, scale: scale * loss(ws, x)
    ws, x = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), specs(depth=4))
    found = fit(scaled, ws, x, 0.5, budget="1 GiB", target="cpu:1", most_compiles=12)
    assert found.plan.fits


def test_what_is_printed_by_hand_is_a_few_lines(searched):
    _, found = searched
    first, *plan, last = str(found[0.6]).splitlines()
    assert first.startswith("<Fit for h100:1: ")
    assert "\n".join(plan) == str(found[0.6].plan)
    assert "rr.render" in last


def test_programs_that_were_compiled_differently_are_counted(searched):
    _, found = searched
    fit = found[0.6]
    first, *others = fit.rows
    told = dataclasses.replace(first.measurement, notes=(*first.measurement.notes, "Q"))
    odd = dataclasses.replace(
        fit, rows=(dataclasses.replace(first, measurement=told), *others)
    )
    assert "programs: " not in rr.render(fit)
    assert f"1 of {len(fit.rows)} programs: Q" in rr.render(odd)


def test_a_plan_is_applied_from_its_file(searched, tmp_path):
    _, found = searched
    one = found[0.42]
    one.plan.save(tmp_path / "plan.json")
    again = rr.apply(loss, rr.Plan.load(tmp_path / "plan.json"))
    m = rr.measure(jax.value_and_grad(again), *specs(), target="h100:1")
    assert m.memory.total_bytes == one.plan.compiled_bytes


def test_an_impossible_budget_returns_the_smallest_and_what_holds_it():
    plan = rr.search(loss, *specs(), budget="200KiB", target="h100:1")
    assert not plan.fits
    assert plan.shortfall_bytes == plan.compiled_bytes - 200 * 1024
    assert plan.held_by
    with pytest.raises(rr.DoesNotFit, match="no plan stays within 200 KiB on h100:1"):
        rr.search(loss, *specs(), budget="200KiB", target="h100:1", strict=True)


def test_a_budget_beyond_need_keeps_the_fastest(searched):
    rich = searched[1][1.2]
    assert rich.plan.fits
    assert rich.measurement.time.step_us == min(r.time_us for r in rich.rows)


@pytest.mark.parametrize("most", [9, 10])
def test_no_more_is_compiled_than_is_allowed(searched, most):
    plain, free = searched
    budget = int(0.6 * plain)
    found = fit(loss, *specs(), budget=budget, target="h100:1", most_compiles=most)
    assert found.num_compiles <= most < free[0.6].num_compiles
    assert found.plan.fits
    (full,) = (
        row.time_us for row in found.rows if row.name == f"{DEPTH} x recompute all"
    )
    assert found.measurement.time.step_us < full


def tight(w, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0].sum()


@pytest.mark.parametrize(("most", "fits"), [(7, False), (60, True)])
def test_where_a_limit_kept_out_what_fits_it_says_so(most, fits):
    """In 1.5 MiB only layers that are unrolled."""
    arrays = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((6, 64, 64), (512, 64))]
    how = {"budget": "1.5MiB", "target": "cpu:1", "most_compiles": most}
    found = rr.fit(tight, *arrays, **how)
    assert (found.plan.fits, found.is_cut_short) == (fits, not fits)
    assert ("the limit of compiles cut " in rr.render(found)) == (not fits)
    if not fits:
        with pytest.raises(rr.DoesNotFit, match="; allow more than 7 compiles to try"):
            rr.fit(tight, *arrays, **how, strict=True)


def test_a_search_that_may_compile_too_little_says_how_much_it_needs():
    with pytest.raises(rr.UserError, match=r"2 compiles are too few .* needs 6"):
        fit(loss, *specs(), budget="1MiB", target="h100:1", most_compiles=2)


@pytest.mark.parametrize("most", ["12", 12.0, True])
def test_how_many_compiles_there_may_be_is_a_number(most):
    with pytest.raises(rr.UserError, match=f"{most!r}, which is no number of compiles"):
        fit(loss, *specs(), budget="1MiB", target="h100:1", most_compiles=most)


def test_progress_is_told_before_each_compile(searched):
    told = []
    found = fit(
        loss,
        *specs(),
        budget=int(0.6 * searched[0]),
        target="h100:1",
        progress=lambda name, done, total: told.append((name, done, total)),
    )
    assert len(told) == found.num_compiles
    assert [done for _, done, _ in told] == list(range(found.num_compiles))
    _, *totals = [total for *_, total in told]  # before the first nothing is known
    assert found.num_compiles / 2 < totals[0] < 4 * found.num_compiles
    assert totals == sorted(totals)


def linear(w, x):
    return (x * w).sum()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"specs": specs()[1]}, "arguments of its loss.*one ShapeDtypeStruct: put it"),
        ({"specs": specs(), "donate": ("x",)}, r"by positions.*not by \('x',\)"),
        ({"specs": specs(), "donate": 0.5}, "by positions.*not by 0.5"),
    ],
)
def test_a_problem_says_what_it_is_made_of(given, sentence):
    with pytest.raises(rr.UserError, match=sentence):
        rr.Problem(loss, **given)


@pytest.mark.parametrize("donate", [0, (0,), [0], range(1), (np.int64(0),)])
def test_donated_positions_are_whole_numbers(donate):
    assert rr.Problem(loss, specs(), donate=donate).donate == (0,)


@pytest.mark.parametrize(
    ("problem", "args", "budget", "sentence"),
    [
        (loss, specs(), "60 gigs", "'60 gigs' is no number of bytes"),
        (loss, specs(), 0, "a budget of 0 bytes is not above zero"),
        (lambda ws, x: rr.stack(layer, ws, x), specs(), "1GiB", "a loss returns one"),
        (rr.Problem(loss, specs()), specs(), "1GiB", "has its own specs"),
        (
            rr.Problem(loss, specs(), step=lambda _: (jax.grad(loss), specs())),
            (),
            "1GiB",
            "step does not use the loss it is given",
        ),
        (
            rr.Problem(loss, specs(), step=lambda _: (None, specs())),
            (),
            "1GiB",
            r"a function and the tuple of its arguments; this one returned \(NoneType, "
            r"tuple\)",
        ),
        (
            rr.Problem(loss, specs(), donate=(7,)),
            (),
            "1GiB",
            r"donate=\(7,\) names an argument that the step is not given: it has 2",
        ),
        (
            loss,
            (specs()[0], "text"),
            "1GiB",
            "which is not an array",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(problem, args, budget, sentence):
    with pytest.raises(rr.UserError, match=sentence):
        rr.search(problem, *args, budget=budget, target="cpu:1")
