"""A search takes the oracle and the numbers that it is given."""

import pytest

import revremat as rr
from revremat import _search
from revremat._search import Heuristics, TableOracle
from tests.search.programs import repeats

BUDGET = 17 * 2**20


class Noting:
    """The compiler, and what it was asked."""

    def __init__(self, problem, target):
        self.compiler, self.table = _search.compiler(problem, target), {}

    def measure(self, requests):
        requests = list(requests)
        found = self.compiler.measure(requests)
        keys = (request.key for request in requests)
        self.table |= dict(zip(keys, found, strict=True))
        return found


@pytest.fixture(scope="module")
def noted():
    problem, target = repeats(4), rr.target("cpu:1")
    oracle = Noting(problem, target)
    fit = _search.run(problem, target, BUDGET, oracle=oracle)
    return problem, target, oracle.table, fit


def test_a_table_takes_the_compilers_place(noted):
    problem, target, table, fit = noted
    assert len(table) == fit.num_compiles
    oracle = TableOracle(table)
    again = _search.run(problem, target, BUDGET, oracle=oracle)
    assert [request.key for request in oracle.asked] == [*table]
    assert again.plan == fit.plan
    assert (again.bound_us, again.greedy_us) == (fit.bound_us, fit.greedy_us)


def test_what_is_in_no_table_is_an_error(noted):
    problem, target, table, _ = noted
    few = dict([*table.items()][:3])
    with pytest.raises(KeyError):
        _search.run(problem, target, BUDGET, oracle=TableOracle(few))


def test_numbers_that_decide_may_be_others(noted):
    problem, target, _, fit = noted
    heuristics = Heuristics(most_candidates=2, most_local_steps=0, num_runners_up=0)
    found = _search.run(problem, target, BUDGET, heuristics=heuristics)
    assert found.num_compiles < fit.num_compiles
    assert found.plan.fits


@pytest.mark.parametrize("number", range(1, 6))
def test_one_failing_program_is_dropped_whatever_it_is(noted, number):
    problem, target, table, _ = noted
    key = [*table][number]
    failure = _search.Failure(RuntimeError("no way"))
    compiler = _search.compiler(problem, target)

    class Failing:
        def measure(self, requests):
            asked = list(requests)
            new = [r for r in asked if r.key not in table]
            table.update(zip((r.key for r in new), compiler.measure(new), strict=True))
            return [failure if r.key == key else table[r.key] for r in asked]

    fit = _search.run(problem, target, BUDGET, oracle=Failing())
    assert [one.reason for one in fit.dropped] == ["RuntimeError: no way"]
    assert fit.measurement in [row.measurement for row in fit.rows]
