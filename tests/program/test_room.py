"""Stacks are not filled before they are written, where the compiler allows it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import P

import revremat as rr
from revremat import xla

LAYERS, ROWS, WIDTH = 4, 512, 128
STACK = [LAYERS, WIDTH, WIDTH]


def loss(w, x):
    return (jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w)[0] ** 2).mean()


def compiled(mapped, spec):
    target = rr.target(spec)
    w = jax.ShapeDtypeStruct(STACK, jnp.float32)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    f = loss
    if target.num_devices > 1:
        mesh = target.mesh({"data": target.num_devices})
        on = lambda x, *spec: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=jax.NamedSharding(mesh, P(*spec))
        )
        w, x = on(w), on(x, "data")
        if mapped:
            split = functools.partial(
                jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
            )
            f = split(lambda w, x: jax.lax.pmean(loss(w, x), "data"))
    problem = rr.Problem(f, (w, x))
    graph = rr.trace(problem)
    plan = graph.plan({unit.name: rr.SAVE for unit in graph.units})
    step, specs = problem.make_step(rr.apply(f, plan))
    return xla.Module.from_bytes(xla.compile_step(step, specs, target).hlo)


@pytest.mark.parametrize(
    ("mapped", "spec", "is_made"),
    [
        (False, "h100:1", True),
        (True, "h100:2", True),
        (False, "h100:2", False),  # there each device would make all of it
        (False, "cpu:1", False),  # its compiler always fills
    ],
)
def test_a_stack_of_gradients_is_made_where_no_device_makes_anothers_part(
    mapped, spec, is_made
):
    module = compiled(mapped, spec)
    made = [
        list(i.shape.dimensions)
        for i in module.instructions.values()
        if i.custom_call_target == "AllocateBuffer"
    ]
    assert (STACK in made) == is_made
