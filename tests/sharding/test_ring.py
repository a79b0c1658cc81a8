"""Attention around a ring of devices: exact, balanced, and little on each device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from experiments.bench.ring import Attention, main, measure
from revremat import UserError, sharding
from tests.sharding.rings import arrays, assert_is_as_by_one_device, in_order


def layout_of(parts):
    mesh = jax.make_mesh(
        (1, parts),
        ("data", "context"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[:parts],
    )
    return sharding.Layout(mesh, sharding.context_parallel("context"))


def by_ring(layout, causal, *arrays):
    attend = functools.partial(sharding.ring_attention, layout, block=4)
    return in_order(attend, layout.mesh.shape["context"], causal, *arrays)


def by_hand(layout, causal, *arrays):
    """The same inside of a `jax.shard_map` of one's own."""

    def attend(*arrays, causal: Any = False):
        ring = functools.partial(sharding.ring_attention, layout, causal=causal)
        cut = jax.P("data", "context")
        return jax.shard_map(
            ring, mesh=layout.mesh, in_specs=(cut,) * 3, out_specs=cut
        )(*arrays)

    return in_order(attend, layout.mesh.shape["context"], causal, *arrays)


@pytest.mark.every_commit("by_ring-False-4", "by_hand-True-8")
@pytest.mark.parametrize("parts", [1, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [by_ring, by_hand])
def test_values_and_gradients_are_those_of_one_device(form, causal, parts):
    ring = functools.partial(form, layout_of(parts), causal)
    assert_is_as_by_one_device(ring, causal)


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
