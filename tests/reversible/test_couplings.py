"""The contract of every coupling, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import revremat as rr
from revremat import reversible
from revremat.reversible._coupling import together
from tests.reversible import examples
from tests.reversible.examples import assert_close, quick_jit, square_sum, stacked

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", examples.ALL)
def test_the_inverse_gives_the_input_back(name):
    e = examples.ALL[name]()
    y = quick_jit(e.coupling.forward)(e.params, e.x, e.rest)
    assert_close(quick_jit(e.coupling.inverse)(e.params, y, e.rest), e.x, 1e-12)


@pytest.mark.every_commit(
    "silo of 3",
    "affine silo growing to 3",
    "additive",
    "affine",
    "momentum",
    "reformer",
    "halves",
    "streams of pytrees",
    "additive with dropout",
    "additive, second first",
    "silo of 2",
)
@pytest.mark.parametrize("name", examples.ALL)
def test_pulling_back_from_the_output_is_plain_autodiff(name):
    e = examples.ALL[name]()

    @quick_jit
    def both(params, x):
        y, pull = jax.vjp(lambda p, x: e.coupling.forward(p, x, e.rest), params, x)
        ct = jax.tree.map(jnp.cos, y)
        return e.coupling.pull_back(params, *together(y, ct), e.rest), pull(ct)

    (x, *found), expected = both(e.params, e.x)
    assert_close(x, e.x, 1e-12)
    assert_close(tuple(found), expected, 1e-11)


def stored(coupling, params, x, rest, depth):
    one = lambda x, own: (coupling.forward(own[0], x, own[1]), None)
    return jax.lax.scan(one, x, (params, rest), length=depth)[0]


def on_the_engine(coupling, params, x, rest, depth):
    del depth
    return rr.stack(
        coupling.forward, params, x, rest, actions=rr.INVERT, inverse=coupling.inverse
    )


def as_one_repeat(coupling, params, x, rest, depth):
    repeat = reversible.Repeat(coupling, depth)
    return reversible.chain([repeat], [params], x, [rest])


def as_a_chain(coupling, params, x, rest, depth, save_every=None):
    own = [jax.tree.map(lambda a, k=k: a[k], (params, rest)) for k in range(depth)]
    return reversible.chain(
        [coupling] * depth,
        [p for p, _ in own],
        x,
        [r for _, r in own],
        save_every=save_every,
    )


def saving_every_third(*args):
    return as_a_chain(*args, save_every=3)


SAMPLES = ("additive with dropout", "affine")
LARGE = ("silo of 4", "affine silo of 3")
CASES = [
    *((name, 8, on_the_engine) for name in examples.EQUAL if name not in LARGE),
    *((name, 8, as_one_repeat) for name in (*SAMPLES, "silo of 2")),
    *(pytest.param(name, 8, as_one_repeat, marks=pytest.mark.slow) for name in LARGE),
    *((SAMPLES[0], 1, run) for run in (on_the_engine, as_one_repeat)),
    *((SAMPLES[0], 4, run) for run in (as_a_chain, saving_every_third)),
]


@pytest.mark.parametrize(("name", "depth", "run"), CASES)
def test_gradients_are_those_of_plain_autodiff(name, depth, run):
    e = examples.EQUAL[name]()
    params, rest = stacked(e.params, depth), stacked(e.rest, depth)

    def gradient(run):
        loss = lambda p, x: square_sum(run(e.coupling, p, x, rest, depth))
        return quick_jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, e.x)

    assert_close(gradient(run), gradient(stored), 1e-9)


def test_streams_may_change_in_number_and_shape_on_the_way():
    pixels = examples.Numbers(9)(2, 8, 1)
    growing = [examples.silo(n, growing=True) for n in (2, 3, 4)]
    widths = [e.params for e in growing]
    first = reversible.Custom(
        lambda p, x, rest: (p * jnp.concatenate([x, -x], -1),),
        lambda p, y, rest: y[0][..., :1] / p,
    )
    couplings = [first, *(e.coupling for e in growing)]
    params = [2.0, *widths]

    def plain(params, x):
        for coupling, own in zip(couplings, params, strict=True):
            x = coupling.forward(own, x)
        return square_sum(x)

    found = lambda p, x: square_sum(reversible.chain(couplings, p, x))
    gradient = lambda f: quick_jit(jax.grad(f, argnums=(0, 1)))(params, pixels)
    assert_close(gradient(found), gradient(plain), 1e-9)


def test_the_same_key_draws_the_same_numbers():
    e = examples.with_dropout()
    draws = [e.coupling.forward(e.params, e.x, e.rest) for _ in range(2)]
    other = e.coupling.forward(e.params, e.x, e.rest | {"g": e.rest["f"]})
    assert_close(*draws, 0)
    assert not np.allclose(other[1], draws[0][1])


@pytest.mark.parametrize("name", ["additive", "affine", "momentum", "halves"])
def test_the_log_determinant_is_that_of_the_jacobian(name):
    e = examples.ALL[name]()
    one = jax.tree.map(lambda leaf: leaf[:1], e.x)
    flat, unravel = ravel_pytree(one)
    run = lambda v: ravel_pytree(e.coupling.forward(e.params, unravel(v)))[0]
    _, expected = jnp.linalg.slogdet(jax.jacobian(run)(flat))
    found = e.coupling.log_det(e.params, e.x)
    assert found.shape == (examples.BATCH,)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)


@pytest.mark.parametrize("make", [reversible.additive, reversible.affine])
@pytest.mark.parametrize("dtypes", ["float32 bfloat16", "bfloat16 float32"])
def test_a_stream_keeps_its_dtype_whatever_its_maps_compute_in(make, dtypes):
    stream, inner = map(jnp.dtype, dtypes.split())
    value = lambda w, x: jnp.tanh(w * x.astype(inner))
    f = value if make is reversible.additive else lambda w, x: (value(w, x),) * 2
    coupling, params = make(f, f), {"f": jnp.ones((), inner), "g": jnp.ones((), inner)}
    x = tuple(examples.Numbers()(2, examples.BATCH, examples.WIDTH).astype(stream))
    y = coupling.forward(params, x)
    assert {leaf.dtype for leaf in y} == {stream}
    assert_close(coupling.inverse(params, y), x, 8 * float(jnp.finfo(stream).eps))


def test_space_to_depth_is_undone_by_depth_to_space():
    x = jnp.arange(2.0 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    y = reversible.space_to_depth(2).forward(None, x)
    assert y.shape == (2, 2, 3, 12)
    assert y[0, 0, 0].tolist() == [*x[0, 0, 0], *x[0, 0, 1], *x[0, 1, 0], *x[0, 1, 1]]
    assert_close(reversible.depth_to_space(2).forward(None, y), x, 0)


def test_aux_comes_from_the_forward_pass_alone():
    def counted(w, x, count):
        return examples.dense(w, x), count + 1

    e = examples.additive()
    coupling = reversible.additive(counted, counted, has_aux=True)
    rest = {"f": jnp.int32(4), "g": jnp.int32(8)}

    def loss(p):
        y, (aux,) = reversible.chain([coupling], [p], e.x, [rest])
        return square_sum(y), aux

    found, aux = jax.grad(loss, has_aux=True)(e.params)
    expected = jax.grad(lambda p: square_sum(e.coupling.forward(p, e.x)))(e.params)
    assert aux == {"f": 5, "g": 9}
    assert_close(found, expected, 1e-12)


MISTAKES = {
    "odd channels": (
        lambda: examples.halves().coupling.run(None, jnp.ones((2, 5))),
        r"5 channels .* has no two equal halves",
    ),
    "streams": (
        lambda: examples.additive().coupling.run({}, (jnp.ones(2),)),
        "takes a tuple of 2 streams was given 1",
    ),
    "not a tuple": (
        lambda: examples.additive().coupling.run({}, jnp.ones(2)),
        "was given one array",
    ),
    "shape": (
        lambda: reversible.additive(lambda w, x: x[:1], lambda w, x: x).run(
            {"f": None, "g": None}, (jnp.ones((2, 3)), jnp.ones((2, 3)))
        ),
        r"f returns float64\[1, 3\] for stream 0, which is float64\[2, 3\]; let it",
    ),
    "incompatible shape": (
        lambda: reversible.additive(lambda w, x: x[:2], lambda w, x: x).run(
            {"f": None, "g": None}, (jnp.ones((3, 3)), jnp.ones((3, 3)))
        ),
        "let it return that shape",
    ),
    "whole numbers": (
        lambda: reversible.chain(
            [reversible.additive(examples.dense, examples.dense)],
            [{"f": jnp.eye(3), "g": jnp.eye(3)}],
            (jnp.ones((2, 3), jnp.uint8),) * 2,
        ),
        r"stream 0 is uint8\[2, 3\], which holds no fractions",
    ),
    "no pair": (
        lambda: reversible.affine(lambda w, x: x, lambda w, x: x).run(
            {"f": None, "g": None}, (jnp.ones(3), jnp.ones(3))
        ),
        "return a pair",
    ),
    "no inverse": (lambda: reversible.Custom(lambda p, x, r: x, None), "no inverse"),
    "reads itself": (
        lambda: reversible.Step(0, (("f", 0),), reversible.Add()),
        "nothing could undo it",
    ),
    "wrong way": (lambda: reversible.silo({(1, 0): None}, {}), "`down` goes from"),
    "grows from nothing": (
        lambda: reversible.silo({}, {(1, 0): None}, num_inputs=1),
        "no map leads down",
    ),
    "momentum": (lambda: reversible.momentum(None, momentum=1.0), "cannot be undone"),
    "clamp": (lambda: reversible.affine(None, None, clamp=0), "positive clamp"),
    "blocks": (
        lambda: reversible.space_to_depth(2).forward(None, jnp.ones((1, 3, 4, 1))),
        "cannot be cut in blocks of 2",
    ),
    "channels": (
        lambda: reversible.depth_to_space(2).forward(None, jnp.ones((1, 3, 4, 6))),
        "number of channels that 4 divides",
    ),
    "unknown state": (
        lambda: examples.additive().coupling.run(
            {"f": None, "g": None}, (jnp.ones(2),) * 2, {"h": 1}
        ),
        "state for 'h', which it does not have",
    ),
    "unknown parameters": (
        lambda: examples.additive().coupling.run(
            {"f": None, "g": None, "h": None}, (jnp.ones(2),) * 2
        ),
        "parameters for 'h', which it does not have",
    ),
    "missing parameters": (
        lambda: examples.additive().coupling.run({"f": None}, (jnp.ones(2),) * 2),
        "no parameters for g; give a pytree for each",
    ),
    "parameters": (
        lambda: reversible.chain([examples.additive().coupling], [], jnp.ones(2)),
        "1 couplings was given 0 sets",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name):
    make, message = MISTAKES[name]
    with pytest.raises(rr.UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kinds", "has_aux"),
    [("", False), ("p", False), ("a", True), ("pa", True), ("ap", True), ("pp", False)],
)
def test_a_sequence_gives_out_what_any_of_its_parts_does(kinds, has_aux):
    couplings = [
        reversible.additive(jnp.sin, jnp.sin, has_aux=kind == "a") for kind in kinds
    ]
    assert reversible.Sequential(tuple(couplings)).has_aux is has_aux
