"""What a layer keeps: told once, whatever its values are called."""

from dataclasses import dataclass

import pytest

from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE
from revremat._resolve import Flow, needed, resolve


@dataclass(frozen=True)
class Op:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


# x and the weight w: h = x w, a = tanh h, drawn at random r, y = a r.
MATMUL = Op("dot_general", ("x", "w"), ("h",))
TANH = Op("tanh", ("h",), ("a",))
DRAW = Op("rng_uniform", (), ("r",))
TIMES = Op("mul", ("a", "r"), ("y",))
FLOW = Flow(
    operations=(MATMUL, TANH, DRAW, TIMES),
    residuals=("x", "w", "a", "r"),
    plain={"x", "a", "r"},
    inputs=("x",),
    names={"input": "x", "h": "h", "a": "a", "r": "r", "y": "y"},
    unrepeatable={"r"},
    free=frozenset(),
    handed_in=("x",),
    carried_out=("y",),
)


@pytest.mark.parametrize(
    ("action", "saved", "offloaded", "late"),
    [
        (SAVE, "xar", "", ()),
        (SAVE(offload=["a"]), "xr", "a", ()),
        (OFFLOAD, "", "xar", ()),
        (OFFLOAD(save=["a"]), "a", "xr", ()),
        (RECOMPUTE, "xr", "", (MATMUL, TANH)),
        (RECOMPUTE(save=["a"]), "xar", "", ()),
        (RECOMPUTE(save=["h"]), "xhr", "", (TANH,)),
        (RECOMPUTE(save=["h", "a"]), "xar", "", ()),
        (RECOMPUTE(offload=["input"]), "r", "x", (MATMUL, TANH)),
        (RECOMPUTE(offload=["r"]), "x", "r", (MATMUL, TANH)),
        (RECOMPUTE(save=["y"]), "xr", "", (MATMUL, TANH)),
        (INVERT, "r", "", (MATMUL, TANH)),
        (INVERT(save=["a"]), "ar", "", ()),
    ],
    ids=repr,
)
def test_every_value_is_kept_or_recomputed(action, saved, offloaded, late):
    found = resolve(FLOW, action)
    assert (found.saved, found.offloaded) == (set(saved), set(offloaded))
    assert (found.ahead, found.early, found.late) == ((), (), late)


@pytest.mark.parametrize(
    ("kind", "action", "saved"),
    [
        # The maximum is kept, and entries that another kernel rounds are compared.
        ("dot_general", RECOMPUTE(save=["m"]), "xme"),
        ("transpose", RECOMPUTE(save=["m"]), "xm"),  # is as it was, bit for bit
        ("dot_general", RECOMPUTE, "x"),  # both sides are rounded alike
    ],
)
def test_comparisons_with_what_is_rounded_anew_are_kept(kind, action, saved):
    made, largest = Op(kind, ("x",), ("h",)), Op("reduce_max", ("h",), ("m",))
    equal, given = Op("eq", ("h", "m"), ("e",)), Op("mul", ("e", "x"), ("y",))
    flow = Flow(
        operations=(made, largest, equal, given),
        residuals=("x", "m", "e"),
        plain={"x", "m", "e"},
        inputs=("x",),
        names={"input": "x", "m": "m", "e": "e"},
        unrepeatable=set(),
        free=frozenset(),
        handed_in=("x",),
        carried_out=("y",),
    )
    assert resolve(flow, action).saved == set(saved)


@pytest.mark.parametrize(
    ("kind", "recomputed", "inverted"),
    [
        ("eq", "xme", "me"),
        ("lt", "xm", "me"),  # which of two is larger: only an inverse is so far off
        ("floor", "xm", "me"),
        ("sub", "xm", "m"),
    ],
)
def test_beside_an_inverse_whatever_jumps_is_kept(kind, recomputed, inverted):
    made, compared = Op("dot_general", ("x",), ("h",)), Op(kind, ("h", "m"), ("e",))
    drawn, given = Op("rng_uniform", (), ("m",)), Op("mul", ("e", "x"), ("y",))
    flow = Flow(
        operations=(drawn, made, compared, given),
        residuals=("x", "m", "e"),
        plain={"x", "m", "e"},
        inputs=("x",),
        names={"input": "x", "m": "m", "e": "e"},
        unrepeatable={"m"},
        free=frozenset(),
        handed_in=("x",),
        carried_out=("y",),
    )
    assert resolve(flow, RECOMPUTE).saved == set(recomputed)
    assert resolve(flow, INVERT).saved == set(inverted)


@pytest.mark.parametrize(
    ("ahead", "early", "late"),
    [
        (["h"], (MATMUL,), (TANH,)),
        (["a"], (MATMUL, TANH), ()),
        (["r"], (), (MATMUL, TANH)),  # is kept: it cannot be had twice
        (["y"], (), (MATMUL, TANH)),  # nothing needs it
    ],
)
def test_what_is_recomputed_ahead_is_not_recomputed_later(ahead, early, late):
    found = resolve(FLOW, RECOMPUTE(ahead=ahead))
    assert (found.early, found.late) == (early, late)
    assert found.ahead == tuple(ahead if early else ())


def test_an_inverse_runs_first_where_it_is_known():
    undo = Op("div", ("y", "w"), ("x",))
    flow = Flow(**{**vars(FLOW), "inverse": lambda: (undo, *FLOW.operations)})
    assert resolve(flow, INVERT).late == (undo, MATMUL, TANH)
    assert resolve(flow, INVERT(save=["input"])).late == (MATMUL, TANH)
    assert resolve(flow, RECOMPUTE).late == (MATMUL, TANH)


def test_only_what_leads_to_the_targets_is_needed():
    ops = FLOW.operations
    assert needed(ops, ["a"], set()) == ((MATMUL, TANH), {"x", "w"})
    assert needed(ops, ["a"], {"h"}) == ((TANH,), {"h"})
    assert needed(ops, ["a"], {"a", "h"}) == ((), {"a"})
    random = lambda op: op.kind == "rng_uniform"
    assert needed(ops, ["h"], set(), random)[0] == (MATMUL, DRAW)
