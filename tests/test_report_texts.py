"""What people read of a search, of two reports, and of what a step could do without."""
# ruff: noqa: E501 - reports are 100 columns wide

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE, Buffer
from revremat._frontier import Frontier, Point
from revremat._graph import Graph
from revremat._measure import REMAT_PASS_OFF
from revremat._measurement._what_if import Checkpoint, Donation, Residual, WhatIf
from revremat._report._diff import diff, diff_text
from revremat._report._diff_plans import diff_plans, plans_text
from revremat._report._targets import render_targets
from revremat._report._what_if import _name as cut_name
from revremat._report.page._what_if import what_if
from revremat._search._result import Dropped, Fit, Row, Skipped
from tests.measurements import BUFFERS, GIB, MEASUREMENT, MIB, changed
from tests.search.world import unit_of

# ---- Two reports ---------------------------------------------------------------------

ADDED = dataclasses.replace(BUFFERS[0], scope="adapter/up", bytes=GIB)
GROWN = changed(
    target="a100:8",
    temp_bytes=7 * GIB,
    host_bytes=0,
    buffers=(dataclasses.replace(BUFFERS[0], bytes=6 * GIB), *BUFFERS[1:4], ADDED),
    step_us=1.5 * MEASUREMENT.time.step_us,
)

GREW = """\
before: gpt on h100:8
after:  gpt on a100:8

on each device   before     after      change
────────────────────────────────────────────────
total            11.2 GiB   12.2 GiB   +1.00 GiB
argument         5.00 GiB   5.00 GiB   0 B
output           5.25 GiB   5.25 GiB   0 B
alias            5.00 GiB   5.00 GiB   0 B
temp             6.00 GiB   7.00 GiB   +1.00 GiB
host             128 MiB    0 B        -128 MiB
fragmentation    512 MiB    512 MiB    0 B
estimated step   43.2 ms    64.8 ms    +50.0 %

alive at the peak     before     after      change
─────────────────────────────────────────────────────
forward layer/attn    4.00 GiB   6.00 GiB   +2.00 GiB
forward adapter/up    0 B        1.00 GiB   +1.00 GiB
output (unnamed)      256 MiB    0 B        -256 MiB
backward layer/attn   512 MiB    0 B        -512 MiB
"""

FELL = """\
alive at the peak    before     after      change
────────────────────────────────────────────────────
layer/attn           0 B        512 MiB    +512 MiB
(unnamed)            0 B        256 MiB    +256 MiB
adapter/up           1.00 GiB   0 B        -1.00 GiB
layer/attn/softmax   6.00 GiB   4.00 GiB   -2.00 GiB
"""

SAME = """\
on each device   before    after     change
───────────────────────────────────────────
total            512 MiB   512 MiB   0 B
temp             512 MiB   512 MiB   0 B
fragmentation    512 MiB   512 MiB   0 B
estimated step   0 us      0 us

nothing alive at the peak has changed
"""


def test_what_grew_most_comes_first_and_what_fell_last():
    assert diff_text(diff(MEASUREMENT, GROWN)) == GREW
    text = diff_text(diff(GROWN, MEASUREMENT, by=("scope",)))
    assert text.endswith("\n\n" + FELL)
    assert "estimated step   64.8 ms    43.2 ms    -33.3 %" in text


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ((True, True), "measured step  "),
        ((False, True), "estimated and measured step  "),
        ((True, False), "measured and estimated step  "),
    ],
)
def test_a_diff_says_whether_steps_were_run(pair, told):
    steps = [changed(measured=one) for one in pair]
    data = diff(*steps)
    assert data["step_measured"] == list(pair)
    assert told in diff_text(data)


