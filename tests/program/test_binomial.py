"""Binomial schedules: valid, within their slots, and with the fewest steps again."""

from functools import cache

import pytest

from revremat._resolve import least_again
from revremat.program.engine._binomial import binomial


def replayed(num_steps, slots):
    """What a schedule keeps at most, and how many steps run again.

    Every read finds its state where it is.
    """
    schedule = binomial(num_steps, slots)
    lying = {schedule.first_slot: 0}
    most, place, again = 1, 0, 0

    def run_on(at, first, into):
        assert lying[at] == first
        lying[into] = first + 1
        return into

    at = schedule.first_slot
    for step, into in enumerate(schedule.forward):
        at = run_on(at, step, into)
        most = max(most, len(lying))
    assert schedule.last_slot == at
    for step in reversed(range(num_steps)):
        at = schedule.source[step]
        for between in range(schedule.begin[step], step):
            into, stop = schedule.again[place]
            at = run_on(at, between, into)
            place += between + 1 == stop
            again += 1
            most = max(most, len(lying))
        assert lying[at] == step
    assert place == len(schedule.again)
    return most, again


@cache
def fewest_runs(num_steps, slots):
    """Steps run until all are differentiated, by trying every place for each state."""
    if num_steps == 1:
        return 0
    if slots == 1:
        return num_steps * (num_steps - 1) // 2
    return min(
        k + fewest_runs(num_steps - k, slots - 1) + fewest_runs(k, slots)
        for k in range(1, num_steps)
    )


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 12])
def test_no_schedule_runs_fewer_steps_again(slots):
    for num_steps in range(1, 41):
        again = fewest_runs(num_steps, min(slots, num_steps)) - (num_steps - 1)
        assert replayed(num_steps, slots)[1] == again
        assert least_again(num_steps, slots) == again


@pytest.mark.parametrize(
    ("num_steps", "slots"),
    [(1, 1), (2, 1), (2, 5), (3, 2), (17, 1), (40, 3), (200, 9), (1000, 30), (999, 44)],
)
def test_every_step_finds_its_state_in_the_slots_there_are(num_steps, slots):
    most, _ = replayed(num_steps, slots)
    assert most <= min(slots, num_steps) + 1
    assert binomial(num_steps, slots).num_states == min(slots, num_steps) + 1


@pytest.mark.parametrize("slots", [13, 60, 200])
def test_long_loops_have_the_closed_form(slots):
    assert replayed(10_000, slots)[1] == least_again(10_000, slots)


@pytest.mark.parametrize(
    ("num_steps", "slots", "again"),
    [(10, 10, 0), (10, 11, 0), (10, 1, 36), (10, 3, 6), (1000, 44, 955)],
)
def test_few_are_known_by_heart(num_steps, slots, again):
    assert least_again(num_steps, slots) == again
