"""What a search says of what it found: who holds the bytes, what was not sent."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat._graph import Graph
from revremat._measurement import Buffer, Measurement, Memory, Time
from revremat._search import BASELINE, ProgramKey, Request, Space, State, answer
from revremat._search._result import (
    Row,
    holders,
    not_sent,
    over,
    times_alive,
    why_it_does_not_fit,
)
from tests.search.world import measured, unit_of
from tests.xla.programs import spec

GRAPH = Graph((unit_of(),), "", "")
"""Eight layers; one keeps 24 bytes if it saves everything, else one byte."""


def row(action=None, forward=0, host=0, predicted=None, **sizes) -> Any:
    """A program whose layers take an action, with so many bytes of forward passes."""
    plan = None if action is None else GRAPH.plan({"u": action})
    buffers = [Buffer(forward, (), "float32", "forward", "layer")]
    for name, size in sizes.items():
        buffers.append(Buffer(size, (), "float32", name, ""))
    total = sum(b.bytes for b in buffers)
    memory = Memory(0, 0, 0, total, host, buffers=tuple(buffers))
    m = Measurement("", "", "", 1, 1, 0, memory, Time(1.0, 1.0))
    return Row("", plan, m, predicted)


def test_a_layer_of_these_keeps_24_bytes_or_one():
    unit = GRAPH.units[0]
    assert [unit.kept(a).device_bytes for a in (SAVE, RECOMPUTE)] == [24, 1]


def test_the_loss_of_a_result_is_the_program_that_was_measured():
    """Also where only its gradients are held together, and no unit is decided."""
    specs = spec(4, 8, 8), spec(16, 8)

    def loss(w, x):
        for k in range(4):
            x = jnp.tanh(x @ w[k])
        return x.sum()

    graph = rr.trace(loss, *specs)
    space = Space(graph, rr.target("cpu:1"), (), {}, {})
    state = State(space, {}, ())
    held = ProgramKey((), gradient_barrier=True)
    for key, time_us in ((BASELINE, 2.0), (held, 1.0)):
        state = state.with_measured(Request(key, ""), measured(10, time_us))
    fit = answer(state.within(100), loss)
    assert fit.plan.gradient_barrier
    jaxpr = lambda loss: str(jax.make_jaxpr(jax.grad(loss))(*specs))
    assert jaxpr(fit.loss) == jaxpr(rr.apply(loss, fit.plan))


@pytest.mark.parametrize(
    ("pairs", "most"),
    [
        ([], 0.0),
        ([(100, 90.0)], 10.0),
        ([(100, 90.0), (100, 70.0), (100, 95.0)], 30.0),
        ([(100, 120.0)], 0.0),  # smaller than expected
        ([(100, None), (100, 99.0)], 1.0),
    ],
)
def test_the_worst_counts_of_what_came_out_larger_than_expected(pairs, most):
    rows = [Row("", None, measured(size, 1.0), told) for size, told in pairs]
    assert over(rows) == most


@pytest.mark.parametrize(
    ("plain", "recomputed", "times"),
    [
        (200, 16, 1.0),  # eight layers give back 23 bytes each
        (384, 16, 2.0),
        (108, 16, 0.5),
        (62, 16, 0.25),
        (16, 16, 0.0),
    ],
)
def test_how_often_activations_are_alive_is_told_by_what_is_given_back(
    plain, recomputed, times
):
    found = times_alive(row(forward=plain), row(RECOMPUTE, recomputed), GRAPH)
    assert found == times


def test_where_nothing_is_given_back_it_is_told_by_bytes():
    assert times_alive(row(forward=3), row(SAVE, 1), GRAPH) == 2.0


@pytest.mark.parametrize(
    ("host", "own", "share", "left"),
    [
        (192, 0, 1.0, 0),
        (144, 0, 1.0, 0),  # three quarters
        (143, 0, 1.0, 49),
        (0, 0, 1.0, 192),
        (292, 100, 1.0, 0),
        (242, 100, 1.0, 50),
        (0, 0, 0.5, 96),
        (72, 0, 0.5, 0),
    ],
)
def test_what_the_compiler_leaves_on_the_device_is_told_from_a_quarter_on(
    host, own, share, left
):
    other = row(RECOMPUTE, host=own) if own else None
    assert not_sent(row(OFFLOAD, host=host), GRAPH, share, other) == left


def test_of_a_program_that_sends_nothing_nothing_is_left():
    assert not_sent(row(SAVE), GRAPH, 1.0) == 0
    assert not_sent(row(), GRAPH, 1.0) == 0


def test_the_three_largest_are_named():
    found = holders(row(None, 10, argument=2048, output=30, backward=40), GRAPH, 1.0)
    assert found == "argument 2.00 KiB, backward/(unnamed) 40 B, output/(unnamed) 30 B"


@pytest.mark.parametrize(
    ("action", "forward", "share", "times", "undecided"),
    [
        (RECOMPUTE, 90, 1.0, 1.0, "82 B"),  # eight bytes are of units
        (RECOMPUTE, 33, 1.0, 1.0, None),  # a quarter of all
        (RECOMPUTE, 34, 1.0, 1.0, "26 B"),
        (RECOMPUTE, 90, 0.5, 1.0, "86 B"),
        (RECOMPUTE, 90, 1.0, 5.0, "50 B"),
        (RECOMPUTE, 90, 1.0, 9.0, None),
        (SAVE, 240, 1.0, 1.0, None),
        (None, 90, 1.0, 1.0, None),
    ],
)
def test_what_is_kept_outside_of_units_is_told_from_a_quarter_on(
    action, forward, share, times, undecided
):
    found = holders(
        row(action, forward, argument=100 - min(100, forward)), GRAPH, share, times
    )
    assert ("outside of all units" in found) == (undecided is not None)
    assert f"about {undecided} of that" in found or undecided is None


def test_where_loops_are_not_decided_the_first_is_named():
    graph = dataclasses.replace(GRAPH, undecided=("a loop of its own", "another"))
    assert holders(row(RECOMPUTE, 90), graph, 1.0).endswith(
        "all units: a loop of its own"
    )
    assert "put rr.block" in holders(row(RECOMPUTE, 90), GRAPH, 1.0)


@pytest.mark.parametrize(
    ("sizes", "gains"),
    [([5120, 5120], False), ([5120, 6000, 5120], False), ([5120, 5000], True)],
)
def test_where_no_plan_takes_less_that_is_said_with_what_is_fixed(sizes, gains):
    memory = SimpleNamespace(total_bytes=5120, temp_bytes=4096)
    plan = rr.Plan((), "", "h100:8", budget_bytes=2048, compiled_bytes=5120)
    rows = [SimpleNamespace(bytes=n, plan=k or None) for k, n in enumerate(sizes)]
    found: Any = SimpleNamespace(
        plan=plan,
        most_compiles=12,
        is_cut_short=False,
        rows=rows,
        measurement=SimpleNamespace(memory=memory),
    )
    nothing = (
        "none takes less than the program as it is, 5.00 KiB, 3.00 KiB more, of which "
        "arguments and results alone are 1.00 KiB"
    )
    assert (nothing in why_it_does_not_fit(found)) != gains


@pytest.mark.parametrize("cut", [True, False])
def test_what_does_not_fit_says_by_how_much(cut):
    plan = rr.Plan(
        (), "", "h100:8", budget_bytes=2048, compiled_bytes=5120, held_by="weights"
    )
    found: Any = SimpleNamespace(plan=plan, most_compiles=12, is_cut_short=cut, rows=())
    told = why_it_does_not_fit(found)
    assert told.startswith(
        "no plan stays within 2.00 KiB on h100:8: the smallest that was compiled takes "
        "5.00 KiB, 3.00 KiB more; most is held by weights"
    )
    assert told.endswith("allow more than 12 compiles to try other actions") == cut
