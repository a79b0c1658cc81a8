"""What is said to fall does fall when the program is compiled that way."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._measurement._what_if import Checkpoint, WhatIf
from tests.xla.programs import mlp
from tests.xla.steps import DEPTH, ROWS, STACK, STEPS, WIDTH, X

LAYER_BYTES = ROWS * WIDTH * 4


@functools.cache
def measured(name, spec, donate=None):
    if missing := rr.target(spec).missing():
        pytest.skip(missing)
    step = STEPS[name](rr.target(spec))
    return rr.measure(
        step.function,
        *step.specs,
        target=spec,
        donate=step.donate if donate is None else donate,
        what_if=True,
    )


@pytest.mark.every_commit(
    "donation-donate0-cpu:1", "donation-donate0-v5e:4x4", "scan-donate1-h100:1"
)
@pytest.mark.parametrize("spec", ["cpu:1", "h100:1", "v5e:4x4"])
@pytest.mark.parametrize(("name", "donate"), [("donation", (0,)), ("scan", (0,))])
def test_donating_saves_no_more_than_was_said(name, spec, donate):
    before = measured(name, spec, ())
    after = measured(name, spec, donate)
    said = before.memory.what_if.donations
    saved = before.memory.total_bytes - after.memory.total_bytes
    assert said
    assert sum(d.saves_bytes for d in said) == after.memory.alias_bytes >= saved
    assert sum(d.saves_bytes for d in said if not d.scratch) <= saved
    assert after.memory.what_if.donations == ()


def test_donations_are_named_as_in_the_steps_arguments():
    problem = mlp(rr.target("cpu:1"))
    step, specs = problem.make_step()
    m = rr.measure(step, *specs, target="cpu:1", what_if=True)
    names = sorted(d.argument for d in m.memory.what_if.donations)
    assert names == [f"params[{n}]" for n in range(4)]


def test_an_argument_that_is_like_no_result_is_no_donation():
    m = rr.measure(lambda x: jnp.sum(jnp.sort(x)), X, target="cpu:1", what_if=True)
    assert m.memory.what_if.donations == ()


def residual_loss(keep):
    """Layers that keep two values each, or one where that is recomputed."""
    names = ["up", "down"] if keep else ["down"]
    policy = jax.checkpoint_policies.save_only_these_names(*names)

    def layer(x, w):
        with jax.named_scope("up"):
            up = jax.ad_checkpoint.checkpoint_name(jnp.sin(x @ w), "up")
        with jax.named_scope("down"):
            down = jax.ad_checkpoint.checkpoint_name(jnp.sin(up @ w), "down")
        return down, None

    def loss(w, x):
        body = jax.checkpoint(layer, policy=policy)
        return jnp.sum(jax.lax.scan(body, x, w)[0])

    return loss


@pytest.mark.parametrize("spec", ["cpu:1", "h100:1"])
def test_a_residual_that_goes_saves_no_more_than_was_said(spec):
    rich, lean = (
        rr.measure(
            jax.grad(residual_loss(keep)), STACK, X, target=spec, what_if=True
        ).memory
        for keep in (True, False)
    )
    ups = [r for r in rich.what_if.residuals if r.scope == "up"]
    up = max(ups, key=lambda r: r.saves_bytes)
    assert (up.count, up.bytes) == (1, DEPTH * LAYER_BYTES)
    fell = rich.total_bytes - lean.total_bytes
    assert 0 < fell <= up.saves_bytes + rich.fragmentation_bytes
    # What has to be recomputed is one layer's at a time.
    assert fell >= up.saves_bytes - 2 * LAYER_BYTES
    assert (up.scope, up.op) not in [(r.scope, r.op) for r in lean.what_if.residuals]


def test_layers_are_one_residual():
    found = measured("unrolled", "h100:1").memory.what_if.residuals
    assert (found[0].op, found[0].count) == ("sin", DEPTH - 1)
    assert found[0].bytes == (DEPTH - 1) * LAYER_BYTES


def checkpointed(prevent_cse):
    """Without the barrier the compiler merges what it can of both computations."""

    def layer(x, w):
        with jax.named_scope("inside"):
            return jnp.sin(jnp.tanh(x @ w) @ w)

    def loss(ws, x):
        for w in ws:
            x = jax.checkpoint(layer, prevent_cse=prevent_cse)(x, w)
        return jnp.sum(x**2)

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    m = rr.measure(jax.grad(loss), (w,) * 4, X, target="h100:1", what_if=True)
    return {c.scope: c for c in m.memory.what_if.checkpoints}


def test_a_checkpoint_that_frees_says_so():
    found = checkpointed(prevent_cse=True)
    inside = found["inside"]
    assert inside.again
    assert inside.twice_bytes == 0
    assert inside.kept_bytes == 3 * LAYER_BYTES  # the next layers' inputs


def test_a_checkpoint_that_the_compiler_undid_says_so():
    inside = checkpointed(prevent_cse=False)["inside"]
    assert inside.twice_bytes > 0
    assert inside.twice_bytes + inside.kept_bytes > 6 * LAYER_BYTES


def test_what_frees_less_than_it_could_is_in_the_text():
    m = rr.Measurement.from_json(measured("scan", "cpu:1").to_json())
    idle = Checkpoint("layer_*/attn", True, 3 << 20, 1 << 20)
    text = rr.render(
        dataclasses.replace(
            m,
            memory=dataclasses.replace(
                m.memory, what_if=WhatIf((), (), (idle, Checkpoint("mlp", True, 0, 8)))
            ),
        )
    )
    (row,) = (line for line in text.splitlines() if line.startswith("layer_*/attn "))
    assert row.split() == ["layer_*/attn", "yes", "3.00", "MiB", "1.00", "MiB"]
    assert "1 region frees all that is computed again" in text


def test_a_donation_of_memory_nothing_else_uses_saves_all_of_it():
    def step(w):
        return w * 2.0

    plain, donated = (
        rr.measure(step, X, target="h100:1", donate=d, what_if=True).memory
        for d in ((), (0,))
    )
    (said,) = plain.what_if.donations
    assert (said.argument, said.scratch) == ("w", False)
    assert plain.total_bytes - donated.total_bytes == said.saves_bytes


def test_it_is_left_out_where_nobody_asked():
    assert rr.measure(jnp.tanh, X, target="cpu:1").memory.what_if is None


@pytest.mark.parametrize("name", ["scan_remat", "donation"])
def test_json_has_it(name):
    m = measured(name, "cpu:1")
    assert rr.Measurement.from_json(m.to_json()) == m
