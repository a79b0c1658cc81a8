"""Relatives of the published instances are placed as well as those themselves."""

from pathlib import Path

import numpy as np
import pytest

from experiments.bench import allocation_families as families
from revremat.allocation import (
    Allocation,
    Infeasible,
    _allocate,
    allocate,
    lower_bound,
    read_problem,
)
from revremat.allocation._blocks import to_blocks
from revremat.allocation._core import Core, complete
from revremat.allocation._rectangles import Rectangles

from .families import full_sections, least_by_trying_all, small

DATA = Path(__file__).parent / "data"
CAPACITY = families.CAPACITY


@pytest.fixture(scope="module")
def resnet50():
    return read_problem(DATA / "resnet50.csv")


@pytest.fixture(scope="module")
def published():
    """Packings of published instances."""
    packings = []
    for name in "ABFH":
        problem = read_problem(DATA / f"{name}.1048576.csv")
        answer = allocate(problem, CAPACITY, seconds=60)
        assert isinstance(answer, Allocation)
        packings.append(families.placed_of(problem, answer.offsets_bytes))
    return packings


def _overlaps(placed):
    """Pairs of rectangles with common area, by the definition."""
    a, b, c, d = (column[:, None] for column in placed.T)
    clash = (a < b.T) & (b > a.T) & (c < d.T) & (d > c.T)
    return int(np.triu(clash, 1).sum())


@pytest.mark.slow
def test_families_are_packings_of_the_capacity(published):
    first, second = published[0], published[2]
    for placed in (
        families.cut_up(250, 0),
        families.cut_up(250, 1, long=0.65, dropped=0.1),
        families.cut_up(250, 2, steps=128),
        families.bricks(250, 3),
        families.mirrored(first),
        families.transposed(first),
        families.crossed(first, families.mirrored(second), 1 << 19),
        families.recut(first, 200, 4),
    ):
        assert _overlaps(placed) == 0
        assert (placed[:, 1] > placed[:, 0]).all()
        assert (placed[:, 3] > placed[:, 2]).all()
        assert placed[:, 2].min() >= 0
        assert placed[:, 3].max() <= CAPACITY


PACKED = ("bricks", "bricks without gaps", "mirrored", "crossed")
"""Families that are packed at every size tried, 150 to 480 pieces. Those cut up in
pinwheels are up to some 300 pieces; `allocation.txt` says how often the others are."""


@pytest.mark.parametrize("name", ["cut up", *PACKED])
@pytest.mark.parametrize("seed", range(2))
def test_relatives_of_minimalloc_are_packed(name, seed, published):
    problem = families.packing_makers(published)[name](seed)
    answer = allocate(problem, CAPACITY, seconds=60)
    assert isinstance(answer, Allocation)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_relatives_of_minimalloc_are_packed(name, seed, published):
    problem = families.packing_makers(published)[name](seed)
    assert isinstance(allocate(problem, CAPACITY, seconds=60), Allocation)


def _relatives_of_traces(resnet50):
    return {
        "backwards": lambda seed: families.backwards(resnet50),
        "resized": lambda seed: families.resized(resnet50, seed),
        "resized, 512": lambda seed: families.resized(resnet50, seed, 512),
        "window": lambda seed: families.window(resnet50, seed),
        "3 copies": lambda seed: families.copies(resnet50, 3, seed),
        "6 copies": lambda seed: families.copies(resnet50, 6, seed),
        "20 copies": lambda seed: families.copies(resnet50, 20, seed),
        "training": lambda seed: families.training_trace(48, 100, seed, 1.0),
    }


FAST_TRACES = ("resized", "resized, 512", "window", "3 copies", "training")


@pytest.mark.parametrize("name", FAST_TRACES)
def test_relatives_of_traces_come_within_a_thousandth_of_the_bound(name, resnet50):
    problem = _relatives_of_traces(resnet50)[name](3)
    assert allocate(problem, seconds=30).excess <= 0.001


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_relatives_of_traces(None)))
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_relatives_of_traces_come_as_close(name, seed, resnet50):
    problem = _relatives_of_traces(resnet50)[name](seed)
    assert allocate(problem, seconds=60).excess <= 0.001


@pytest.mark.parametrize("bundle", [0, 1, 8])
@pytest.mark.parametrize("share", [0.8, 0.95, 0.98])
def test_what_is_placed_around_a_core_overlaps_nothing(share, bundle, resnet50):
    whole = Rectangles.of(to_blocks(families.backwards(resnet50)))
    load = whole.loads()
    most = int(whole.size.max()) // bundle if bundle else 0
    core = Core.of(whole, load >= share * load.max(), most)
    _, offsets = core.rectangles.filled(0, 12, float("inf"))
    around = complete(whole, core.spread(offsets), core.inside, 1 << 60)
    assert around.min() >= 0
    placed = np.stack([whole.begin, whole.end, around, around + whole.size], axis=1)
    assert _overlaps(placed) == 0


def test_the_bound_of_a_core_is_one_of_everything(resnet50):
    whole = Rectangles.of(to_blocks(resnet50))
    load = whole.loads()
    core = Core.of(whole, load >= 0.95 * load.max(), 0)
    assert core.inside.sum() < len(whole.size)
    assert core.rectangles.loads().max() == load.max()
    assert load.max() * whole.unit == lower_bound(resnet50).size_bytes


@pytest.mark.parametrize("kind", ["", "u"])
def test_packing_cores_first_changes_no_optimum_and_no_proof(kind, monkeypatch):
    monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 1)
    for seed in range(25):
        problem = small(seed, kind)
        least = least_by_trying_all(problem)
        answer = allocate(problem, seconds=20)
        assert isinstance(answer, Allocation)
        assert (answer.makespan_bytes, answer.optimal) == (least, True)
        if least:
            assert isinstance(allocate(problem, least - 1, seconds=20), Infeasible)
    for seed in range(60):
        problem = full_sections(seed, 10, 14)
        core_first = allocate(problem, 14, seconds=20)
        monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 500)
        assert type(core_first) is type(allocate(problem, 14, seconds=20))
        monkeypatch.setattr(_allocate, "_CORE_BLOCKS", 1)
