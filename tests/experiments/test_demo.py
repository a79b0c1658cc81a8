"""`make run`: plain and planned steps are timed in pairs."""

import doctest

import pytest

from experiments import demo


class Machine:
    """Two steps on one clock; the machine is busy from some moment on."""

    def __init__(self, plain_s, planned_s, busy_from_s=1e9):
        self.now, self.ran = 0.0, []
        self.seconds = {"plain": plain_s, "planned": planned_s}
        self.busy_from_s = busy_from_s

    def step(self, name):
        def run():
            slower = 3.0 if self.now >= self.busy_from_s else 1.0
            self.now += slower * self.seconds[name]
            self.ran.append(name)

        return run

    def pairs(self, **limits):
        steps = self.step("plain"), self.step("planned")
        return demo.paired_seconds(*steps, clock=lambda: self.now, **limits)


def test_steps_run_in_turn_and_neither_is_always_first():
    machine = Machine(0.3, 0.2)
    assert machine.pairs(least=4, most=4) == [pytest.approx((0.3, 0.2))] * 4
    assert machine.ran[:2] == ["plain", "planned"]  # not timed
    assert machine.ran[2:6] == ["plain", "planned", "planned", "plain"]


@pytest.mark.parametrize("busy_from_s", [0.0, 2.0, 1e9])
def test_a_busy_machine_does_not_change_which_is_faster(busy_from_s):
    pairs = Machine(0.3, 0.2, busy_from_s).pairs(seconds=5.0)
    assert "the planned step is 1.50 times as fast" in demo.times_text(pairs)


@pytest.mark.parametrize(
    ("step_s", "number"), [(0.01, 40), (0.5, 20), (5.0, 8)], ids=str
)
def test_pairs_take_so_long_and_are_so_many(step_s, number):
    assert abs(len(Machine(step_s, step_s).pairs()) - number) <= 1


def test_the_times_are_told_side_by_side():
    assert doctest.testmod(demo).failed == 0


def test_a_slower_plan_is_said_to_be_slower():
    assert "is 0.50 times as fast" in demo.times_text([(0.1, 0.2), (0.1, 0.2)])
