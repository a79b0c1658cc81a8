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


UNDO = Op("div", ("y", "w"), ("x",))


def inverted(**changed):
    """The layer with an inverse."""
    return Flow(
        **{**vars(FLOW), "inverse": lambda: (UNDO, *FLOW.operations), **changed}
    )


def test_an_inverse_runs_first_where_it_is_known():
    assert resolve(inverted(), INVERT).late == (UNDO, MATMUL, TANH)
    assert resolve(inverted(), INVERT(save=["input"])).late == (MATMUL, TANH)
    assert resolve(inverted(), RECOMPUTE).late == (MATMUL, TANH)


@pytest.mark.parametrize(
    ("save", "saved", "late"),
    [
        ([], "r", (UNDO, MATMUL, TANH)),
        (["h"], "hr", (UNDO, TANH)),
        (["a"], "ar", (UNDO, MATMUL)),
        (["h", "input"], "hr", (UNDO, TANH)),  # nothing here reads the input
        (["y"], "r", (UNDO, MATMUL, TANH)),  # is there as it is
    ],
)
def test_the_layer_before_is_given_what_the_inverse_makes_read_or_not(
    save, saved, late
):
    flow = inverted(residuals=("h", "a", "r"))
    found = resolve(flow, INVERT(save=save))
    assert (found.saved & set("xhary"), found.late) == (set(saved), late)


@pytest.mark.parametrize(
    ("action", "ahead", "early", "late"),
    [
        (INVERT(ahead=["h"]), "xh", (UNDO, MATMUL), (TANH,)),
        (INVERT(ahead=["a"]), "xa", (UNDO, MATMUL, TANH), ()),
        (INVERT(ahead=["a"], save=["h"]), "xa", (UNDO, TANH), ()),
        (INVERT(ahead=["a"], save=["input"]), "a", (MATMUL, TANH), ()),
        (INVERT(ahead=["r"]), "", (), (UNDO, MATMUL, TANH)),
        (RECOMPUTE(ahead=["a"], save=["h"]), "a", (TANH,), ()),
        (RECOMPUTE(ahead=["h"], save=["h"]), "", (), (TANH,)),
    ],
    ids=repr,
)
def test_ahead_an_inverse_comes_first_and_what_it_made_is_handed_on(
    action, ahead, early, late
):
    """What only the operations that run early read is not."""
    found = resolve(inverted(), action)
    assert (found.ahead, found.early, found.late) == (tuple(ahead), early, late)


def test_what_is_made_of_weights_for_free_is_not_handed_on():
    cast = Op("convert_element_type", ("w",), ("v",))
    made = Op("dot_general", ("x", "v"), ("h",))
    flow = inverted(
        operations=(cast, made, TANH, DRAW, TIMES),
        residuals=("x", "v", "a", "r"),
        free={"v"},
        inverse=lambda: (UNDO, cast, made, TANH, DRAW, TIMES),
    )
    again = resolve(flow, RECOMPUTE(ahead=["h"]))
    assert (again.ahead, again.early) == (("h",), (cast, made))
    undone = resolve(flow, INVERT(ahead=["h"]))
    assert (undone.ahead, undone.early) == (("x", "h"), (UNDO, cast, made))
    assert again.late == undone.late == (cast, TANH)


@pytest.mark.parametrize(
    ("action", "saved", "late"),
    [
        (SAVE, "xy", ()),
        (RECOMPUTE, "x", (MATMUL, Op("tanh", ("h",), ("y",)))),
        (INVERT, "", (MATMUL,)),
    ],
)
def test_an_output_that_is_read_is_there_where_layers_are_inverted(action, saved, late):
    flow = Flow(
        operations=(MATMUL, Op("tanh", ("h",), ("y",))),
        residuals=("x", "h", "y") if action == RECOMPUTE else ("x", "y"),
        plain={"x", "y"},
        inputs=("x",),
        names={"input": "x", "h": "h", "y": "y"},
        unrepeatable=set(),
        free=frozenset(),
        handed_in=("x",),
        carried_out=("y",),
    )
    if action == INVERT:
        flow = Flow(**{**vars(flow), "residuals": ("x", "h", "y")})
    found = resolve(flow, action)
    assert (found.saved, found.late) == (set(saved), late)


def test_a_comparison_that_the_next_layer_keeps_is_not_kept_once_more():
    drawn, made = Op("rng_uniform", (), ("m",)), Op("dot_general", ("x",), ("h",))
    compared = Op("lt", ("h", "m"), ("y",))
    flow = Flow(
        operations=(drawn, made, compared),
        residuals=("x", "m", "y"),
        plain={"x", "m", "y"},
        inputs=("x",),
        names={"input": "x", "m": "m", "y": "y"},
        unrepeatable={"m"},
        free=frozenset(),
        handed_in=("x",),
        carried_out=("y",),
    )
    assert resolve(flow, INVERT).saved == {"m"}


def test_only_what_leads_to_the_targets_is_needed():
    ops = FLOW.operations
    assert needed(ops, ["a"], set()) == ((MATMUL, TANH), {"x", "w"})
    assert needed(ops, ["a"], {"h"}) == ((TANH,), {"h"})
    assert needed(ops, ["a"], {"a", "h"}) == ((), {"a"})
    random = lambda op: op.kind == "rng_uniform"
    assert needed(ops, ["h"], set(), random)[0] == (MATMUL, DRAW)


@pytest.mark.parametrize(
    ("wanted", "given", "used"),
    [("p", "", "x"), ("q", "", "x"), ("pq", "p", "xp"), ("pq", "pq", "pq")],
)
def test_an_operation_is_needed_for_any_of_its_results(wanted, given, used):
    split = Op("split", ("x",), ("p", "q"))
    found = needed((split,), wanted, set(given))
    assert found == ((split,) if "x" in used else (), set(used))
