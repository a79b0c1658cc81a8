"""Trainings of RevBiFPN: what they compare, how they say it, what they keep."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import data, step
from experiments.checkpoints import Checkpoints
from experiments.models import revbifpn
from experiments.papers.revbifpn import accuracy, flops
from experiments.papers.revbifpn.networks import INVERTED, STORED


def rows(inverted, stored):
    return [
        {"way": way, "seed": seed, "accuracy": value, "num_steps": 1}
        for way, values in ((INVERTED, inverted), (STORED, stored))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("inverted", "stored", "equal"),
    [
        ((0.80, 0.81, 0.82), (0.805, 0.815, 0.825), True),  # half a point apart
        ((0.70, 0.80, 0.90), (0.75, 0.85, 0.95), True),  # within the seeds' spread
        ((0.80, 0.801, 0.802), (0.83, 0.831, 0.832), False),
    ],
)
def test_variants_are_equal_by_the_criterion_said_beforehand(inverted, stored, equal):
    found = accuracy.compare(rows(inverted, stored))
    assert found["equal"] is equal
    assert found["difference"] == pytest.approx(np.mean(inverted) - np.mean(stored))
    assert found["stdev"][STORED] == pytest.approx(np.std(stored, ddof=1), abs=1e-5)
    squares = np.var(inverted, ddof=1) / 3 + np.var(stored, ddof=1) / 3
    assert found["standard_error"] == pytest.approx(squares**0.5, abs=1e-5)


def test_the_table_says_every_accuracy_and_the_verdict():
    text = accuracy.table(rows((0.80, 0.81), (0.79, 0.83)))
    assert all(value in text for value in ("0.8000", "0.8100", "0.7900", "0.8300"))
    assert text.endswith(": equal\n")
    assert "0.8000" in accuracy.table(rows((0.8,), ())), "no verdict on one alone"


def test_what_is_done_is_not_trained_again(tmp_path, monkeypatch, capsys):
    trained = []

    def train(way, seed, paper):
        trained.append((way, seed))
        return {"way": way, "seed": seed, "num_steps": paper.num_steps, "accuracy": 0.8}

    monkeypatch.setattr(accuracy, "train", train)
    flags = ["accuracy", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*flags, "--most", "2"])
    assert accuracy.main() == 0
    assert trained == [(INVERTED, 0), (STORED, 0)]
    monkeypatch.setattr("sys.argv", flags)
    assert accuracy.main() == 0
    assert len(trained) == len(set(trained)) == 6
    found = json.loads((tmp_path / "revbifpn-accuracy.json").read_text())
    assert len(found["runs"]) == 6
    assert found["comparison"]["equal"]
    text = (tmp_path / "revbifpn-accuracy.txt").read_text()
    assert capsys.readouterr().out.endswith(text)


def test_times_are_compared_round_by_round():
    seconds = {INVERTED: [1.3, 2.6, 1.2], STORED: [1.0, 2.0, 1.2]}
    found = flops.ratios(seconds)
    assert found["seconds"][INVERTED] == {"min": 1.2, "median": 1.3}
    assert found["ratio"] == {"of_minima": 1.2, "median_of_rounds": 1.3}


def test_images_are_padded_alike_on_both_sides():
    image = jnp.ones((2, 28, 28, 1))
    padded = revbifpn.padded(image)
    assert padded.shape == (2, 32, 32, 1)
    np.testing.assert_array_equal(padded[:, 2:-2, 2:-2], image)
    assert float(padded.sum()) == image.size
    assert revbifpn.padded(jnp.ones((1, 64, 33, 1))).shape == (1, 64, 64, 1)


STATISTICS = {"list": {"1": {"norm": {"mean": jnp.arange(3.0), "var": jnp.ones(3)}}}}


@pytest.mark.parametrize("model", [STATISTICS, {}], ids=["statistics", "none"])
def test_checkpoints_hold_the_models_state(tmp_path, model):
    state = step.TrainState(
        {"list": {"0": {"kernel": jnp.arange(6.0)}}},
        optax.adam(1e-3).init({"list": {"0": {"kernel": jnp.arange(6.0)}}}),
        jnp.int32(5),
        jax.random.key_data(jax.random.key(3)),
        model,
    )
    images = data.Images(np.zeros((8, 4, 4), np.uint8), np.arange(8), 1.0)
    batches = data.train_batches(images, 4, 0)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    specs = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), state
    )
    checkpoints = Checkpoints(tmp_path, 1)
    try:
        checkpoints.save(5, state, batches)
        checkpoints.wait()
        again = checkpoints.load(specs, batches)
    finally:
        checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, again, state)


@pytest.mark.slow
def test_the_variants_are_one_function_with_one_gradient():
    """The whole classifier, as it is trained: loss, statistics, gradients."""
    specs = revbifpn.RevBiFPNClassifierConfig()
    params = jax.jit(lambda key: revbifpn.init(specs, key))(jax.random.key(0))
    batch = {
        "images": jax.random.uniform(jax.random.key(1), (8, 28, 28, 1)),
        "labels": jnp.arange(8),
        "key": jax.random.key_data(jax.random.key(2)),
        "state": revbifpn.init_state(specs),
    }
    results = []
    for reversible, depthwise in ((True, "sums"), (False, "sums"), (False, "xla")):
        config = revbifpn.RevBiFPNClassifierConfig(
            reversible=reversible, depthwise=depthwise
        )
        loss = jax.value_and_grad(revbifpn.loss_fn(config), has_aux=True)
        results.append(jax.jit(loss)(params, batch))
    plain = results[-1]
    for found in results[:-1]:
        (loss, state), grads = found
        np.testing.assert_allclose(loss, plain[0][0], rtol=1e-4)
        for ours, theirs in zip(
            jax.tree.leaves((state, grads)),
            jax.tree.leaves((plain[0][1], plain[1])),
            strict=True,
        ):
            scale = float(jnp.abs(theirs).max()) + 1e-3
            np.testing.assert_allclose(ours, theirs, atol=2e-2 * scale)
