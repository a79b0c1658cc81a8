"""Depthwise convolutions as sums of products: XLA's own, with its gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.models.depthwise import depthwise, use_sums_of_products

# Size, stride and image, for both ways of summing.
CASES = [(3, 2, 8), (5, 1, 3), (15, 8, 16)]


def xlas(x, kernel, stride, pad):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


@pytest.mark.parametrize(("size", "stride", "image"), CASES)
def test_it_is_a_convolution_with_its_gradients(size, stride, image):
    jax.config.update("jax_enable_x64", True)
    try:
        keys = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(keys[0], (2, image, image + 2 * stride, 3), "float64")
        kernel = jax.random.normal(keys[1], (size, size, 1, 3), "float64")
        pad = (size - 1) // 2
        rows, columns = ((n - 1) // stride + 1 for n in x.shape[1:3])
        dy = jax.random.normal(keys[2], (2, rows, columns, 3), "float64")

        @partial(jax.jit, static_argnums=0)
        def all_of(f, x, kernel, dy):
            y, back = jax.vjp(lambda x, kernel: f(x, kernel, stride, pad), x, kernel)
            return y, *back(dy)

        found = zip(
            all_of(depthwise, x, kernel, dy), all_of(xlas, x, kernel, dy), strict=True
        )
        for ours, theirs in found:
            np.testing.assert_allclose(ours, theirs, atol=1e-11)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_model_computes_the_same_with_it():
    def made():
        rngs = nnx.Rngs(0)
        conv = lambda i, o, **kwargs: nnx.Conv(i, o, (3, 3), rngs=rngs, **kwargs)
        deep = conv(4, 4, feature_group_count=4, strides=2, padding=((1, 1), (1, 1)))
        return nnx.Sequential(conv(1, 4), deep)

    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    plain, fast = made(), made()
    use_sums_of_products(fast)
    text = str(jax.make_jaxpr(lambda x: fast(x))(x))
    assert text.count("conv_general_dilated[") == 1, "only the dense one is left"
    np.testing.assert_allclose(fast(x), plain(x), atol=1e-5)
    assert fast(x).dtype == jnp.float32
