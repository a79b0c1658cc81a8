"""The race of a timed plan with plain JAX: who is fastest, and what a search took."""

import json

import pytest

from experiments.bench import timed, timed_tables


def one(name, by, us, **also):
    about = {"name": name, "by": [by], "also": [], "bytes": 10, "measured_us": us}
    for other, other_by in also.items():
        about["also"].append(other)
        about["by"].append(other_by)
    return about


FOUND = {
    "budget_bytes": 2**20,
    "raced": [
        one("the plan", "", 100.0),
        one("dots, unrolled", "plain JAX", 110.0),
        one("greedy 0.4", "greedy", 104.0),
    ],
    "timed_search": {"seconds": 30.0, "plan": ["scan_0: 4 x SAVE"]},
    "estimated_search": {"seconds": 20.0, "plan": []},
}


def but_the_plan_takes(us):
    plan, *others = FOUND["raced"]
    return {**FOUND, "raced": [{**plan, "measured_us": us}, *others]}


def test_a_plan_is_held_against_plain_jax_and_against_all():
    assert timed_tables.summary(FOUND) == {
        "fastest_plain": "dots, unrolled",
        "over_plain": 1.1,
        "fastest_other": "greedy 0.4",
        "over_other": 1.04,
        "search_ratio": 1.5,
    }


def test_what_others_proposed_too_is_the_same_program():
    raced = [one("the plan", "", 100.0, greedy="greedy"), *FOUND["raced"][1:2]]
    found = timed_tables.summary({**FOUND, "raced": raced})
    assert (found["fastest_other"], found["over_other"]) == ("greedy", 1.0)
    assert (found["fastest_plain"], found["over_plain"]) == ("dots, unrolled", 1.1)


def test_a_plan_that_was_not_raced_gains_nothing():
    found = timed_tables.summary({**FOUND, "raced": FOUND["raced"][1:]})
    assert found["over_plain"] == found["over_other"] == 0


def test_where_no_other_program_fits_there_is_no_figure():
    found = timed_tables.summary({**FOUND, "raced": FOUND["raced"][:1]})
    assert found["fastest_plain"] is found["over_plain"] is None
    text = timed_tables.markdown({"one": {**FOUND, "raced": FOUND["raced"][:1]}})
    assert "nothing fits | nothing fits" in text


@pytest.mark.parametrize(
    ("us", "ahead", "behind"), [(100.0, 1, 0), (103.0, 0, 0), (107.0, 0, 1)]
)
def test_the_verdict_counts_three_percent_ahead_and_two_behind(us, ahead, behind):
    last = timed_tables.verdict({"one": but_the_plan_takes(us)}).splitlines()[-1]
    assert last == (
        f"against everything that fits {ahead} of 1 are 3 % faster or more, and "
        f"{behind} more than 2 % slower"
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


@pytest.mark.parametrize("way", [-0.1, 1.5, float("nan")])
def test_a_budget_is_on_its_way(way, capsys):
    assert timed.main(timed.Options(way=way)) == 2
    assert f"--way {way}: write a number from 0 to 1" in capsys.readouterr().out


def test_no_process_is_none(capsys):
    assert timed.main(timed.Options(processes=0)) == 2
    assert "--processes 0" in capsys.readouterr().out
