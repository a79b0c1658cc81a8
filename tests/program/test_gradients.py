"""Random small programs, random plans: the gradients of plain autodiff, in float64."""

import jax
import pytest

from experiments.bench.gradients import TOLERANCE, check
from experiments.bench.random_programs import FORMS

EVERY_COMMIT, NOW_AND_THEN = range(10_000, 10_008), range(10_000, 10_050)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("seeds", "plans"),
    [
        pytest.param(EVERY_COMMIT, 4, id="every commit"),
        pytest.param(NOW_AND_THEN, 10, id="now and then", marks=pytest.mark.slow),
    ],
)
def test_no_plan_changes_a_gradient(form, seeds, plans):
    of_this_form = [seed for seed in seeds if FORMS[seed % len(FORMS)] == form]
    with jax.enable_x64(True):
        checks = [c for seed in of_this_form for c in check(seed, plans)]
    assert len(checks) == plans * len(of_this_form)
    wrong = [c for c in checks if not c.error <= TOLERANCE]
    assert not wrong


def test_a_wrong_gradient_is_noticed(monkeypatch):
    """The comparison itself: one cotangent off by a thousandth does not pass."""
    from revremat.program.engine import _layer

    exact = _layer.pull_back

    def off(*args):
        first, *rest = exact(*args)
        return [first * 1.001, *rest]

    monkeypatch.setattr(_layer, "pull_back", off)
    with jax.enable_x64(True):
        assert max(c.error for c in check(seed=2, plans=3)) > TOLERANCE
