"""Attention around a ring of devices: exact, balanced, and little on each device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench.ring import Attention, main, measure
from revremat import UserError, sharding

SHAPE = 2, 32, 2, 4


def arrays():
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=SHAPE)) for _ in range(3)]


def by_one_device(causal, q, k, v):
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v)


def layout_of(parts):
    mesh = jax.make_mesh(
        (1, parts),
        ("data", "context"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[:parts],
    )
    return sharding.Layout(mesh, sharding.context_parallel("context"))


def by_ring(layout, causal, q, k, v):
    attend = functools.partial(sharding.ring_attention, layout, block=4)
    if not causal:
        return attend(q, k, v)
    order = functools.partial(sharding.zigzag, parts=layout.mesh.shape["context"])
    return order(attend(*map(order, (q, k, v)), causal="zigzag"), undo=True)


def by_hand(layout, causal, q, k, v):
    """The same inside of a `jax.shard_map` of one's own."""
    order = functools.partial(sharding.zigzag, parts=layout.mesh.shape["context"])
    attend = functools.partial(
        sharding.ring_attention, layout, causal="zigzag" if causal else False
    )
    cut = jax.P("data", "context")
    mapped = jax.shard_map(attend, mesh=layout.mesh, in_specs=(cut,) * 3, out_specs=cut)
    if not causal:
        return mapped(q, k, v)
    return order(mapped(*map(order, (q, k, v))), undo=True)


@pytest.mark.every_commit("by_ring-False-4", "by_hand-True-8")
@pytest.mark.parametrize("parts", [1, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [by_ring, by_hand])
def test_values_and_gradients_are_those_of_one_device(form, causal, parts):
    weigh = lambda attend: lambda *args: (attend(*args) ** 3).sum()
    plain = functools.partial(by_one_device, causal)
    with jax.enable_x64(True):
        args = arrays()
        ring = functools.partial(form, layout_of(parts), causal)
        found, expected = (
            jax.jit(jax.value_and_grad(weigh(attend), (0, 1, 2)))(*args)
            for attend in (ring, plain)
        )
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def test_the_order_is_undone():
    x = jnp.arange(24).reshape(1, 24)
    there = sharding.zigzag(x, 4)
    assert there[0, :6].tolist() == [0, 1, 2, 21, 22, 23]
    assert (sharding.zigzag(there, 4, undo=True) == x).all()
    with pytest.raises(UserError, match="write a multiple of 16"):
        sharding.zigzag(x, 8)


@pytest.mark.parametrize(
    ("rules", "causal", "message"),
    [
        (sharding.megatron("context"), False, "cut over no axis"),
        (sharding.context_parallel("context"), True, "order of sharding.zigzag"),
    ],
)
def test_mistakes_are_told(rules, causal, message):
    layout = sharding.Layout(layout_of(4).mesh, rules)
    with pytest.raises(UserError, match=message):
        sharding.ring_attention(layout, *arrays(), causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, sharding.CudnnKernel()])
def test_bytes_fall_with_the_devices_and_transfers_hide(kernel):
    """At 131,072 positions, on NVLink."""
    found = {parts: measure(Attention(), parts, kernel) for parts in (2, 4, 8)}
    sizes = {parts: m.memory.total_bytes for parts, m in found.items()}
    assert sizes[4] <= 0.56 * sizes[2]
    assert sizes[8] <= 0.55 * sizes[4]
    time = found[8].time
    assert time.exposed_collective_us <= 0.1 * time.step_us


def test_the_table_has_a_line_for_each_ring(capsys, monkeypatch):
    line = "ring --length 4096 --heads 2 --devices 2"
    monkeypatch.setattr("sys.argv", line.split())
    assert main() == 0
    titles, plain, cudnn = capsys.readouterr().out.splitlines()
    assert titles.split() == [
        "devices",
        "by",
        "on",
        "each",
        "device",
        "a",
        "step",
        "waits",
    ]
    assert plain.split()[:3] == ["2", "plain", "products"]
    assert cudnn.split()[:2] == ["2", "cuDNN"]