def test_of_a_diff_every_part_is_told_that_is_in_either():
    data = diff(MEASUREMENT, GROWN)
    assert data["headroom_bytes"] == [m.headroom_bytes for m in (MEASUREMENT, GROWN)]
    assert data["step_us"] == [43_200, 64_800]
    known = {tuple(c["key"]): c["bytes"] for c in data["categories"]}
    assert known == {
        ("forward", "layer/attn"): [4 * GIB, 6 * GIB],
        ("forward", "adapter/up"): [0, GIB],
        ("argument", "state.params"): [3 * GIB, 3 * GIB],
        ("argument", "state.opt_state"): [2 * GIB, 2 * GIB],
        ("recompute", "layer/mlp"): [GIB, GIB],
        ("backward", "layer/attn"): [512 * MIB, 0],
        ("output", "(unnamed)"): [256 * MIB, 0],
    }


def test_parts_of_no_bytes_are_left_out_where_nothing_changed():
    sizes = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes"), 0)
    few = changed(**sizes, temp_bytes=512 * MIB, host_bytes=0, step_us=0.0, buffers=())
    assert diff_text(diff(few, few)).endswith("\n\n" + SAME)


# ---- Two plans -----------------------------------------------------------------------

GRAPH = Graph((unit_of("u"), unit_of("v", 4)), "one", "")
PLAN = GRAPH.plan(
    {"u": (*(RECOMPUTE,) * 6, SAVE, SAVE), "v": SAVE},
    target="h100:1",
    budget_bytes=2048,
    compiled_bytes=2000,
)
OTHER = dataclasses.replace(
    GRAPH.plan({"u": RECOMPUTE(save=["a"])}, target="cpu:1", budget_bytes=4096),
    program="two",
    gradient_barrier=True,
    remat_pass_percent=90,
)

PLANS = """\
plan               before     after
──────────────────────────────────────
target             h100:1     cpu:1
budget             2.00 KiB   4.00 KiB
compiled           1.95 KiB
gradient barrier              yes
XLA's remat pass              90 %
fingerprint        one        two

unit   before                    after
──────────────────────────────────────────────────────────
u      6 x RECOMPUTE, 2 x SAVE   8 x RECOMPUTE(save=['a'])
v      4 x SAVE                  not in the plan

they are plans of different programs
"""

SAME_PLANS = """\
plan          before   after
────────────────────────────
fingerprint   one      one

every layer has the same action in both
"""


def test_of_two_plans_it_is_told_in_which_layers_they_differ():
    assert plans_text(diff_plans(PLAN, OTHER)) == PLANS
    part = dataclasses.replace(PLAN, units=PLAN.units[1:])
    rows = plans_text(diff_plans(part, PLAN)).splitlines()
    assert "u      not in the plan   6 x RECOMPUTE, 2 x SAVE" in rows
    assert not any(row.startswith("v ") for row in rows)


def test_of_equal_plans_what_is_not_known_is_left_out():
    bare = dataclasses.replace(PLAN, target="", budget_bytes=None, compiled_bytes=None)
    assert plans_text(diff_plans(bare, bare)) == SAME_PLANS


# ---- A search ------------------------------------------------------------------------


def taking(size, us, *notes):
    sizes = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes"), 0)
    return changed(**sizes, temp_bytes=size, step_us=us, notes=notes)


CHOSEN = GRAPH.plan(
    {"u": (*(RECOMPUTE,) * 6, SAVE, SAVE)},
    target="h100:8",
    budget_bytes=10 * GIB,
    compiled_bytes=9 * GIB,
)
ROWS = (
    Row(
        "8 x recompute all",
        GRAPH.plan({"u": RECOMPUTE}),
        taking(8 * GIB, 50e3),
        8 * GIB,
    ),
    Row("baseline", None, taking(16 * GIB, 30e3)),
    Row("6 x recompute all + 2 x save all", CHOSEN, taking(9 * GIB, 40e3), 8.5 * GIB),
)
FIT = Fit(
    loss=lambda: None,
    plan=CHOSEN,
    measurement=ROWS[2].measurement,
    rows=ROWS,
    layer_costs=(),
    bound_us=38e3,
    greedy_us=41e3,
    filled=True,
    num_compiles=12,
    most_compiles=20,
    left=("a", "b"),
    not_sent=GIB,
    dropped=(Dropped("u: 8 x x", "ValueError: no"),),
    skipped=(Skipped("peel", 3),),
)

