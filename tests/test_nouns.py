"""What graphs, plans and their units say of themselves, to the byte and the letter."""

import dataclasses
import json

import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, Plan
from revremat._action import read_action
from revremat._errors import arguments_told
from revremat._frontier import Frontier, Point
from revremat._graph import FixedUnit, Graph, Operation, Unit, Value
from tests.search.world import unit_of

ATTENTION = Unit(
    name="attn",
    kind="scan",
    fingerprint="f",
    num_layers=3,
    values=(
        Value("x", False, (2, 4), "float32", 32, "input"),
        Value("", False, (4, 4), "float32", 64, "held"),
        Value("qkv", True, (2, 4), "float32", 36, "made"),
        Value("tanh_0", False, (2, 4), "bfloat16", 16, "made"),
        Value("drawn", False, (2,), "float32", 8, "made"),
        Value("sum", False, (2,), "float32", 9, "made"),
    ),
    operations=(
        Operation("dot_general", (0, 1), (2,), 100, True, "", "a.py:1"),
        Operation("tanh", (2,), (3,), 10, False, "", "a.py:2"),
        Operation("random_bits", (), (4,), 5, True, "it draws at random", "a.py:3"),
        Operation("add", (3, 4), (5,), 1, False, "", "a.py:4"),
    ),
    residuals_of=(0, 1, 3, 4),
    weight_bytes=64,
    forward_flops=116,
    backward_flops=200,
    chained=True,
)
GRAPH = Graph((ATTENTION,), "g", "1.0", undecided=("a loop at b.py:9",))

TEXT = """\
attn (scan, 3 layers, plain autodiff keeps 56 bytes a layer)
  x                        float32[2, 4] 32 bytes, 0 FLOPs to recompute (plain)
  qkv                      float32[2, 4] 36 bytes, 100 FLOPs to recompute
  tanh_0                   bfloat16[2, 4] 16 bytes, 110 FLOPs to recompute (plain)
  drawn                    float32[2] 8 bytes, 5 FLOPs to recompute (plain), kept: it draws at random
a loop at b.py:9"""  # noqa: E501


def test_a_graph_lists_what_it_is_worth_deciding_about():
    assert str(GRAPH) == TEXT
    names = [r.name for r in ATTENTION.residuals]
    assert names == ["x", "qkv", "tanh_0", "drawn"]
    assert [r.plain for r in ATTENTION.residuals] == [True, False, True, True]
    assert [r.source for r in ATTENTION.residuals] == ["", "a.py:1", "a.py:2", "a.py:3"]
    assert ATTENTION.plain_bytes == 56
    assert Graph.from_json(GRAPH.to_json()) == GRAPH


@pytest.mark.parametrize(
    ("action", "device", "host", "flops", "kinds", "unused"),
    [
        (SAVE, 56, 0, 0, (), ()),
        (RECOMPUTE, 40, 0, 110, ("dot_general", "tanh"), ()),
        (RECOMPUTE(save=["qkv"]), 76, 0, 10, ("tanh",), ()),
        (RECOMPUTE(save=["tanh_0", "qkv"]), 56, 0, 0, (), ("qkv",)),
        (RECOMPUTE(offload=["tanh_0"]), 40, 16, 0, (), ()),
        (OFFLOAD, 0, 56, 0, (), ()),
        (OFFLOAD(save=["x"]), 32, 24, 0, (), ()),
    ],
    ids=repr,
)
def test_what_a_layer_keeps_and_recomputes_adds_up(
    action, device, host, flops, kinds, unused
):
    kept = ATTENTION.kept(action)
    assert (kept.device_bytes, kept.host_bytes) == (device, host)
    assert (kept.recompute_flops, kept.recomputed, kept.unused) == (
        flops,
        kinds,
        unused,
    )


