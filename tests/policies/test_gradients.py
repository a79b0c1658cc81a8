"""Whatever is proposed, gradients stay those of the program, in float64."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat.policies import Joint, candidates
from tests.program.networks import NETWORKS


def worst_error(got, wanted):
    errors = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max() / (1e-30 + jnp.abs(b).max())),
        got,
        wanted,
    )
    return max(jax.tree.leaves(errors))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_no_candidate_changes_a_gradient(network):
    with jax.enable_x64(True):
        loss, params, batch = network("scan")
        graph = rr.trace(loss, params, batch)
        wanted = jax.jit(jax.grad(loss))(params, batch)
        for unit in graph.units:
            for candidate in candidates(unit, ahead=True):
                plan = graph.plan({unit.name: candidate.action})
                got = jax.jit(jax.grad(rr.apply(loss, plan)))(params, batch)
                assert worst_error(got, wanted) < 1e-12, candidate.name


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_the_cheap_model_counts_the_bytes_that_the_engine_keeps(network, form):
    loss, params, batch = network(form)
    for unit in rr.trace(loss, params, batch).units:
        joint = Joint(unit)
        for candidate in candidates(unit):
            if candidate.action.kind == "recompute":
                kept = unit.kept(candidate.action)
                cost = joint.cost(unit.position[name] for name in kept.saved)
                assert cost.bytes == kept.device_bytes