SEARCH = """\
gpt on h100:8  within 10.0 GiB on each device

program                               bytes   predicted bytes      step   fits      status
──────────────────────────────────────────────────────────────────────────────────────────────────
baseline                           16.0 GiB                     30.0 ms   no
6 x recompute all + 2 x save all   9.00 GiB          8.50 GiB   40.0 ms   yes       chosen
8 x recompute all                  8.00 GiB          8.00 GiB   50.0 ms   yes
u: 8 x x                                                                  dropped   ValueError: no

- bytes are per device; steps are estimates; predicted: from per-layer costs, before the whole was
  compiled
- estimated from per-layer costs: a greedy assignment takes 41.0 ms, and none takes less than 38.0
  ms
- the chosen program is at most 5.3 % slower than any assignment of these actions to layers, as
  estimated from per-layer costs
- 1.00 GiB of the budget are left: no similar plan that uses them is faster, as compiled or as
  estimated
- 12 of 20 programs compiled or read from the cache
- the limit of compiles cut the search's pass 'peel' short, which needs at least 3 more: more effort
  goes on from there
- could not be compiled, so that their actions were dropped: 1 of the programs above
- 2 units with less than 0.5 % of all residual bytes were left unchanged
- the compiler leaves 1.00 GiB on the device of what the plan offloads to the host

u: 6 x RECOMPUTE, 2 x SAVE
"""

ALONE = """\
gpt on h100:8  within 10.0 GiB on each device

program       bytes   predicted bytes      step   fits   status
───────────────────────────────────────────────────────────────
baseline   16.0 GiB                     30.0 ms   no     chosen

- bytes are per device; steps are estimates; predicted: from per-layer costs, before the whole was
  compiled
- 1 programs compiled or read from the cache
"""


def but(**changes) -> str:
    return rr.render(dataclasses.replace(FIT, **changes))


def test_a_search_tells_the_fastest_first_and_why_it_ended():
    assert rr.render(FIT) == SEARCH


def test_what_there_is_nothing_to_say_about_is_not_said():
    bare = Fit(
        lambda: None,
        dataclasses.replace(CHOSEN, units=()),
        ROWS[1].measurement,
        ROWS[1:2],
        (),
        bound_us=0.0,
        greedy_us=None,
        filled=False,
        num_compiles=1,
    )
    assert rr.render(bare) == ALONE


@pytest.mark.parametrize(
    ("units", "budget", "is_told"),
    [((), 16 * GIB, True), ((), 16 * GIB - 1, False), (CHOSEN.units, 16 * GIB, False)],
)
def test_why_there_is_no_plan_is_told_where_the_baseline_fits(units, budget, is_told):
    plan = dataclasses.replace(CHOSEN, units=units, budget_bytes=budget)
    told = but(plan=plan, measurement=ROWS[1].measurement)
    assert ("the baseline fits and takes" in told) == is_told


WHY = (
    "nothing to gain: the baseline fits and takes",
    "of 2 plans that were compiled none that fits is faster",
    "so that no plan was tried",
)


@pytest.mark.parametrize(
    ("share", "number", "says"),
    [
        (1.0, 3, WHY[0]),
        (0.996, 3, WHY[0]),
        (0.99, 3, WHY[1]),
        (0.0, 3, WHY[1]),
        (0.0, 1, WHY[2]),
    ],
)
def test_nothing_is_to_be_gained_where_the_bound_says_so(share, number, says):
    baseline = ROWS[1]
    told = but(
        plan=dataclasses.replace(CHOSEN, units=(), budget_bytes=16 * GIB),
        measurement=baseline.measurement,
        bound_us=share * baseline.time_us,
        rows=(baseline, *ROWS[2:], *ROWS[2:])[:number],
    )
    text = " ".join(told.split())
    assert [one for one in WHY if one in text] == [says]


