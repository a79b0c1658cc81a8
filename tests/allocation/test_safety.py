"""Tensors share memory only where no run of the streams can tell the difference."""

import itertools
import random

import networkx as nx
import numpy as np
import pytest

from revremat._errors import UserError
from revremat.allocation import (
    AllocationProblem,
    Operator,
    Relation,
    Scheduled,
    Tensor,
    allocate,
    safe_problem,
    split_streams,
    validate,
)


def random_graph(seed, most=12, streams=3):
    """Operators that read a few recent tensors; some wait for others besides."""
    rng = random.Random(seed)
    count = rng.randint(1, most)
    operators, tensors = [], [Tensor("input", rng.randint(1, 9))]
    for v in range(count):
        known = [t.id for t in tensors][-6:]
        reads = rng.sample(known, rng.randint(0, min(2, len(known))))
        writes = [f"t{v}.{i}" for i in range(rng.choice((0, 1, 1, 1, 2)))]
        waits = rng.sample(range(v), 1) if v and rng.random() < 0.2 else []
        operators.append(
            Operator(
                f"op{v}",
                f"s{rng.randrange(streams)}",
                tuple(reads),
                tuple(writes),
                tuple(f"op{w}" for w in waits),
            )
        )
        tensors += [Tensor(name, rng.randint(1, 9)) for name in writes]
    return operators, tensors


def dependency_graph(operators):
    """What must finish before what, written down naively."""
    graph, latest, producer = nx.DiGraph(), {}, {}
    graph.add_node("start")
    for op in operators:
        graph.add_edge(latest.get(op.stream, "start"), op.id)
        latest[op.stream] = op.id
        for name in op.reads:
            graph.add_edge(producer.get(name, "start"), op.id)
        for other in op.after:
            graph.add_edge(other, op.id)
        producer.update(dict.fromkeys(op.writes, op.id))
    return graph, producer


def brute_force_conflicts(operators, tensors):
    graph, producer = dependency_graph(operators)
    before = {v: nx.ancestors(graph, v) for v in graph}
    users = {t.id: {producer.get(t.id, "start")} for t in tensors}
    for op in operators:
        for name in op.reads:
            users[name].add(op.id)

    def gives_way(a, b):
        return all(user in before[producer.get(b, "start")] for user in users[a])

    dense = np.zeros((len(tensors), len(tensors)), bool)
    for i, j in itertools.combinations(range(len(tensors)), 2):
        a, b = tensors[i].id, tensors[j].id
        dense[i, j] = dense[j, i] = not gives_way(a, b) and not gives_way(b, a)
    return dense


def overwritten(operators, tensors, problem, offsets, seed):
    """Runs the streams in parallel once; the first tensor lost while needed, or None.

    An operator writes its outputs as soon as it begins and looks at what it reads and
    wrote only as it ends: whatever happens in between shows.
    """
    rng = random.Random(seed)
    graph, _ = dependency_graph(operators)
    memory = {}
    place = {t.id: offsets[problem.index[t.id]] for t in tensors}
    size = {t.id: t.size_bytes for t in tensors}
    written = {name for op in operators for name in op.writes}

    def write(name):
        memory.update(dict.fromkeys(range(place[name], place[name] + size[name]), name))

    def intact(name):
        cells = range(place[name], place[name] + size[name])
        return all(memory[cell] == name for cell in cells)

    for tensor in tensors:
        if tensor.id not in written:
            write(tensor.id)
    waiting = {op.id: op for op in operators}
    running, finished = {}, {"start"}
    hurry = rng.random()
    while waiting or running:
        ready = [
            op for op in waiting.values() if set(graph.predecessors(op.id)) <= finished
        ]
        if ready and (not running or rng.random() < hurry):
            op = rng.choice(ready)
            running[op.id] = waiting.pop(op.id)
            for name in op.writes:
                write(name)
        else:
            op = running.pop(rng.choice(sorted(running)))
            finished.add(op.id)
            for name in (*op.reads, *op.writes):
                if not intact(name):
                    return name
    return None


