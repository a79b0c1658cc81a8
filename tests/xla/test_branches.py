"""How often branches run: as counters and devices say, the longest where data do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import revremat as rr
from revremat import xla
from revremat.xla.step_time._branches import shares_of

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
WAYS = [
    lambda x: jnp.tanh(x @ x),
    lambda x: jnp.sin(x @ x) @ x,
    lambda x: jnp.cos(x @ x) @ x @ x,
]
TABLE = np.array([2, 0, 0, 1, 2, 0, 2], np.int32)


def shares(step, *specs, spec="cpu:1"):
    """Of the branches of a step's one conditional; the more work, the longer."""
    target = rr.target(spec)
    module = xla.Module.from_bytes(xla.compile_step(step, specs or (X,), target).hlo)
    (found,) = [i for i in module.instructions.values() if i.opcode == "conditional"]
    us = [float(len(branch.instructions)) for branch in module.called(found)]
    return shares_of(found, module, target.num_devices, us)


def ticks(choose, count=7, **how):
    """A loop whose counter chooses one of three ways."""

    def step(x):
        def tick(x, i):
            return jax.lax.switch(choose(i, x), WAYS, x), None

        return jax.lax.scan(tick, x, jnp.arange(count), **how)[0]

    return step


CHOSEN = {
    "of three in turn": (lambda i, x: i % 3, [3 / 7, 2 / 7, 2 / 7]),
    "from the third on": (lambda i, x: jnp.where(i < 3, 0, 2), [3 / 7, 0, 4 / 7]),
    "by a table": (lambda i, x: jnp.asarray(TABLE)[i], [3 / 7, 1 / 7, 3 / 7]),
    "within bounds": (lambda i, x: jnp.clip(i - 2, 0, 2), [3 / 7, 1 / 7, 3 / 7]),
    "divided": (lambda i, x: i // 3, [3 / 7, 3 / 7, 1 / 7]),
    "below none and above all": (lambda i, x: i - 3, [4 / 7, 1 / 7, 2 / 7]),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_loops_counter_says_it(name):
    choose, expected = CHOSEN[name]
    assert shares(ticks(choose)) == pytest.approx(expected)


def test_a_loop_may_run_backwards():
    step = ticks(lambda i, x: jnp.where(i < 3, 0, 2), reverse=True)
    assert shares(step) == pytest.approx([3 / 7, 0, 4 / 7])


def test_of_two_the_condition_says_it():
    def step(x):
        def tick(x, i):
            return jax.lax.cond(i < 2, WAYS[0], WAYS[1], x), None

        return jax.lax.scan(tick, x, jnp.arange(7))[0]

    assert sorted(shares(step)) == pytest.approx([2 / 7, 5 / 7])


def test_counters_of_both_loops_say_it():
    def step(x):
        def outer(x, i):
            def inner(x, j):
                return jax.lax.switch((i + j) % 3, WAYS, x), None

            return jax.lax.scan(inner, x, jnp.arange(4))[0], None

        return jax.lax.scan(outer, x, jnp.arange(5))[0]

    counted = np.bincount([(i + j) % 3 for i in range(5) for j in range(4)])
    assert shares(step) == pytest.approx(list(counted / 20))


DATA = {
    "what is computed": lambda i, x: (x[0, 0] > 0).astype(jnp.int32),
    "that and the counter": lambda i, x: i % 2 + (x[0, 0] > 0),
}


@pytest.mark.parametrize("name", DATA)
def test_data_leave_it_open(name):
    assert shares(ticks(DATA[name])) is None


def test_an_argument_leaves_it_open():
    def step(x, which):
        return jax.lax.switch(which, WAYS, x)

    which = jax.ShapeDtypeStruct((), jnp.int32)
    assert shares(step, X, which) is None


def test_of_devices_in_different_branches_the_longest_counts():
    """The stages of a pipeline: in 5 of 8 ticks one of them is at work."""
    mesh = rr.target("cpu:4").mesh({"stage": 4})

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P("stage"))
    def step(x):
        stage = jax.lax.axis_index("stage")

        def tick(x, i):
            at_work = (i >= stage + 2) & (i < stage + 4)
            x = jax.lax.cond(at_work, WAYS[1], lambda x: x, x)
            return jax.lax.ppermute(
                x, "stage", [(k, (k + 1) % 4) for k in range(4)]
            ), None

        x = jax.lax.pcast(x, "stage", to="varying")
        return jax.lax.scan(tick, x, jnp.arange(8))[0]

    spec = jax.ShapeDtypeStruct(
        (8, 8), jnp.float32, sharding=jax.NamedSharding(mesh, P())
    )
    # Stage 0 begins in tick 2 and stage 3 ends in tick 6.
    assert sorted(shares(step, spec, spec="cpu:4")) == pytest.approx([3 / 8, 5 / 8])


def test_what_data_decide_is_told_as_a_range():
    def step(x):
        return jax.lax.cond(x[0, 0] > 0, WAYS[2], lambda x: x, x)

    found = rr.measure(
        step, jax.ShapeDtypeStruct((256, 256), jnp.float32), target="cpu:1"
    )
    assert 0 < found.time.undecided_us < found.time.step_us
    assert any(
        "data decide which branches run: a step takes " in n for n in found.notes
    )
    again = rr.Measurement.from_json(found.to_json())
    assert again.time.undecided_us == found.time.undecided_us


def test_what_counters_decide_is_no_range():
    found = rr.measure(ticks(CHOSEN["by a table"][0]), X, target="cpu:1")
    assert found.time.undecided_us == 0
    assert not any("data decide" in note for note in found.notes)