def test_a_barrier_alone_is_a_plan_of_which_the_same_is_told():
    baseline = ROWS[1]
    plan = dataclasses.replace(CHOSEN, units=(), gradient_barrier=True)
    told = but(
        plan=dataclasses.replace(plan, budget_bytes=16 * GIB),
        measurement=baseline.measurement,
        bound_us=baseline.time_us,
    )
    text = " ".join(told.split())
    held = "the program with a gradient barrier, which keeps all, fits and takes"
    assert f"nothing more to gain: {held}" in text
    assert "the baseline fits" not in text


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"filled": False}, False),
        # Next to nothing is left, or a share of no budget.
        ({"plan": dataclasses.replace(CHOSEN, budget_bytes=9 * GIB + 27 * MIB)}, False),
        ({"plan": dataclasses.replace(CHOSEN, budget_bytes=9 * GIB + 28 * MIB)}, True),
        ({"plan": dataclasses.replace(CHOSEN, budget_bytes=None)}, False),
        ({"plan": dataclasses.replace(CHOSEN, budget_bytes=8 * GIB)}, False),
    ],
)
def test_what_is_left_of_a_budget_is_told_from_three_thousandths_on(changes, is_told):
    assert ("of the budget are left" in but(**changes)) == is_told


@pytest.mark.parametrize(
    ("bound_us", "greedy_us", "greedy", "gap"),
    [(38e3, None, False, True), (0.0, 41e3, False, False), (0.5, 0.0, True, True)],
)
def test_bounds_are_told_where_they_are_known(bound_us, greedy_us, greedy, gap):
    text = but(bound_us=bound_us, greedy_us=greedy_us)
    assert ("a greedy assignment takes" in text) == greedy
    assert ("slower than any assignment" in text) == gap


@pytest.mark.parametrize(
    ("plan", "fits"),
    [
        (CHOSEN, ["no", "yes", "yes"]),
        (dataclasses.replace(CHOSEN, budget_bytes=9 * GIB), ["no", "yes", "yes"]),
        (dataclasses.replace(CHOSEN, budget_bytes=9 * GIB - 1), ["no", "no", "yes"]),
    ],
)
def test_programs_fit_up_to_the_byte(plan, fits):
    text = but(plan=plan)
    rows = text.splitlines()[4:7]
    assert [
        word for row in rows for word in row.split() if word in ("yes", "no")
    ] == fits
    assert ("no plan stays within" in text) == (fits[1] == "no")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gradient_barrier": True}, "an optimization barrier holds the gradients"),
        ({"puts_gradients_off": True}, "may put off gradients of unrolled layers"),
        (
            {"remat_pass_percent": 90},
            "with XLA's own remat pass on, with a limit of 90 %",
        ),
    ],
)
def test_what_the_program_needs_around_it_is_told(changes, sentence):
    assert sentence in but(plan=dataclasses.replace(CHOSEN, **changes))
    assert sentence not in but()


def test_what_was_measured_otherwise_is_counted():
    measured = taking(9 * GIB, 40e3, REMAT_PASS_OFF, "by hand")
    rows = (*ROWS[:2], dataclasses.replace(ROWS[2], measurement=measured))
    text = but(measurement=measured, rows=rows)
    assert "1 of 3 programs: by hand" in text
    assert "measured with XLA's own remat pass off: compile and run in" in text
    assert "remat pass off" not in but()
    assert "programs: " not in but()


POINTS = (
    Point("recompute all", "preset", GIB, 60e3),
    Point("4 x save", "searched", 2 * GIB, 50e3, 2 * GIB + 512 * MIB),
    Point("slow", "compiled", 2 * GIB, 70e3),
    Point("baseline", "baseline", 3 * GIB, 40e3),
)

