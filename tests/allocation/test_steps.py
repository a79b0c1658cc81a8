"""Which solver has its turn when: each step stood in for by its name."""

import pytest

from revremat.allocation import (
    AllocationProblem,
    Buffer,
    Progress,
    Relation,
    Undecided,
    _allocate,
    _rectangles,
)
from revremat.allocation._allocate import _Run
from revremat.allocation._search import FAILED, LIMIT, SOLVED

TWO = (Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8))
RECTANGLES = AllocationProblem(TWO)
OTHERS = AllocationProblem(TWO, Relation.from_pairs(2, [(0, 1)]))


class Steps(_Run):
    """Only says what it would do."""

    def __init__(self, problem, capacity, done_after, status):
        super().__init__(problem, capacity, 60.0, None)
        self.steps: list[str] = []
        self.done_after, self.status = done_after, status

    def step(self, name):
        self.steps.append(name)
        if name == self.done_after:
            self.makespan_bytes = self.target_bytes
        if f"{name}, ruled out" == self.done_after:
            self.proved_bytes = self.capacity_bytes + 1
        return self.status

    def fill(self, rectangles, tries):
        return self.step("fill" if tries == _allocate._FILLINGS else "fill on")

    def cover(self):
        return self.step("cover")

    def greedy(self):
        return self.step("greedy")

    def concentrate(self, rectangles):
        return self.step("core")

    def search(self, rectangles):
        return self.step("search")

    def branch(self):
        return self.step("branch")

    def infeasible(self):
        return "infeasible"

    def allocation(self):
        return "allocation"


def turns(problem, capacity=None, done_after="", status=SOLVED):
    run = Steps(problem, capacity, done_after, status)
    answer = run.answer()
    kind = "undecided" if isinstance(answer, Undecided) else answer
    return " ".join([*run.steps, str(kind)])


@pytest.mark.parametrize(
    ("done_after", "steps"),
    [
        ("fill", "fill allocation"),
        ("greedy", "fill greedy allocation"),
        ("", "fill greedy search allocation"),
    ],
)
def test_rectangles_are_filled_then_placed_greedily_then_searched(done_after, steps):
    assert turns(RECTANGLES, done_after=done_after) == steps


@pytest.mark.parametrize(
    ("done_after", "steps"),
    [
        ("cover", "cover allocation"),
        ("greedy", "cover greedy allocation"),
        ("", "cover greedy branch allocation"),
    ],
)
def test_other_blocks_are_covered_first_and_then_branched_on(done_after, steps):
    assert turns(OTHERS, done_after=done_after) == steps


@pytest.mark.parametrize(
    ("problem", "steps"),
    [(RECTANGLES, "fill greedy search"), (OTHERS, "cover greedy branch")],
)
def test_within_a_capacity_the_last_says_whether_there_is_none(problem, steps):
    assert turns(problem, 12, status=FAILED) == f"{steps} infeasible"
    assert turns(problem, 12, status=LIMIT) == f"{steps} undecided"
    last = steps.split()[-1]
    assert turns(problem, 12, last) == f"{steps} allocation"
    assert turns(problem, 11) == "infeasible"


@pytest.mark.parametrize(
    ("done_after", "steps"),
    [
        ("core", "fill greedy core allocation"),
        ("core, ruled out", "fill greedy core infeasible"),
        ("", "fill greedy core search undecided"),
    ],
)
def test_of_many_the_core_comes_before_the_search(done_after, steps, monkeypatch):
    monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 2)
    assert turns(RECTANGLES, 12, done_after) == steps
    monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 3)
    assert "core" not in turns(RECTANGLES, 12, done_after)


@pytest.mark.parametrize(
    ("done_after", "steps"),
    [
        ("fill", "fill allocation"),
        ("core", "fill core allocation"),
        ("", "fill core fill on allocation"),
    ],
)
def test_of_too_many_nothing_is_searched(done_after, steps, monkeypatch):
    monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 2)
    monkeypatch.setattr(_rectangles, "_SEARCHED_BLOCKS", 1)
    assert turns(RECTANGLES, None, done_after) == steps


def test_nothing_has_no_steps():
    assert turns(AllocationProblem(())) == "allocation"
    assert turns(AllocationProblem((Buffer("a", 0, 1, 0),)), 0) == "allocation"


# ---- What it keeps and tells ---------------------------------------------------------


def test_the_best_that_was_offered_is_kept():
    run = _Run(RECTANGLES, None, 60.0, None)
    assert not run.done
    for makespan, solver in ((20, "one"), (20, "two"), (15, "three"), (16, "four")):
        run.offer(makespan, run.base, solver)
    assert (run.makespan_bytes, run.solver) == (15, "three")
    run.offer(12, run.base, "five")
    assert run.done


@pytest.mark.parametrize(
    ("capacity", "makespan", "target", "done"),
    [
        (None, 12, 12, True),
        (None, 13, 12, False),
        (14, 14, 14, True),
        (14, 15, 14, False),
    ],
)
def test_it_is_done_at_the_bound_or_within_the_capacity(
    capacity, makespan, target, done
):
    run = _Run(RECTANGLES, capacity, 60.0, None)
    run.makespan_bytes = makespan
    assert (run.target_bytes, run.done, run.ruled_out) == (target, done, False)
    run.proved_bytes = 15
    assert run.ruled_out == (capacity is not None)


def test_it_tells_at_most_ten_times_a_second(monkeypatch):
    now, told = [100.0], []
    monkeypatch.setattr(_allocate.time, "monotonic", lambda: now[0])
    run = _Run(RECTANGLES, None, 60.0, told.append)
    run.makespan_bytes, run.nodes = 20, 7
    for step in (0.0, 0.09, 0.02, 0.05, 0.06):
        now[0] += step
        run.report()
    assert [round(one.seconds, 2) for one in told] == [0.11, 0.22]
    assert told[0] == Progress(20, 12, told[0].seconds, 7)
