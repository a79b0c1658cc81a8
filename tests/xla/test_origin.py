"""Phases, scopes and lines of hand-made programs whose answer is known."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat.xla.hlo._origin import phase_of, split_op_name
from tests.xla.programs import spec

TARGETS = ("cpu:1", "h100:1")
WIDTH, ROWS, DEPTH = 128, 512, 6
LAYER_BYTES = ROWS * WIDTH * 4
STACK = spec(DEPTH, WIDTH, WIDTH)
X = spec(ROWS, WIDTH)


def layer(x, w):
    with jax.named_scope("block"):
        h = jnp.tanh(x @ w)  # the line of the residual
    return jnp.sin(h), None


def scanned(remat):
    body = jax.checkpoint(layer) if remat else layer

    def loss(w, x):
        y, _ = jax.lax.scan(body, x, w)
        with jax.named_scope("head"):
            return jnp.sum(y**2)

    return loss


@pytest.mark.parametrize("target", TARGETS)
def test_residuals_of_a_scan_are_forward_of_their_module_and_line(target):
    m = rr.measure(jax.grad(scanned(False)), STACK, X, target=target)
    saved = [b for b in m.memory.where(phase="forward") if b.shape[:1] == (DEPTH,)]
    assert saved
    assert all(b.bytes == DEPTH * LAYER_BYTES for b in saved)
    assert {b.scope for b in saved} <= {"block", "layer"}
    line = _line_of(layer, "the line of the residual")
    assert any(b.source.endswith(f"test_origin.py:{line}") for b in saved)


@pytest.mark.parametrize("target", TARGETS)
def test_rematted_values_are_recompute(target):
    m = rr.measure(jax.grad(scanned(True)), STACK, X, target=target)
    assert m.memory.where(phase="recompute").bytes >= LAYER_BYTES
    # Only the layers' inputs are kept for the backward pass.
    kept = [b for b in m.memory.where(phase="forward") if b.shape[:1] == (DEPTH,)]
    assert sum(b.bytes for b in kept) == DEPTH * LAYER_BYTES
    plain = rr.measure(jax.grad(scanned(False)), STACK, X, target=target)
    assert plain.memory.where(phase="recompute").bytes == 0
    assert m.time.recompute_us > 0 == plain.time.recompute_us


@pytest.mark.parametrize("target", TARGETS)
def test_arguments_carry_their_path_and_gradients_are_backward(target):
    def step(params, x):
        return jax.grad(lambda p, x: scanned(False)(p["w"], x))(params, x)

    m = rr.measure(step, {"w": STACK}, X, target=target)
    (weights,) = m.memory.where(phase="argument", scope="params['w']")
    assert weights.phase == "argument"
    assert weights.shape == STACK.shape
    (x,) = m.memory.where(phase="argument", scope="x")
    assert x.bytes == LAYER_BYTES
    assert m.memory.where(phase="output").bytes >= DEPTH * WIDTH * WIDTH * 4


@pytest.mark.parametrize("target", TARGETS)
def test_what_follows_the_gradients_is_the_update(target):
    def step(w, x):
        g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
        with jax.named_scope("optimizer"):
            # A value that must be whole in memory: a sort cannot be fused away.
            return w - jnp.sort(g * 2.0, axis=0) @ g

    m = rr.measure(step, spec(1024, 1024), spec(256, 1024), target=target)
    update = m.memory.where(phase="update")
    assert update.bytes >= 1024 * 1024 * 4
    assert {b.scope for b in update} == {"optimizer"}


def test_forward_only_programs_have_no_backward():
    m = rr.measure(scanned(False), STACK, X, target="h100:1")
    phases = {phase for (phase,) in m.memory.by("phase")}
    assert phases <= {"argument", "forward", "output", "constant"}


def test_offloaded_values_lie_on_the_host():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def offloading(x, w):
        h = jax.ad_checkpoint.checkpoint_name(jnp.tanh(x @ w), "h")
        return jnp.sin(h) @ w, None

    def loss(w, x):
        body = jax.checkpoint(offloading, policy=policy)
        return jnp.sum(jax.lax.scan(body, x, w)[0])

    m = rr.measure(jax.grad(loss), STACK, spec(4096, WIDTH), target="h100:1")
    host = m.memory.where(space="host")
    assert m.memory.host_bytes >= DEPTH * 4096 * WIDTH * 4
    assert host.bytes == pytest.approx(m.memory.host_bytes, rel=0.01)
    assert m.time.transfer_us > 0
    listed = m.memory.where().bytes + m.memory.fragmentation_bytes
    assert listed == pytest.approx(m.memory.total_bytes, rel=0.01)


def test_queries_match_shell_patterns():
    m = rr.measure(jax.grad(scanned(False)), STACK, X, target="h100:1")
    everything = m.memory.where()
    assert m.memory.where(phase="*").bytes == everything.bytes
    assert m.memory.where(scope="blo*", phase="forward").bytes > 0
    assert m.memory.where(dtype="bfloat16").bytes == 0
    with pytest.raises(ValueError, match="unknown phase 'foward'"):
        m.memory.where(phase="foward")


@pytest.mark.parametrize(
    ("op_name", "phase", "scopes", "op"),
    [
        ("jit(f)/jvp()/dot_general", "forward", [], "dot_general"),
        ("jit(f)/jvp(gpt)/attn/dot_general", "forward", ["gpt", "attn"], "dot_general"),
        (
            "jit(f)/transpose(jvp(gpt))/while/body/attn/mul",
            "backward",
            ["gpt", "attn"],
            "mul",
        ),
        (
            "jit(f)/transpose(jvp())/checkpoint/rematted_computation/mlp/tanh",
            "recompute",
            ["mlp"],
            "tanh",
        ),
        ("jit(f)/adam/mul", "", ["adam"], "mul"),
        ("jit(f)/jvp(a/b)/cond/branch_1_fun/add", "forward", ["a", "b"], "add"),
        ("", "", [], ""),
    ],
)
def test_operation_names_are_read_as_jax_writes_them(op_name, phase, scopes, op):
    assert phase_of(op_name) == phase
    assert split_op_name(op_name) == (scopes, op)


def _line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if text in line)
