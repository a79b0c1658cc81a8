"""The benchmark's programs in tiny sizes: they run, and plans leave gradients alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from experiments.bench.programs import PROGRAMS, values
from revremat.policies import preset

# Their parameters are float32 whatever JAX has.
FLOAT32 = {"gpt2_xl", "llama_7b", "gpt_22b", "vit_l_384", "revbifpn_s4"}
# Five seconds to half a minute each to compile; others of their form stay.
LARGE = {
    *("unet", "efficientnet_b7", "revbifpn_s4", "resnet_152", "t5_large"),
    *("vit_l_384", "llama_7b", "gpt_22b", "mixer_l_16", "gpt2_xl"),
}
# Compiling is most of the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
CPU = rr.target("cpu:1")


def test_the_table_says_what_is_in_it():
    for name, entry in PROGRAMS.items():
        assert entry.name == name
        assert entry.group in ("standard", "novel")
        assert rr.target(entry.target).num_devices in (1, 8)
        assert entry.about


NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
    for name in PROGRAMS
]

# Millions of parameters, as published or as other implementations count them.
PUBLISHED = {
    "gpt2_xl": 1557.6,
    "llama_7b": 6738.4,
    "vit_l_384": 304.7,
    "resnet_152": 60.2,
    "efficientnet_b7": 66.3,
    "unet": 859.5,
    "mixer_l_16": 208.2,
    "t5_large": 737.7,
    "revbifpn_s4": 48.7,
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "revbifpn_s4" else [])
        for name in PUBLISHED
    ],
)
def test_real_sizes_have_the_published_number_of_parameters(name):
    entry = PROGRAMS[name]
    params, _ = entry.make(rr.target(entry.target), "real").specs
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert round(count / 1e6, 1) == PUBLISHED[name]


@pytest.mark.every_commit(
    "recurrence", "gated_products", "unrolled_optimizer", "kinetics", "tiny_matmuls"
)
@pytest.mark.parametrize("name", NAMES)
def test_units_are_found_and_recomputing_them_changes_no_gradient(name):
    with jax.enable_x64(name not in FLOAT32):
        problem = PROGRAMS[name].make(CPU, "tiny")
        graph = rr.trace(problem.loss, *problem.specs)
        outermost = [unit for unit in graph.units if not unit.enclosing]
        assert any(unit.residuals for unit in outermost)
        full = {
            u.name: (preset(u, "recompute all").action,) * u.num_layers
            for u in outermost
        }
        loss = rr.apply(problem.loss, graph.plan(full))
        args = values(problem.specs)
        expected, found = (gradients(f, *args) for f in (problem.loss, loss))
    largest = max(np.abs(a).max(initial=0) for a in expected)
    assert np.isfinite(largest)
    assert largest > 0
    tolerance = 1e-5 if name in FLOAT32 else 1e-11
    for one, other in zip(expected, found, strict=True):
        assert np.abs(one - other).max(initial=0) <= tolerance * largest


@pytest.mark.parametrize("name", NAMES)
def test_a_step_replaces_its_state(name):
    problem = PROGRAMS[name].make(CPU, "tiny")
    step, specs = problem.make_step()
    made, _ = jax.eval_shape(step, *specs)
    shapes = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)
    assert problem.donate == (0,)
    assert shapes(made) == shapes(specs[0])


def test_a_fresh_network_sees_data_of_variance_one():
    _, specs = PROGRAMS["elementwise_chain"].make(CPU, "cpu").make_step()
    state, batch = values(specs)
    moments = jax.tree.leaves(state.opt_state)
    assert not any(np.asarray(leaf).any() for leaf in moments)
    assert (np.asarray(state.params[0]["scale"]) == 1).all()
    assert abs(np.asarray(batch["x"]).std() - 1) < 0.01


@pytest.mark.parametrize(("data_std", "is_finite"), [(1.0, False), (None, True)])
def test_gated_products_of_small_data_stay_finite(data_std, is_finite):
    entry = PROGRAMS["gated_products"]
    problem = entry.make(CPU, "cpu")
    how = {"data_std": data_std or entry.data_std}
    assert np.isfinite(problem.loss(*values(problem.specs, **how))) == is_finite


def gradients(loss, *args):
    def with_aux(*args):
        out = loss(*args)
        return out if isinstance(out, tuple) else (out, None)

    step = jax.jit(jax.value_and_grad(with_aux, has_aux=True))
    found = step.lower(*args).compile(compiler_options=QUICK)(*args)
    is_inexact = lambda a: jnp.issubdtype(a.dtype, jnp.inexact)
    return [np.asarray(a) for a in jax.tree.leaves(found) if is_inexact(a)]
