"""Minimum cuts, against networkx."""

import itertools
import random

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from revremat.policies._flow import MOST_CAPACITY, minimum_cut

capacities = st.one_of(st.integers(0, 5), st.integers(0, 2**50))


@st.composite
def networks(draw):
    size = draw(st.integers(2, 12))
    node = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(node, node, capacities), max_size=40))
    return size, [edge for edge in edges if edge[0] != edge[1]]


def oracle(size, edges):
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(size))
    for tail, head, capacity in edges:
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=before + capacity)
    return networkx.minimum_cut_value(graph, 0, size - 1)


def across(edges, near):
    return sum(c for tail, head, c in edges if near[tail] and not near[head])


@settings(max_examples=200, deadline=None)
@given(networks())
def test_a_cut_parts_source_and_sink_at_the_least_capacity(network):
    size, edges = network
    value, near = minimum_cut(size, edges, 0, size - 1)
    assert near[0]
    assert not near[-1]
    assert value == across(edges, near) == oracle(size, edges)


def every_cut(size, edges):
    """All sets of nodes on the source's side, and what crosses them."""
    for chosen in itertools.product((False, True), repeat=size - 2):
        near = [True, *chosen, False]
        yield across(edges, near), sum(near), near


@pytest.mark.parametrize("seed", range(40))
def test_of_all_cuts_it_is_the_least_and_of_those_the_nearest(seed, in_python):
    draw = random.Random(seed)
    size = draw.randint(2, 7)
    drawn = [
        (draw.randrange(size), draw.randrange(size), draw.choice((0, 1, 1, 2, 3, 9)))
        for _ in range(draw.randint(0, 22))
    ]
    edges = [edge for edge in drawn if edge[0] != edge[1]]
    value, near = minimum_cut(size, edges, 0, size - 1)
    least, _, nearest = min(every_cut(size, edges))
    assert (value, near.tolist()) == (least, nearest)


@settings(max_examples=100, deadline=None)
@given(networks(), st.randoms())
def test_the_order_of_edges_makes_no_difference(network, random):
    size, edges = network
    shuffled = list(edges)
    random.shuffle(shuffled)
    first, again = (minimum_cut(size, e, 0, size - 1) for e in (edges, shuffled))
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


def test_a_path_of_many_thousand_nodes():
    size = 50_000
    edges = [(k, k + 1, 10 + (k - 777) ** 2) for k in range(size - 1)]
    value, near = minimum_cut(size, edges, 0, size - 1)
    assert value == 10
    assert near.sum() == 778


def test_a_wide_graph_that_needs_many_phases():
    rng = np.random.default_rng(0)
    size = 3000
    tails = rng.integers(0, size - 1, 4 * size)
    heads = np.minimum(size - 1, tails + rng.integers(1, 9, 4 * size))
    drawn = zip(tails, heads, rng.integers(0, 2**40, 4 * size), strict=True)
    edges = [(int(t), int(h), int(c)) for t, h, c in drawn]
    value, near = minimum_cut(size, edges, 0, size - 1)
    assert value == across(edges, near) == oracle(size, edges)


def test_capacities_that_could_overflow_are_refused():
    with pytest.raises(ValueError, match="2\\^62"):
        minimum_cut(2, [(0, 1, MOST_CAPACITY)], 0, 1)
    with pytest.raises(ValueError, match="0 or more"):
        minimum_cut(2, [(0, 1, -1)], 0, 1)