@pytest.mark.parametrize(("length", "share"), [(2, 16), (3, 11), (4, 8), (5, 7)])
def test_in_segments_a_layer_has_its_share_of_an_input_and_is_run_once_more(
    length, share
):
    steady = tuple(dataclasses.replace(op, effectful="") for op in ATTENTION.operations)
    unit = dataclasses.replace(ATTENTION, operations=steady, num_layers=20)
    kept = unit.kept(RECOMPUTE(segment_length=length))
    assert kept.device_bytes == share  # 32 bytes, rounded up
    again = unit.kept(RECOMPUTE).recompute_flops
    assert kept.recompute_flops == 116 + again
    assert kept.recomputed[:4] == ("dot_general", "tanh", "random_bits", "add")


def test_what_a_program_decided_by_itself_is_told_in_a_line():
    fixed = FixedUnit(unit_of("layer", 3), (SAVE, RECOMPUTE, RECOMPUTE))
    assert (fixed.plain_bytes, fixed.kept_bytes) == (3 * 24, 24 + 1 + 1)
    assert str(fixed) == (
        "layer: 1 x SAVE, 2 x RECOMPUTE keeps 26 B where plain autodiff keeps 72 B"
    )
    graph = Graph((), "g", "1.0", fixed_units=(fixed,), keep_checkpoints=True)
    assert str(graph) == str(fixed)
    assert Graph.from_json(graph.to_json()) == graph


def nested():
    """A loop in a block in a loop."""
    return Graph(
        (
            unit_of("a"),
            unit_of("a/b", kind="block", enclosing="a"),
            unit_of("a/b/c", enclosing="a/b"),
        ),
        "",
        "",
    )


def test_the_units_around_one_come_from_the_inside_out():
    graph = nested()
    assert graph.enclosing("a/b/c") == ("a/b", "a")
    assert graph.enclosing("a") == ()
    with pytest.raises(rr.UserError, match="the units are: a, a/b, a/b/c"):
        graph["d"]


@pytest.mark.parametrize(
    ("name", "decided", "scans"),
    [
        ("a", (), 0),
        ("a/b", (), 1),
        ("a/b/c", (), 1),
        ("a/b/c", ("a/b",), 0),  # nothing outlives a layer of the one around
        ("a/b/c", ("a",), 1),
    ],
)
def test_scans_around_keep_what_layers_keep(name, decided, scans):
    assert nested().facts(name, decided).num_scans == scans


@pytest.mark.parametrize(
    ("actions", "is_refused"),
    [
        ({"a": RECOMPUTE, "a/b": SAVE}, False),
        ({"a": RECOMPUTE, "a/b/c": SAVE}, False),
        ({"a": SAVE, "a/b": SAVE}, True),
        ({"a": SAVE, "a/b/c": SAVE}, True),
        ({"a/b": RECOMPUTE, "a/b/c": SAVE}, False),
        # Unrolled layers run one program, so their loops cannot differ.
        ({"a/b": RECOMPUTE, "a/b/c": [SAVE, *[RECOMPUTE] * 7]}, True),
        ({"a": RECOMPUTE, "a/b": [SAVE, *[RECOMPUTE] * 7]}, False),
        ({"a": RECOMPUTE, "a/b": RECOMPUTE, "a/b/c": SAVE}, False),
        ({"a": RECOMPUTE, "a/b": SAVE, "a/b/c": SAVE}, True),
    ],
)
def test_a_unit_and_a_part_of_it_are_decided_where_it_recomputes_all(
    actions, is_refused
):
    if is_refused:
        with pytest.raises(rr.UserError, match="is a part of every layer of unit"):
            nested().plan(actions)
    else:
        assert set(nested().plan(actions).actions) == set(actions)


