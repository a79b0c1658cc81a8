"""Programs of every kind, unmodified: units are found, plans apply, gradients stay."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE
from revremat.policies import shortlist
from tests.module_kinds import MODULES
from tests.program_kinds import PLAIN, in_a_scan, layer

KINDS = PLAIN | MODULES

# What is found in each, outermost units alone: layers by unit.
UNITS = {
    "scanned": {"scan_0": 4},
    "unrolled": {"repeat_0": 4},
    "jitted layers": {"repeat_0": 4},
    "encoder-decoder, scanned": {"scan_0": 4, "scan_1": 3},
    "encoder-decoder, unrolled": {"repeat_0": 4, "repeat_1": 3},
    "experts by one-hot": {"scan_0": 4},
    "experts by ragged_dot": {"scan_0": 4},
    "U-Net": {"repeat_0": 4, "repeat_1": 4},
    "recurrence over 512 steps": {"scan_0": 512},
    "own derivatives, scanned": {"scan_0": 4},
    "own derivatives, unrolled": {"repeat_0": 4},
    "callback": {"scan_0": 4},
    "platform_dependent": {"scan_0": 4},
    "flash attention": {"scan_0": 4},
    "checkpointed, scanned": {"scan_0": 4},
    "checkpointed, unrolled": {"checkpoint_0": 4},
    "checkpointed with a policy": {"scan_0": 4},
    "cond, scanned": {"scan_0": 4},
    # Four layers, the first of which looks at the batch itself: two by two.
    "cond, unrolled": {"repeat_0": 2},
    "fori_loop": {"scan_0": 4},
    "while_loop": {"scan_0": 4},
    "mixed precision": {"scan_0": 4},
    "vmapped": {"scan_0": 4},
    "batch statistics": {"scan_0": 4},
    "dropout, scanned": {"scan_0": 4},
    "dropout, unrolled": {"repeat_0": 4},
    "language model": {"scan_0": 4},
    "odd leaves": {"repeat_0": 4},
    # Both inner gradients, forward and backward, and the loss.
    "optimizer inside": {f"scan_{k}": 4 for k in range(5)},
    "shard_map, scanned": {"shard_map_0/scan_0": 4},
    "shard_map, unrolled": {"shard_map_0/repeat_0": 4},
    "Linen, unrolled": {"repeat_0": 4},
    "Linen, nn.scan": {"scan_0": 4},
    "Linen, nn.remat in nn.scan": {"scan_0": 4},
    "NNX, list of layers": {"repeat_0": 4},
    "NNX, nnx.scan": {"scan_0": 4},
    "Equinox, unrolled": {"repeat_0": 4},
    "Equinox, scanned": {"scan_0": 4},
}

FAST = {
    "unrolled",
    "U-Net",
    "recurrence over 512 steps",
    "callback",
    "odd leaves",
    "batch statistics",
    "shard_map, scanned",
    "Equinox, unrolled",
}


def kinds(fast):
    slow = lambda kind: () if kind in fast else pytest.mark.slow
    return [pytest.param(kind, marks=slow(kind)) for kind in KINDS]


def outermost(graph):
    return {u.name: u.num_layers for u in graph.units if not u.enclosing}


def gradients(loss, params, batch):
    """All a loss gives out, and its gradients."""

    def with_aux(params, batch):
        out = loss(params, batch)
        return out if isinstance(out, tuple) else (out, None)

    step = jax.value_and_grad(with_aux, has_aux=True, allow_int=True)
    found = jax.jit(step)(params, batch)
    is_inexact = lambda a: jnp.issubdtype(a.dtype, jnp.inexact)
    return [np.asarray(a) for a in jax.tree.leaves(found) if is_inexact(a)]


def in_float64(kind):
    with jax.enable_x64(True):
        return KINDS[kind](8)


@pytest.mark.every_commit(
    "U-Net", "callback", "odd leaves", "shard_map, scanned", "Equinox, unrolled"
)
@pytest.mark.parametrize("kind", kinds(FAST))
def test_units_are_found_and_any_plan_gives_the_same_gradients(kind):
    with jax.enable_x64(True):
        loss, params, batch = KINDS[kind](8)
        graph = rr.trace(loss, params, batch)
        found = outermost(graph)
        assert found == UNITS[kind]
        assert any(u.residuals for u in graph.units)
        expected = gradients(loss, params, batch)
        alternate = lambda n: list(itertools.islice(itertools.cycle(MIX), n))
        plans = [{name: alternate(n) for name, n in found.items()}]
        if kind not in FAST:
            plans.append(dict.fromkeys(found, RECOMPUTE))
        for actions in plans:
            for about in ({"gradient_barrier": True}, {"num_devices": 8}):
                planned = rr.apply(loss, graph.plan(actions, **about))
                pairs = zip(gradients(planned, params, batch), expected, strict=True)
                for a, b in pairs:
                    size = max(1e-30, np.abs(b).max(initial=0))
                    assert np.abs(a - b).max(initial=0) <= 1e-10 * size


MIX = (RECOMPUTE, SAVE)


def abstract(kind, rows, make=None):
    loss, params, batch = (make or KINDS[kind])(rows)
    shaped = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
    return loss, *jax.tree.map(shaped, (params, batch))


def plain_and_full(loss, *specs, target):
    """Bytes of the baseline, and with everything recomputed."""
    graph = rr.trace(loss, *specs)
    plan = graph.plan(dict.fromkeys(outermost(graph), RECOMPUTE))
    size = lambda f: rr.measure(
        rr.Problem(f, specs).make_step()[0], *specs, target=target
    )
    return [size(f).memory.total_bytes for f in (loss, rr.apply(loss, plan))]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        pytest.param("batch statistics", 4096, marks=pytest.mark.slow),
        pytest.param("unrolled", 4096, marks=pytest.mark.slow),
        pytest.param("odd leaves", 4096, marks=pytest.mark.slow),
        pytest.param("U-Net", 64, marks=pytest.mark.slow),
        pytest.param("experts by ragged_dot", 4096, marks=pytest.mark.slow),
        pytest.param("flash attention", 1024, marks=pytest.mark.slow),
        pytest.param("optimizer inside", 4096, marks=pytest.mark.slow),
        pytest.param("NNX, list of layers", 4096, marks=pytest.mark.slow),
        pytest.param("Equinox, scanned", 4096, marks=pytest.mark.slow),
    ],
)
def test_a_budget_in_between_is_met(kind, rows):
    loss, *specs = abstract(kind, rows)
    plain, full = plain_and_full(loss, *specs, target="h100:1")
    assert full < plain
    found = rr.fit(loss, *specs, budget=(plain + full) // 2, target="h100:1")
    assert found.plan.fits
    assert found.plan.compiled_bytes <= (plain + full) // 2


@pytest.mark.slow
def test_a_long_recurrence_goes_below_one_state_for_each_step():
    """Segments or slots, on no host: all states are more than the budget leaves."""
    rows, width = 4096, 8
    loss, *specs = abstract("recurrence over 512 steps", rows)
    _, full = plain_and_full(loss, *specs, target="cpu:1")
    states = 512 * rows * width * 4
    found = rr.fit(loss, *specs, budget=full - states // 2, target="cpu:1")
    assert found.plan.fits
    actions = found.plan.actions["scan_0"]
    assert any(action.segment_length > 1 or action.slots for action in actions)


def test_arguments_beyond_the_budget_are_told_after_two_compiles():
    loss, *specs = abstract("unrolled", 64)
    found = rr.fit(loss, *specs, budget=1000, target="h100:1")
    assert not found.plan.fits
    assert found.plan.held_by.startswith("the step's arguments alone (")
    assert found.num_compiles == 2
    with pytest.raises(rr.DoesNotFit, match="the step's arguments alone"):
        rr.search(loss, *specs, budget=1000, target="h100:1", strict=True)


def test_a_loss_that_is_another_one_each_time_is_refused():
    iterations = itertools.count()

    def loss(w, x):
        return in_a_scan(layer, w, x).sum() * next(iterations)

    _, *specs = abstract("scanned", 8)
    with pytest.raises(rr.UserError, match="another program each time it is traced"):
        rr.fit(loss, *specs, budget="1GiB", target="cpu:1")


def test_where_nothing_is_kept_there_is_nothing_to_decide():
    linear = lambda w, x: (x * w).sum()
    one = jax.ShapeDtypeStruct((8,), jnp.float32)
    for most in (None, 1):
        with pytest.raises(rr.UserError, match=r"there is nothing to decide.* 64 B "):
            rr.fit(linear, one, one, budget="1GiB", target="cpu:1", most_compiles=most)


def test_a_program_without_repeats_is_one_unit():
    loss = lambda w, x: jnp.sin(x @ w["up"][0]).sum()
    _, *specs = abstract("scanned", 8)
    assert outermost(rr.trace(loss, *specs)) == {"whole_0": 1}


def renamed(w, x):
    """The same with other names, another order of keys, jitted, nested."""
    other = {"z": w["up"], "a": w["down"]}

    @jax.jit
    def one(weights, value):
        return layer({"down": weights["a"], "up": weights["z"]}, value)

    return (jax.jit(lambda w, x: in_a_scan(one, w, x))(other, x) ** 2).mean()


@pytest.mark.slow
def test_other_names_and_wrapping_do_not_move_the_bytes():
    """At the same budget: renamed, its keys in another order, jitted, nested."""
    scanned, *specs = abstract("scanned", 16384)
    plain, full = plain_and_full(scanned, *specs, target="h100:1")
    budget = (plain + full) // 2
    sizes = [
        rr.search(f, *specs, budget=budget, target="h100:1").compiled_bytes
        for f in (scanned, renamed, jax.jit(scanned))
    ]
    assert max(sizes) <= 1.01 * min(sizes)


def test_units_with_few_bytes_stay_as_written_and_small_ones_have_few_candidates():
    def loss(params, x):
        for w in params:
            x = jnp.mean(x) + jnp.ones((w[0].shape[0], 8))
            for own in w:
                x = x + jnp.tanh(own @ x)
        return x.sum()

    sizes = (64, 72, 80, 88, 96, 104, 112, 120, 2)
    square = lambda n: jax.ShapeDtypeStruct((n, n), jnp.float32)
    params = [[square(n)] * 3 for n in sizes]
    graph = rr.trace(loss, params, jax.ShapeDtypeStruct((1, 8), jnp.float32))
    assert list(outermost(graph).values()) == [3] * len(sizes)
    all_options = {u.name: rr.policies.candidates(u) for u in graph.units}
    found = shortlist(all_options, graph.units)
    *large, small = [u.name for u in graph.units]
    assert small not in found
    assert set(found) == set(large)
    costed_in_full = [name for name in large if found[name] == all_options[name]]
    assert costed_in_full[-6:] == large[-6:]
    assert all(
        {c.name for c in found[n]} <= {"recompute all", "save all"} for n in large[:2]
    )