FRONTIER = """\
gpt on h100:8  4.00 GiB usable on each device

program            bytes      step   kind                        on the frontier
────────────────────────────────────────────────────────────────────────────────
recompute all   1.00 GiB   60.0 ms   preset                      yes
4 x save        2.00 GiB   50.0 ms   searched, within 2.50 GiB   yes
slow            2.00 GiB   70.0 ms   compiled
baseline        3.00 GiB   40.0 ms   baseline                    yes

- bytes are per device; steps are estimates
- searched: the answer for every budget from its bytes up to the given ones
- on the frontier: no other program takes less memory and less time
- 7 programs compiled or read from the cache
"""


def test_a_frontier_says_what_is_on_it():
    found: Any = Frontier("gpt", "h100:8", 4 * GIB, POINTS, 7)
    assert rr.render(found) == FRONTIER


# ---- What a step could do without ----------------------------------------------------

WHAT_IF = WhatIf(
    residuals=(
        Residual("layer/attn", "softmax", 24, 4 * GIB, 3 * GIB),
        Residual("", "", 1, MIB, 0),
    ),
    donations=(
        Donation("state.params", "update/add", 2 * GIB),
        Donation("batch", "", 512 * MIB, scratch=True),
    ),
    checkpoints=(
        Checkpoint("layer/mlp", True, GIB, MIB),
        Checkpoint("layer/attn", False, 0, 2 * MIB),
        Checkpoint("layer/norm", True, 0, 0),
    ),
)

ON_ONE = """\
gpt on h100:8  (NVIDIA H100 80GB HBM3, 1 device)
11.2 GiB on each device  = argument 5.00 GiB + output 5.25 GiB - alias 5.00 GiB + temp 6.00 GiB
fits, 65.8 GiB to spare  of 77.0 GiB usable: device 79.0 GiB, reserve 2.00 GiB
43.2 ms a step  compute 39.0 ms (2.40 ms recompute)

"""

SECTION = """\
alive at the peak, by rule
category       bytes    share
─────────────────────────────
attention   4.50 GiB   40.0 %
rest        6.25 GiB   55.6 %
other            0 B    0.0 %
"""

IF = """\
if one residual were dropped
made by              count      bytes   falls by
────────────────────────────────────────────────
layer/attn/softmax      24   4.00 GiB   3.00 GiB
(unnamed)                1   1.00 MiB        0 B

- falls by: an upper bound, without what recomputing it needs and without fragmentation; only a
  compile is exact

if it were donated
argument       result like it   saves at most
─────────────────────────────────────────────
state.params   update/add            2.00 GiB
batch          (unnamed)             512 MiB*

- all 2 together save at most 2.50 GiB: write donate_argnums, or Problem(donate=...)
- *: perhaps less: the result's memory holds other values before it

checkpoints that free less than they could
region       computed again   kept all the same   kept beside
─────────────────────────────────────────────────────────────
layer/mlp               yes            1.00 GiB      1.00 MiB
layer/attn               NO                 0 B      2.00 MiB

- kept all the same: computed a second time although it is still there; kept beside: by a policy, as
  an input, or merged by the compiler
- checkpoints: 1 region frees all that is computed again

- time is an estimate from data-sheet rates
- a note to believe the figures
"""

NOTHING = """\
- no value of the forward pass is alive at the peak
- donating more arguments saves nothing: none of them is like a result, and XLA gives a donated
  argument's memory to nothing else
- nothing is checkpointed

- time is an estimate from data-sheet rates
- a note to believe the figures
"""


def test_a_report_of_one_device_says_what_could_change():
    quiet = dict.fromkeys(
        (
            "hidden_recompute_us",
            "collective_us",
            "exposed_collective_us",
            "transfer_us",
        ),
        0.0,
    )
    rules = (("attention", "attn"), ("rest", "."))
    m = changed(what_if=WHAT_IF, num_devices=1, host_bytes=0, rules=rules, **quiet)
    text = rr.render(m)
    assert text.startswith(ON_ONE)
    assert f"\n\n{SECTION}\n" in text
    assert text.endswith("\n\n" + IF)
    assert rr.render(changed(what_if=WhatIf())).endswith("\n\n" + NOTHING)


