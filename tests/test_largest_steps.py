"""Which sizes are tried on the way to the largest that fits, one after the other."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import _fit, _largest, policies
from revremat._errors import DoesNotFit
from revremat._largest import Trial, _bisect, _bracket, _shards, _splits
from tests.search.world import measured


@pytest.mark.parametrize(
    ("most", "start", "found", "tried"),
    [
        (12, 1, (8, 16), [1, 2, 4, 8, 16]),
        (12, 5, (10, 20), [5, 10, 20]),
        (12, 12, (12, 24), [12, 24]),
        (12, 13, (6, 13), [13, 6]),
        (12, 100, (12, 25), [100, 50, 25, 12]),
        (0, 5, (0, 1), [5, 2, 1]),
        (0, 1, (0, 1), [1]),
    ],
)
def test_sizes_are_doubled_or_halved_until_one_fits_and_another_does_not(
    most, start, found, tried
):
    asked = []

    def fits(count):
        asked.append(count)
        return count <= most

    assert _bracket(fits, start) == found
    assert asked == tried


def test_sizes_that_always_fit_end_somewhere():
    told = f"sizes up to {3 * 2**40} times the step all fit"
    with pytest.raises(rr.UserError, match=told):
        _bracket(lambda count: True, 3)


@pytest.mark.parametrize(
    ("limit", "sizes", "low", "high", "tried", "found"),
    [
        # A straight line's guess, then the middle, in turn.
        (125, lambda n: 10 * n, 8, 16, [12, 14, 13], (12, 13)),
        (159, lambda n: 10 * n, 8, 16, [15], (15, 16)),
        (80, lambda n: 10 * n, 8, 16, [9], (8, 9)),
        (170, lambda n: n * n, 8, 16, [12, 14, 13], (13, 14)),
        # Of a line that falls, or of which an end is not known, the middle.
        (100, lambda n: 90 if n < 11 else 120 - n, 8, 12, [10, 11], (10, 11)),
        (105, lambda n: None if n > 12 else 10 * n, 8, 16, [12, 10, 11], (10, 11)),
    ],
)
def test_between_two_sizes_a_line_guesses_every_other_time(
    limit, sizes, low, high, tried, found
):
    trial = lambda n: Trial(n, sizes(n), (sizes(n) or limit + 1) <= limit)
    known, asked = {n: trial(n) for n in (low, high)}, []

    def fits(count):
        asked.append(count)
        known[count] = trial(count)
        return known[count].fits

    assert _bisect(fits, known, low, high, limit) == found
    assert asked == tried


class Sizes:
    """Says what sizes take, in the compiler's place."""

    def __init__(self, bytes_of):
        self.bytes_of, self.asked = bytes_of, []

    def __call__(self, function, x, **how) -> Any:
        (rows, _) = x.shape
        self.asked.append(rows)
        if (size := self.bytes_of(rows)) is None:
            raise DoesNotFit("the compiler refused it")
        memory = SimpleNamespace(total_bytes=size)
        return SimpleNamespace(memory=memory, rows=rows, **how)


def make(rows):
    x = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
    return rr.Problem(jnp.sum, (x,), donate=(0,), name="sums")


@pytest.mark.parametrize(
    ("fitting", "largest"),
    [
        (range(1, 11), 10),
        # Memory is not monotone: up to two beyond, again and again.
        ([*range(1, 11), 12], 12),
        ([*range(1, 11), 13], 13),
        ([*range(1, 11), 14], 10),
        ([*range(1, 11), 12, 13, 14], 14),
        ([*range(1, 11), 12, 14, 16], 16),
        ([1], 1),
        ([], 0),
    ],
)
def test_beyond_the_largest_the_next_two_are_compiled_too(
    monkeypatch, fitting, largest
):
    sizes = Sizes(lambda rows: rows if rows in fitting else 1000 + rows)
    monkeypatch.setattr(_largest, "measure", sizes)
    found = rr.largest(make, start=3, target="cpu:1", budget=500)
    assert (found.size, found.step, found.budget_bytes) == (largest, 1, 500)
    assert len(set(sizes.asked)) == len(sizes.asked)
    assert [t.size for t in found.trials] == sorted(sizes.asked)
    assert {t.size for t in found.trials if t.fits} == {*fitting} & {*sizes.asked}
    measured: Any = found.measurement
    assert (measured and measured.rows) == (largest or None)
    assert measured is None or (measured.donate, measured.name) == ((0,), "sums")


