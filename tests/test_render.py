"""Reports as people read them in a terminal."""
# ruff: noqa: E501 - reports are 100 columns wide

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import revremat as rr
from revremat._report._targets import render_targets
from tests.measurements import BUFFERS, GIB, MEASUREMENT, changed

REPORT = """\
gpt on h100:8  (NVIDIA H100 80GB HBM3, 8 devices)
11.2 GiB on each device  = argument 5.00 GiB + output 5.25 GiB - alias 5.00 GiB + temp 6.00 GiB
128 MiB on its host  offloaded
fits, 65.8 GiB to spare  of 77.0 GiB usable: device 79.0 GiB, reserve 2.00 GiB
43.2 ms a step
  compute 39.0 ms (2.40 ms recompute, 900 us hidden), collectives 14.0 ms (4.20 ms exposed),
  transfers 800 us (0 us exposed)

alive at the peak
phase       module               bytes    share
───────────────────────────────────────────────
argument    state.params      3.00 GiB   26.7 %
            state.opt_state   2.00 GiB   17.8 %
forward     layer/attn        4.00 GiB   35.6 %
recompute   layer/mlp         1.00 GiB    8.9 %
backward    layer/attn         512 MiB    4.4 %
output      (unnamed)          256 MiB    2.2 %
            fragmentation      512 MiB    4.4 %

the 7 largest buffers
       bytes   array               phase       made by                        at
────────────────────────────────────────────────────────────────────────────────────────────────────
    4.00 GiB   bf16[24,1024,512]   forward     layer/attn/softmax/exp         models/attention.py:37
    3.00 GiB   f32[1024,768]       argument    state.params['mlp']['up']
    2.00 GiB   f32[1024,512]       argument    …pt_state[0].mu['mlp']['up']
    1.00 GiB   bf16[512,512]       recompute   layer/mlp/tanh                 m.py:9
     512 MiB   f32[512,256]        backward    layer/attn/dot_general
     256 MiB   f32[64]             output      tuple
128 MiB host   bf16[8]             forward     layer/attn/mul

- time is an estimate from data-sheet rates
- a note to believe the figures
"""

TABLE = """\
gpt  on 2 targets

target   device                  fits      bytes    reserve    headroom      step   exposed
───────────────────────────────────────────────────────────────────────────────────────────
h100:8   NVIDIA H100 80GB HBM3   yes    11.2 GiB   2.00 GiB    65.8 GiB   43.2 ms   4.20 ms
a100:8   NVIDIA A100-SXM4-80GB   NO     11.2 GiB   2.00 GiB   -12.2 GiB   43.2 ms   4.20 ms

- bytes are per device; headroom is what the step and the reserve leave of it
- exposed: how long of a step the device only waits, for others or its host
"""


def test_a_report():
    assert rr.render(MEASUREMENT) == REPORT


def test_a_table_of_targets():
    small = changed(target="a100:8", device="NVIDIA A100-SXM4-80GB", device_bytes=GIB)
    assert rr.render([MEASUREMENT, small]) == TABLE
    assert rr.render((MEASUREMENT, small)) == TABLE


def test_a_table_has_what_is_waited_for_hosts_too():
    waits = dataclasses.replace(MEASUREMENT.time, exposed_transfer_us=1e5)
    text = rr.render([dataclasses.replace(MEASUREMENT, time=waits)])
    assert waits.exposed_us == 1e5 + MEASUREMENT.time.exposed_collective_us
    assert " 104 ms" in text


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ([], "the list is empty: a table needs a measurement"),
        (
            [MEASUREMENT, rr.Plan((), program="")],
            "a table is made of measurements, and this is a Plan",
        ),
    ],
)
def test_a_table_is_of_measurements(result, told):
    with pytest.raises(rr.UserError, match=told):
        rr.render(result)


def test_what_does_not_fit_says_by_how_much():
    text = rr.render(changed(device_bytes=10 * GIB))
    assert "DOES NOT FIT by 3.25 GiB  of 8.00 GiB usable" in text


def test_measured_factors_are_called_so():
    assert "- time is an estimate from measured rates" in rr.render(
        changed(calibrated=True)
    )


