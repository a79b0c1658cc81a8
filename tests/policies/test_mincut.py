"""Minimum cuts of units: against every set of values there is."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from revremat import RECOMPUTE, UserError
from revremat._graph import Operation, Value
from revremat.policies import Joint, Rates, Weights, bans, cut, front
from revremat.policies._bans import RULES
from tests.policies.units import drawn_units, made_by, transformer

BYTES = Weights(bytes=1.0, keeping=0.0, recomputing=0.0)
RATES = Rates(product_flops=50.0, other_flops=10.0)


def every_set(joint, banned):
    """Costs of all kept sets that recompute allowed operations only."""
    unit = joint.unit
    fixed = {n for n, op in enumerate(unit.operations) if op.effectful} | set(banned)
    made = [k for k in joint.wanted if unit.values[k].role == "made"]
    for size in range(len(made) + 1):
        for kept in itertools.combinations(made, size):
            _, again = joint.needed(kept)
            if fixed.isdisjoint(again):
                yield joint.cost(kept)


def weigh(weights, cost):
    return weights.bytes * cost.bytes + cost.traffic


@settings(max_examples=150, deadline=None)
@given(drawn_units(), st.sets(st.integers(0, 11)))
def test_of_the_sets_that_recompute_what_is_allowed_it_keeps_the_fewest_bytes(
    unit, banned
):
    joint = Joint(unit, RATES)
    found = cut(joint, BYTES, banned)
    fixed = {n for n, op in enumerate(unit.operations) if op.effectful} | banned
    assert fixed.isdisjoint(joint.needed(found.kept)[1])
    assert found.cost.bytes == min(c.bytes for c in every_set(joint, banned))


@settings(max_examples=150, deadline=None)
@given(drawn_units(), st.sampled_from([0.0, 0.1, 1.0, 3.0, 50.0]))
def test_at_any_cost_of_a_byte_no_set_is_cheaper(unit, byte_weight):
    joint, weights = Joint(unit, RATES), Weights(bytes=byte_weight)
    found = weigh(weights, cut(joint, weights).cost)
    assert found == pytest.approx(
        min(weigh(weights, c) for c in every_set(joint, ())), abs=1e-6
    )


@settings(max_examples=100, deadline=None)
@given(drawn_units())
def test_the_front_is_the_hull_of_all_sets(unit):
    joint = Joint(unit, RATES)
    found, all_costs = front(joint), list(every_set(joint, ()))
    sizes = [c.cost.bytes for c in found]
    assert sizes == sorted(sizes, reverse=True)
    spread = max(c.traffic for c in all_costs) - min(c.traffic for c in all_costs)
    room = max(c.bytes for c in all_costs) - min(c.bytes for c in all_costs)
    for byte_weight in (0.01, 0.3, 1.0, 4.0, 30.0):
        weights = Weights(bytes=byte_weight)
        best = min(weigh(weights, c) for c in all_costs)
        mine = min(weigh(weights, c.cost) for c in found)
        assert mine <= best + 0.02 * (spread + byte_weight * room) + 1e-6


@settings(max_examples=100, deadline=None)
@given(drawn_units())
def test_what_a_cut_costs_is_what_the_unit_says_of_keeping_it(unit):
    joint = Joint(unit, RATES)
    found = cut(joint, Weights())
    kept = unit.kept(RECOMPUTE(save=[unit.values[k].name for k in found.kept]))
    assert {unit.position[name] for name in kept.saved} == found.kept
    assert kept.device_bytes == found.cost.bytes
    _, again = joint.needed(found.kept)
    recomputed = [unit.operations[n].num_flops for n in again]
    assert kept.recompute_flops >= sum(recomputed)  # beside what weights alone make


def test_a_value_without_a_name_that_cannot_be_recomputed_is_an_error():
    unit = transformer()
    noisy = replace(unit.operations[-1], effectful="draws")
    nameless = replace(unit.values[-1], name="")
    unit = replace(
        unit,
        operations=(*unit.operations[:-1], noisy),
        values=(*unit.values[:-1], nameless),
        residuals_of=(*unit.residuals_of, len(unit.values) - 1),
    )
    with pytest.raises(UserError, match=r"without a name.*draws.*rr\.name"):
        cut(Joint(unit), Weights())


def test_untagged_cuts_are_those_of_the_tagged_program():
    plain = transformer()
    tagged = transformer(tags=("query_proj", "context", "mlpwi_0", "mlpwo"))
    costs = [[c.cost for c in front(Joint(u))] for u in (plain, tagged)]
    assert costs[0] == costs[1]
    assert len(costs[0]) > 3


def test_balanced_checkpointing_comes_out_by_itself():
    """Products stay; what is elementwise, norms and gates, is not saved (Yuan 2024)."""
    unit = transformer()
    joint = Joint(unit)
    found = cut(joint, BYTES, bans(joint, ("compute-intensive", "reduction")))
    kept = {unit.values[k].name for k in found.kept}
    products = made_by(unit, "dot_general")
    for elementwise in ("exp", "logistic", "mul", "div", "rsqrt", "add"):
        assert made_by(unit, elementwise).isdisjoint(kept)
    assert len(kept & products) >= 6  # q, k, v, out, gate, up
    recomputed = [unit.operations[n].kind for n in joint.needed(found.kept)[1]]
    assert "dot_general" not in recomputed
    assert {"mul", "exp", "logistic"} <= set(recomputed)
    # The layer's input and the products: half of what plain autodiff keeps.
    assert found.cost.bytes < 0.7 * unit.plain_bytes


def test_the_fastest_cut_moves_less_than_plain_autodiff_and_keeps_less():
    unit = transformer()
    joint = Joint(unit)
    plain = joint.cost(k for k in unit.residuals_of if joint.counts(k))
    for found in (front(joint)[0], cut(joint, Weights(recomputing=0.0), bans(joint))):
        assert found.cost.bytes < plain.bytes
        assert found.cost.traffic < plain.traffic


def test_products_become_recomputable_one_by_one():
    unit = transformer()
    joint = Joint(unit)
    products = [n for n, op in enumerate(unit.operations) if op.kind == "dot_general"]
    again = [len(set(products) & set(joint.needed(c.kept)[1])) for c in front(joint)]
    assert again == sorted(again)
    assert again[0] == 0 < again[-1]
    assert len(set(again)) > 2


def test_every_ban_has_its_reason():
    joint = Joint(transformer())
    kinds = {n: joint.unit.operations[n].kind for n in joint.recomputing}
    reasons = {rule: bans(joint, [rule]) for rule in RULES}
    assert {kinds[n] for n in reasons["compute-intensive"]} == {"dot_general"}
    assert "FLOPs" in next(iter(reasons["compute-intensive"].values()))
    assert all(kinds[n].startswith("reduce") for n in reasons["reduction"])
    assert "512 KiB of 512 MiB" in " ".join(reasons["reduction"].values())
    assert all("backward" in text for text in reasons["whole"].values())
    assert {kinds[n] for n in reasons["far apart"]} == {"add"}
    assert not reasons["chain"]
    with pytest.raises(ValueError, match="'near' is no rule"):
        bans(joint, ["near"])


def test_long_chains_are_broken():
    length, value = 250, Value("", False, (64,), "float32", 256, "made")
    values = [replace(value, name=f"v{k}") for k in range(length + 1)]
    sine = Operation("sin", (), (), 64, False, "", "")
    unit = replace(
        transformer(),
        values=(replace(values[0], role="input"), *values[1:]),
        operations=tuple(
            replace(sine, inputs=(k,), outputs=(k + 1,)) for k in range(length)
        ),
        residuals_of=(length,),
        outputs=(length,),
        read_whole=(),
    )
    joint = Joint(unit)
    broken = bans(joint, ["chain"])
    assert len(broken) == 2
    assert len(cut(joint, BYTES, broken).kept) == 1  # nearest to the backward pass