@pytest.mark.parametrize(
    ("checkpoints", "sentence"),
    [
        ((("a", True, 0, 9), ("b", True, 0, 0)), "- checkpoints: 2 regions free all"),
        ((("a", True, 0, 9), ("b", False, 0, 0)), "- checkpoints: 1 region frees all"),
        ((("a", True, 1, 9), ("b", False, 0, 0)), None),
    ],
)
def test_regions_that_free_all_are_counted(checkpoints, sentence):
    few = tuple(Checkpoint(*one) for one in checkpoints)
    text = rr.render(changed(what_if=WhatIf(checkpoints=few)))
    assert (
        (sentence or "- checkpoints: ") in text
        if sentence
        else "- checkpoints: " not in text
    )
    is_idle = any(not again or twice for _, again, twice, _ in checkpoints)
    assert ("checkpoints that free less" in text) == is_idle


def test_without_a_star_none_is_explained():
    donations = (Donation("a", "b", GIB),)
    text = rr.render(changed(what_if=WhatIf(donations=donations)))
    assert "perhaps less" not in text
    (_, donated, _) = what_if(WhatIf(donations=donations))
    assert donated.note == "All 1 together save at most 1.00 GiB."


def test_the_page_says_the_same():
    residual, donation, checkpoint = what_if(WHAT_IF)
    assert [part.key for part in what_if(WHAT_IF)] == [
        "residual",
        "donation",
        "checkpoint",
    ]
    assert residual.columns == (
        "if one residual were dropped",
        "count",
        "bytes",
        "falls by",
    )
    assert residual.texts == ("count",)
    assert residual.rows == (
        ("layer/attn/softmax", "24", 4 * GIB, 3 * GIB),
        ("(unnamed)", "1", MIB, 0),
    )
    assert donation.columns == ("if it were donated", "result like it", "saves at most")
    assert donation.texts == ("result like it",)
    assert donation.rows == (
        ("state.params", "update/add", 2 * GIB),
        ("batch", "(unnamed)*", 512 * MIB),
    )
    assert donation.note == (
        "All 2 together save at most 2.50 GiB. *: perhaps less: its memory holds other "
        "values before."
    )
    assert checkpoint.texts == ("computed again",)
    assert checkpoint.rows == (
        ("layer/mlp", "yes", GIB, MIB),
        ("layer/attn", "NO", 0, 2 * MIB),
    )
    assert (
        checkpoint.note
        == "1 of 3 checkpointed regions free all that is computed again."
    )
    assert what_if(None) == ()
    assert [part.note for part in what_if(WhatIf())] == [
        "No value of the forward pass is alive at the peak.",
        "Donating more arguments saves nothing: none of them is like a result.",
        "Nothing is checkpointed.",
    ]
    assert [part.rows for part in what_if(WhatIf())] == [(), (), ()]


@pytest.mark.parametrize(("number", "left_out"), [(12, 0), (13, 1), (20, 8)])
def test_of_many_the_page_shows_twelve_and_the_text_ten(number, left_out):
    many = WhatIf(
        residuals=tuple(Residual(f"q{k}", "", 1, 9, 9) for k in range(number))
    )
    (part, *_) = what_if(many)
    assert len(part.rows) == min(12, number)
    assert part.note.endswith(f" {left_out} smaller ones are left out.") == (
        left_out > 0
    )
    lines = rr.render(changed(what_if=many)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("q")] == [
        f"q{k}" for k in range(10)
    ]


# ---- Tables, however narrow ----------------------------------------------------------


def machine(spec, name="a card", environment=(), measured=False) -> Any:
    return SimpleNamespace(
        spec=spec,
        card=SimpleNamespace(name=name, measured=measured),
        memory_bytes=80 * GIB,
        reserve_bytes=2 * GIB,
        environment=dict(environment),
    )


