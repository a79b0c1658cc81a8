"""Tables of what primitives and opcodes are: one row each, every trait explained."""

import jax
import jax.numpy as jnp
import pytest

from revremat import _primitives
from revremat._primitives import is_intensive
from revremat.xla.hlo import _opcodes

TABLES = {
    "primitives": (_primitives._PRIMITIVES, _primitives._TRAITS),
    "families": (_primitives._FAMILIES, _primitives._TRAITS),
    "opcodes": (_opcodes._OPCODES, _opcodes._TRAITS),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_name_stands_once_and_every_trait_is_explained(table):
    rows, explained = TABLES[table]
    names = [name for _, listed in rows for name in listed.split()]
    assert len(names) == len(set(names))
    assert {trait for traits, _ in rows for trait in traits.split(", ")} <= {*explained}


def test_no_explained_trait_is_unused():
    for which in (("primitives", "families"), ("opcodes",)):
        rows = [row for table in which for row in TABLES[table][0]]
        used = {trait for traits, _ in rows for trait in traits.split(", ")}
        assert used == set(TABLES[which[0]][1])


PROGRAMS = {
    "matmul": (lambda x: x @ x, True),
    "convolution": (lambda x: jnp.convolve(x[0], x[0]), True),
    "sum": (lambda x: x.sum(), True),
    "cumulative sum": (lambda x: jnp.cumsum(x), True),
    "sort": (lambda x: jnp.sort(x), True),
    "loop": (lambda x: jax.lax.scan(lambda c, y: (c + y, None), x[0], x)[0], True),
    "tanh": (jnp.tanh, False),
    "transpose": (lambda x: x.T, False),
    "reshape": (lambda x: x.reshape(-1), False),
    "sum of two": (lambda x: x + x, False),
    "comparison": (lambda x: x > 0, False),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_what_is_worth_more_than_a_pass_over_memory(case):
    f, intensive = PROGRAMS[case]
    eqns = jax.make_jaxpr(f)(jnp.ones((4, 4))).eqns
    kinds = [eqn.primitive.name for eqn in eqns]
    assert any(map(is_intensive, kinds)) == intensive, kinds


@pytest.mark.parametrize(
    ("f", "kinds"),
    [
        (lambda x: x.T, _primitives.MOVES),
        (lambda x: x.reshape(-1), _primitives.VIEWS),
        (jnp.maximum, _primitives.EXACT),
        (jnp.less, _primitives.DISCONTINUOUS),
        (jnp.floor, _primitives.ZERO_DERIVATIVE),
        (jnp.exp, _primitives.KEEPS_RESULT),
        (jax.lax.stop_gradient, _primitives.ZERO_DERIVATIVE),
        (jax.checkpoint(jnp.sin), _primitives.CHECKPOINTS),
        (jax.jit(jnp.sin), _primitives.CALLS),
    ],
)
def test_jax_calls_them_so(f, kinds):
    x = jnp.ones((3, 2))
    args = (x, x) if f in (jnp.maximum, jnp.less) else (x,)
    eqns = jax.make_jaxpr(f)(*args).eqns
    while len(eqns) == 1 and eqns[0].primitive.name == "jit" and "jit" not in kinds:
        eqns = eqns[0].params["jaxpr"].eqns
    assert eqns[-1].primitive.name in kinds


@pytest.mark.parametrize(
    "f",
    [
        *(jax.lax.cbrt, jax.lax.cos, jax.lax.erf, jax.lax.erf_inv, jax.lax.exp),
        *(jax.lax.exp2, jax.lax.expm1, jax.lax.log, jax.lax.log1p, jax.lax.logistic),
        *(jax.lax.rsqrt, jax.lax.sin, jax.lax.sqrt, jax.lax.square, jax.lax.tan),
        *(jax.lax.tanh, jax.lax.asin, jax.lax.atan, jax.lax.digamma),
    ],
)
def test_whose_derivative_is_computed_from_their_result(f):
    x = jnp.full((3,), 0.5)
    eqns = jax.make_jaxpr(lambda x, t: jax.jvp(f, (x,), (t,)))(x, x).eqns
    made = next(eqn for eqn in eqns if eqn.primitive.name == f.__name__)
    is_used = any(made.outvars[0] in eqn.invars for eqn in eqns)
    assert is_used == (f.__name__ in _primitives.KEEPS_RESULT)


def test_devices_exchange_data_by_these():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    for f in (
        lambda x: jax.lax.psum(x, "d"),
        lambda x: jax.lax.all_gather(x, "d"),
        lambda x: jax.lax.ppermute(x, "d", [(0, 0)]),
    ):
        mapped = jax.shard_map(
            f, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False
        )
        (eqn,) = jax.make_jaxpr(mapped)(jnp.ones(2)).eqns
        inner = eqn.params["jaxpr"].eqns
        assert inner[-1].primitive.name in _primitives.COLLECTIVES
