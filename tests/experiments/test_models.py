"""The models are the published ones, and pure."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.models import gpt, vit
from experiments.models.gpt import GPTConfig
from experiments.models.layout import Layout
from experiments.models.vit import ViTConfig
from revremat._errors import UserError

SMALL_GPT = GPTConfig(
    vocab_size=17, seq_len=12, width=16, num_layers=2, num_heads=2, mlp_width=24
)
SMALL_VIT = ViTConfig(width=16, num_layers=2, num_heads=2, mlp_width=24)
LLAMA = {
    "positions": "rotary",
    "norm": "rms",
    "gated": True,
    "bias": False,
    "tied": False,
}


@functools.cache
def fresh(module, config):
    return jax.jit(module.init, static_argnums=0)(config, jax.random.key(0))


@functools.cache
def loss_fn(module, config):
    return jax.jit(module.loss_fn(config))


@functools.cache
def grad_fn(module, config):
    return jax.jit(jax.grad(module.loss_fn(config)))


def num_params(module, config):
    shapes = jax.eval_shape(lambda key: module.init(config, key), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def gpt_batch(config, *, seed=0):
    rng = np.random.default_rng(seed)
    shape = (2, config.seq_len + 1)
    return {
        "tokens": jnp.asarray(rng.integers(0, config.vocab_size, shape), jnp.int32),
        "key": jax.random.key_data(jax.random.key(seed)),
    }


def vit_batch(config, *, seed=0):
    rng = np.random.default_rng(seed)
    shape = (2, config.image_size, config.image_size, config.channels)
    return {
        "images": jnp.asarray(rng.random(shape), jnp.float32),
        "labels": jnp.asarray([3, 1], jnp.int32),
        "key": jax.random.key_data(jax.random.key(seed)),
    }


def changed(params, seed=1):
    """Parameters that are nowhere 0 or 1, so that every one of them matters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape, "f4"), params
    )


@pytest.mark.parametrize(
    ("module", "config", "published"),
    [
        # GPT-2 small (Radford et al. 2019).
        (
            gpt,
            GPTConfig(
                vocab_size=50_257,
                seq_len=1024,
                width=768,
                num_layers=12,
                num_heads=12,
                mlp_width=3072,
            ),
            124_439_808,
        ),
        # Llama 7B (Touvron et al. 2023).
        (
            gpt,
            GPTConfig(
                vocab_size=32_000,
                seq_len=4096,
                width=4096,
                num_layers=32,
                num_heads=32,
                mlp_width=11_008,
                **LLAMA,
            ),
            6_738_415_616,
        ),
        # ViT-B/16 (Dosovitskiy et al. 2020), less its class token and that one's
        # position: here the mean of the patches is classified.
        (
            vit,
            ViTConfig(
                image_size=224,
                channels=3,
                patch_size=16,
                num_classes=1000,
                width=768,
                num_layers=12,
                num_heads=12,
                mlp_width=3072,
            ),
            86_567_656 - 2 * 768,
        ),
    ],
    ids=["GPT-2", "Llama 7B", "ViT-B/16"],
)
@pytest.mark.parametrize("scan", [True, False])
def test_parameter_counts_are_the_published_ones(module, config, published, scan):
    config = dataclasses.replace(config, scan=scan)
    assert num_params(module, config) == published


def unstacked(params, depth):
    blocks = {
        f"{i:03d}": jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"])
        for i in range(depth)
    }
    return params | {"blocks": blocks}


@pytest.mark.parametrize(
    ("module", "config", "batch", "dropout"),
    [
        pytest.param(gpt, SMALL_GPT, gpt_batch, 0.5, id="gpt", marks=pytest.mark.slow),
        pytest.param(vit, SMALL_VIT, vit_batch, 0.0, id="vit", marks=pytest.mark.slow),
    ],
)
def test_scanned_and_unrolled_are_the_same_model(module, config, batch, dropout):
    scanned = dataclasses.replace(config, dropout=dropout)
    unrolled = dataclasses.replace(scanned, scan=False)
    params = fresh(module, scanned)
    apart = fresh(module, unrolled)
    jax.tree.map(
        np.testing.assert_array_equal, unstacked(params, config.num_layers), apart
    )
    params, data = changed(params), batch(config)
    grad = grad_fn(module, scanned)(params, data)
    apart = grad_fn(module, unrolled)(unstacked(params, config.num_layers), data)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        unstacked(grad, config.num_layers),
        apart,
    )