def test_the_compilers_own_estimate_is_told_where_it_has_one():
    time = dataclasses.replace(MEASUREMENT.time, compiler_us=1500.0)
    text = rr.render(dataclasses.replace(MEASUREMENT, time=time))
    assert "without overlap: 1.5" in text
    assert "own cost model" not in rr.render(MEASUREMENT)


def test_a_measurement_without_buffers_has_no_tables():
    text = rr.render(changed(buffers=()))
    assert "alive at the peak" not in text
    assert "11.2 GiB on each device" in text


def test_paths_are_cut_on_the_left():
    long = dataclasses.replace(BUFFERS[0], scope="/".join(["encoder"] * 30))
    (row,) = (
        line
        for line in rr.render(changed(buffers=(long,))).splitlines()
        if "attention.py:37" in line
    )
    assert "…" in row
    assert "encoder/exp" in row


words = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=90
)
sizes = st.integers(0, 2**50)
buffers = st.builds(
    rr.Buffer,
    sizes,
    st.lists(st.integers(0, 2**40), max_size=7).map(tuple),
    st.sampled_from(["bfloat16", "float8_e4m3b11fnuz", "int32"]),
    st.sampled_from(["argument", "forward", "recompute", "output"]),
    words,
    words,
    words,
    st.sampled_from(["device", "host"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(buffers, max_size=5), words)
def test_reports_are_never_wider_than_100_columns(found, name):
    m = changed(buffers=tuple(found), program=name, target=name, notes=(name,))
    for noun in (m, [m, m]):
        assert max(map(cell_len, rr.render(noun).splitlines()), default=0) <= 100


def test_colours_change_no_letter():
    coloured = rr.render(MEASUREMENT, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == REPORT.split()


def test_brackets_are_not_taken_for_colours():
    red = dataclasses.replace(BUFFERS[1], scope="params['[red]']")
    m = changed(buffers=(red,), program="[bold]x[/bold]", notes=("[link]",))
    text = rr.render(m)
    assert "params['[red]']" in text
    assert "[bold]x[/bold] on h100:8" in text
    assert "- [link]" in text


def test_unknown_nouns_are_refused():
    with pytest.raises(rr.UserError, match="how to print a int"):
        rr.render(3)


def test_a_graph_and_a_plan_are_their_own_text():
    loss = lambda w, x: rr.stack(lambda w, x: jnp.sin(x @ w), w, x).sum()
    w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    graph = rr.trace(loss, w, jax.ShapeDtypeStruct((2, 8), jnp.float32))
    plan = graph.plan({"stack": rr.RECOMPUTE})
    assert "stack (scan, 4 layers" in rr.render(graph)
    assert "stack: 4 x RECOMPUTE" in rr.render(plan)


def test_what_has_no_json_is_refused(tmp_path):
    with pytest.raises(rr.UserError, match="a dict cannot be written as JSON"):
        rr.write({}, tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("several", [False, True])
def test_json_and_text_say_the_same(tmp_path, several):
    noun = [MEASUREMENT, changed(target="a100:8")] if several else MEASUREMENT
    data = json.loads(rr.write(noun, tmp_path / "m.json").read_text())
    found = [
        rr.Measurement.from_json(json.dumps(one))
        for one in (data if several else [data])
    ]
    assert (found if several else found[0]) == noun
    assert rr.write(noun, tmp_path / "m.txt").read_text() == rr.render(noun)


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(rr.UserError, match=r"write \*\.html, \*\.json or \*\.txt"):
        rr.write(MEASUREMENT, tmp_path / "m.pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_star_is_explained_where_a_reserve_has_one():
    plain = rr.target("h100:1")
    card = dataclasses.replace(plain.card, measured=True)
    note = lambda target: " ".join(render_targets([(target, "")]).split())
    starred = dataclasses.replace(plain, card=card)
    assert "* measured on such a device" in note(starred)
    plain = dataclasses.replace(
        plain, card=dataclasses.replace(plain.card, measured=False)
    )
    assert "beside a program; defaults, none measured on such a device" in note(plain)