# ---- Plans ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "head"),
    [
        ({}, "plan for any target"),
        ({"target": "h100:8"}, "plan for h100:8"),
        ({"predicted_bytes": 1234}, "plan for any target, 1,234 bytes"),
        (
            {"predicted_bytes": 1234, "compiled_bytes": 2000, "budget_bytes": 2000},
            "plan for any target, 2,000 bytes of 2,000",
        ),
        (
            {"compiled_bytes": 2001, "budget_bytes": 2000},
            "plan for any target, 2,001 bytes of 2,000 (does not fit: see the units)",
        ),
        (
            {"compiled_bytes": 2001, "budget_bytes": 2000, "held_by": "weights"},
            "plan for any target, 2,001 bytes of 2,000 (does not fit: weights)",
        ),
        (
            {"budget_bytes": 2000},
            "plan for any target of 2,000 (does not fit: see the units)",
        ),
        ({"gradient_barrier": True}, "plan for any target, with a gradient barrier"),
        ({"puts_gradients_off": True}, "plan for any target, with gradients put off"),
        (
            {"keep_checkpoints": True},
            "plan for any target, the program's own checkpoints kept",
        ),
        (
            {"remat_pass_percent": 80},
            "plan for any target, with XLA's own remat pass at 80 %",
        ),
    ],
)
def test_a_plan_says_what_it_is_for_and_whether_it_fits(about, head):
    plan = GRAPH.plan({"attn": [SAVE, SAVE, RECOMPUTE]}, **about)
    assert str(plan) == f"{head}\n  attn: 2 x SAVE, 1 x RECOMPUTE"
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("budget", "predicted", "compiled", "fits", "short"),
    [
        (None, None, None, True, 0),
        (None, 9, 9, True, 0),
        (10, None, None, False, 0),
        (10, 10, None, True, 0),
        (10, 11, None, False, 1),
        (10, 99, 10, True, 0),
        (10, 1, 14, False, 4),
    ],
)
def test_a_plan_is_short_of_what_it_takes_beyond_its_budget(
    budget, predicted, compiled, fits, short
):
    plan = Plan((), "p", "", budget, predicted, compiled)
    assert (plan.fits, plan.shortfall_bytes) == (fits, short)


@pytest.mark.parametrize(
    ("made_on", "used_on", "is_told"),
    [("", "a", False), ("a", "a", False), ("a", "b", True)],
)
def test_a_plan_says_where_it_is_used_on_another_target(made_on, used_on, is_told):
    note = Plan((), "p", made_on).target_note(used_on)
    assert bool(note) == is_told
    assert not is_told or "was made for a and is used on b" in note


def test_a_plan_says_what_its_compile_needs():
    plain, passing = Plan((), "p"), Plan((), "p", remat_pass_percent=90)
    assert plain.compiler_options == {"xla_disable_hlo_passes": "rematerialization"}
    assert passing.compiler_options == {"xla_gpu_memory_limit_slop_factor": "90"}
    assert plain.remat_pass_note == ""
    assert "with a limit of 90 %" in passing.remat_pass_note


@pytest.mark.parametrize(
    ("layers", "host"), [([INVERT] * 3, False), ([SAVE, OFFLOAD, SAVE], True)]
)
def test_a_plan_of_runs_is_written_once_for_each(layers, host):
    unit = dataclasses.replace(unit_of("u", 3), invertible=True, carried_out=(6,))
    plan = Graph((unit,), "", "").plan({"u": layers})
    assert plan.to_json().count('"layers"') == (3 if host else 1)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("key", "schema", "is_refused"),
    [
        ("gradient_barrier", 3, False),
        ("gradient_barrier", 4, True),
        ("remat_pass_percent", 5, False),
        ("remat_pass_percent", 6, True),
        ("num_devices", 7, False),
        ("num_devices", 8, True),
    ],
)
def test_what_a_plans_schema_has_may_not_be_missing(key, schema, is_refused):
    data = json.loads(GRAPH.plan({"attn": SAVE}).to_json()) | {"schema": schema}
    del data[key]
    if is_refused:
        with pytest.raises(rr.UserError, match=f"damaged plan: '{key}' is missing"):
            Plan.from_json(json.dumps(data))
    else:
        assert Plan.from_json(json.dumps(data)) == GRAPH.plan({"attn": SAVE})


