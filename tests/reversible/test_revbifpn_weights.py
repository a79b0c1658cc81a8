"""The authors' weights in our model: their names, their layouts, their outputs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import revremat as rr
from revremat.reversible import REVBIFPN, RevBiFPN, revbifpn_state
from revremat.reversible._revbifpn_weights import _leaves
from tests.reversible.examples import quick_jit
from tests.reversible.naive_revbifpn import S3, S6, Naive, drawn, shapes


def abstract(**changes):
    config = replace(REVBIFPN["S0"], **changes)
    return nnx.eval_shape(lambda: RevBiFPN(config, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def arrays():
    return drawn()


@pytest.fixture(scope="module")
def model():
    return abstract()


def test_the_names_are_those_of_the_published_parameters():
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    sizes = [np.prod(s) for name, s in shapes().items() if not name.endswith(buffers)]
    assert sum(sizes) == 3_419_196


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param("S3", S3, marks=pytest.mark.slow),
        pytest.param("S6", S6, marks=pytest.mark.slow),
    ],
)
def test_larger_variants_have_more_of_the_same_names(name, variant):
    model = nnx.eval_shape(lambda: RevBiFPN(REVBIFPN[name], rngs=nnx.Rngs(0)))
    wanted = shapes(variant)
    found = {leaf.name: leaf.shape for leaf in _leaves(model)}
    counted = [one for one in wanted if one.endswith("num_batches_tracked")]
    assert found == {one: wanted[one] for one in wanted if one not in counted}


def test_the_state_has_every_parameter_and_statistic_of_the_model(arrays, model):
    state = revbifpn_state(arrays, model)
    wanted = nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))
    described = lambda s: {
        path: (type(leaf), leaf.shape, leaf.dtype)
        for path, leaf in nnx.to_flat_state(s)
    }
    assert described(state) == described(wanted)


@pytest.mark.slow
def test_outputs_are_those_of_a_naive_network_under_the_same_names(arrays, model):
    graph, state, rest = nnx.split(model, nnx.Any(nnx.Param, nnx.BatchStat), ...)
    model = nnx.merge(graph, revbifpn_state(arrays, model), rest)
    model.eval()
    graph, state, rest = nnx.split(model, nnx.Any(nnx.Param, nnx.BatchStat), ...)
    images = np.random.default_rng(1).normal(size=(2, 64, 64, 3)).astype(np.float32)
    run = quick_jit(lambda state, x: nnx.merge(graph, state, rest)(x))
    found = np.asarray(run(state, images))
    wanted = Naive(arrays)(images.transpose(0, 3, 1, 2))
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def without(arrays, *prefixes):
    return {k: v for k, v in arrays.items() if not k.startswith(prefixes)}


@pytest.mark.slow
def test_a_pyramid_takes_what_is_left_of_a_classifier(arrays):
    pyramid = abstract(num_classes=None, neck=False)
    state = revbifpn_state(without(arrays, "head.", "rev_stack.recomp_op."), pyramid)
    kernel = state["stack"]["blocks"][0]["blocks"][0]["maps"]["f"]["depthwise"]["conv"]
    name = "rev_stack.1.rev_transform_0.f.xform_0_1.dw_conv.conv.weight"
    np.testing.assert_array_equal(
        np.asarray(kernel["kernel"][...])[:, :, 0, 5], arrays[name][5, 0]
    )


FC, CONV = "head.fc.weight", "head.final_conv.conv.weight"

BAD = {
    "1 missing (head.fc.weight)": lambda a: without(a, FC),
    "10 unknown (a.0, a.1, a.2, a.3 and 6 more)": (
        lambda a: a | {f"a.{k}": np.ones(1, np.float32) for k in range(10)}
    ),
    f"1 misshaped ({FC} is [1280, 1000] and not [1000, 1280])": (
        lambda a: a | {FC: a[FC].T}
    ),
    f"{CONV} is [1, 1, 320, 1280] and not [1280, 320, 1, 1]": (
        lambda a: a | {CONV: a[CONV].transpose(2, 3, 1, 0)}
    ),
    f"1 without real numbers ({FC} is int64)": (
        lambda a: a | {FC: a[FC].astype(np.int64)}
    ),
    "give checkpoint['state_dict']": lambda a: {"state_dict": a, "epoch": 3},
    "begin with 'module.'": lambda a: {f"module.{k}": v for k, v in a.items()},
    "list is no state dict": lambda a: list(a),
}


@pytest.mark.parametrize("said", BAD)
def test_what_does_not_fit_is_told_in_one_sentence(said, arrays, model):
    with pytest.raises(rr.UserError) as caught:
        revbifpn_state(BAD[said](arrays), model)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert message.endswith(".")


def test_parts_that_the_model_lacks_are_named(arrays):
    with pytest.raises(rr.UserError, match="leave out the names that begin with 'head"):
        revbifpn_state(arrays, abstract(num_classes=None))


@pytest.mark.slow
def test_another_variant_is_told(arrays):
    wider = nnx.eval_shape(lambda: RevBiFPN(REVBIFPN["S1"], rngs=nnx.Rngs(0)))
    with pytest.raises(rr.UserError, match="misshaped"):
        revbifpn_state(arrays, wider)


def test_weights_keep_the_dtype_of_the_model(arrays, model):
    halves = {k: v.astype(jnp.bfloat16) for k, v in arrays.items() if v.ndim}
    leaves = jax.tree.leaves(revbifpn_state(halves, model))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
