"""What a comparison's records say: gains, what they are made of, and their tables."""

import math

import pytest

from experiments.bench import versus_gains, versus_tables
from experiments.bench.baselines import BASELINES


def test_programs_weigh_the_same_however_many_budgets_they_were_run_at():
    def done(*gains):  # None: the baseline has no plan
        rows = [
            {
                "search": {"step_us": 1.0},
                "baselines": {"greedy": gain and {"step_us": gain}},
            }
            for gain in gains
        ]
        return {"budgets": rows}

    found = {"a": done(4.0), "b": done(2.0, 2.0, 2.0, 1.0), "c": done(None, None)}
    assert versus_gains.means(found, "greedy") == {
        "mean of programs": pytest.approx(2 ** ((2 + 3 / 4) / 2)),
        "mean of budgets": pytest.approx(2.0),
    }


@pytest.mark.parametrize(
    ("plan", "baseline_us", "says"),
    [
        ({"bytes": 998}, None, "within 0.3% 2, "),
        ({"bytes": 900}, 100.0, "the fastest plan there is takes no more 1, "),
        ({"bytes": 900, "bound_us": 99.9}, None, "is 0.2% faster 1; "),
        ({"bytes": 900, "bound_us": 99.0}, None, "other ones 1"),
        ({"bytes": 900, "bound_us": 99.9}, 99.0, "other ones 1"),
        (
            {"bytes": 900, "bound_us": 99.0, "filled": True},
            None,
            "that fits is faster 1",
        ),
        ({"bytes": 900, "bound_us": 99.0, "filled": True}, 99.0, "other ones 1"),
        ({"bytes": 1100, "bound_us": 99.9}, None, "budgets exceeded 1; "),
    ],
)
def test_what_is_left_of_a_budget_is_told_by_what_it_is_good_for(
    plan, baseline_us, says
):
    mine = {"step_us": 100.0, **plan}
    larger = {"bytes": 2000, "step_us": 90.0 if baseline_us != 100.0 else 100.0}
    baseline = baseline_us and {"bytes": 990, "step_us": baseline_us}
    found = [
        {"budget_bytes": 2000, "search": larger, "baselines": {}},
        {"budget_bytes": 1000, "search": mine, "baselines": {"greedy": baseline}},
    ]
    told = "\n".join(versus_tables.closely_met({"moe": {"budgets": found}}))
    assert says in told


def test_gains_leave_out_baselines_without_an_answer_and_not_the_search(capsys):
    at = lambda mine, theirs: {
        "search": mine and {"step_us": mine},
        "baselines": {"greedy": theirs and {"step_us": theirs}},
    }
    found = {"budgets": [at(2.0, 3.0), at(2.0, None), at(None, None), at(None, 1.0)]}
    *known, lost = versus_gains.gains(found, "greedy")
    assert known == [1.5, None, None]
    assert math.isnan(lost)
    assert math.isnan(versus_gains.geometric_mean([1.5, lost]))


@pytest.mark.parametrize(
    ("found", "says"),
    [({"bound_us": 80.0}, "25.0%"), ({"bound_us": 0.0}, "-"), ({}, "-")],
)
def test_a_bound_is_told_where_there_is_one(found, says):
    mine = {"name": "recompute all", "bytes": 9, "step_us": 100.0, **found}
    at = {
        "budget_bytes": 10,
        "search": mine,
        "baselines": {r.name: None for r in BASELINES},
    }
    done = {"target": "cpu:1", "baseline": mine, "budgets": [at]}
    done |= {"compiles": {"search": 1}, "seconds": {"search": 1.0}}
    row = versus_tables.rows_of("moe", done).splitlines()[2].split()
    assert row[:6] == ["10", "B", "100", "us", "10.0%", says]


def at(budget, search, alike=None, **baselines):
    row = lambda us: us and {"step_us": us, "bytes": budget}
    named = {name.replace("_", " "): row(us) for name, us in baselines.items()}
    mine = {"search": row(search), "alike": row(alike), "baselines": named}
    return {"budget_bytes": budget, **mine}


