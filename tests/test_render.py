"""Reports as people read them: text and pages."""
# ruff: noqa: E501 - reports are 100 columns wide

import dataclasses
import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import revremat as rr
from revremat._bytes import format_bytes
from revremat._measurement import Packing
from tests.measurements import BUFFERS, GIB, MEASUREMENT, changed

REPORT = """\
gpt on h100:8  (NVIDIA H100 80GB HBM3, 8 devices)
11.2 GiB on each device  = argument 5.00 GiB + output 5.25 GiB - alias 5.00 GiB + temp 6.00 GiB
128 MiB on its host  offloaded
fits, 65.8 GiB to spare  of 77.0 GiB usable: card 79.0 GiB, reserve 2.00 GiB
43.2 ms a step
  compute 39.0 ms (2.40 ms recompute, 900 us hidden), collectives 14.0 ms (4.20 ms exposed),
  transfers 800 us (0 us exposed)

alive at the peak
phase       module                  bytes    share
──────────────────────────────────────────────────
argument    state.params         3.00 GiB   26.7 %
            state.opt_state      2.00 GiB   17.8 %
forward     layer/attn           4.00 GiB   35.6 %
recompute   layer/mlp            1.00 GiB    8.9 %
backward    layer/attn            512 MiB    4.4 %
output      (unnamed)             256 MiB    2.2 %
            holes between them    512 MiB    4.4 %

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

- time is an estimate with data sheet factors
- a note to believe the figures
"""

TABLE = """\
gpt  on 2 targets

target   device                  fits      bytes    reserve    headroom      step   exposed
───────────────────────────────────────────────────────────────────────────────────────────
h100:8   NVIDIA H100 80GB HBM3   yes    11.2 GiB   2.00 GiB    65.8 GiB   43.2 ms   4.20 ms
a100:8   NVIDIA A100-SXM4-80GB   NO     11.2 GiB   2.00 GiB   -12.2 GiB   43.2 ms   4.20 ms

- bytes are per device; headroom is what the step and the reserve leave of it
- exposed: how long of an estimated step the device only waits for others
"""


def test_a_report():
    assert rr.render(MEASUREMENT) == REPORT


def test_a_table_of_targets():
    small = changed(target="a100:8", device="NVIDIA A100-SXM4-80GB", device_bytes=GIB)
    assert rr.render([MEASUREMENT, small]) == TABLE
    assert rr.render((MEASUREMENT, small)) == TABLE


def test_what_does_not_fit_says_by_how_much():
    text = rr.render(changed(device_bytes=10 * GIB))
    assert "DOES NOT FIT by 3.25 GiB  of 8.00 GiB usable" in text


def test_measured_factors_are_called_so():
    assert "- time is an estimate with measured factors" in rr.render(
        changed(calibrated=True)
    )


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


def page(noun, tmp_path):
    return rr.write(noun, tmp_path / "m.html").read_text()


def test_a_page_is_self_contained_and_small(tmp_path):
    buffer = dataclasses.replace(BUFFERS[0], scope="encoder/" * 20)
    many = changed(
        buffers=tuple(
            dataclasses.replace(buffer, scope=f"{buffer.scope}{n}") for n in range(5000)
        )
    )
    for noun in (MEASUREMENT, [MEASUREMENT] * 4, many):
        text = page(noun, tmp_path)
        assert len(text) < 400_000
        # Nothing is fetched: no addresses but those within the page.
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<script\s+src", text)
        links = re.findall(r'(?:href|src)="([^"]*)"', text)
        assert all(link.startswith("#") for link in links)


def test_a_page_has_the_numbers_of_the_json(tmp_path):
    text = page(MEASUREMENT, tmp_path)
    data = json.loads(MEASUREMENT.to_json())
    shown = lambda name: [int(n) for n in re.findall(rf'data-{name}="(-?\d+)"', text)]
    memory = data["memory"]
    assert shown("total-bytes") == [memory["total_bytes"]]
    assert shown("reserve-bytes") == [data["reserve_bytes"]]
    assert shown("headroom-bytes") == [MEASUREMENT.headroom_bytes]
    assert shown("host-bytes") == [memory["host_bytes"]]
    listed = sorted(b["bytes"] for b in memory["buffers"])
    assert sorted(shown("buffer-bytes")) == listed
    # Phases and holes add up to the total.
    assert sum(shown("phase-bytes")) == memory["total_bytes"]
    assert sum(shown("module-bytes")) == MEASUREMENT.memory.where().bytes
    for size in (memory["total_bytes"], data["reserve_bytes"], *listed):
        assert format_bytes(size) in text
    plain = html.unescape(text)
    for b in memory["buffers"]:
        assert b["scope"] in plain
        assert b["source"] in plain
    assert "43.2 ms" in text
    assert data["notes"][0][1:] in text


def test_a_page_tells_of_another_packing_where_one_was_sought(tmp_path):
    packing = Packing(arena_bytes=6 * GIB, packed_bytes=5 * GIB, bound_bytes=4 * GIB)
    assert f'data-packed-bytes="{5 * GIB}"' in page(changed(packing=packing), tmp_path)
    assert "data-packed-bytes" not in page(MEASUREMENT, tmp_path)


def test_a_page_of_several_targets_has_a_row_and_a_section_for_each(tmp_path):
    targets = ["h100:8", "a100:8", "h200:8"]
    text = page([changed(target=t) for t in targets], tmp_path)
    for number, target in enumerate(targets, 1):
        assert f'href="#r{number}"' in text
        assert f'id="r{number}"' in text
        assert target in text


def test_names_cannot_break_a_page(tmp_path):
    evil = "<script>alert('x')</script>"
    bad = dataclasses.replace(BUFFERS[0], scope=evil, source=evil, op=evil)
    text = page(changed(program=evil, buffers=(bad,), notes=(evil,)), tmp_path)
    assert evil not in text
    assert "&lt;script&gt;alert(" in text


def test_a_page_shows_where_memory_ends(tmp_path):
    assert 'class="verdict yes"' in page(MEASUREMENT, tmp_path)
    assert 'class="verdict no"' in page(changed(device_bytes=10 * GIB), tmp_path)
