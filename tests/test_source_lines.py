"""Operations have the line of the user's code, however they came to be traced."""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn

import revremat as rr
from revremat._sources import is_users

HERE = Path(__file__)
W = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def layer(w, x):
    h = jnp.tanh(x @ w)
    h = jnp.where(h > 0, h, 2 * h)  # here: where
    nll = optax.losses.safe_softmax_cross_entropy(h, h)  # here: optax
    return x + nll[:, None]


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]


def in_turn(w, x):
    for k in range(4):
        x = layer(w[k], x)
    return x


def checkpointed(w, x):
    for k in range(4):
        x = jax.checkpoint(layer)(w[k], x)
    return x


def jitted(w, x):
    for k in range(4):
        x = jax.jit(layer)(w[k], x)
    return x


def within(w, x):
    """A loop in a checkpointed body of a loop."""
    body = jax.checkpoint(lambda x, _: (scanned(w, x), None))
    return jax.lax.scan(body, x, None, length=2)[0]


def line(mark):
    lines = HERE.read_text().splitlines()
    (number,) = (
        k for k, text in enumerate(lines, 1) if text.endswith(f"# here: {mark}")
    )
    return f"{HERE}:{number} "


def sources(unit):
    return {op.kind: op.source for op in unit.operations}


@pytest.mark.parametrize("run", [scanned, in_turn, checkpointed, jitted, within])
def test_of_jax_s_functions_and_of_libraries(run):
    graph = rr.trace(lambda w, x: jnp.square(run(w, x)).mean(), W, X)
    unit = graph.units[-1]
    found = [op.source for op in unit.operations]
    selects = [op.source for op in unit.operations if op.kind == "select_n"]
    assert any(source.startswith(line("where")) for source in selects)
    libraries = [source for source in found if "optax" in source]
    assert libraries
    assert all(f", called at {line('optax')}" in source for source in libraries)
    assert all(found)


def test_of_layers_that_a_library_scans():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + jnp.tanh(nn.Dense(8)(x)), None  # here: dense

    across = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    model = nn.remat(nn.scan(Block, **across, length=4))()
    params = jax.eval_shape(model.init, jax.random.key(0), X, None)
    loss = lambda params, x: model.apply(params, x, None)[0].sum()
    (unit,) = rr.trace(loss, params, X).units
    assert f"called at {line('dense')}" in sources(unit)["dot_general"]


def test_a_library_s_loss_is_not_called_where_it_is_traced():
    loss = optax.losses.safe_softmax_cross_entropy
    (unit,) = rr.trace(lambda x, y: loss(x, y).mean(), X, X).units
    assert all("test_source_lines" in op.source for op in unit.operations)
    (unit,) = rr.trace(optax.tree_utils.tree_norm, X).units
    assert not any("called at" in op.source for op in unit.operations)


@pytest.mark.parametrize(
    ("file", "is_theirs"),
    [
        (f"{Path(rr.__file__).parent}/_trace.py", False),
        (f"{Path(rr.__file__).parent}_train.py", True),
        (nn.__file__, False),
        ("<stdin>", False),
        (str(HERE), True),
    ],
)
def test_files_beside_an_installed_folder_are_the_users(file, is_theirs):
    assert is_users(file) == is_theirs
