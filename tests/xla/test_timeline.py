"""The timeline: what is drawn adds up to what was estimated."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from revremat.xla import estimate
from revremat.xla.step_time._timeline import STREAMS, Event, spans
from tests.xla.modules import Program, machine
from tests.xla.test_step_time import BACKWARD, RECOMPUTE, gather


def total(found, stream, name="duration_us"):
    return sum(getattr(s, name) for s in found if s.stream == stream)


def assert_adds_up(time):
    """Every stream's spans are its sums, one after another."""
    found = time.spans
    about = lambda us: pytest.approx(us, rel=1e-6, abs=1e-6)
    assert total(found, "compute") == about(time.compute_us)
    assert total(found, "collective") == about(time.collective_us)
    assert total(found, "transfer") == about(time.transfer_us)
    waits = "exposed_us"
    assert total(found, "collective", waits) == about(time.exposed_collective_us)
    assert total(found, "transfer", waits) == about(time.exposed_transfer_us)
    for stream in STREAMS:
        end = 0.0
        for span in (s for s in found if s.stream == stream):
            assert span.start_us >= end - 1e-6 * time.step_us
            end = span.start_us + span.duration_us
        assert end <= time.step_us * (1 + 1e-6)


def test_a_span_for_every_stretch_of_one_kind():
    program = Program()
    start = gather(program.entry, 50)
    program.entry.kernel(20, BACKWARD)
    program.entry.kernel(10, BACKWARD)
    program.entry.kernel(5, RECOMPUTE)
    program.entry.add("all-gather-done", (10,), start)
    time = estimate(program.module(), machine(8))
    rows = [(s.stream, s.phase, s.start_us, s.duration_us) for s in time.spans]
    assert rows == [
        ("compute", "backward", 0, pytest.approx(30, rel=1e-3)),
        ("compute", "recompute", pytest.approx(30), pytest.approx(5, rel=1e-3)),
        ("collective", "forward", 0, pytest.approx(50, rel=1e-3)),
    ]
    assert time.spans[2].op == "all-gather"
    assert time.spans[2].exposed_us == pytest.approx(15, rel=1e-3)
    assert_adds_up(time)


def test_a_loop_is_drawn_once_and_as_long_as_all_of_its_trips():
    program = Program()
    body = program.computation("body")
    start = gather(body, 30)
    body.kernel(20, BACKWARD)
    body.add("all-gather-done", (10,), start)
    program.entry.kernel(7)
    state = program.entry.add("parameter", ())
    config = {"known_trip_count": {"n": "12"}}
    program.entry.add("while", (), state, calls=[body], config=config)
    time = estimate(program.module(), machine(8))
    before, inside, collective = time.spans
    assert (before.times, inside.times, collective.times) == (1, 12, 12)
    assert inside.start_us == collective.start_us == pytest.approx(7)
    assert inside.duration_us == pytest.approx(240, rel=1e-3)
    assert collective.exposed_us == pytest.approx(120, rel=1e-3)
    assert_adds_up(time)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(STREAMS),
        st.sampled_from(["forward", "backward", "recompute"]),
        st.sampled_from(["", "a", "a/b", "a/c", "b/c/d/e"]),
        st.floats(0, 100),
        st.floats(0, 50),
    ),
    max_size=200,
)


@given(EVENTS, st.integers(6, 40))
def test_whatever_is_put_together_nothing_is_lost(rows, most):
    events, free = [], dict.fromkeys(STREAMS, 0.0)
    for stream, phase, scope, us, gap in rows:
        events.append(Event(stream, phase, scope, "op", free[stream] + gap, us, us / 2))
        free[stream] += us + gap
    found = spans(events, most)
    assert len(found) <= most
    for stream in STREAMS:
        own = [e for e in events if e.stream == stream]
        busy = sum(e.duration_us for e in own)
        assert total(found, stream) == pytest.approx(busy)
        assert total(found, stream, "exposed_us") == pytest.approx(busy / 2)
    for one, two in itertools.pairwise(found):
        if one.stream == two.stream:
            assert one.start_us + one.duration_us <= two.start_us + 1e-6


def test_a_compiled_program_adds_up(mlp_time):
    assert_adds_up(mlp_time)
    phases = {s.phase for s in mlp_time.spans if s.stream == "compute"}
    assert {"forward", "backward", "recompute"} <= phases
    again = sum(s.duration_us for s in mlp_time.spans if s.phase == "recompute")
    assert again == pytest.approx(mlp_time.recompute_us, rel=0.05)
    assert max(s.times for s in mlp_time.spans) == 6


@pytest.fixture
def mlp_time():
    import jax
    import jax.numpy as jnp

    def loss(ws, x):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)

    specs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((6, 64, 64), (32, 64))]
    return rr.measure(jax.grad(loss), *specs, target="cpu:1").time
