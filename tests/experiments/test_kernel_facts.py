"""Numbers of the time model, as the kernels of a run have them."""

from pathlib import Path

import pytest

from experiments.calibrate import kernel_facts as facts
from experiments.calibrate.by_kernel import target_of
from experiments.calibrate.stored import stored

H100 = Path(__file__).parents[2] / "experiments" / "results" / "cards" / "h100"
TARGET = target_of(H100)


@pytest.fixture(scope="module")
def found():
    return facts.samples(list(stored(H100, "conv_net")), TARGET)


def test_a_number_is_decided_by_the_kernels_that_it_changes(found):
    of = facts.decided(found, TARGET.card)
    kinds = {name: {one.kind for one in of[name]} for name in facts.FACTS}
    assert kinds["convolution_share"] == {"convolutions"}
    assert kinds["memory_efficiency"] == {"elementwise"}  # those alone are asked
    assert kinds["uneven_rows_share"] == set()


def test_with_the_fitted_number_they_take_what_was_measured(found):
    of = facts.decided(found, TARGET.card)["convolution_share"]
    value = facts.fitted(of, TARGET.card, "convolution_share")
    assert 0.5 < value < 1.2
    card = facts.with_fact(TARGET.card, "convolution_share", value)
    assert sum(one.estimated_us(card) for one in of) == pytest.approx(
        sum(one.measured_us for one in of), rel=0.01
    )
    assert facts.fitted([], TARGET.card, "convolution_share") is None


def test_what_no_other_program_shows_is_left_out():
    card = facts.card_of({name: [] for name in facts.FACTS}, [], TARGET.card)
    found = {name: facts.fact(card, name) for name in (*facts.FACTS, facts.SLOPE)}
    kept = {
        name: facts.fact(TARGET.card, name)
        for name in ("memory_efficiency", "matmul_efficiency")
    }
    shares = ("block_fusion", "computed_operand", "uneven_rows", "convolution")
    assert found == {
        **kept,
        **{f"{share}_share": 1.0 for share in shares},
        **dict.fromkeys(("blocks_per_clock", "far_pieces", "atomics_per_clock"), 0.0),
        "lower_clock": 0.0,
    }


@pytest.mark.parametrize("name", ["memory_efficiency", "far_pieces"])
def test_a_number_is_a_cards_own_or_of_its_description(name):
    assert facts.fact(facts.with_fact(TARGET.card, name, 0.25), name) == 0.25