def test_a_budget_is_kept_to_the_byte_and_by_default_is_all_that_is_usable(monkeypatch):
    monkeypatch.setattr(_largest, "measure", Sizes(lambda rows: rows))
    assert rr.largest(make, start=3, target="cpu:1", budget=11).size == 11
    usable = rr.target("cpu:1").usable_bytes
    monkeypatch.setattr(_largest, "measure", Sizes(lambda rows: rows * usable // 10))
    found = rr.largest(make, start=3, target="cpu:1")
    assert (found.size, found.budget_bytes) == (10, usable)


def test_what_the_compiler_itself_refuses_does_not_fit(monkeypatch):
    sizes = Sizes(lambda rows: None if rows > 6 else rows)
    monkeypatch.setattr(_largest, "measure", sizes)
    found = rr.largest(make, start=4, target="cpu:1", budget=500)
    assert found.size == 6
    refused = [t for t in found.trials if t.bytes is None]
    assert refused
    assert not any(t.fits for t in refused)


def test_no_more_than_sixty_are_compiled(monkeypatch):
    """Where every third that is asked for does not fit, which no bisection sees."""
    few = Sizes(lambda rows: 1 if len(few.asked) % 3 else 1000)
    monkeypatch.setattr(_largest, "measure", few)
    found = rr.largest(make, start=7, target="cpu:1", budget=500)
    assert len(few.asked) == len(found.trials) == 60
    assert found.is_cut_short


@pytest.mark.parametrize("start", [8, 500, 999, 1000, 1001])
def test_one_that_does_not_fit_hides_none_of_the_larger_ones(monkeypatch, start):
    sizes = Sizes(lambda rows: 5000 if rows == 1000 else rows)
    monkeypatch.setattr(_largest, "measure", sizes)
    found = rr.largest(make, start=start, target="cpu:1", budget=4000)
    assert (found.size, found.is_cut_short) == (4000, False)
    assert len(sizes.asked) <= 40


@pytest.mark.parametrize(
    ("start", "step", "unit", "first"),
    [(20, 8, 8, 16), (7, 8, 8, 8), (24, 8, 8, 24), (5, 1, 1, 5), (5, None, 1, 5)],
)
def test_sizes_are_multiples_from_the_one_below_the_start(
    monkeypatch, start, step, unit, first
):
    sizes = Sizes(lambda rows: rows)
    monkeypatch.setattr(_largest, "measure", sizes)
    found = rr.largest(make, start=start, target="cpu:1", budget=100, step=step)
    assert (found.step, sizes.asked[0]) == (unit, first)
    assert found.size == 100 // unit * unit


@pytest.mark.parametrize(("start", "step"), [(0, None), (-1, 2), (3, 0), (3, -1)])
def test_sizes_are_positive(start, step):
    with pytest.raises(rr.UserError, match="sizes are positive"):
        rr.largest(make, start=start, step=step, target="cpu:1")


def spread(*names):
    mesh = jax.make_mesh(
        (2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    return jax.sharding.NamedSharding(mesh, jax.P(*names))


@pytest.mark.parametrize(
    ("shape", "names", "splits"),
    [
        ((8, 8), None, (1, 1)),
        ((), None, ()),
        ((8, 8), (), (1, 1)),
        ((8, 8), ("a",), (2, 1)),
        ((8, 8), ("b", "a"), (4, 2)),
        ((8, 8), (None, ("a", "b")), (1, 8)),
        ((0, 3), ("b", "a"), (4, 2)),  # whatever the size
    ],
)
def test_each_dimension_is_split_over_so_many_devices(shape, names, splits):
    sharding = None if names is None else spread(*names)
    leaf = SimpleNamespace(shape=shape, sharding=sharding, ndim=len(shape))
    array = jnp.float32(0) if shape == () else leaf
    assert _splits(array) == splits


@pytest.mark.parametrize(
    ("grows", "unit"),
    [
        (lambda n: {"x": (n, 3)}, 2),
        (lambda n: {"x": (3, n)}, 4),
        (lambda n: {"x": (n, n)}, 4),
        (lambda n: {"x": (3, 5), "y": (n,)}, 2),
        (lambda n: {f"x{k}": (4, 4) for k in range(n)}, 1),  # how many there are
    ],
)
def test_a_size_is_split_as_the_dimensions_that_grow_with_it(grows, unit):
    def make(n):
        specs = {
            name: jax.ShapeDtypeStruct(
                shape,
                jnp.float32,
                sharding=spread("a", "b") if len(shape) > 1 else spread("a"),
            )
            for name, shape in grows(n).items()
        }
        return rr.Problem(lambda x: 0.0, (specs,))

    assert _shards(make, 8) == unit


@pytest.mark.parametrize(("num_budgets", "shares"), [(2, [0, 1]), (4, [0, 1, 2, 3])])
def test_a_frontiers_budgets_are_apart_by_one_ratio(monkeypatch, num_budgets, shares):
    """From just under what the baseline takes to a little over the least."""
    budgets, states = [], []

    def decide(state, ask):
        budgets.append(state.budget_bytes)
        states.append(state)
        return state

    monkeypatch.setattr(_fit._search, "decide", decide)
    layer = lambda w, x: jnp.tanh(jnp.sin(x @ w))
    loss = lambda w, x: rr.stack(layer, w, x).sum()
    specs = jax.ShapeDtypeStruct((8, 4, 4), jnp.float32), jnp.ones((64, 4))
    plain = lambda step: step.key.startswith("ProgramKey(actions=None")
    oracle = lambda step: measured(1_000_000 if plain(step) else 100_000, 5.0)
    rr.frontier(
        loss,
        *specs,
        target="cpu:1",
        num_budgets=num_budgets,
        unroll=False,
        oracle=oracle,
    )
    least = policies.smallest_bytes(states[0].options, states[0].host_bytes)
    ratio = (1.01 * least / 999_000) ** (1 / (num_budgets - 1))
    assert 90_000 < least < 110_000
    assert budgets == [int(999_000 * ratio**k) for k in shares]
