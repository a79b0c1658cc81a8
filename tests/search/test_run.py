"""A search takes the oracle and the numbers that it is given."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import _search
from revremat._search import Heuristics
from tests.search.programs import repeats

BUDGET = 17 * 2**20


def program():
    """A loop whose layers may be kept or recomputed."""

    def loss(w, x):
        return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()

    w = jax.ShapeDtypeStruct((6, 16, 16), jnp.float32)
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((512, 16), jnp.float32)))


def with_time(found, us):
    """A measurement whose step takes so long."""
    return dataclasses.replace(found, time=dataclasses.replace(found.time, step_us=us))


class Noting:
    """The compiler, and what it said."""

    def __init__(self, target):
        self.target, self.steps, self.table = target, [], {}

    def __call__(self, step):
        self.steps.append(step)
        self.table[step.key] = rr.measure(step, target=self.target)
        return self.table[step.key]


@pytest.fixture(scope="module")
def noted():
    problem, oracle = repeats(4), Noting("cpu:1")
    fit = rr.fit(problem, budget=BUDGET, target="cpu:1", oracle=oracle)
    return problem, oracle, fit


@pytest.mark.slow
def test_an_oracle_of_the_compilers_answers_changes_nothing(noted):
    problem, _, fit = noted
    usual = rr.fit(problem, budget=BUDGET, target="cpu:1")
    assert usual.plan == fit.plan
    assert [r.name for r in usual.rows] == [r.name for r in fit.rows]
    assert usual.num_compiles == fit.num_compiles


def test_every_program_is_asked_about_once_and_whole_ones_with_their_plan(noted):
    problem, oracle, fit = noted
    assert len(oracle.table) == len(oracle.steps) == fit.num_compiles
    first, *others = oracle.steps
    assert first.plan is None
    assert first.name == problem.name
    plans = [step.plan.actions for step in others if step.plan is not None]
    assert plans == [row.plan.actions for row in fit.rows if row.plan is not None]
    assert 0 < len(plans) < len(others)


def test_a_table_takes_the_compilers_place(noted):
    problem, oracle, fit = noted
    asked = []

    def table(step):
        asked.append(step.key)
        return oracle.table[step.key]

    again = rr.fit(problem, budget=BUDGET, target="cpu:1", oracle=table)
    assert asked == [step.key for step in oracle.steps]
    assert again.plan == fit.plan
    assert (again.bound_us, again.greedy_us) == (fit.bound_us, fit.greedy_us)


@pytest.mark.parametrize("faster", ["recompute", "save"])
def test_its_times_decide(faster):
    """What keeps less is the faster one, or what keeps more."""

    def oracle(step):
        found = rr.measure(step, target="cpu:1")
        kept = found.memory.temp_bytes
        us = 1.0 + kept if faster == "recompute" else 1e9 / (1.0 + kept)
        return dataclasses.replace(
            found, time=dataclasses.replace(found.time, step_us=us)
        )

    fit = rr.fit(program(), budget="1GiB", target="cpu:1", oracle=oracle)
    sizes = [row.measurement.memory.temp_bytes for row in fit.rows]
    wanted = min(sizes) if faster == "recompute" else max(sizes)
    assert fit.measurement.memory.temp_bytes == wanted
    assert fit.measurement.time.step_us == min(r.time_us for r in fit.rows)
    assert len(set(sizes)) > 1


def test_search_and_frontier_take_one_too():
    how = {"target": "cpu:1", "unroll": False}
    oracle = Noting("cpu:1")
    plan = rr.search(program(), budget="320KiB", oracle=oracle, **how)
    assert plan == rr.search(program(), budget="320KiB", **how)
    before = len(oracle.steps)
    assert before > 3
    points = rr.frontier(program(), num_budgets=2, oracle=oracle, **how).points
    assert len(oracle.steps) > before
    assert points == rr.frontier(program(), num_budgets=2, **how).points


@pytest.mark.parametrize("number", range(1, 6))
def test_one_failing_program_is_dropped_whatever_it_is(noted, number):
    problem, known, _ = noted
    key = known.steps[number].key
    others = Noting("cpu:1")

    def oracle(step):
        if step.key == key:
            raise RuntimeError("no way")
        return known.table.get(step.key) or others(step)

    fit = rr.fit(problem, budget=BUDGET, target="cpu:1", oracle=oracle)
    assert [one.reason for one in fit.dropped] == ["RuntimeError: no way"]
    assert fit.measurement in [row.measurement for row in fit.rows]


def test_the_program_itself_failing_is_the_oracles_error():
    def oracle(step):
        raise KeyError("nothing is known")

    with pytest.raises(KeyError, match="nothing is known"):
        rr.fit(program(), budget="320KiB", target="cpu:1", oracle=oracle)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda m: None, "the oracle answered with a NoneType: return an rr.Meas"),
        (lambda m: m.time, "the oracle answered with a Time: return an rr.Measurement"),
        (
            lambda m: with_time(m, float("nan")),
            "the oracle answered time.step_us = nan: return a measurement whose",
        ),
        (lambda m: with_time(m, -1.0), r"time\.step_us = -1\.0: "),
        (lambda m: with_time(m, float("inf")), r"time\.step_us = inf: "),
        (
            lambda m: dataclasses.replace(
                m, memory=dataclasses.replace(m.memory, temp_bytes=-(10**12))
            ),
            "memory.total_bytes = -9",
        ),
    ],
)
def test_an_answer_that_is_none_is_refused_in_a_sentence(changed, sentence):
    oracle = lambda step: changed(rr.measure(step, target="cpu:1"))
    with pytest.raises(rr.UserError, match=sentence):
        rr.fit(program(), budget="320KiB", target="cpu:1", oracle=oracle)


def test_a_step_that_leaves_out_its_loss_is_refused_whoever_is_asked():
    of = program()
    step = lambda _: (jax.grad(of.loss), of.specs)
    problem = rr.Problem(of.loss, of.specs, step=step)
    oracle = lambda _: pytest.fail("was asked")
    with pytest.raises(rr.UserError, match="step does not use the loss it is given"):
        rr.fit(problem, budget="1GiB", target="cpu:1", oracle=oracle)


def test_numbers_that_decide_may_be_others(noted):
    problem, _, fit = noted
    heuristics = Heuristics(most_candidates=2, most_local_steps=0, num_runners_up=0)
    found = _search.run(problem, rr.target("cpu:1"), BUDGET, heuristics=heuristics)
    assert found.num_compiles < fit.num_compiles
    assert found.plan.fits
