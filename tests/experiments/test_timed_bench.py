"""The race of a timed plan with plain JAX: who is fastest, and what a search took."""

import json

import pytest

from experiments.bench import timed

FOUND = {
    "budget_bytes": 2**20,
    "raced": [
        {"name": "the plan", "bytes": 10, "measured_us": 100.0},
        {"name": "dots, scan", "bytes": 10, "measured_us": 104.0},
        {"name": "save all, unrolled", "bytes": 10, "measured_us": 110.0},
    ],
    "timed_search": {"processor_seconds": 30.0, "plan": ["scan_0: 4 x SAVE"]},
    "estimated_search": {"processor_seconds": 20.0, "plan": []},
}


def but_the_plan_takes(us):
    plan, *others = FOUND["raced"]
    return {**FOUND, "raced": [{**plan, "measured_us": us}, *others]}


def test_a_plan_is_held_against_the_fastest_of_the_others():
    found = timed.summary(FOUND)
    assert found == {"fastest_other": "dots, scan", "gain": 1.04, "search_ratio": 1.5}


def test_a_plan_that_was_not_raced_gains_nothing():
    found = timed.summary({**FOUND, "raced": FOUND["raced"][1:]})
    assert found["gain"] == 0


@pytest.mark.parametrize(
    ("us", "ahead", "behind"), [(100.0, 1, 0), (103.0, 0, 0), (107.0, 0, 1)]
)
def test_the_verdict_counts_three_percent_ahead_and_two_behind(us, ahead, behind):
    last = timed.verdict({"one": but_the_plan_takes(us)}).splitlines()[-1]
    assert last == (
        f"{ahead} of 1 are 3 % faster or more than anything else that fits; "
        f"{behind} are more than 2 % slower"
    )


def test_results_of_another_machine_are_not_gone_on_from(tmp_path):
    file, about = tmp_path / "timed.json", {"device": "one", "jax": "1"}
    assert timed._known(file, about) == {}
    file.write_text(json.dumps({**about, "programs": {"moe": FOUND}}))
    assert timed._known(file, about) == {"moe": FOUND}
    assert timed._known(file, {**about, "device": "another"}) == {}


def test_of_several_processes_each_programs_median_counts():
    race = lambda *times: [
        {"name": name, "bytes": 10, "measured_us": us}
        for name, us in zip(("the plan", "dots, scan"), times, strict=True)
    ]
    found = timed.median([race(8.9, 8.2), race(7.7, 7.8), race(8.1, 8.4)])
    assert [one["measured_us"] for one in found] == [8.1, 8.2]
    assert found[0] == {
        "name": "the plan",
        "bytes": 10,
        "measured_us": 8.1,
        "processes_us": [8.9, 7.7, 8.1],
    }


def test_no_process_is_none(capsys):
    assert timed.main(timed.Options(processes=0)) == 2
    assert "--processes 0" in capsys.readouterr().out
