"""Greedy placement, block after block: the same as by trying every offset."""

import random

import numpy as np
import pytest

from revremat.allocation._blocks import to_blocks
from revremat.allocation._greedy import (
    BEST_FIT,
    LOWEST,
    _sort,
    place_in_order,
)

from .families import small

FAR = 1 << 62


def keep_apart(blocks, m, p):
    """Whether two members may not lie over one another, by the definition."""
    if not (blocks.size[m] and blocks.size[p]):
        return False
    ranges = blocks.ranges
    live = ranges.begin[m] < ranges.end[p] and ranges.begin[p] < ranges.end[m]
    return live or (blocks.relation is not None and blocks.relation.conflicts(m, p))


def by_trying_all(blocks, order, fit, base, fixed):
    """Offsets of the blocks: each in the gap of its rule, at its lowest place."""
    base, members = list(base), lambda b: range(blocks.start[b], blocks.start[b + 1])
    placed: list[int] = []
    top = 1 + int(sum(blocks.size) + sum(blocks.alignment))
    for number, block in enumerate(order):
        if number < fixed:
            placed.append(block)
            continue

        def is_free(at, block=block):
            return not any(
                keep_apart(blocks, m, p)
                and at + blocks.shift[m] < base[b] + blocks.shift[p] + blocks.size[p]
                and base[b] + blocks.shift[p] < at + blocks.shift[m] + blocks.size[m]
                for m in members(block)
                for b in placed
                for p in members(b)
            )

        free = [is_free(at) for at in range(top)]
        starts = [at for at in range(top) if free[at] and not (at and free[at - 1])]
        align, gaps = int(blocks.alignment[block]), []
        for start in starts:
            stop = next((at for at in range(start, top) if not free[at]), FAR)
            lowest = -(-start // align) * align
            if lowest < stop:
                gaps.append((stop - 1 - lowest, lowest))
        best = min(gaps, key=lambda gap: gap[0]) if fit == BEST_FIT else gaps[0]
        base[block] = best[1]
        placed.append(block)
    return base


def arguments(blocks, order, fit, ceiling, base, fixed):
    none = np.zeros((0, 0), np.uint64)
    words = none if blocks.relation is None else blocks.relation.words
    ranges = blocks.ranges
    return (
        *(order, blocks.start, ranges.begin, ranges.end, blocks.shift, blocks.size),
        *(blocks.alignment, words, fit, ceiling, base, fixed),
    )


def drawn(seed, kind):
    """Blocks, an order, and places for the first of it."""
    blocks = to_blocks(small(seed, kind))
    order = list(range(blocks.count))
    random.Random(seed).shuffle(order)
    return blocks, np.array(order, np.int64)


@pytest.mark.parametrize("fit", [BEST_FIT, LOWEST])
@pytest.mark.parametrize("kind", ["", "a", "g", "r", "i", "agri"])
def test_a_block_goes_into_the_gap_of_its_rule(kind, fit, in_python):
    for seed in range(20):
        blocks, order = drawn(seed, kind)
        base = np.full(blocks.count, -1)
        makespan = place_in_order(*arguments(blocks, order, fit, FAR, base, 0))
        assert base.tolist() == by_trying_all(blocks, order, fit, base, 0)
        assert makespan == blocks.makespan(base)


@pytest.mark.parametrize("fit", [BEST_FIT, LOWEST])
def test_what_is_fixed_stays_and_the_others_lie_around_it(fit, in_python):
    for seed in range(20):
        blocks, order = drawn(seed, "")
        base = np.full(blocks.count, -1)
        place_in_order(*arguments(blocks, order, fit, FAR, base, 0))
        fixed = (blocks.count + 1) // 2
        lifted = np.where(np.isin(np.arange(blocks.count), order[:fixed]), base + 3, -1)
        found = lifted.copy()
        makespan = place_in_order(*arguments(blocks, order, fit, FAR, found, fixed))
        assert found.tolist() == by_trying_all(blocks, order, fit, lifted, fixed)
        assert makespan == blocks.makespan(found)


def test_it_gives_up_where_it_reaches_the_ceiling(in_python):
    for seed in range(20):
        blocks, order = drawn(seed, "")
        base = np.full(blocks.count, -1)
        whole = place_in_order(*arguments(blocks, order, LOWEST, FAR, base, 0))
        tops = np.maximum.accumulate((base + blocks.height)[order])
        for ceiling in range(1, whole + 2):
            reached = place_in_order(
                *arguments(blocks, order, LOWEST, ceiling, base, 0)
            )
            over = tops[tops >= ceiling]
            assert reached == (over[0] if len(over) else whole)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 12, 40, 41])
def test_pairs_are_sorted_by_the_first(count, in_python):
    random_keys = np.random.default_rng(count).integers(0, 50, count + 2)
    keys, values = random_keys.copy(), 100 * random_keys
    _sort(keys, values, count)
    assert keys.tolist() == [*sorted(random_keys[:count]), *random_keys[count:]]
    assert values.tolist() == (100 * keys).tolist()
