"""A program on a mesh of this machine is the program on the target's own mesh."""

import functools
import inspect
import re
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import revremat as rr
from revremat import xla
from tests.xla.programs import spec

P, N = jax.P, jax.NamedSharding
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(devices, axis_type):
    return jax.sharding.Mesh(
        np.array(devices, dtype=object), ("data",), axis_types=(axis_type,)
    )


@functools.cache
def meshes(target, axis_type):
    """A mesh of this machine, and the same one on the target."""
    there = rr.target(target).devices
    return mesh_of(jax.devices()[: len(there)], axis_type), mesh_of(there, axis_type)


def constrain(mesh, x):
    if mesh.axis_types == (EXPLICIT,):
        return jax.sharding.reshard(x, N(mesh, P("data")))
    return jax.lax.with_sharding_constraint(x, N(mesh, P("data")))


def in_shards(mesh, x):
    mapped = jax.shard_map(
        lambda x: x * jax.lax.psum(x.sum(), "data"),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    return mapped(x)


BODIES = {
    "nothing": lambda mesh, x: x,
    "with_sharding_constraint": constrain,
    "shard_map": in_shards,
    "jit with out_shardings": lambda mesh, x: jax.jit(
        lambda x: 2 * x, out_shardings=N(mesh, P("data"))
    )(x),
    "device_put": lambda mesh, x: jax.device_put(x, N(mesh, P("data"))),
}


def step_on(mesh, body):
    def loss(w, x):
        layer = lambda x, w: (BODIES[body](mesh, jnp.tanh(x @ w)), None)
        return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

    return jax.grad(loss)


def specs_on(mesh):
    return (
        spec(4, 64, 64, sharding=N(mesh, P())),
        spec(256, 64, sharding=N(mesh, P("data"))),
    )


def lowered(step, *specs, target):
    """What the program does, in any order and under any names."""
    text = xla.lower_step(step, specs, rr.target(target)).program.as_text()
    lines = (re.sub(r"%\w+(:\d+)?", "%", line) for line in text.splitlines())
    return Counter(line for line in lines if not _NO_WORK.search(line))


_NO_WORK = re.compile(
    r"stablehlo.reshape .*\((tensor<.*>)\) -> \1$|dimensions = \[\]|dense<0.0"
)


@pytest.mark.parametrize("axis_type", [AUTO, EXPLICIT])
@pytest.mark.parametrize("target", ["h100:8", "v5e:2x4", "h100:1"])
@pytest.mark.parametrize("body", BODIES)
def test_a_mesh_of_this_machine_is_carried_over(body, target, axis_type):
    here, there = meshes(target, axis_type)
    carried, own = (
        lowered(step_on(mesh, body), *specs_on(mesh), target=target)
        for mesh in (here, there)
    )
    assert carried == own


@pytest.mark.parametrize("axis_type", [AUTO, EXPLICIT])
@pytest.mark.parametrize("body", ["nothing", "with_sharding_constraint", "shard_map"])
def test_so_is_the_mesh_that_is_set(body, axis_type):
    texts = []
    for mesh in meshes("h100:8", axis_type):
        with jax.set_mesh(mesh):
            found = lowered(step_on(mesh, body), *specs_on(mesh), target="h100:8")
        texts.append(found)
    assert texts[0] == texts[1]


def test_so_is_the_mesh_of_the_older_context():
    constraint = lambda x: jax.lax.with_sharding_constraint(x, P("data")) * 2
    texts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for mesh in meshes("h100:8", AUTO):
            with mesh:
                found = lowered(constraint, specs_on(mesh)[1], target="h100:8")
            texts.append(found)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("axis_type", [AUTO, EXPLICIT])
def test_so_are_the_shardings_of_jit(axis_type, bare):
    texts = []
    for mesh in meshes("h100:8", axis_type):
        jitted = jax.jit(
            step_on(mesh, "nothing"),
            in_shardings=(N(mesh, P()), N(mesh, P("data"))),
            out_shardings=N(mesh, P()),
        )
        specs = specs_on(mesh)
        if bare:
            specs = [spec(*one.shape) for one in specs]
        texts.append(lowered(jitted, *specs, target="h100:8"))
    assert texts[0] == texts[1]


def test_partition_specs_are_of_the_mesh_that_is_set():
    mesh, _ = meshes("h100:8", AUTO)
    specs = spec(256, 64, sharding=P("data"))
    with jax.set_mesh(mesh):
        m = rr.measure(jnp.tanh, specs, target="h100:8")
    assert m.memory.argument_bytes == 4 * 256 * 64 // 8
    with pytest.raises(rr.UserError, match=r"no mesh is set: write jax\.NamedSharding"):
        rr.measure(jnp.tanh, specs, target="h100:8")


@pytest.mark.parametrize("axis_type", [AUTO, EXPLICIT])
def test_so_are_arrays_that_the_program_holds(axis_type):
    here, _ = meshes("h100:8", axis_type)
    held = jax.random.normal(jax.random.key(0), (256, 64))
    texts = []
    for sharding in (None, N(here, P("data"))):
        x = held if sharding is None else jax.device_put(held, sharding)
        m = rr.measure(lambda y, x=x: x + y, specs_on(here)[1], target="h100:8")
        texts.append(m.memory.argument_bytes)
    assert texts == [4 * 256 * 64 // 8] * 2


def test_what_was_traced_here_is_carried_over():
    here, there = meshes("h100:8", AUTO)
    step = step_on(here, "with_sharding_constraint")
    traced = jax.jit(step).trace(*specs_on(here))
    own = rr.measure(
        step_on(there, "with_sharding_constraint"), *specs_on(there), target="h100:8"
    )
    assert rr.measure(traced, target="h100:8").memory.total_bytes == (
        own.memory.total_bytes
    )


REFUSED = {
    "constraint": lambda mesh: (step_on(mesh, "with_sharding_constraint"), None),
    "shard_map": lambda mesh: (step_on(mesh, "shard_map"), None),
    "specs": lambda mesh: (step_on(mesh, "nothing"), mesh),
    "out_shardings": lambda mesh: (
        jax.jit(step_on(mesh, "nothing"), out_shardings=N(mesh, P())),
        None,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_mesh_of_another_number_of_devices_names_the_way_out(what):
    here, _ = meshes("h100:8", AUTO)
    step, on = REFUSED[what](here)
    specs = [spec(4, 64, 64), spec(256, 64)] if on is None else specs_on(on)
    with pytest.raises(rr.UserError, match=r"make the mesh with target\.mesh") as told:
        rr.measure(step, *specs, target="h100:4")
    assert "of 8 devices but h100:4 has 4" in str(told.value)


def test_a_mesh_that_is_set_with_another_number_of_devices_does_too():
    here, _ = meshes("h100:8", AUTO)
    with (
        jax.set_mesh(here),
        pytest.raises(rr.UserError, match=r"set_mesh was given a mesh .*target\.mesh"),
    ):
        rr.measure(jnp.tanh, spec(8), target="h100:4")


def test_meshes_of_two_machines_with_explicit_axes_are_not_mixed():
    here, there = meshes("h100:8", EXPLICIT)
    step = step_on(here, "with_sharding_constraint")
    with pytest.raises(rr.UserError, match=r"mixes meshes .* target\.mesh"):
        rr.measure(step, *specs_on(there), target="h100:8")


def test_one_device_among_several_is_refused():
    put = lambda x: jax.device_put(x, jax.local_devices(backend="cpu")[3]) * 2
    with pytest.raises(rr.UserError, match=r"on the device .*target\.mesh"):
        rr.measure(put, spec(8), target="h100:8")
    assert rr.measure(put, spec(8), target="h100:1").memory.argument_bytes == 32


def test_what_the_user_got_wrong_is_told_as_jax_tells_it():
    here, _ = meshes("h100:8", EXPLICIT)
    split = lambda x: x.reshape(4, 64, 64)
    with pytest.raises(Exception, match="This reshape is not supported"):
        rr.measure(split, specs_on(here)[1], target="h100:8")


HOST = {
    "one device": lambda: jax.sharding.SingleDeviceSharding(
        jax.devices()[0], memory_kind="pinned_host"
    ),
    "a mesh of this machine": lambda: N(
        meshes("h100:8", AUTO)[0], P(), memory_kind="pinned_host"
    ),
    "the target's mesh": lambda: N(
        rr.target("h100:8").mesh({"data": 8}), P(), memory_kind="pinned_host"
    ),
}


def on_device(w, x):
    return jnp.tanh(x @ jax.device_put(w, jax.memory.Space.Device))


@pytest.mark.parametrize("where", HOST)
def test_arguments_in_host_memory_are_counted_there(where):
    w, x = spec(256, 256, sharding=HOST[where]()), spec(64, 256)
    memory = rr.measure(on_device, w, x, target="h100:8").memory
    assert memory.argument_bytes == 4 * 64 * 256
    assert memory.host_bytes == 4 * 256 * 256


@pytest.mark.parametrize("target", ["h100:1", "v5e:1x1"])
@pytest.mark.parametrize("kind", ["pinned_host", None])
def test_on_one_device_as_well(target, kind):
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    array = jax.device_put(jnp.ones((256, 256)), host)
    for w in (spec(256, 256, sharding=host), array):
        memory = rr.measure(on_device, w, spec(64, 256), target=target).memory
        on_host = 4 * 256 * 256 * (kind is not None)
        assert memory.host_bytes >= on_host
        assert memory.argument_bytes == 4 * (64 * 256 + 256 * 256) - on_host


def test_memory_that_the_target_has_not_is_refused():
    here, _ = meshes("h100:8", AUTO)
    unpinned = spec(8, sharding=N(here, P(), memory_kind="unpinned_host"))
    with pytest.raises(rr.UserError, match="'unpinned_host', which h100:8 has not"):
        rr.measure(jnp.tanh, unpinned, target="h100:8")


@pytest.mark.parametrize("how", ["device_put", "out_shardings"])
def test_so_are_results(how):
    here, _ = meshes("h100:8", AUTO)
    host = N(here, P(), memory_kind="pinned_host")
    put = lambda x: jax.device_put(2 * x, host)
    step = put if how == "device_put" else jax.jit(lambda x: 2 * x, out_shardings=host)
    x = spec(256, 256, sharding=N(here, P()))
    memory = rr.measure(step, x, target="h100:8").memory
    assert memory.output_bytes == 0
    assert memory.host_bytes == 4 * 256 * 256


def test_layouts_are_kept():
    from jax.experimental.layout import Format, Layout

    turned = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    for sharding, layout in ((turned, (1, 0)), (None, None)):
        x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)
        lines = lowered(lambda x: x * 2, x, target="h100:1")
        found = any("mhlo.layout_mode = " in line for line in lines)
        assert found == (layout is not None)


def test_nothing_is_carried_where_all_is_there():
    """And so what is compiled and cached is what JAX makes of it."""
    mesh = rr.target("cpu:8").mesh({"data": 8})
    step, specs = step_on(mesh, "with_sharding_constraint"), specs_on(mesh)
    ours = xla.lower_step(step, specs, rr.target("cpu:8")).program
    assert ours.as_text() == jax.jit(step).lower(*specs).as_text()
    assert inspect.signature(jax.devices).parameters.keys() == {"backend"}
