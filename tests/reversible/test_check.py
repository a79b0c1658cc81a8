"""check_inverse: a table for what is right, one sentence for what is not."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import revremat as rr
from revremat.reversible import Custom, additive, check_inverse, exact, to_grid
from tests.reversible import examples


@pytest.mark.slow
def test_errors_by_dtype_and_depth():
    e = examples.with_dropout()
    params = jax.tree.map(lambda w: w / 4, e.params)
    table = check_inverse(
        e.coupling, params, e.x, e.rest, dtypes=("float64", "float32"), depths=(1, 4)
    )
    assert [(r.dtype, r.depth) for r in table.rows] == [
        *(("float64", 1), ("float32", 1)),
        *(("float64", 4), ("float32", 4)),
    ]
    for row in table.rows:
        limit = 1e-10 if row.dtype == "float64" else 1e-4
        assert max(row.round_trip, row.gradient) < limit
    assert table.rows[2].noise_floor == 0
    assert table.rows[3].noise_floor > 1e-9
    header, *lines = str(table).splitlines()
    assert header.split() == [
        "dtype",
        "depth",
        *["round", "trip", "gradient", "noise", "floor"],
    ]
    assert len({len(line) for line in (header, *lines)}) == 1


def test_the_first_example_of_the_docs_comes_back_with_its_gradients():
    tutorial = Path(__file__).parents[2] / "docs" / "tutorial"
    text = (tutorial / "a-reversible-network.md").read_text()
    x = jax.random.normal(jax.random.key(0), (8, 64))
    known = {"x": x}
    exec(text.split("```python\n")[1].split("```")[0], known)
    assert jnp.abs(known["x"] - x).max() < 1e-4
    loss = lambda model: (model(x) ** 2).mean()
    kept = known["RevScan"](
        known["make_block"], 24, rngs=nnx.Rngs(0), actions=[rr.SAVE] * 24
    )
    inverted, plain = (
        jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(nnx.grad(loss)(m))])
        for m in (known["model"], kept)
    )
    assert jnp.linalg.norm(inverted - plain) < 1e-5 * jnp.linalg.norm(plain)


@pytest.mark.slow
def test_bfloat16_drifts_and_the_grid_does_not():
    """Functions in bfloat16: recomputed streams drift, but not on a grid."""
    half = jnp.bfloat16
    f = lambda w, x: jnp.tanh(x.astype(half) @ w.astype(half))
    e = examples.additive()
    coupling = additive(f, f)
    case = {"dtypes": ("float32",), "depths": (32,)}
    (on_grid,) = check_inverse(exact(coupling), e.params, to_grid(e.x), **case).rows
    assert on_grid.round_trip == 0
    (drifting,) = check_inverse(coupling, e.params, e.x, **case).rows
    assert drifting.round_trip > 0


@pytest.mark.parametrize(
    ("undo", "message"),
    [
        (lambda p, y, rest: y - 2.01 * p, "the inverse is off by"),
        (lambda p, y, rest: y * jnp.nan, "the inverse is off by nan"),
        (
            lambda p, y, rest: y[:1],
            r"returns float64\[1\] for an input of float64\[3\]",
        ),
    ],
)
def test_a_wrong_inverse_is_reported(undo, message):
    wrong = Custom(lambda p, x, rest: x + 2 * p, undo)
    with pytest.raises(rr.UserError, match=message):
        check_inverse(wrong, 1.0, jnp.ones(3))


@pytest.mark.parametrize(
    ("undo", "is_right"),
    [(lambda p, y, _: y / p, True), (lambda p, y, _: jnp.conj(y) / p, False)],
)
def test_imaginary_parts_count(undo, is_right):
    turn = Custom(lambda p, x, _: p * x, undo)
    given = jnp.array(0.6 + 0.8j), jnp.array([1.0 + 2.0j, 3.0 - 1.0j])
    how = {"depths": [2], "dtypes": ["float64"]}
    if not is_right:
        with pytest.raises(rr.UserError, match=r"the inverse is off by .* in float64"):
            check_inverse(turn, *given, **how)
        return
    (row,) = check_inverse(turn, *given, **how).rows
    assert row.round_trip < 1e-14
    assert row.gradient < 1e-14
