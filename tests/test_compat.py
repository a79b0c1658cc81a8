"""What is needed from inside JAX says what it did, whatever JAX calls it."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from revremat import _compat
from revremat._compat import Scope

X = jnp.ones((4, 4))


def eqn_of(f, *args):
    """The first equation of a function."""
    return jax.make_jaxpr(f)(*args).eqns[0]


def one_device(*names):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.sharding.NamedSharding(mesh, jax.P(*names))


@pytest.mark.parametrize(
    ("how", "is_placed"),
    [
        ({}, False),
        ({"donate_argnums": 0}, False),
        ({"in_shardings": one_device()}, True),
        ({"out_shardings": one_device("d")}, True),
    ],
)
def test_a_jitted_call_may_fix_where_its_values_lie(how, is_placed):
    eqn = eqn_of(lambda x: jax.jit(jnp.tanh, **how)(x), X)
    assert _compat.has_explicit_placement(eqn) == is_placed


@pytest.mark.parametrize(("consts", "carry"), [(0, 1), (2, 1), (1, 3)])
def test_of_a_scan_constants_come_before_what_is_carried(consts, carry):
    def loss(ws, xs):
        def iteration(carried, _):
            return tuple(sum(ws, start=2 * c) for c in carried), None

        return jax.lax.scan(iteration, tuple(xs), None, 3)[0]

    jaxpr = jax.make_jaxpr(loss)([X] * consts, [X] * carry)
    (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "scan")
    assert _compat.scan_counts(eqn) == (consts, carry)


def test_of_a_closed_program_constants_have_their_values():
    table = jnp.arange(4.0)
    closed = jax.make_jaxpr(lambda x: x + table)(X)
    ((variable, value),) = _compat.constants_of(closed)
    assert variable in closed.jaxpr.constvars
    assert (value == table).all()


def test_the_mesh_around_is_that_of_either_way_to_set_one():
    here = one_device().mesh
    assert _compat.ambient_mesh() == (None, False)
    assert _compat.entered_mesh() is None
    with jax.set_mesh(here):
        assert _compat.ambient_mesh() == (here, False)
        assert _compat.entered_mesh() is None
    entered = contextlib.ExitStack()
    with pytest.warns(DeprecationWarning, match="context manager has been"):
        entered.enter_context(here)
    with entered:
        assert _compat.ambient_mesh() == (here, True)
        assert _compat.entered_mesh() == here


# ---- Where equations stand -----------------------------------------------------------


def caller(x):
    return jax.jit(called)(x)


def called(x):
    return jnp.sin(x)


def functions(eqn, scope):
    """Names of the functions that an equation comes from, innermost first."""
    lines = [line for _, line in _compat.source_frames(eqn, scope)]
    return [line.split("(")[-1].rstrip(")") for line in lines]


def test_an_equation_within_a_call_knows_both_places():
    call = eqn_of(caller, X)
    (inner, *_) = call.params["jaxpr"].eqns
    inside = Scope().inside(call).within(inner)
    found = functions(inner, inside)
    assert found.index("called") < found.index("caller")
    assert functions(call, Scope())[0] == "caller"
    file, line = next(_compat.source_frames(inner, inside))
    assert file == __file__
    assert line.startswith(f"{__file__}:")


def test_scopes_of_calls_and_of_equations_are_joined():
    def named(x):
        with jax.named_scope("outer"):
            return jax.jit(inner)(x)

    def inner(x):
        with jax.named_scope("inner"):
            return jnp.sin(x)

    call = eqn_of(named, X)
    scope = Scope().within(call)
    assert str(scope) == "outer"
    (sine,) = call.params["jaxpr"].eqns
    assert str(scope.inside(call).within(sine)) == "outer/inner"
    assert str(Scope()) == ""


@pytest.mark.parametrize("names", ["ab", ""])
def test_an_equation_is_bound_under_its_scope_with_other_parameters(names):
    eqn = eqn_of(lambda x: jnp.sum(x, axis=0), X)
    assert eqn.primitive.name == "reduce_sum"

    def again(x):
        with jax.named_scope(names) if names else jax.named_scope("x"):
            return _compat.bind(eqn, [x], Scope(), axes=(0, 1))

    jaxpr = jax.make_jaxpr(again)(X)
    assert jaxpr.out_avals[0].shape == ()
    (out,) = _compat.bind(eqn, [X], Scope())
    assert out.shape == (4,)


# ---- Compiles ------------------------------------------------------------------------


def options(**own):
    made = _compat.compiler.get_compile_options(1, 1, **own)
    return dict(made.env_option_overrides)


def test_options_hold_within_and_a_functions_own_come_first():
    given = {"xla_cpu_enable_fast_math": "true", "xla_dump_to": "a"}
    with _compat.use_compiler_options(given):
        assert options() == given
        own = {"xla_dump_to": "b"}
        assert options(env_options_overrides=own) == {**given, **own}
        with _compat.use_compiler_options({}):
            assert options() == {}
        assert options() == given
    assert options() == {}
    assert options(env_options_overrides=own) == own


def settings(**how):
    lowered = jax.jit(jnp.tanh, **how).lower(X)
    return _compat.compile_settings(lowered)


def test_settings_tell_compiles_apart():
    plain = settings()
    assert plain == settings()
    assert plain != settings(compiler_options={"xla_cpu_enable_fast_math": "true"})
    assert plain != settings(
        out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[1])
    )
    assert str([0]) in plain
    before = jax.config.jax_use_shardy_partitioner
    with jax.numpy_rank_promotion("warn"):  # what changes no compile
        assert plain == settings()
    assert f"jax_use_shardy_partitioner={before}" in plain


@pytest.mark.parametrize("on", [True, False])
def test_xlas_own_remat_pass_is_as_asked_within(on):
    before = jax.config.jax_compiler_enable_remat_pass
    with _compat.use_remat_pass(on):
        assert jax.config.jax_compiler_enable_remat_pass == on
    assert jax.config.jax_compiler_enable_remat_pass == before
    with _compat.without_compilation_cache():
        assert not jax.config.jax_enable_compilation_cache


def test_a_module_without_lines_says_the_same():
    module = jax.jit(jnp.tanh).lower(X).compiler_ir().operation
    bare = _compat.without_lines(module)
    with_lines = module.get_asm(enable_debug_info=True)
    assert "test_compat.py" in with_lines
    assert "test_compat.py" not in bare.get_asm(enable_debug_info=True)
    assert str(bare) == str(module)


# ---- Devices that are not there ------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "at_least", "equal"),
    [
        ("9.0a", {"8.0", "8.9", "9.0", "9.0a"}, {"9.0", "9.0a"}),
        ("8.0", {"8.0"}, {"8.0"}),
        ("10.0f", {"8.0", "8.9", "9.0", "9.0a", "10.0"}, {"10.0"}),
        ("", {"8.0", "8.9", "9.0", "9.0a", "10.0"}, set()),  # nobody says otherwise
    ],
)
def test_a_program_is_traced_as_on_the_device_that_is_asked_about(
    capability, at_least, equal
):
    asked = ("8.0", "8.9", "9.0", "9.0a", "10.0")
    cudnn = _compat.cudnn_attention
    with _compat.on_device(jax.devices()[0], capability):
        assert {c for c in asked if cudnn.check_compute_capability(c)} == at_least
        if capability:
            found = {c for c in asked if cudnn.is_cuda_compute_capability_equal(c)}
            assert found == equal
            arch = _compat.gpu_info._get_device_arch_name("any")
            assert arch == capability.rstrip("af")
        assert cudnn.check_cudnn_version() >= 9_00_00
        assert jax.sharding.get_abstract_mesh().abstract_device is not None


@pytest.mark.parametrize(("capability", "is_told"), [("7.5", True), ("8.0", False)])
def test_cards_that_have_no_such_attention_are_told_of(capability, is_told):
    query = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    layout = _compat.cudnn_attention.AttentionLayout.BTNH.value
    check = lambda: _compat.cudnn_attention.check_is_flash_attention(
        query, query, query, layout, 9_20_00, False, True
    )
    with _compat.on_device(jax.devices()[0], capability):
        if is_told:
            told = "a device of compute capability 8.0 or more, and the target's is 7.5"
            with pytest.raises(NotImplementedError, match=told):
                check()
        else:
            check()
