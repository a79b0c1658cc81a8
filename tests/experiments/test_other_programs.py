"""Tables of programs without layers, of rollouts, and of authors' checkpoints."""

import pytest

from experiments.bench import checkpointed, rollouts, without_layers
from experiments.bench.columns import columns

HAND = {
    "each block": {"bytes": 100, "step_us": 9.0},
    "both": {"bytes": 80, "step_us": 12.0},
}


def searched(budget, size, us):
    about = {"budget_bytes": budget, "bytes": size, "step_us": us, "num_compiles": 7}
    return about | {"held": True}


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns([("a", "bb"), ("long", "")]) == "a     bb\nlong"


def test_beside_a_plan_stands_the_fastest_by_hand_that_fits():
    rows = [searched(100, 90, 8.1), searched(80, 80, 9.0), searched(1, 76, 20.0)]
    known = {"programs": {"p": {"by_hand": HAND, "searched": rows}}}
    lines = without_layers.table(known).splitlines()[1:]
    assert ["0.900" in lines[0], "0.750" in lines[1]] == [True, True]
    assert "smallest" in lines[2]
    assert "bytes 0.950" in lines[2]
    assert all(line.endswith(" 7") for line in lines)


def test_a_rollout_stands_beside_the_optimum():
    row = {
        **{"length": 1000, "states": 10, "bytes": 102, "budget_bytes": 100},
        **{"again": 2700, "least_again": 2637, "step_us": 5.0},
    }
    (_, line) = rollouts.table({"rollouts": {"one": row}}).splitlines()
    assert line.split()[:2] == ["1000", "10"]
    assert "1.020" in line
    assert "1.024" in line


@pytest.mark.parametrize(
    ("fits", "told"), [(True, "1.100"), (False, "does not fit  1.200")]
)
def test_both_ways_to_write_a_program_stand_beside_one_another(fits, told):
    one = lambda size, us: {"fits": fits, "bytes": size, "step_us": us}
    row = {"budget_bytes": 9, "bare": one(10, 10.0), "checkpointed": one(12, 11.0)}
    text = checkpointed.table({"programs": {"around each": [row]}})
    assert text.splitlines()[1].endswith(told)
