"""How arrays lie between layers that are unrolled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.program._loss import trace_loss
from revremat.program.engine._layout import is_turned


def network(channels):
    """Six convolutional layers in a Python loop, channels first or last."""
    image, kernel = {"first": ("NCHW", "OIHW"), "last": ("NHWC", "HWIO")}[channels]

    def layer(w, x):
        conv = lambda x, k: jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=(image, kernel, image)
        )
        return x + conv(jax.nn.relu(conv(x, w["in"])), w["out"])

    def loss(ws, x):
        for w in ws:
            x = layer(w, x)
        return jnp.square(x.astype(jnp.float32)).mean()

    shape = {"NCHW": (16, 128, 32, 32), "NHWC": (16, 32, 32, 128)}[image]
    size = {"OIHW": (128, 128, 3, 3), "HWIO": (3, 3, 128, 128)}[kernel]
    spec = lambda shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    return loss, ([{"in": spec(size), "out": spec(size)}] * 6, spec(shape))


def in_a_loop(loss, args):
    ws, x = args
    step = lambda x, w: ((loss([w], x) * x).astype(x.dtype), None)
    nested = lambda w, x: jax.lax.scan(step, x, w)[0]
    stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((6, *a.shape), a.dtype), ws)
    return lambda w, x: nested(w, x).sum(), (stacked[0], x)


@pytest.mark.parametrize("wrap", [lambda *network: network, in_a_loop])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_convolutions_turn_axes_where_their_channels_come_first(channels, wrap):
    loss, args = wrap(*network(channels))
    assert is_turned(trace_loss(loss, args).found.program) == (channels == "first")


@pytest.mark.parametrize("channels", ["first", "last"])
def test_what_convolutions_take_stays_as_it_is_written(channels):
    loss, args = network(channels)
    graph = rr.trace(loss, *args)
    kept = rr.apply(loss, graph.plan({graph.units[0].name: rr.SAVE}))
    ours, plain = (
        rr.measure(jax.grad(f), *args, target="h100:1").memory.total_bytes
        for f in (kept, loss)
    )
    assert ours <= 1.01 * plain


def unrolled():
    def loss(w, x):
        return rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()

    w, x = np.ones((3, 8, 8), np.float32), np.ones((4, 2, 8), np.float32)
    plan = rr.trace(loss, w, x[0]).plan({"stack": rr.SAVE(unroll=True)})
    return loss, rr.apply(loss, plan), w, x


def test_arrays_of_numpy_are_mapped_outside_of_jit():
    loss, applied, w, x = unrolled()
    ours, plain = (jax.vmap(jax.grad(f), (None, 0))(w, x) for f in (applied, loss))
    np.testing.assert_allclose(ours, plain, rtol=1e-6)


def test_unrolled_layers_can_be_exported_where_layouts_are_allowed():
    loss, applied, w, x = unrolled()
    allowed = [jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
    exported = jax.export.export(jax.jit(jax.grad(applied)), disabled_checks=allowed)
    ours = exported(w, x[0]).call(w, x[0])
    np.testing.assert_allclose(ours, jax.grad(loss)(w, x[0]), rtol=1e-6, atol=1e-5)
