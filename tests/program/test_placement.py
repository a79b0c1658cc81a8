"""How values are cut over a mesh, as far as a program says it."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import revremat as rr
from revremat.program.ir._exchanged import num_sharing, sent_bytes
from revremat.program.ir._ops import flatten
from revremat.program.ir._placement import cut_of, parts_of, placement

TARGET = rr.target("cpu:8")
MESH = TARGET.mesh({"data": 2, "model": 4})
SHAPE = 4, 8, 16


def pin(x, *spec):
    return jax.lax.with_sharding_constraint(x, jax.NamedSharding(MESH, jax.P(*spec)))


def parts(f, *args, specs=None):
    """Into how many pieces the results of a function are cut."""
    program = flatten(jax.make_jaxpr(f)(*args))
    given = {}
    for value, spec in zip(program.inputs, specs or [None] * len(args), strict=True):
        if spec is not None:
            where = jax.NamedSharding(MESH, spec)
            given[value] = cut_of(where, len(value.aval.shape))
    found = placement(program, given)
    return [parts_of(found.of(out)) for out in program.outputs]


X = jnp.ones(SHAPE)
W = jnp.ones((16, 32))
ROWS = {
    "elementwise": (lambda x: jnp.tanh(x) + 1, (jax.P("data"),), 2),
    "both axes": (lambda x: x * x, (jax.P("data", None, "model"),), 8),
    "two axes of one dimension": (lambda x: -x, (jax.P(None, ("data", "model")),), 8),
    "broadcast": (lambda x: jnp.broadcast_to(x, (3, *SHAPE)), (jax.P("data"),), 2),
    "sum over another dimension": (lambda x: x.sum(-1), (jax.P("data"),), 2),
    "sum over the cut one": (lambda x: x.sum(0), (jax.P("data"),), 1),
    "transpose": (lambda x: x.transpose(2, 0, 1), (jax.P("data"),), 2),
    "joined": (lambda x: x.reshape(4, 128), (jax.P(None, "model"),), 4),
    "parted": (lambda x: x.reshape(4, 8, 4, 4), (jax.P(None, None, "model"),), 4),
    "a new dimension": (lambda x: x[None], (jax.P("data"),), 2),
    "squeezed": (lambda x: x[:1].squeeze(0), (jax.P(None, "model"),), 4),
    "sliced": (lambda x: x[:, :, :3], (jax.P("data"),), 2),
    "cast": (lambda x: x.astype(jnp.bfloat16), (jax.P("data"),), 2),
    "pinned": (lambda x: pin(x, "data"), (None,), 2),
    "pinned later": (lambda x: (x * 2, pin(x * 2, "data"))[0], (None,), 2),
    "pinned whole": (lambda x: pin(x), (jax.P("data"),), 1),
}


@pytest.mark.parametrize("case", ROWS)
def test_values_are_cut_as_what_they_are_made_of(case):
    f, specs, expected = ROWS[case]
    assert parts(f, X, specs=specs)[0] == expected


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ((jax.P("data"), None), 2),
        ((None, jax.P(None, "model")), 4),
        ((jax.P("data"), jax.P(None, "model")), 8),
        ((jax.P(None, None, "model"), jax.P("model")), 1),  # summed over devices
    ],
)
def test_products_are_cut_as_both_operands(specs, expected):
    assert parts(lambda x, w: x @ w, X, W, specs=specs) == [expected]


X_BYTES, PRODUCT_BYTES = 4 * 4 * 8 * 16, 4 * 4 * 8 * 32
SPLIT = jax.P(None, None, "model"), jax.P("model")
EXCHANGES = {
    # What each device sends, and how many share the work of the last operation.
    "gathered": (lambda x, w: pin(x), (jax.P("data"), None), X_BYTES // 2, 1),
    "over both axes": (
        lambda x, w: pin(x),
        (jax.P("data", "model"), None),
        7 * X_BYTES // 8,
        1,
    ),
    "over one of two": (
        lambda x, w: pin(x, "data"),
        (jax.P("data", "model"), None),
        3 * X_BYTES // 8,
        2,
    ),
    "cut": (lambda x, w: pin(x, "data"), (jax.P(), None), 0, 2),
    "left alone": (lambda x, w: pin(x, "data"), (jax.P("data"), None), 0, 2),
    "turned": (lambda x, w: pin(x, None, "model"), (jax.P("model"), None), 384, 4),
    "added up": (lambda x, w: x @ w, SPLIT, 6 * PRODUCT_BYTES // 4, 4),
    "added up and cut": (
        lambda x, w: pin(x @ w, None, "model"),
        SPLIT,
        3 * PRODUCT_BYTES // 4,
        4,
    ),
    "of each its own": (lambda x, w: x @ w, (jax.P("data"), None), 0, 2),
    "of weights' columns": (lambda x, w: x @ w, (None, jax.P(None, "model")), 0, 4),
    "a sum": (lambda x, w: x.sum(0), (jax.P("data"), None), 4 * 8 * 16, 2),
    "a sum over what is whole": (lambda x, w: x.sum(1), (jax.P("data"), None), 0, 2),
}


@pytest.mark.parametrize("case", EXCHANGES)
def test_what_devices_send_each_other_and_how_many_share_the_work(case):
    f, specs, sent, sharing = EXCHANGES[case]
    program = flatten(jax.make_jaxpr(f)(X, W))
    given = {
        value: cut_of(jax.NamedSharding(MESH, spec), len(value.aval.shape))
        for value, spec in zip(program.inputs, specs, strict=True)
        if spec is not None
    }
    found = placement(program, given)
    assert sum(sent_bytes(op, found) for op in program.ops) == sent
    assert num_sharing(program.ops[-1], found) == sharing


def whole(x):
    return jax.lax.all_gather(x, "model", axis=1, tiled=True)


@pytest.mark.parametrize(
    ("local", "sent"),
    [
        (lambda x: jnp.tanh(x), 0),
        (lambda x: whole(x).sum(), 3 * X_BYTES // 4),
        (lambda x: jax.lax.psum(x, "model").sum(), 2 * X_BYTES // 4),
        (
            lambda x: jax.lax.scan(
                lambda y, _: (y + whole(x).sum(), None), 0.0, None, 5
            )[0],
            5 * 3 * X_BYTES // 4,
        ),
    ],
)
def test_of_a_shard_map_what_is_inside_is_counted(local, sent):
    f = lambda x: jax.shard_map(
        local,
        mesh=MESH,
        in_specs=jax.P(None, "model"),
        out_specs=jax.P(None, "model") if not sent else jax.P(),
        check_vma=False,
    )(x)
    program = flatten(jax.make_jaxpr(f)(X))
    found = placement(program, {})
    assert sum(sent_bytes(op, found) for op in program.ops) == sent


def test_a_plan_tells_what_recomputing_sends():
    def layer(w, x):
        x = pin(x, "data")
        return pin(x + rr.name(jnp.tanh(pin(x)), "whole") * w, "data")

    loss = lambda w, x: rr.stack(layer, w, x).sum()
    unit = rr.trace(loss, jnp.ones((4, 16)), X)["stack"]
    assert unit.kept(rr.RECOMPUTE).sent_bytes == X_BYTES // 2
    assert unit.kept(rr.RECOMPUTE(save=["whole"])).sent_bytes == 0
    assert unit.kept(rr.SAVE).sent_bytes == 0


def test_loops_hand_it_on():
    def f(w, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, w)

    w = jnp.ones((3, 16, 16))
    assert parts(f, w, X, specs=(None, jax.P("data"))) == [2, 2]
    inside = lambda x, w: (pin(jnp.tanh(x @ w), "data"), None)
    assert parts(lambda w, x: jax.lax.scan(inside, x, w)[0], w, X) == [2]


def layers(spec):
    """A loss of four layers whose hidden values are cut, in each of three modes."""
    rest = {"in_specs": (jax.P(), jax.P(*spec)), "out_specs": jax.P()}

    def layer(w, x):
        return x + rr.name(jnp.tanh(x * w), "hidden")

    def auto(w, x):
        step = lambda w, x: layer(w, pin(x, *spec))
        return rr.stack(step, w, x).sum()

    def manual(w, x):
        axes = tuple(axis for axis in spec if axis)
        local = lambda w, x: jax.lax.psum(rr.stack(layer, w, x).sum(), axes)
        return jax.shard_map(local, mesh=MESH, **rest)(w, x)

    def explicit(w, x):
        return rr.stack(layer, w, x).sum()

    return {"auto": auto, "manual": manual, "explicit": explicit}


@pytest.mark.parametrize("mode", ["auto", "manual", "explicit"])
@pytest.mark.parametrize(
    ("spec", "count"), [(("data",), 2), (("data", "model"), 8), ((None, "model"), 4)]
)
def test_bytes_of_values_are_those_of_one_device(mode, spec, count):
    loss = layers(spec)[mode]
    kind = AxisType.Explicit if mode == "explicit" else AxisType.Auto
    mesh = jax.sharding.Mesh(MESH.devices, MESH.axis_names, axis_types=(kind,) * 2)
    like = lambda shape, *spec: jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    with jax.set_mesh(mesh):
        graph = rr.trace(loss, like((4, 16)), like(SHAPE, *spec))
    unit = next(unit for unit in graph.units if unit.num_layers == 4)
    sizes = {r.name: r.num_bytes for r in unit.residuals}
    assert sizes["hidden"] == 4 * 4 * 8 * 16 // count


def test_a_constraint_that_moves_data_is_no_cheap_operation():
    def layer(w, x):
        whole = pin(pin(x, "data"))
        return pin(jnp.tanh(whole * w), "data")

    w = jax.ShapeDtypeStruct((4, 16), jnp.float32)
    x = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    graph = rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x)
    pins = [
        op.compute_intensive
        for op in graph["stack"].operations
        if op.kind == "sharding_constraint"
    ]
    assert pins == [False, True, False]


def forward_loop(actions):
    """The constraints of a stack's forward loop."""

    def layer(w, x):
        x = pin(x, "data")
        normed = rr.name(jnp.tanh(x), "normed")
        return pin(x + pin(normed) * w, "data")

    loss = lambda w, x: rr.stack(layer, w, x, actions=actions).sum()
    jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones((4, 16)), X)
    first = next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    return [
        tuple(eqn.params["sharding"].spec)
        for eqn in first.params["jaxpr"].eqns
        if eqn.primitive.name == "sharding_constraint"
    ]


