"""Between assignments as fast: what counts beside time, and how little that is."""

import itertools

import pytest

from revremat.policies import LayerCost, UnitOptions, choose
from revremat.policies._milp import _Rows


def options(unit, num_layers, *costs):
    """Candidates of bytes kept and microseconds."""
    named = [LayerCost(f"c{k}", kept, 0, 0, us) for k, (kept, us) in enumerate(costs)]
    return UnitOptions(unit, num_layers, tuple(named))


def test_a_layers_bytes_count_a_ten_millionth_of_its_units_dearest_layer():
    rows = _Rows(
        [options("u", 4, (50, 20.0), (100, -80.0)), options("v", 1, (25, 3.0))]
    )
    smaller, simpler = rows.preferences()
    # In the order of the rows: what keeps least first, unit by unit.
    assert smaller.tolist() == pytest.approx([8e-6 * 0.5, 8e-6, 3e-7 * 0.25])
    assert simpler.tolist() == pytest.approx([8e-3, 8e-3, 3e-4])


def test_where_all_is_free_next_to_nothing_counts():
    smaller, simpler = _Rows([options("u", 4, (0, 0.0))]).preferences()
    assert smaller.tolist() == [0.0]
    assert 0 < simpler[0] < 1e-9


@pytest.mark.parametrize(
    ("num_layers", "kinds"), [(1, 1), (2, 2), (3, 3), (4, 3), (9, 3)]
)
def test_preferences_come_to_no_more_than_that(num_layers, kinds):
    all_options = [options("u", num_layers, (50, 20.0), (100, 80.0), (75, 30.0))]
    rows = _Rows(all_options)
    smaller, simpler = rows.preferences()
    most = max(
        sum(n * smaller[k] + (n > 0) * simpler[k] for k, n in enumerate(counts))
        for counts in itertools.product(range(num_layers + 1), repeat=3)
        if sum(counts) == num_layers
    )
    assert most <= rows.most_preferred_us() * (1 + 1e-12)
    expected = kinds * 8e-3 + num_layers * 8e-6
    assert rows.most_preferred_us() == pytest.approx(expected)


def test_of_two_units_what_each_may_come_to_is_added():
    both = [options("u", 1, (50, 20.0)), options("v", 2, (100, 80.0), (25, 10.0))]
    alone = [_Rows([one]).most_preferred_us() for one in both]
    # Bytes are compared with the most that any candidate keeps.
    assert _Rows(both).most_preferred_us() == pytest.approx(sum(alone), rel=1e-3)


def test_of_assignments_as_fast_the_smaller_and_of_those_the_simpler():
    smaller = choose([options("u", 4, (100, 20.0), (50, 20.0))], 10_000)
    assert smaller.counts["u"] == (("c1", 4),)
    simpler = choose([options("u", 4, (50, 20.0), (50, 20.0))], 10_000)
    assert len(simpler.counts["u"]) == 1