TARGETS = """\
target   device     memory     reserve   set for a run   ready
──────────────────────────────────────────────────────────────
cpu:1    a card   80.0 GiB    2.00 GiB                   yes
h100:8   a card   80.0 GiB   2.00 GiB*   XLA_A=0.9 B=1   no
a100:8   a card   80.0 GiB    2.00 GiB                   no

- to use h100:8, a100:8: pip install x
- bytes are per device
- reserve: what the driver, the runtime and the workspaces of kernels take beside a program; *
  measured on such a device, the others are defaults
- set for a run: environment variables, so that a process gets what is usable
- ready: whether programs can be compiled for it here; no such device is needed
"""


def test_targets_say_what_a_run_needs_and_what_is_missing():
    needs = [("XLA_A", "0.9"), ("B", "1")]
    rows = [
        (machine("cpu:1"), ""),
        (machine("h100:8", environment=needs, measured=True), "pip install x"),
        (machine("a100:8"), "pip install x"),
    ]
    assert render_targets(rows) == TARGETS


@pytest.mark.parametrize("long", ["spec", "name", "environment", "all"])
def test_a_target_is_one_line_however_long_its_names_are(long):
    """Words are cut off and never broken."""
    words = " ".join(["word"] * 30)
    given: dict[str, Any] = {"spec": "h100:8", "name": "a card", "environment": ()}
    for key in [*given] if long == "all" else [long]:
        given[key] = [("K", words)] if key == "environment" else words
    lines = render_targets([(machine(**given), "")]).splitlines()
    assert len([*itertools.takewhile(bool, lines)]) == 3
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("width", [100, 80, 60, 44])
def test_a_buffer_is_one_line_however_narrow_the_terminal_is(width):
    words = " ".join(["word"] * 9)
    buffers = tuple(
        dataclasses.replace(b, scope=words, source=f"{words}.py:1", dtype="two words")
        for b in BUFFERS
    )
    text = rr.render(changed(buffers=buffers), width=width)
    table = text.partition("largest buffers\n")[2].splitlines()
    assert len([*itertools.takewhile(bool, table)]) == 2 + len(BUFFERS)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [100, 70, 50])
def test_a_measurement_of_several_is_one_line_by_its_figures(width):
    lines = rr.render([MEASUREMENT, MEASUREMENT], width=width).splitlines()
    assert len([line for line in lines if "11.2" in line]) == 2


@pytest.mark.parametrize(("more", "lines"), [(0, 1), (1, 2)])
def test_a_head_stands_beside_the_rest_where_both_have_room(more, lines):
    told = rr.render(changed()).splitlines()[0]
    program = "gpt" + "x" * (100 - len(told) + more)
    first, second, *_ = rr.render(changed(program=program)).splitlines()
    assert (len(first) == 100) == (lines == 1)
    assert second.startswith("  (NVIDIA") == (lines == 2)


PHASES_OF = """\
phase     module             bytes    share
───────────────────────────────────────────
forward   m0              1.00 GiB    8.9 %
          m1              1.00 GiB    8.9 %
          m2              1.00 GiB    8.9 %
          m3              1.00 GiB    8.9 %
          m4              1.00 GiB    8.9 %
          m5              1.00 GiB    8.8 %
          3 smaller       1.99 GiB   17.7 %
          fragmentation    512 MiB    4.4 %
"""


def test_of_a_phase_six_modules_are_shown_and_the_rest_as_one():
    sizes = [*(GIB - k * MIB for k in range(8)), 3 * MIB]
    names = [*(f"m{k}" for k in range(8)), "tiny"]
    buffers = tuple(
        Buffer(size, (), "int8", "forward", name)
        for size, name in zip(sizes, names, strict=True)
    )
    text = rr.render(changed(buffers=buffers))
    assert f"\n{PHASES_OF}\n" in text


