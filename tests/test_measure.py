"""measure and assert_fits: what may be given, and what is said otherwise."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._measure import _steps
from tests.xla.programs import spec

W, X = spec(256, 256), spec(1024, 256)


def loss(w, x):
    with jax.named_scope("layer"):
        return jnp.sum(jnp.tanh(x @ w))


STEP = jax.grad(loss)


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_arrays_and_shapes_say_the_same(target):
    shapes = rr.measure(STEP, W, X, target=target)
    arrays = rr.measure(STEP, jnp.ones(W.shape), np.ones(X.shape, "f"), target=target)
    assert arrays.memory.total_bytes == shapes.memory.total_bytes


def test_numbers_are_arguments_too():
    m = rr.measure(lambda x, scale: x * scale, X, 2.0, target="cpu:1")
    assert m.memory.argument_bytes == X.size * 4 + 4


def test_donation_halves_what_an_update_needs():
    update = lambda w: w * 0.9
    kept, given = (
        rr.measure(update, W, target="h100:1", donate=donate).memory
        for donate in ((), 0)
    )
    assert kept.total_bytes == 2 * 4 * W.size
    assert given.total_bytes == 4 * W.size
    assert given.alias_bytes == 4 * W.size


def test_a_jitted_step_is_taken_as_it_is():
    jitted = jax.jit(STEP, donate_argnums=0)
    assert rr.measure(jitted, W, X, target="cpu:1").memory.alias_bytes == 4 * W.size
    with pytest.raises(rr.UserError, match=r"write donate_argnums in its jax\.jit"):
        rr.measure(jitted, W, X, target="cpu:1", donate=(0,))


@pytest.mark.parametrize(
    ("specs", "how", "says"),
    [
        ((), {"donate": (0,)}, "already lowered: write donate_argnums"),
        ((W,), {}, "arguments were given with a step that is already lowered"),
    ],
)
def test_what_comes_too_late_is_refused(specs, how, says):
    lowered = jax.jit(STEP).lower(W, X)
    with pytest.raises(rr.UserError, match=says):
        rr.measure(lowered, *specs, target="cpu:1", **how)
    with pytest.raises(rr.UserError, match=says.replace("lowered", "compiled")):
        rr.measure(lowered.compile(), *specs, target="cpu:1", **how)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"options": {"xla_a": 1}}, r"options=\{'xla_a': 1\} was given with a step"),
        ({"remat_pass": True}, "remat_pass=True was given with a step"),
        ({"options": {"a": 1}, "remat_pass": True}, r"options=\{'a': 1\} was given"),
    ],
)
def test_a_compiled_step_takes_no_options(how, says):
    compiled = jax.jit(lambda x: x + 1).lower(spec(4)).compile()
    with pytest.raises(rr.UserError, match=says):
        rr.measure(compiled, target="cpu:1", **how)
    assert rr.measure(compiled, target="cpu:1").memory.argument_bytes == 16


def test_what_takes_all_of_its_budget_fits():
    total = rr.measure(STEP, W, X, target="cpu:1").memory.total_bytes
    assert rr.assert_fits(STEP, W, X, target="cpu:1", budget=total).fits
    with pytest.raises(rr.DoesNotFit, match="1 B more than the budget"):
        rr.assert_fits(STEP, W, X, target="cpu:1", budget=total - 1)


def test_a_problem_is_measured_as_its_step():
    problem = rr.Problem(
        STEP, (W, X), step=lambda f: (f, (W, X)), donate=(0,), name="p"
    )
    found = rr.measure(problem, target="cpu:1")
    assert found.memory == rr.measure(STEP, W, X, target="cpu:1", donate=(0,)).memory
    assert found.program == "p"
    with pytest.raises(rr.UserError, match="with a problem, which has its own"):
        rr.measure(problem, W, X, target="cpu:1")


@pytest.mark.parametrize(
    ("step", "as_arguments"),
    [
        (rr.Step(STEP, (W, X)), {}),
        (rr.Step(STEP, (W, X), donate=(0,)), {"donate": (0,)}),
        (rr.Step(STEP, (W, X), name="mine"), {"name": "mine"}),
        (rr.Step(jax.jit(STEP, donate_argnums=0), (W, X)), {"donate": (0,)}),
    ],
)
def test_a_step_with_its_arguments_is_measured_as_they_are(step, as_arguments):
    found = rr.measure(step, target="cpu:1")
    want = rr.measure(STEP, W, X, target="cpu:1", **as_arguments)
    assert (found.program, found.memory) == (want.program, want.memory)


@pytest.mark.parametrize("how", [{"donate": (0,)}, {"specs": (W,)}])
def test_a_step_takes_no_other_arguments_beside_its_own(how):
    specs = how.pop("specs", ())
    with pytest.raises(rr.UserError, match="given with a step, which has its own"):
        rr.measure(rr.Step(STEP, (W, X)), *specs, target="cpu:1", **how)


def test_several_steps_are_measured_in_order():
    sizes = [64, 8, 32, 16]
    steps = [rr.Step(STEP, (W, spec(n, 256)), name=f"{n} rows") for n in sizes]
    found = list(rr.measure_each(steps, target="cpu:1"))
    assert [m.program for m in found] == [f"{n} rows" for n in sizes]
    assert [m.memory for m in found] == [
        rr.measure(step, target="cpu:1").memory for step in steps
    ]


def test_of_several_steps_the_first_that_fails_is_an_error():
    wrong = rr.Step(STEP, (W, spec(8, 255)))
    found = rr.measure_each([rr.Step(STEP, (W, X)), wrong], target="cpu:1")
    assert next(found).memory.total_bytes > 0
    with pytest.raises(TypeError, match="dot_general"):
        next(found)


def test_what_is_no_step_is_told_of():
    with pytest.raises(rr.UserError, match="a Problem; this is a dict"):
        rr.measure({"w": W}, X, target="cpu:1")


def test_steps_are_called_by_their_names():
    names = {
        "loss": loss,
        "mine": jax.jit(loss),
    }
    assert rr.measure(names["loss"], W, X, target="cpu:1").program == "loss"
    assert rr.measure(names["mine"], W, X, target="cpu:1").program == "loss"
    partial = functools.partial(loss, jnp.ones(W.shape))
    assert rr.measure(partial, X, target="cpu:1").program == "loss"
    assert rr.measure(loss, W, X, target="cpu:1", name="mine").program == "mine"


def test_what_is_no_array_is_named():
    with pytest.raises(rr.UserError, match=r"an argument of the step is 'adam': write"):
        rr.measure(lambda kind, x: x, "adam", X, target="cpu:1")


def test_a_mesh_of_the_machine_at_hand_is_carried_over():
    here = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = jax.NamedSharding(here, jax.P("d"))
    x = spec(*X.shape, sharding=cut)
    m = rr.measure(STEP, W, x, target="h100:8")
    assert m.memory.argument_bytes == 4 * (W.size + X.size // 8)
    with pytest.raises(
        rr.UserError, match=r"mesh \{d: 8\} of 8 devices but h100:4 has"
    ):
        rr.measure(STEP, W, x, target="h100:4")


def test_more_devices_without_shardings_are_replicas():
    one, eight = (rr.measure(STEP, W, X, target=t).memory for t in ("h100:1", "h100:8"))
    assert one.argument_bytes == eight.argument_bytes


def test_nothing_is_allocated():
    """A petabyte of weights, from any machine."""
    vast = spec(2**20, 2**28)
    m = rr.measure(lambda w: w * 2, vast, target="h100:1")
    assert m.memory.argument_bytes == 2**50
    assert not m.fits


@pytest.mark.parametrize("budget", [None, 10 * 2**20, "10MiB", "1%"])
def test_what_fits_comes_back_measured(budget):
    m = rr.assert_fits(STEP, W, X, target="h100:1", budget=budget)
    assert m.fits
    assert m.memory == rr.measure(STEP, W, X, target="h100:1").memory


@pytest.mark.parametrize("budget", [2**20, "1MiB", "0.001%"])
def test_what_does_not_fit_says_by_how_much_and_who_holds_it(budget):
    with pytest.raises(rr.DoesNotFit) as raised:
        rr.assert_fits(STEP, W, X, target="h100:1", budget=budget)
    text = str(raised.value)
    total = rr.measure(STEP, W, X, target="h100:1").memory.total_bytes
    assert f"takes {total / 2**20:.2f} MiB on each device of h100:1" in text
    assert "more than the budget of" in text
    assert "argument/x 1.00 MiB" in text.split("most is held by")[1]
    assert "\n" not in text


def test_without_a_budget_the_card_is_the_budget():
    vast = spec(2**15, 2**20)
    with pytest.raises(rr.DoesNotFit, match=r"more than the budget of 77\.6 GiB"):
        rr.assert_fits(lambda w: w * 2, vast, target="h100:1")


def test_a_budget_that_is_none_is_refused_before_anything_is_compiled():
    def never(x):
        raise AssertionError("traced")

    with pytest.raises(
        rr.UserError, match="'60 gigs' is no number of bytes: write one"
    ):
        rr.assert_fits(never, X, target="h100:1", budget="60 gigs")


def test_what_the_user_raises_is_left_alone():
    def broken(x):
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        rr.measure(broken, X, target="cpu:1")


@pytest.mark.parametrize(
    ("target", "split", "told"),
    [
        ("cpu:8", False, True),
        ("cpu:2", False, True),
        ("cpu:8", True, False),
        ("cpu:1", False, False),
    ],
)
def test_a_step_that_every_device_does_whole_is_told(target, split, told):
    mesh = rr.target(target).mesh({"data": -1})
    sharding = jax.NamedSharding(mesh, jax.P("data")) if split else None
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=sharding)
    notes = rr.measure(lambda x: jnp.tanh(x).sum(), x, target=target).notes
    assert any("each does the whole step" in note for note in notes) == told


TABLE = np.random.default_rng(0).normal(size=(256, 256)).astype("f")
ADDED_UP = {
    "no constant": lambda x: jnp.cumsum(x, axis=0).sum(),
    "one": lambda x: jnp.tanh(x @ TABLE) @ TABLE,
    "one and its gradient": jax.grad(lambda x: jnp.tanh(x @ TABLE).sum()),
}


@pytest.mark.parametrize("program", ADDED_UP)
@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_buffers_add_up_to_the_total_holes_and_constants_set_aside(program, target):
    memory = rr.measure(ADDED_UP[program], spec(64, 256), target=target).memory
    constants = memory.where(phase="constant").bytes
    assert (constants >= TABLE.nbytes) == (program != "no constant")
    there = memory.where().bytes - constants
    assert there == memory.total_bytes - memory.fragmentation_bytes


def test_notes_say_what_the_figures_leave_out():
    gpu = rr.measure(STEP, W, X, target="h100:1").notes
    assert any("autotuning" in note for note in gpu)
    assert any("offloaded" in n for n in rr.measure(STEP, W, X, target="cpu:1").notes)


@pytest.mark.parametrize(
    ("cores", "workers"), [(None, 1), (1, 1), (7, 7), (8, 8), (9, 8), (64, 8)]
)
def test_compiles_run_beside_one_another_on_eight_cores_at_most(
    monkeypatch, cores, workers
):
    monkeypatch.setattr(_steps.os, "cpu_count", lambda: cores)
    assert _steps.Compiles("cpu:1", _steps.read_step)._workers == workers


def test_results_are_handed_out_in_order_and_no_core_waits_for_another(monkeypatch):
    """The first compile takes longest; the second core does all others meanwhile."""
    monkeypatch.setattr(_steps.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(_steps.xla, "lower_step", lambda f, *rest, **how: f)
    begun = [threading.Event() for _ in range(5)]
    may_end = [threading.Event() for _ in range(5)]

    def finish(number, name):
        begun[number].set()
        assert may_end[number].wait(30)
        return number

    with _steps.Compiles("cpu:1", finish) as compiles:
        start = lambda k: [*compiles.start(rr.Step(k, (), name="n"))]
        assert start(0) == start(1) == []
        assert begun[0].wait(30)
        assert begun[1].wait(30)
        threading.Timer(0.1, may_end[1].set).start()
        assert start(2) == []  # it waited for a core, which is the second one's
        assert may_end[1].is_set()
        for number in (2, 3):
            assert begun[number].wait(30)
            may_end[number].set()
            assert start(number + 1) == []
        may_end[4].set()
        may_end[0].set()
        assert [*compiles.rest()] == [0, 1, 2, 3, 4]
        assert [*compiles.rest()] == []


def test_who_stops_waits_for_no_compile_that_has_not_begun(monkeypatch):
    """Ctrl-C comes while the second waits for the only core."""
    begun, may_end, finished = threading.Event(), threading.Event(), []

    def finish(number, name):
        begun.set()
        assert may_end.wait(30)
        finished.append(number)

    def stop(*_, **how):
        assert begun.wait(30)
        threading.Timer(0.1, may_end.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(_steps.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(_steps.xla, "lower_step", lambda f, *rest, **how: f)
    monkeypatch.setattr(_steps, "wait", stop)

    def two():
        with _steps.Compiles("cpu:1", finish) as compiles:
            for k in range(2):
                assert [*compiles.start(rr.Step(k, (), name="n"))] == []

    with pytest.raises(KeyboardInterrupt):
        two()
    assert finished == [0]


def test_what_cannot_be_lowered_is_handed_out_in_its_turn(monkeypatch):
    def lower(step, *rest, **how):
        raise ValueError(step)

    monkeypatch.setattr(_steps.xla, "lower_step", lower)
    with _steps.Compiles("cpu:1", lambda lowered, name: lowered) as compiles:
        found = [*compiles.start(rr.Step(7, (), name="n")), *compiles.rest()]
    assert [type(one) for one in found] == [_steps.Failure]