def test_an_action_of_an_older_plan_has_what_there_was_then():
    data = {"kind": "save", "chunks": 2, "save": ["a"], "offload": [], "ahead": []}
    assert read_action(data) == SAVE(save=["a"], chunks=2)
    more = {"segment_length": 3, "unroll": True, "chunks": 1}
    assert read_action(data | more) == SAVE(save=["a"], segment_length=3, unroll=True)


def with_units(*sizes):
    """A plan of units with so many layers."""
    data = json.loads(Graph((unit_of("u", 2),), "", "").plan({"u": SAVE}).to_json())
    (unit,) = data["units"]
    (run,) = unit["actions"]
    data["units"] = [
        unit | {"name": f"u{k}", "actions": [run | {"layers": size}]}
        for k, size in enumerate(sizes)
    ]
    return json.dumps(data)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([100_000], None),
        ([100_001], "'layers' is 100001, and 100,000 are the most of all units"),
        ([60_000, 40_000], None),
        ([60_000, 40_001], "'layers' is 40001, and 100,000 are the most of all units"),
        ([1, 50_000, 50_000], "'layers' is 50000, and 100,000 are the most"),
        ([0], "'layers' is 0"),
        ([1] * 10_000, None),
        ([1] * 10_001, "it has 10,001 units, and 10,000 are the most"),
    ],
)
def test_a_plan_that_nobody_could_trace_is_refused(sizes, told):
    text = with_units(*sizes)
    if told is None:
        plan = Plan.from_json(text)
        assert [len(unit.actions) for unit in plan.units] == sizes
    else:
        with pytest.raises(rr.UserError, match=told):
            Plan.from_json(text)


@pytest.mark.parametrize(("more", "told"), [(0, "it is not JSON"), (1, "8,388,608")])
def test_a_plan_has_at_most_so_many_characters(more, told):
    with pytest.raises(rr.UserError, match=told):
        Plan.from_json("x" * (2**23 + more))


# ---- Frontiers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "best"),
    [
        ([("a", 1, 9.0), ("b", 2, 5.0), ("c", 3, 6.0)], "ab"),
        ([("c", 3, 6.0), ("b", 2, 5.0), ("a", 1, 9.0)], "ab"),
        ([("a", 1, 9.0), ("b", 1, 5.0)], "b"),
        ([("a", 1, 5.0), ("b", 2, 5.0)], "a"),  # no faster for more
        ([], ""),
    ],
)
def test_on_a_frontier_nothing_is_beaten_in_both(points, best):
    few = tuple(Point(name, "preset", size, us) for name, size, us in points)
    assert "".join(p.name for p in Frontier("", "", 9, few, 3).best) == best


# ---- What functions are given --------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "told"),
    [((), "0 arguments"), ((1,), "1 argument$"), ((1, 2, 3), "3 arguments")],
)
@pytest.mark.parametrize("is_jitted", [False, True])
def test_too_many_or_too_few_arguments_are_told(args, told, is_jitted):
    import jax

    def loss(w, x):
        return w

    function = jax.jit(loss) if is_jitted else loss
    sentence = rf"it takes \(w, x\), and is given {told}"
    with (
        pytest.raises(rr.UserError, match=sentence),
        arguments_told("it", function, args),
    ):
        raise TypeError("missing")


def test_another_error_of_the_right_arguments_is_the_functions_own():
    with pytest.raises(TypeError, match="own"), arguments_told("it", max, (1, 2)):
        raise TypeError("own")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 99},
        {"units": [{"name": "a"}]},
        {"units": 3},
        {"fixed_units": [{}]},
        {"fingerprint": 3},
        {"num_devices": "8"},
    ],
    ids=str,
)
def test_damaged_text_is_no_graph(change):
    text = json.dumps(json.loads(GRAPH.to_json()) | change)
    with pytest.raises(ValueError, match=r"^not a graph: "):
        Graph.from_json(text)
    for other in ("[]", "{}", "no"):
        with pytest.raises(ValueError, match=r"^not a graph: "):
            Graph.from_json(other)
