"""The exact search over pairs, run as Python: its rules, its proofs and how soon."""

import itertools
import random

import numpy as np
import pytest

from revremat.allocation import (
    AllocationProblem,
    Buffer,
    InvalidAllocation,
    _disjunctive,
    validate,
)
from revremat.allocation._blocks import taken_apart, to_blocks
from revremat.allocation._disjunctive import Pairs, pack
from revremat.allocation._search import FAILED, LIMIT, SOLVED

from .families import full_sections, least_by_trying_all, small


def mixed(seed):
    """A group whose members ask for alignments that no one multiple serves well."""
    draw = random.Random(seed)
    rows = [
        (f"b{k}", 0, draw.randint(1, 2), draw.randint(1, 4), draw.choice((1, 2, 3, 4)))
        for k in range(3)
    ]
    group = [Buffer(*row, "g") for row in rows]
    return AllocationProblem((*group, Buffer("c", draw.randint(0, 1), 2, 2, 2)))


def is_legal(problem, blocks, base):
    try:
        validate(problem, blocks.offsets(problem, base))
    except InvalidAllocation:
        return False
    return True


def holds(pairs, base):
    """Whether each pair lies one above the other, the fixed ones the first way."""
    above = base[pairs.upper] >= base[pairs.lower] + pairs.above
    below = base[pairs.lower] >= base[pairs.upper] + pairs.below
    below[: pairs.fixed] = False
    return bool((above | below).all())


@pytest.mark.parametrize("kind", ["", "a", "g", "r", "agri", "mixed"])
def test_pairs_say_what_is_legal_and_no_more(kind):
    seen = {True: 0, False: 0}
    for seed in range(12):
        problem = mixed(seed) if kind == "mixed" else small(seed, kind)
        blocks = taken_apart(problem, to_blocks(problem))
        pairs = Pairs.of(blocks)
        if not blocks.count or pairs is None:
            continue
        rng = np.random.default_rng(seed)
        for _ in range(40):
            base = rng.integers(0, 12, blocks.count) // blocks.alignment
            base *= blocks.alignment
            legal = is_legal(problem, blocks, base)
            assert holds(pairs, base) == legal
            seen[legal] += 1
    assert min(seen.values()) > 20


def test_of_too_many_pairs_there_are_none(monkeypatch):
    blocks = to_blocks(full_sections(5, 8, 12))
    count = len(Pairs.of(blocks).upper)
    monkeypatch.setattr(_disjunctive, "_PAIRS", count)
    assert Pairs.of(blocks) is not None
    monkeypatch.setattr(_disjunctive, "_PAIRS", count - 1)
    assert Pairs.of(blocks) is None
    assert Pairs.of(to_blocks(AllocationProblem(()))) is None


def packed(problem, capacity, nodes=100_000):
    blocks = taken_apart(problem, to_blocks(problem))
    pairs = Pairs.of(blocks)
    status, base, opened = pack(pairs, blocks, capacity, nodes, lambda: False)
    if status == SOLVED:
        assert is_legal(problem, blocks, base)
        assert blocks.makespan(base) <= capacity
    return status, opened


@pytest.mark.parametrize("kind", ["", "a", "g", "r", "i", "agri", "mixed"])
def test_it_packs_where_there_is_a_packing_and_proves_where_not(kind, in_python):
    for seed in range(15):
        problem = mixed(seed) if kind == "mixed" else small(seed, kind)
        if not to_blocks(problem).count:
            continue
        least = least_by_trying_all(problem)
        assert packed(problem, least)[0] == SOLVED
        assert packed(problem, least + 3)[0] == SOLVED
        assert packed(problem, least - 1)[0] == FAILED


def test_it_ends_where_its_nodes_or_its_time_do(in_python):
    problem = full_sections(1, 8, 10)
    blocks = to_blocks(problem)
    pairs = Pairs.of(blocks)
    assert pack(pairs, blocks, 10, 0, lambda: False)[::2] == (LIMIT, 0)
    assert pack(pairs, blocks, 10, 10**6, lambda: True)[::2] == (LIMIT, 0)
    asked = itertools.count()
    status, _, opened = pack(pairs, blocks, 10, 1, lambda: next(asked) > 0)
    assert (status, next(asked)) == (SOLVED, 1)
    assert 1 < opened < 2000


def test_little_is_tried_in_vain(in_python):
    results = [packed(full_sections(seed, 8, 10), 10) for seed in range(12)]
    assert {status for status, _ in results} == {SOLVED}
    assert sum(opened for _, opened in results) <= 220  # of some 12 buffers each


@pytest.mark.parametrize(("limit", "value"), [("_ROUNDS", 1), ("_DEPTH", 1)])
def test_it_gives_up_without_a_proof(limit, value, monkeypatch, in_python):
    monkeypatch.setattr(_disjunctive, limit, value)
    assert packed(full_sections(46, 10, 12), 12)[0] == LIMIT
