"""What a layer costs, told from what small programs take."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._cut import UnitCut
from revremat._prices import UnitPrices
from revremat.policies import Candidate, preset

OWN, OF_A_LAYER = 1000, 7


def on_host(actions):
    return sum(len(action.offload) for action in actions)


@pytest.fixture(params=[1, 6], ids=["one layer", "six layers"])
def prices(request):
    """Of programs with something of their own on the host."""

    def layer(w, x):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w

    def loss(w, x):
        for one in w:
            x = rr.block(layer, "layer")(one, x)
        return x.sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, [array(8, 8)] * request.param, array(4, 8)).units

    def measured(actions) -> Any:
        host_bytes = OWN + sum(OF_A_LAYER + on_host([action]) for action in actions)
        memory = SimpleNamespace(total_bytes=len(actions), host_bytes=host_bytes)
        return SimpleNamespace(memory=memory, time=SimpleNamespace(step_us=1.0))

    ask = lambda steps: [measured(actions) for _, actions in steps]
    same: Any = lambda actions: actions
    cut = UnitCut(same, False, 0.0, 1.0)
    moved = Candidate("moved", rr.RECOMPUTE(offload=["dot_general_0", "cos_0"]))
    few = (preset(unit, "full"), preset(unit, "none"), moved)
    found = UnitPrices(unit, few, cut, ask)
    found.start(cut)
    found.price_roughly()
    return found


def test_what_a_program_has_on_the_host_of_its_own_is_no_price_of_a_layer(prices):
    expected = {"full": 0, "none": 0, "moved": 2}
    rough = {p.name: p.host_bytes for p in prices.menu().prices}
    assert rough == expected
    prices.refine(list(expected))
    assert {p.name: p.host_bytes for p in prices.menu().prices} == expected
