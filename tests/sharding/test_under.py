"""Logical constraints of unmodified models: every one arrives, or there is an error."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from revremat import UserError, sharding

WIDTH, HIDDEN = 8, 16


class Linen(nn.Module):
    """Two constraints and named weights, as people write them."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        up = nn.with_logical_partitioning(init, ("embed", "mlp"))
        down = nn.with_logical_partitioning(init, ("mlp", "embed"))
        h = nn.Dense(HIDDEN, use_bias=False, kernel_init=up)(x)
        h = nn.with_logical_constraint(jnp.tanh(h), ("batch", "length", "mlp"))
        y = nn.Dense(WIDTH, use_bias=False, kernel_init=down)(h)
        return nn.with_logical_constraint(y, ("batch", "norm_length", "embed"))


class Nnx(nnx.Module):
    """The same with NNX's variables."""

    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        named = lambda names: nnx.with_partitioning(init, names)
        linear = lambda i, o, names: nnx.Linear(
            i, o, use_bias=False, kernel_init=named(names), rngs=rngs
        )
        self.up = linear(WIDTH, HIDDEN, ("embed", "mlp"))
        self.down = linear(HIDDEN, WIDTH, ("mlp", "embed"))

    def __call__(self, x):
        h = nn.with_logical_constraint(jnp.tanh(self.up(x)), ("batch", "length", "mlp"))
        return nn.with_logical_constraint(
            self.down(h), ("batch", "norm_length", "embed")
        )


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh({"data": 2, "model": 4})


X = jax.ShapeDtypeStruct((2, 8, WIDTH), jnp.float32)


def linen():
    params = nn.unbox(Linen().init(jax.random.key(0), jnp.ones(X.shape)))
    return lambda x: Linen().apply(params, x)


def an_nnx_module():
    with nnx.use_eager_sharding(False):
        return Nnx(nnx.Rngs(0))


def constraints(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    return [
        tuple(eqn.params["sharding"].spec)
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "sharding_constraint"
    ]


@pytest.mark.parametrize("make", [linen, an_nnx_module])
@pytest.mark.parametrize("sequence", [False, True])
def test_all_constraints_of_a_model_arrive(mesh, make, sequence):
    rules = sharding.megatron(sequence=sequence)
    found = constraints(sharding.under(mesh, rules)(make()), X)
    assert found == [
        ("data", None, "model"),
        ("data", "model" if sequence else None, None),
    ]


def test_elsewhere_flax_does_what_it_did(mesh):
    sharding.under(mesh, sharding.megatron())
    model = linen()
    assert constraints(model, X) == []
    with nn.logical_axis_rules([("batch", "data")]), jax.set_mesh(mesh):
        assert constraints(model, X) == [("data", None, None), ("data", None, None)]


def test_a_model_without_names_is_an_error(mesh):
    bare = sharding.under(mesh, sharding.megatron())(lambda x: x * 2)
    with pytest.raises(UserError, match="none of <lambda>'s values has a logical"):
        jax.jit(bare)(jnp.ones(4))


def test_a_name_without_a_rule_is_told_with_its_line(mesh):
    def loss(x):
        return nn.with_logical_constraint(x, ("batch", "hidden"))

    message = r"float32 array at test_under.py:\d+ of .*'hidden' has no rule"
    with pytest.raises(UserError, match=message):
        sharding.under(mesh, sharding.megatron())(loss)(jnp.ones((2, 8)))


def test_the_older_with_mesh_is_refused(mesh):
    planned = sharding.under(mesh, sharding.megatron())(linen())
    with (
        pytest.warns(DeprecationWarning, match="with mesh:"),
        mesh,
        pytest.raises(UserError, match="within `with mesh:`"),
    ):
        planned(jnp.ones(X.shape))


def linen_state():
    return Linen().init(jax.random.key(0), jnp.ones(X.shape))


def nnx_state():
    return nnx.state(Nnx(nnx.Rngs(0)))


@pytest.mark.parametrize("init", [linen_state, nnx_state])
def test_weights_are_born_where_their_names_say(mesh, init):
    rules = [sharding.Logical(sharding.megatron())]
    state = sharding.abstract_state(init, rules, mesh)
    found = {leaf.shape: tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(state)}
    assert found == {(WIDTH, HIDDEN): (None, "model"), (HIDDEN, WIDTH): ("model",)}


def test_moments_lie_where_their_weights_do(mesh):
    init = lambda: optax.adam(1e-3).init(linen_state())
    rules = [sharding.Logical(sharding.megatron(fsdp=None))]
    state = sharding.abstract_state(init, rules, mesh)
    leaves = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert {tuple(leaf.sharding.spec) for leaf in leaves} == {
        (None, "model"),
        ("model",),
    }
    assert len(leaves) == 4


def test_other_rules_go_on_where_names_say_nothing(mesh):
    rules = [
        sharding.Logical(sharding.megatron()),
        sharding.FSDP(axis="data", min_size=1),
    ]
    state = sharding.abstract_state(linen_state, rules, mesh)
    found = {leaf.shape: tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(state)}
    assert found == {
        (WIDTH, HIDDEN): ("data", "model"),
        (HIDDEN, WIDTH): ("model", "data"),
    }


def test_a_tree_without_names_is_an_error(mesh):
    with pytest.raises(UserError, match="no array of the tree has names"):
        sharding.abstract_state(
            lambda: jnp.ones(4), [sharding.Logical(sharding.megatron())], mesh
        )