def of_a_hundred(*sizes, fragmentation=0):
    """A step of 10,000 bytes, some of them held by modules `m0`, `m1`, ..."""
    buffers = tuple(
        Buffer(size, (), "int8", "forward", f"m{k}") for k, size in enumerate(sizes)
    )
    none = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes"), 0)
    about = {"temp_bytes": 10_000, "fragmentation_bytes": fragmentation}
    text = rr.render(changed(buffers=buffers, **none, **about))
    table = text.partition("alive at the peak\n")[2].partition("\n\n")[0]
    return [line.split() for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    ("sizes", "fragmentation", "rows"),
    [
        ((900, 100), 0, ["forward m0 900 B 9.0 %", "m1 100 B 1.0 %"]),
        ((900, 99), 0, ["forward m0 900 B 9.0 %", "1 smaller 99 B 1.0 %"]),
        ((900, 10), 0, ["forward m0 900 B 9.0 %", "1 smaller 10 B 0.1 %"]),
        ((900, 9), 0, ["forward m0 900 B 9.0 %"]),
        ((60, 50), 0, ["forward 2 smaller 110 B 1.1 %"]),
        ((900,), 10, ["forward m0 900 B 9.0 %", "fragmentation 10 B 0.1 %"]),
        ((900,), 9, ["forward m0 900 B 9.0 %"]),
    ],
)
def test_small_parts_are_one_row_and_the_smallest_none(sizes, fragmentation, rows):
    found = of_a_hundred(*sizes, fragmentation=fragmentation)
    assert found == [row.split() for row in rows]


def test_long_modules_are_folded_and_not_cut():
    buffer = Buffer(GIB, (), "int8", "forward", "m" * 100)
    lines = rr.render(changed(buffers=(buffer,))).splitlines()
    folded = [line.split() for line in lines if "mmm" in line and "…" not in line]
    assert [word.count("m") for row in folded for word in row if "mm" in word] == [
        *(48, 48, 4)
    ]


def test_a_step_of_a_byte_has_shares():
    none = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes"), 0)
    buffers = (Buffer(1, (), "int8", "forward", "m"),)
    about = {"temp_bytes": 1, "fragmentation_bytes": 0, "rules": (("all", "."),)}
    text = rr.render(changed(buffers=buffers, **none, **about))
    assert "forward   m          1 B   100.0 %" in text
    assert "all          1 B   100.0 %" in text


@pytest.mark.parametrize("name", ["[red]a[/red]", ":smile:", "[link=x]b[/link]"])
def test_names_in_tables_are_no_markup_and_figures_have_no_colour(name):
    text = rr.render([changed(target=name, device=name)] * 2, color=True)
    assert text.count(name) == 4
    # Only heads, titles and what does not fit are marked.
    assert "\x1b[1;36m" not in rr.render(MEASUREMENT, color=True)
    red = rr.render([changed(device_bytes=GIB), changed()], color=True)
    lines = [line for line in red.splitlines() if "NO" in line or "yes" in line]
    assert ["\x1b[31m" in line for line in lines] == [True, False]


@pytest.mark.parametrize(("number", "shown"), [(9, 9), (10, 10), (12, 10)])
def test_the_ten_largest_buffers_are_shown(number, shown):
    buffers = tuple(
        Buffer(GIB - k, (), "int8", "forward", f"b{k}") for k in range(number)
    )
    text = rr.render(changed(buffers=buffers))
    assert f"the {shown} largest buffers" in text
    table = text.partition("largest buffers")[2]
    assert [f"b{k}" for k in range(number) if f" b{k}\n" in table] == [
        f"b{k}" for k in range(shown)
    ]


@pytest.mark.parametrize(("cut", "most"), [(cut_name, 52), (None, 120)])
def test_long_paths_are_cut_from_the_left(cut, most):
    def shown(text):
        if cut is not None:
            return str(cut(text))
        return what_if(WhatIf(residuals=(Residual(text, "", 1, 1, 1),)))[0].rows[0][0]

    assert shown("x" * most) == "x" * most
    assert shown("y" + "x" * most) == "…" + "x" * (most - 1)
    assert shown("") == "(unnamed)"
