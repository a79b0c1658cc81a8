"""A head's cross-entropy: the mean over labels that count, whole or in chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr

BATCH, LENGTH, WIDTH, WORDS = 2, 4, 3, 5


def drawn(seed=0):
    random = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    labels = random.integers(0, WORDS, (BATCH, LENGTH))
    return array(BATCH, LENGTH, WIDTH), array(WIDTH, WORDS), labels


def by_the_formula(hidden, table, labels):
    logs = jax.nn.log_softmax(hidden @ table)
    losses = [
        -logs[b, t, labels[b, t]]
        for b in range(BATCH)
        for t in range(LENGTH)
        if labels[b, t] >= 0
    ]
    return sum(losses) / max(1, len(losses))


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("counting", [0, 1, 2, 8])
def test_labels_that_count_count_alike(counting, chunks):
    hidden, table, labels = drawn(counting)
    left_out = np.random.default_rng(1).permutation(labels.size)[counting:]
    labels.flat[left_out] = np.where(left_out % 2, -1, -100)
    found = rr.cross_entropy(hidden, table, jnp.asarray(labels), chunks=chunks)
    assert float(found) == pytest.approx(
        float(by_the_formula(hidden, table, labels)), abs=1e-6
    )
    assert found.dtype == jnp.float32


def test_it_is_computed_in_float32_at_least():
    hidden, table, labels = drawn()
    half = lambda a: a.astype(jnp.bfloat16)
    found = rr.cross_entropy(half(hidden), half(table), labels)
    exact = by_the_formula(
        *(half(a).astype(jnp.float32) for a in (hidden, table)), labels
    )
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(float(exact), abs=1e-6)