@pytest.mark.parametrize(
    "actions", [rr.RECOMPUTE, rr.RECOMPUTE(save=["normed"]), rr.SAVE]
)
def test_what_a_plan_keeps_is_kept_cut(actions):
    """Also where nothing pins it before it is gathered."""
    *of_the_layer, kept = forward_loop(actions)
    assert of_the_layer[:3] == [("data",), (), ("data",)]
    open_ = jax.P.UNCONSTRAINED  # what weights cut stays cut
    assert kept == ("data", open_, open_)


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("keep", [rr.SAVE, rr.RECOMPUTE(save=["hidden"])])
def test_what_is_kept_stays_cut_as_the_weights_cut_it(keep, unroll):
    """Each device multiplies its own columns, though a constraint tells of rows only.

    Were it kept whole, keeping it would take more FLOPs than it saves.
    """
    mesh = TARGET.mesh({"data": 2, "model": 4})
    cut = lambda *axes: jax.NamedSharding(mesh, jax.P(*axes))
    given = lambda where, *shape: jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=where
    )
    w = {
        "up": given(cut(None, None, "model"), 4, 64, 256),
        "down": given(cut(None, "model"), 4, 256, 64),
    }
    x = given(cut("data"), 64, 64)

    def layer(w, x):
        x = jax.lax.with_sharding_constraint(x, cut("data"))
        hidden = rr.name(x @ w["up"], "hidden")
        return x + jnp.tanh(hidden) @ w["down"]

    def flops(action):
        action = dataclasses.replace(action, unroll=unroll)
        loss = lambda w, x: rr.stack(layer, w, x, actions=action).sum()
        return rr.measure(jax.grad(loss), w, x, target=TARGET).time.flops

    assert flops(keep) < 0.9 * flops(rr.RECOMPUTE)


def test_collectives_of_shard_map_can_be_run_again():
    def layer(w, x):
        whole = jax.lax.all_gather(x, "model", axis=1, tiled=True)
        more = jax.lax.psum_scatter(
            jnp.tanh(whole * w), "model", scatter_dimension=1, tiled=True
        )
        return x + more

    def local(w, x):
        return jax.lax.psum(rr.stack(layer, w, x).sum(), MESH.axis_names)

    spec = jax.P("data", "model")
    loss = jax.shard_map(local, mesh=MESH, in_specs=(jax.P(), spec), out_specs=jax.P())
    graph = rr.trace(loss, jnp.ones((4, 16)), X)
    (unit,) = [unit for unit in graph.units if unit.num_layers == 4]
    assert {op.effectful for op in unit.operations} == {""}
