"""The benchmark of the step-time estimator in tiny sizes."""

import json

import jax
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import revremat as rr
from experiments.bench import step_time, step_time_programs, step_time_tables
from experiments.calibrate import curves, facts
from experiments.calibrate.programs import Here
from revremat.xla import load_card, with_changes

CARD = {"launch_us": 0.5, "curves": {"matmul.float32": [[1e3, 1e10], [1e9, 1e11]]}}


@pytest.mark.slow
def test_a_race_is_measured_kept_and_priced_again(tmp_path, capsys):
    card = tmp_path / "card.json"
    card.write_text(json.dumps({"card": CARD}))
    options = step_time.Options(
        programs=("mixer",),
        policies=2,
        rounds=2,
        one_thread=False,
        card=card,
        keep=tmp_path / "kept",
        quick=True,
        out=tmp_path,
    )
    step_time.main(options)
    first = json.loads((tmp_path / "step-time-cpu.json").read_text())
    rows = first["programs"]["mixer"]
    assert [row["policy"] for row in rows] == ["save all", "recompute all"]
    assert all(row["measured_us"] > 0 < row["calibrated_us"] for row in rows)
    assert rows[1]["recompute_us"] > rows[0]["recompute_us"] == 0
    step_time.main(step_time.dataclasses.replace(options, again=True))
    again = json.loads((tmp_path / "step-time-cpu.json").read_text())
    assert again["programs"] == first["programs"]
    assert "mixer" in capsys.readouterr().out


def test_all_units_follow_a_policy_and_no_two_are_alike():
    problem = step_time_programs.make("conv_blocks", Here(), "tiny")
    graph = rr.trace(problem.loss, *problem.specs)
    assert [unit.num_layers for unit in graph.units] == [2, 2]
    found = step_time_programs.policies(problem, 4)
    texts = {str(jax.make_jaxpr(p.step)(*p.specs)) for p in found}
    assert len(texts) == len(found) == 4


def test_what_makes_the_numbers_runs_once_for_all_policies():
    spec = jax.ShapeDtypeStruct((4,), "float32")
    runs, made = [], {}

    def fill(specs):
        runs.append(specs)
        return tuple(jax.numpy.ones(s.shape, s.dtype) for s in specs)

    one, two = (step_time._copied((spec,), fill, made)[0] for _ in "12")
    assert len(runs) == 1
    assert one.unsafe_buffer_pointer() != two.unsafe_buffer_pointer()


def test_a_race_on_no_numbers_is_none(tmp_path):
    spec = jax.ShapeDtypeStruct((4,), "float32")
    step = lambda state, x: (jax.numpy.sqrt(state - 1), x)
    policy = step_time_programs.Policy("save all", step, (spec, spec), (0,))
    with pytest.raises(step_time.NotFiniteError, match="save all: after 3 rounds its"):
        step_time.race([policy], 2, tmp_path, one_thread=False)


@pytest.mark.parametrize("name", ["conv_net", *step_time_programs.ON_CPU])
def test_programs_have_so_many_policies(name):
    problem = step_time_programs.make(name, Here(), "cpu")
    found = step_time_programs.policies(problem, 10)
    names = [policy.name for policy in found]
    assert len(set(names)) == 10
    assert names[:2] == ["save all", "recompute all"]
    unit = max(rr.trace(problem).units, key=lambda u: u.num_layers)
    assert [n.endswith("(unrolled)") for n in names[2:]] == [unit.is_loop] * 8


@pytest.mark.parametrize("name", step_time_programs.NAMES)
def test_every_program_can_be_traced_in_the_size_of_a_card(name):
    problem = step_time_programs.make(name, rr.target("cpu:1"), "gpu")
    (policy,) = step_time_programs.policies(problem, 1)
    first = jax.eval_shape(policy.step, *policy.specs)[0]
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert shapes(first) == shapes(policy.specs[0])


def test_a_card_gets_twelve_programs():
    assert len(step_time_programs.ON_GPU) == 12


NUMBERS = st.lists(st.integers(0, 8), min_size=2, max_size=8)


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_rank_correlation_is_scipys(one, data):
    two = data.draw(st.permutations(one))
    if len(set(one)) > 1:
        expected = scipy.stats.spearmanr(one, two).statistic
        assert step_time_tables.spearman(one, two) == pytest.approx(expected)


def row(measured, estimated):
    halves = [measured, -measured]
    us = {"measured_us": measured, "calibrated_us": estimated, "sheet_us": 1.0}
    return us | {"halves_us": halves}


def test_a_choice_is_judged_by_what_it_measures():
    found = step_time_tables.summary([row(100, 80), row(103, 70), row(200, 90)])
    assert found["choice_is_slower_by"] == pytest.approx(0.03)
    assert found["spread"] == pytest.approx(1.0)
    assert found["rank_correlation"] == pytest.approx(0.5)
    assert found["measured_twice"] == pytest.approx(-1)


@pytest.mark.parametrize("text", [None, "", "{}", '{"card": {"launch_us": -1}}'])
def test_a_card_that_cannot_be_read_is_a_sentence(text, tmp_path, capsys):
    file = tmp_path / "card.json"
    if text is not None:
        file.write_text(text)
    assert step_time.main(step_time.Options(card=file)) == 2
    out = capsys.readouterr().out
    assert f"--card {file} cannot be read" in out
    assert out.count("\n") == 1


def test_a_policy_is_as_fast_as_it_is_in_most_places():
    lucky = [(1, 3.0), (5, 4.0), (6, 9.0), (7, 8.0), (11, 7.0), (12, 99.0)]
    assert step_time.fastest_by_place(lucky) == 7.0
    assert step_time.fastest_by_place(lucky[:2]) == 3.0


def test_instructions_are_timed_with_the_work_that_the_estimator_counts():
    x = jax.numpy.ones((64, 64))
    rows = curves.timed(lambda x: x @ x, x)
    (product,) = [(m, s) for _, cost, s in rows for m in cost.matmuls]
    assert product[0].flops == 2 * 64**3
    assert 0 < product[1] < 0.1


def test_measured_curves_become_part_of_a_card():
    card = facts.card({}, "cpu", "cpu", CARD)
    assert card == CARD
    measured = with_changes(load_card("cpu"), card)
    assert measured.measured
    assert measured.curves == {"matmul.float32": ((1e3, 1e10), (1e9, 1e11))}
    older = {"strided": [[1, 1]]}
    for broken in ({"stream": [[1, -1]]}, {"stream": [[1, "x"]]}, {"stream": 3}, older):
        with pytest.raises((ValueError, TypeError)):
            with_changes(load_card("cpu"), {"curves": broken})