def test_agrees_with_brute_force_reachability_on_a_thousand_graphs():
    for seed in range(1000):
        operators, tensors = random_graph(seed)
        problem = safe_problem(operators, tensors)
        expected = brute_force_conflicts(operators, tensors)
        assert (problem.relation.dense() == expected).all(), seed


@pytest.mark.parametrize("count", [62, 63, 64, 65, 130])
def test_agrees_across_the_edges_of_words(count):
    operators, tensors = random_graph(count, most=count, streams=4)
    while len(tensors) < count:
        tensors.append(Tensor(f"spare{len(tensors)}", 1))
    problem = safe_problem(operators, tensors)
    assert (problem.relation.dense() == brute_force_conflicts(operators, tensors)).all()


@pytest.mark.parametrize(
    "seeds", [range(250), pytest.param(range(250, 1000), marks=pytest.mark.slow)]
)
def test_no_interleaving_overwrites_a_tensor_that_is_needed(seeds):
    for seed in seeds:
        operators, tensors = random_graph(seed)
        problem = safe_problem(operators, tensors)
        offsets = allocate(problem, seconds=0.05).offsets_bytes
        for run in range(8):
            assert overwritten(operators, tensors, problem, offsets, run) is None, seed


def test_the_same_runs_catch_an_unsafe_relation():
    caught = 0
    for seed in range(200):
        operators, tensors = random_graph(seed)
        # Lifetimes in the order listed, as if there were one stream.
        unsafe = AllocationProblem(safe_problem(operators, tensors).buffers)
        offsets = allocate(unsafe, seconds=0.05).offsets_bytes
        caught += any(
            overwritten(operators, tensors, unsafe, offsets, run) for run in range(8)
        )
    assert caught >= 20


def test_one_stream_is_exactly_the_overlap_of_lifetimes():
    for seed in range(200):
        operators, tensors = random_graph(seed, most=30, streams=1)
        problem = safe_problem(operators, tensors)
        low, high = problem.lower, problem.upper
        overlap = (low[:, None] < high) & (low < high[:, None])
        np.fill_diagonal(overlap, False)
        assert (problem.relation.dense() == overlap).all()


def test_more_streams_never_allow_more():
    for seed in range(200):
        operators, tensors = random_graph(seed, streams=4)
        merged = [
            Operator(op.id, "one", op.reads, op.writes, op.after) for op in operators
        ]
        several = safe_problem(operators, tensors).relation.dense()
        one = safe_problem(merged, tensors).relation.dense()
        assert (several | one == several).all()


def test_an_input_never_shares_with_its_own_operators_output():
    problem = safe_problem(
        [Operator("f", "s", ("x",), ("y",))], [Tensor("x", 1), Tensor("y", 1)]
    )
    assert problem.relation.conflicts(0, 1)


def test_a_lifelong_tensor_shares_with_none():
    operators = [Operator(f"f{i}", "s", (), (f"t{i}",)) for i in range(70)]
    tensors = [Tensor(f"t{i}", 1, lifelong=i == 66) for i in range(70)]
    problem = safe_problem(operators, tensors)
    assert problem.relation.row(66).sum() == 69
    assert problem.relation.row(3).sum() == 1
    assert allocate(problem).makespan_bytes == 2


def test_in_place_pairs_share_an_offset_only_when_nothing_else_reads():
    tensors = [Tensor("x", 4), Tensor("y", 4), Tensor("z", 4)]
    update = Operator("add", "s", ("x",), ("y",), in_place=(("x", "y"),))
    make = Operator("make", "s", writes=("x",))
    problem = safe_problem([make, update, Operator("use", "s", ("y",))], tensors)
    assert problem.in_place == (("x", "y"),)
    offsets = allocate(problem).offsets_bytes
    assert offsets[0] == offsets[1]
    with pytest.raises(UserError, match="'look' may still use it"):
        safe_problem([make, Operator("look", "other", ("x",)), update], tensors)
    before = [make, Operator("look", "s", ("x",)), update]
    assert safe_problem(before, tensors).in_place


