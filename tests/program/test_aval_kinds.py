"""Gradients on values of every type: those of plain autodiff, whatever the actions.

Whatever JAX's types say beyond shape and dtype: Explicit meshes that nobody set, Auto
regions within them, host memory, keys, extended dtypes, ordered effects.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE
from tests.program.aval_kinds import KINDS, LAYERS


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def scanned(layer, w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]


def stacked(layer, w, x):
    return rr.stack(layer, w, x)


def unrolled(layer, w, x):
    for k in range(LAYERS):
        x = layer(jax.tree.map(lambda a, k=k: a[k], w), x)
    return x


FORMS = {"scanned": scanned, "stacked": stacked, "unrolled": unrolled}


def loss_of(kind, form):
    def loss(args):
        y = kind.around(lambda w, x: form(kind.layer, w, x))(*args)
        floats = [a for a in jax.tree.leaves(y) if jnp.issubdtype(a.dtype, np.floating)]
        return sum((a.astype(float) ** 2).sum() for a in floats)

    return loss


def types_of(kind):
    """What the loss is given, as specs."""
    found = []

    def enter(w, x):
        leaves, tree = jax.tree.flatten(kind.enter(w, x))
        found.append((tree, list(map(jax.typeof, leaves))))
        return 0

    jax.eval_shape(enter, kind.w, kind.x)
    ((tree, avals),) = found
    return tree.unflatten(
        [
            jax.ShapeDtypeStruct(
                a.shape,
                a.dtype,
                sharding=None if a.sharding.mesh.empty else a.sharding,
                weak_type=a.weak_type,
            )
            for a in avals
        ]
    )


def gradients(kind, losses):
    """Of all losses, compiled together; as arrays that NumPy has."""

    def all_of(w, x):
        args = kind.enter(w, x)
        found = [jax.grad(loss, allow_int=True)(args) for loss in losses]
        types = [list(map(jax.typeof, jax.tree.leaves(one))) for one in found]
        assert all(one == types[0] for one in types)
        return [list(map(as_numbers, jax.tree.leaves(one))) for one in found]

    return jax.jit(all_of)(kind.w, kind.x)


def as_numbers(a):
    if a.dtype == jax.dtypes.float0:
        return jnp.zeros(a.shape)
    if jnp.issubdtype(a.dtype, jax.dtypes.extended):
        return jax.lax.convert_element_type(a, jnp.float32)
    return a


def named(unit):
    """Actions that speak of values by name."""
    names = [r.name for r in unit.residuals]
    return [
        RECOMPUTE(save=names[:1]),
        RECOMPUTE(offload=names[-1:]),
        SAVE(offload=names[:1]),
    ]


def every_action(unit):
    """Plans of one unit: each action alone and next to others."""
    names = [r.name for r in unit.residuals]
    cycles = [
        [SAVE],
        [RECOMPUTE],
        [OFFLOAD],
        [RECOMPUTE, SAVE],
        [OFFLOAD, *named(unit)],
    ]
    if unit.chained:
        cycles.append([RECOMPUTE(ahead=names[-1:])])
        if not any(op.effectful for op in unit.operations):
            cycles.append([RECOMPUTE(segment_length=2)])
    return [cycled(unit, cycle) for cycle in cycles]


def a_mix(unit):
    return [cycled(unit, [SAVE, named(unit)[0], OFFLOAD, RECOMPUTE])]


def cycled(unit, cycle):
    return list(itertools.islice(itertools.cycle(cycle), unit.num_layers))


def check(kind, loss, plans_of):
    """The gradients of a loss under some plans of its units are its own."""
    graph = rr.trace(loss, types_of(kind))
    units = [unit for unit in graph.units if not unit.enclosing]
    plans = [
        dict(zip([u.name for u in units], one, strict=True))
        for one in zip(*map(plans_of, units), strict=False)
    ]
    assert plans
    planned = [rr.apply(loss, graph.plan(plan)) for plan in plans]
    expected, *found = gradients(kind, [loss, *planned])
    for plan, one in zip(plans, found, strict=True):
        for a, b in zip(one, expected, strict=True):
            a, b = np.asarray(a, complex), np.asarray(b, complex)
            atol = kind.rtol * np.abs(b).max(initial=1e-30)
            np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(plan))


# Each kind in one form at every commit; all forms and actions take minutes.
ONE_FORM_EACH = list(zip(KINDS, itertools.cycle(FORMS), strict=False))
LATER = {"narrow_floats", "complex_numbers", "nothing_and_numbers", "stopped"}
LATER |= {"calls_in_order", "counts_and_flags", "carried_scales", "fully_sharded"}


@pytest.mark.every_commit(
    "tensor_parallel-unrolled",
    "one_axis_explicit-scanned",
    "auto_within_explicit-stacked",
    "mapped_around-unrolled",
    "weights_on_the_host-scanned",
    "keys-scanned",
    "integers_with_a_gradient-scanned",
    "prints_in_order-stacked",
)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if pair[0] in LATER else ())
        for pair in ONE_FORM_EACH
    ],
)
def test_a_mix_of_actions_changes_no_gradient(name, form):
    kind = KINDS[name]()
    check(kind, loss_of(kind, FORMS[form]), a_mix)


# JAX itself has no derivative for an entry of an array of such scales.
ALL_FORMS = [
    pair
    for pair in itertools.product(KINDS, FORMS)
    if pair != ("scales_by_maximum", "unrolled")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_no_action_changes_a_gradient(name, form):
    kind = KINDS[name]()
    check(kind, loss_of(kind, FORMS[form]), every_action)


def inverted(kind):
    """Couplings of the kind's layers, which know their inverse."""

    def forward(w, x):
        a, b = x
        a = a + kind.layer(w, b)
        return a, b + kind.layer(w, a)

    def inverse(w, y):
        a, b = y
        b = b - kind.layer(w, a)
        return a - kind.layer(w, b), b

    return lambda _, w, x: rr.stack(forward, w, (x, jnp.sin(x)), inverse=inverse)[1]


def inversions(unit):
    name = unit.residuals[0].name
    cycles = [[INVERT], [INVERT, RECOMPUTE, INVERT, SAVE], [INVERT(save=[name])]]
    return [cycled(unit, c) for c in (*cycles, [INVERT(ahead=[name])])]


INVERTED = [
    "data_parallel",
    "tensor_parallel",
    "auto_around",
    "mapped_around",
    "weights_on_the_host",
    "scales_by_maximum",
]
AT_EVERY_COMMIT = {"data_parallel", "mapped_around"}
slow_but = lambda name: () if name in AT_EVERY_COMMIT else pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_but(name)) for name in INVERTED]
)
def test_inverting_changes_no_gradient(name):
    kind = KINDS[name]()
    check(kind, loss_of(kind, inverted(kind)), inversions)


@pytest.mark.parametrize("form", FORMS)
def test_the_key_checker_sees_no_key_used_twice(form):
    kind = KINDS["keys"]()
    loss = loss_of(kind, FORMS[form])
    specs = types_of(kind)
    graph = rr.trace(loss, specs)
    (unit,) = graph.units
    with jax.debug_key_reuse(True):
        for actions in every_action(unit)[:5]:
            planned = rr.apply(loss, graph.plan({unit.name: actions}))
            jax.jit(jax.grad(planned, allow_int=True)).lower(specs)
