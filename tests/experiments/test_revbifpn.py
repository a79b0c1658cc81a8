"""The comparison of RevBiFPN with EfficientNet: what is counted and what is written."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from experiments.papers.revbifpn.__main__ import Paper, main, rows
from experiments.papers.revbifpn.macs import num_macs
from experiments.papers.revbifpn.networks import (
    INVERTED,
    STORED,
    Network,
    network,
    training_step,
)
from experiments.papers.revbifpn.table import sample_bytes, slope_bytes, table
from revremat import UserError
from revremat.reversible import RevBiFPN, RevBiFPNConfig
from revremat.reversible._revbifpn import HEAD_KERNEL

SMALL = RevBiFPNConfig(32, 1 / 3, 0, num_classes=10)


def small(reversible):
    make = lambda rngs: RevBiFPN(SMALL, rngs=rngs, reversible=reversible)
    return Network("small", INVERTED, 32, make)


@pytest.mark.slow
def test_inverting_costs_one_more_pass_through_stack_and_neck():
    """And the depthwise convolution of the neck's finest map, which comes twice."""
    stored, inverted = (
        num_macs(step.function, *step.specs)
        for step in (training_step(small(on), 1) for on in (False, True))
    )
    model = nnx.eval_shape(lambda: small(True).make(nnx.Rngs(0)))
    graph, state = nnx.split(model)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)

    def pyramid(state, x):
        model = nnx.merge(graph, state, copy=True)
        return model.neck(model.streams(x))

    twice = HEAD_KERNEL**2 * SMALL.channels[0] * (SMALL.image_size // 4) ** 2
    assert inverted - stored == pytest.approx(
        num_macs(pyramid, state, images) + twice, rel=0.02
    )


def test_macs_of_known_programs():
    x, w = jnp.ones((2, 3)), jnp.ones((3, 5))
    assert num_macs(jnp.dot, x, w) == 2 * 3 * 5
    iterations = lambda w: jax.lax.scan(
        lambda x, _: (x @ w, None), x[:, :1] * 0 + w[:2], None, 7
    )
    assert num_macs(iterations, jnp.ones((5, 5))) == 7 * 2 * 5 * 5


def row(name, way, batch, total):
    return {
        "network": name,
        "way": way,
        "batch": batch,
        "target": "h100:1",
        "total_bytes": total,
        "own_bytes": 100,
    }


FOUND = [
    row("S6", INVERTED, 16, 100 + 16 * 2**20),
    row("S6", INVERTED, 64, 100 + 64 * 2**20),
    row("B7", STORED, 16, 100 + 16 * 20 * 2**20),
    row("B7", STORED, 64, 100 + 64 * 20 * 2**20),
]


def test_a_sample_is_what_is_left_of_the_step():
    assert sample_bytes(FOUND[0]) == slope_bytes(FOUND[:2]) == 2**20
    assert slope_bytes(FOUND[:1]) is None


def test_the_table_compares_the_pairs_of_the_paper():
    text = table(FOUND)
    assert "20.0 at batch 16, 20.0 at batch 64, 20.0 by slope (published 19.8)" in text


def test_a_row_that_was_compiled_differently_is_marked():
    assert "*" not in table(FOUND)
    text = table([*FOUND[:3], FOUND[3] | {"remarks": ["by other means"]}])
    assert "B7 stored *" in text
    assert text.endswith("* by other means\n")


def test_the_most_telling_rows_come_first():
    found = list(rows(Paper(targets=("h100:1",))))
    assert [name for name, *_ in found[:6]] == ["S6", "B7", "S5", "B6", "S4", "B5"]
    assert len(set(found)) == len(found) == 2 * (8 + 3 * 7 + 3)


def test_an_unknown_network_is_one_sentence():
    with pytest.raises(UserError, match="'S9' stored is no network"):
        network("S9")
    with pytest.raises(UserError, match="'B0' inverted is no network"):
        network("B0", INVERTED)


def test_a_table_of_an_unknown_network_is_one_sentence(monkeypatch, capsys, tmp_path):
    arguments = ["revbifpn", "--networks", "S9", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 2
    assert "no network 'S9'; choose from S0" in capsys.readouterr().err
