"""What is chosen takes what an exact compile says, or something else is chosen."""

import dataclasses

import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import CompilerOracle, Request, _begin
from tests.search.world import World, measured


def loss(w, x):
    return rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()


class Exactly(CompilerOracle):
    """An oracle whose exact compiles say what is written down."""

    def compile(self, requests, finish):
        del finish
        return [(request, self.says(request)) for request in requests]  # pyright: ignore

    def says(self, request):
        return EXACT[request.label]


EXACT = {}


def state_of(exact):
    """A state that knows two programs: the first is faster; and what they really take.

    Args:
      exact: From label to bytes and time.
    """
    EXACT.clear()
    EXACT.update({label: measured(*told) for label, told in exact.items()})
    world = World()
    state, _ = world.state(1000)
    for label, action, us in (("fast", rr.SAVE, 1.0), ("slow", rr.RECOMPUTE, 2.0)):
        key = state.key_of({"u": (action,) * 8})
        state = state.with_measured(Request(key, label), measured(100, us))
    return state


@pytest.mark.parametrize(
    ("fast", "chosen"),
    [
        ((100, 1.0), "fast"),  # the same
        ((900, 1.5), "fast"),  # others, and still the best
        ((1001, 1.0), "slow"),  # it does not fit any longer
        ((100, 3.0), "slow"),  # it is not the fastest any longer
    ],
)
def test_the_best_is_confirmed_or_another_is(fast, chosen):
    state = state_of({"fast": fast, "slow": (100, 2.0)})
    oracle = Exactly(None, None, None, None, exact=False)  # pyright: ignore
    found = oracle.confirmed(state)
    assert found.best.name == chosen
    assert found.num_compiles == state.num_compiles


def test_what_was_exact_is_not_asked_about_again():
    state = state_of({})
    about = {"problem": None, "traced": None, "graph": None, "target": None}
    for how in ({"exact": True}, {"exact": False, "oracle": rr.measure}):
        assert Exactly(**about, **how).confirmed(state) is state  # pyright: ignore


def test_a_fit_begins_with_what_need_not_be_exact_elsewhere_only(monkeypatch):
    asked = []
    begin = _begin.begin

    def noted(*args, **how):
        asked.append(how["exact"])
        return begin(*args, **how)

    monkeypatch.setattr(_begin, "begin", noted)
    w, x = jnp.ones((4, 8, 8)), jnp.ones((64, 8))
    rr.fit(loss, w, x, budget="1MiB", target="cpu:1", effort="quick")
    assert asked == [True]
    target = dataclasses.replace(rr.target("h100:1"), present=False)
    assert target.is_elsewhere