def test_chains_of_in_place_pairs_become_one():
    operators = [Operator("make", "s", writes=("t0",))]
    for i in range(4):
        pair = (f"t{i}", f"t{i + 1}")
        operators.append(Operator(f"f{i}", "s", pair[:1], pair[1:], in_place=(pair,)))
    problem = safe_problem(operators, [Tensor(f"t{i}", 8) for i in range(5)])
    assert problem.in_place == (("t0", "t1", "t2", "t3", "t4"),)
    assert allocate(problem).makespan_bytes == 8


def test_a_collectives_operands_lie_back_to_back():
    operators = [
        *(Operator(f"make{i}", "main", writes=(f"g{i}",)) for i in range(3)),
        Operator("reduce", "comm", ("g0", "g1", "g2"), ("sum",)),
    ]
    tensors = [Tensor(f"g{i}", 5 + i, 4, group="bucket") for i in range(3)]
    problem = safe_problem(operators, [*tensors, Tensor("sum", 8)])
    offsets = allocate(problem).offsets_bytes
    validate(problem, offsets)
    assert [b - a for a, b in itertools.pairwise(offsets[:3])] == [8, 8]


def test_asynchronous_work_holds_its_buffers_until_it_is_waited_for():
    schedule = [
        Scheduled("make", writes=("shard",)),
        Scheduled("gather-start", ("shard",), ("whole",), starts="comm"),
        Scheduled("compute", writes=("other",)),
        Scheduled("gather-done", finishes=("gather-start",)),
        Scheduled("use", ("whole",), ("late",)),
    ]
    tensors = [Tensor(name, 4) for name in ("shard", "whole", "other", "late")]
    relation = safe_problem(split_streams(schedule), tensors).relation
    assert relation.conflicts(0, 2)  # the shard may still be read
    assert not relation.conflicts(0, 3)  # it has been gathered by then
    synchronous = [Scheduled(s.id, s.reads, s.writes) for s in schedule]
    at_once = safe_problem(split_streams(synchronous), tensors).relation
    assert not at_once.conflicts(0, 2)


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([Operator("f", "s", ("z",))], "'z', which is no tensor"),
        ([Operator("f", "s"), Operator("f", "s")], "two operators are called 'f'"),
        ([Operator("f", "s", after=("g",))], "not listed before it"),
        (
            [Operator("f", "s", ("x",)), Operator("g", "s", (), ("x",))],
            "list its producer first",
        ),
        ([Operator("f", "s", ("x",), (), (), (("x", "y"),))], "in place of 'x'"),
    ],
)
def test_mistakes_are_named(operators, message):
    with pytest.raises(UserError, match=message):
        safe_problem(operators, [Tensor("x", 1), Tensor("y", 1)])


def test_waiting_for_what_was_not_started_is_named():
    with pytest.raises(UserError, match="not started before it"):
        split_streams([Scheduled("done", finishes=("start",))])


def test_twenty_thousand_operators_on_eight_streams():
    rng = random.Random(0)
    operators, tensors = [], []
    for v in range(20_000):
        reads = {f"t{rng.randrange(max(0, v - 50), v)}" for _ in range(2)} if v else ()
        operators.append(Operator(f"op{v}", str(v % 8), tuple(reads), (f"t{v}",)))
        tensors.append(Tensor(f"t{v}", rng.randint(1, 100)))
    problem = safe_problem(operators, tensors)
    relation = problem.relation
    assert isinstance(relation, Relation)
    low, high = problem.lower, problem.upper
    for i in rng.sample(range(20_000), 200):
        live = (low < high[i]) & (low[i] < high)
        live[i] = False
        assert (relation.row(i) | live == relation.row(i)).all()
        assert all(relation.conflicts(j, i) for j in np.flatnonzero(relation.row(i)))