FAIR = {
    "baseline": {"bytes": 200, "step_us": 90.0},
    "unrolled": {"bytes": 100, "step_us": 50.0},
    "budgets": [
        at(150, 50.0, 50.0, uniform_preset=80.0, plain_JAX=50.0),
        at(90, 52.0, 55.0, uniform_preset=88.0, plain_JAX=60.0, greedy=57.2),
        at(70, 60.3, 66.0, uniform_preset=None, plain_JAX=60.0),
        at(50, 70.0, 77.0, uniform_preset=99.0, plain_JAX=84.0),
    ],
}


def test_a_plan_is_held_to_the_best_of_all_baselines():
    gains = [1.0, 57.2 / 52, 60 / 60.3, 84 / 70]
    assert versus_gains.gains_over_best(FAIR) == pytest.approx(gains)
    assert versus_gains.gains_over_best(FAIR, 0.8) == pytest.approx(gains[2:])
    assert versus_gains.gains_over_best(FAIR, 0.6) == pytest.approx(gains[3:])
    text = "\n".join(versus_tables.fair({"small": FAIR}))
    assert "1.093 x the best baseline at budgets below 80%" in text
    assert "1.200 x the best baseline at budgets below 60%" in text
    assert "faster or more: 1\n  small, 70 B: 0.9950" in text


def test_no_gain_is_above_what_it_would_be_if_memory_cost_nothing():
    most = [50 / 50, 57.2 / 50, 60 / 50, 84 / 50]
    assert versus_gains.ceilings(FAIR) == pytest.approx(most)
    assert versus_gains.ceilings(FAIR, 0.6) == pytest.approx(most[3:])
    text = "\n".join(versus_tables.fair({"small": FAIR}))
    assert "below 60% of plain unrolled loops, 1.10 promised: held; 1.680 if" in text


def test_a_plan_at_its_bound_gains_no_more_than_that():
    """Without a bound it gains what it would if memory cost nothing."""
    budgets = [dict(at) for at in FAIR["budgets"]]
    for place, bound_us in ((1, 51.0), (2, 40.0), (3, 0.0)):
        budgets[place]["search"] = {**budgets[place]["search"], "bound_us": bound_us}
    found = {**FAIR, "budgets": budgets}
    gains = [50 / 50, 57.2 / 51, 60 / 50, 84 / 50]
    assert versus_gains.attainable(found) == pytest.approx(gains)
    assert versus_gains.attainable(found, 0.8) == pytest.approx(gains[2:])
    text = "\n".join(versus_tables.fair({"small": found}))
    assert (
        "1.680 if memory cost nothing, 1.680 if all plans were at their bounds" in text
    )


def test_the_parts_of_a_gain_make_up_the_whole():
    first, second, third, last = (versus_gains.shares(at) for at in FAIR["budgets"])
    assert first == {"unrolling": 1.0, "sets": 0.0, "mixing": 0.0}
    assert sum(second.values()) == pytest.approx(1.0)
    whole = math.log(88 / 52)
    assert second["unrolling"] == pytest.approx(math.log(88 / 60) / whole)
    assert second["mixing"] == pytest.approx(math.log(55 / 52) / whole)
    assert third is None  # no preset fits in a scan
    assert last["sets"] == pytest.approx(math.log(84 / 77) / math.log(99 / 70))


def test_a_table_has_every_budget_and_who_is_best_there():
    fair = {**FAIR, "budgets": [*FAIR["budgets"], at(30, 99.0, greedy=None)]}
    table = versus_tables.budgets_table({"small": fair}).splitlines()
    none = " - | - | - | - |"
    first, best = "| small | 150 B | 150% | 150 B, 50 us | - |", "plain JAX, 50 us"
    assert table[2] == f"{first} {best} | 1.000 | 1.000 | 1.600 | 100% | 0% | 0% |"
    first, best = "| small | 90 B | 90% | 90 B, 52 us | - |", "greedy, 57 us"
    assert table[3] == f"{first} {best} | 1.100 | 1.144 | 1.692 | 73% | 17% | 11% |"
    assert table[4].endswith(f"| plain JAX, 60 us | 0.995 | 1.200 |{none}")
    assert table[6].endswith(f"| none fits | - | - |{none}")
