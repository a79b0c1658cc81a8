"""Every mistake with a mesh, rules or names is one sentence that says what to write."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from revremat import UserError, sharding

RULES = sharding.megatron(sequence=True)
X = jnp.ones((2, 8, 16))


def a_mesh(**sizes):
    return sharding.make_mesh(sizes or {"data": 2, "model": 4})


def constrained(x):
    return nn.with_logical_constraint(x, ("batch", "length", "mlp"))


def under(mesh, rules, x=X):
    return sharding.under(mesh, rules)(constrained)(x)


def under_two(inner, outer):
    both = sharding.under(a_mesh(), outer)(sharding.under(a_mesh(), inner)(constrained))
    return jax.make_jaxpr(both)(X)


def explicit():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def within_older(call):
    with pytest.warns(DeprecationWarning, match="with mesh:"), a_mesh():
        call()


def lay_out(x, *names, rules: Any = RULES, **sizes):
    return sharding.Layout(a_mesh(**sizes), rules)(x, *names)


def table(*tables: Any):
    return sharding.AxisRules(*tables)


def resolve(rules):
    return sharding.resolve(rules, {"w": X}, a_mesh())


def ring(*shapes, **how):
    mesh = a_mesh(data=2, context=4)
    layout = sharding.Layout(mesh, sharding.context_parallel())
    return sharding.ring_attention(layout, *map(jnp.ones, shapes), **how)


SHAPE = 2, 8, 2, 4
MISTAKES = {
    "a name without a rule": (
        lambda: lay_out(X, "batch", "length", "hidden"),
        "'hidden' has no rule; write None, one of the names with rules (batch, ",
    ),
    "the same of a model": (
        lambda: under(a_mesh(), sharding.AxisRules({"batch": ()})),
        "has no rule; write None, one of the names with rules (batch), or a rule of",
    ),
    "an axis that is not there": (
        lambda: lay_out(jnp.ones((8, 8, 16)), "batch", "length", "mlp", data=8),
        "the mesh has only data; name one of these in the rules, or make a mesh with",
    ),
    "an axis twice": (
        lambda: lay_out(X, "batch", "mlp", "heads"),
        "'model', which can cut one dimension of an array; write None for the other",
    ),
    "rules that both match": (
        lambda: resolve(
            [sharding.ByPath((("w", jax.P("data")), ("^w", jax.P("model"))))]
        ),
        "both match 'w' (2, 8, 16), and say P('data',) and P('model',); make one of",
    ),
    "two tables": (
        lambda: under_two(RULES, sharding.megatron()),
        "within another sharding.under of other rules or another mesh; keep one",
    ),
    "a mesh that does not divide": (
        lambda: under(a_mesh(), RULES, X[:1]),
        "into 2 parts, which do not divide 1; write a multiple of 2, or a mesh with",
    ),
    "a mesh of another size": (
        lambda: a_mesh(data=3, model=2),
        "needs 6 devices and there are 8; make the sizes multiply to 8",
    ),
    "a model without names": (
        lambda: sharding.under(a_mesh(), RULES)(jnp.sin)(X),
        "none of sin's values has a logical constraint; write nn.with_logical_",
    ),
    "the older with": (
        lambda: within_older(lambda: under(a_mesh(), RULES)),
        "under which Flax drops constraints; take the `with` away, the mesh is handed",
    ),
    "Explicit axes": (
        lambda: under(explicit(), RULES),
        "data, model are Explicit, and constraints are for Auto ones; write sharding.",
    ),
    "no mesh": (
        lambda: under(None, RULES),
        "sharding.under: NoneType is no mesh; write sharding.make_mesh({",
    ),
    "rules of Flax": (
        lambda: lay_out(X, "batch", rules=[("batch", "data")]),
        "sharding.Layout: list is no table from names to mesh axes; write sharding.",
    ),
    "axes without a tuple": (
        lambda: table({"batch": "data"}),
        "'batch' is cut over 'data', which is no tuple of mesh axes; write ('data',)",
    ),
    "axes as a list": (
        lambda: table({}, {"batch": ["data"]}),
        "'batch' is cut over ['data'], which is no tuple of mesh axes; write ('data',)",
    ),
    "a table in place of rules": (
        lambda: resolve([RULES]),
        "AxisRules is a table of names; write [sharding.Logical(rules)] to place",
    ),
    "one rule alone": (
        lambda: resolve(sharding.FSDP("data")),
        "FSDP stands alone; write a list of rules, [FSDP(...)]",
    ),
    "no rule at all": (
        lambda: resolve([{"w": "data"}]),
        "dict is no rule; write a list of Logical, ByPath, FSDP or Replicate",
    ),
    "an axis of a rule that is not there": (
        lambda: resolve([sharding.FSDP("zero", 1)]),
        "has only: data, model; name one of these in the rule, or make a mesh with",
    ),
    "a pattern for nothing": (
        lambda: resolve([sharding.ByPath((("v", jax.P("data")),))]),
        "matches none of the 1 arrays; leave it out, or write it for paths like 'w'",
    ),
    "fewer heads of keys": (
        lambda: ring(SHAPE, (2, 8, 1, 4), (2, 8, 1, 4)),
        "do not fit; write [batch, length, heads, width], keys and values repeated",
    ),
    "no zigzag of this length": (
        lambda: ring(*[(2, 12, 2, 4)] * 3, causal="zigzag"),
        'have no order for causal="zigzag"; write one length for all, a multiple of 8',
    ),
    "no keys at a time": (
        lambda: ring(*[SHAPE] * 3, block=0),
        "block=0; write 1 or more",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(case):
    call, sentence = MISTAKES[case]
    with pytest.raises(UserError) as error:
        call()
    told = str(error.value)
    assert sentence in told
    assert "; " in told
    assert "\n" not in told
    assert ". " not in told


def test_one_table_may_be_given_twice():
    (where,) = [
        tuple(eqn.params["sharding"].spec)
        for eqn in under_two(RULES, RULES).eqns
        if eqn.primitive.name == "sharding_constraint"
    ]
    assert where == ("data", None, "model")