def test_a_gpt_sees_only_the_past():
    config = dataclasses.replace(SMALL_GPT, tied=False)
    params, batch = changed(fresh(gpt, config)), gpt_batch(config)

    @jax.jit
    def logits(tokens):
        model = gpt.GPT(config, rngs=nnx.Rngs(0))
        nnx.update(model, params)
        return model(tokens, None, Layout())

    tokens = batch["tokens"][:, :-1]
    later = tokens.at[:, 7].set((tokens[:, 7] + 1) % config.vocab_size)
    before, after = logits(tokens), logits(later)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(axis=-1).all()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow, id="GPT-2"),
        pytest.param(LLAMA, marks=pytest.mark.slow, id="Llama"),
    ],
)
def test_both_attentions_compute_the_same(options):
    plain = dataclasses.replace(SMALL_GPT, **options)
    fused = dataclasses.replace(plain, attention="dot_product")
    params, batch = changed(fresh(gpt, plain)), gpt_batch(plain)
    grads = [grad_fn(gpt, config)(params, batch) for config in (plain, fused)]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *grads
    )


def test_rotary_positions_are_relative():
    """Scores depend on the distance of two positions, not on where they are."""
    from experiments.models.transformer import _rotate

    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=8), jnp.float32) for _ in range(2))
    turned_q, turned_k = (
        _rotate(jnp.broadcast_to(x, (1, 30, 1, 8)))[0, :, 0] for x in (q, k)
    )
    for distance in (0, 1, 9):
        scores = [turned_q[i + distance] @ turned_k[i] for i in range(0, 20, 5)]
        np.testing.assert_allclose(scores, scores[0], rtol=1e-4)
    np.testing.assert_allclose(turned_q[0], q)


def test_patches_are_squares_in_reading_order():
    image = jnp.arange(16).reshape(1, 4, 4, 1)
    assert vit.patches(image, 2).tolist() == [
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    ]


@pytest.mark.parametrize(
    ("module", "config", "batch"),
    [(gpt, SMALL_GPT, gpt_batch), (vit, SMALL_VIT, vit_batch)],
    ids=["gpt", "vit"],
)
class TestPurity:
    def test_the_same_key_drops_the_same(self, module, config, batch):
        config = dataclasses.replace(config, dropout=0.5)
        loss = loss_fn(module, config)
        params = changed(fresh(module, config))
        one, two = batch(config), batch(config)
        other = one | {"key": jax.random.key_data(jax.random.key(9))}
        assert loss(params, one) == loss(params, two)
        assert loss(params, one) != loss(params, other)

    def test_nothing_is_dropped_in_validation(self, module, config, batch):
        dropping = dataclasses.replace(config, dropout=0.5)
        params = changed(fresh(module, config))
        data = batch(config)
        valid = jax.jit(module.metrics_fn(dropping))(params, data)["loss"]
        assert valid == loss_fn(module, config)(params, data)

    def test_a_fresh_model_knows_nothing(self, module, config, batch):
        classes = config.vocab_size if module is gpt else config.num_classes
        loss = loss_fn(module, config)(fresh(module, config), batch(config))
        np.testing.assert_allclose(loss, np.log(classes), rtol=0.05)

    def test_bfloat16_computes_in_it_from_float32_parameters(
        self, module, config, batch
    ):
        low = dataclasses.replace(config, dtype="bfloat16")
        params = fresh(module, low)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("f4")}
        text = str(jax.make_jaxpr(module.loss_fn(low))(params, batch(low)))
        dots = [line for line in text.splitlines() if "dot_general" in line]
        assert dots
        assert all("bf16" in line.split("=")[0] for line in dots)
        exact = loss_fn(module, config)(params, batch(config))
        np.testing.assert_allclose(
            loss_fn(module, low)(params, batch(low)), exact, rtol=0.02
        )

    def test_residuals_have_the_five_names(self, module, config, batch):
        params = fresh(module, config)
        text = str(jax.make_jaxpr(module.loss_fn(config))(params, batch(config)))
        for name in ("qkv", "ctx", "attn_out", "up", "down"):
            assert text.count(f"name={name}]") == 1


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match="width 16 is not a multiple of num_heads 3"):
        _ = dataclasses.replace(SMALL_GPT, num_heads=3).block


def test_attention_by_cudnn_is_for_16_bits():
    by_cudnn = dataclasses.replace(SMALL_GPT, attention="cudnn")
    with pytest.raises(UserError, match=r"model\.dtype is float32: write"):
        _ = by_cudnn.block
    assert dataclasses.replace(by_cudnn, dtype="bfloat16").block


def test_patches_must_tile_the_image():
    with pytest.raises(UserError, match="image_size 8 is not a multiple of"):
        ViTConfig(patch_size=3)
