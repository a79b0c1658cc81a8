"""Pages: what is in the file, before any browser reads it."""

import dataclasses
import html
import json
import re

import pytest

import revremat as rr
from revremat import Buffer, Curve
from revremat._format import format_bytes
from revremat._measurement import Packing
from revremat._measurement._what_if import Checkpoint, Donation, Residual, WhatIf
from revremat._report.page._colours import tones
from revremat._report.page._embedded import array_text
from tests.measurements import BUFFERS, GIB, MEASUREMENT, changed
from tests.pages import large

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"

WHAT_IF = WhatIf(
    residuals=(
        Residual("layer*/mlp", "tanh", 24, 3 * GIB, 2 * GIB),
        Residual("layer*/attn", EVIL, 24, GIB, GIB),
    ),
    donations=(Donation("state.params", "update", GIB, scratch=True),),
    checkpoints=(
        Checkpoint("layer*/mlp", True, GIB, 0),
        Checkpoint("layer*/attn", True, 0, GIB),
    ),
)


def page(noun, tmp_path):
    return rr.write(noun, tmp_path / "m.html").read_text()


def data(text):
    """What the charts are drawn from, with texts instead of their numbers."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*)<', text)
    return json.loads(found)


def shown(text, name):
    return [int(n) for n in re.findall(rf'data-{name}="(-?\d+)"', text)]


@pytest.mark.parametrize(("measured", "told"), [(True, "measured"), (False, "estim")])
def test_a_page_says_whether_its_step_was_run(tmp_path, measured, told):
    assert f"a step, {told}" in page(changed(measured=measured), tmp_path)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ([], "the list is empty: a page needs a measurement"),
        (rr.Plan((), program=""), "made of measurements, and this is a Plan: write"),
        (rr.Frontier("a", "cpu:1", 9, (), 0), "the frontier has no program"),
    ],
    ids=["nothing", "plan", "empty frontier"],
)
def test_what_no_page_is_made_of_is_told_in_a_sentence(tmp_path, result, told):
    with pytest.raises(rr.UserError, match=told):
        rr.write(result, tmp_path / "m.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "noun",
    [
        pytest.param(MEASUREMENT, id="small"),
        pytest.param(large(), id="a thousand buffers"),
        pytest.param([MEASUREMENT] * 4, id="four"),
        pytest.param([large()] * 6, id="six large ones"),
        pytest.param(
            changed(
                buffers=tuple(
                    dataclasses.replace(BUFFERS[0], scope=f"{'encoder/' * 20}{n}")
                    for n in range(5000)
                )
            ),
            id="five thousand with long names",
        ),
    ],
)
def test_a_page_is_self_contained_and_small(noun, tmp_path):
    text = page(noun, tmp_path)
    assert len(text.encode()) < 400_000
    # Nothing is fetched: no addresses but those within the page.
    assert not re.search(r"https?:|@import|url\((?!#)|<link|<script\s+src", text)
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert all(link.startswith("#") for link in links)
    assert "default-src 'none'" in text


def test_a_page_has_the_numbers_of_the_json(tmp_path):
    text = page(MEASUREMENT, tmp_path)
    written = json.loads(MEASUREMENT.to_json())
    memory = written["memory"]
    assert shown(text, "total-bytes") == [memory["total_bytes"]]
    assert shown(text, "reserve-bytes") == [written["reserve_bytes"]]
    assert shown(text, "usable-bytes") == [MEASUREMENT.usable_bytes]
    assert shown(text, "headroom-bytes") == [MEASUREMENT.headroom_bytes]
    assert shown(text, "host-bytes") == [memory["host_bytes"]]
    # Phases and fragmentation add up to the total.
    assert sum(shown(text, "phase-bytes")) == memory["total_bytes"]
    assert sum(shown(text, "module-bytes")) == MEASUREMENT.memory.where().bytes
    for size in (memory["total_bytes"], written["reserve_bytes"]):
        assert format_bytes(size) in text
    assert "43.2 ms" in text
    assert written["notes"][0][1:] in text


def test_every_buffer_is_in_the_page(tmp_path):
    noun = large()
    found = data(page(noun, tmp_path))
    strings = found["strings"]
    (report,) = found["reports"]
    listed = [
        (size, strings[array], strings[phase], strings[scope], strings[op])
        for size, count, array, phase, _, scope, op, _, _ in report["buffers"]
        for _ in range(count)
    ]
    wanted = [
        (b.bytes, array_text(b), b.phase, b.scope, b.op) for b in noun.memory.buffers
    ]
    assert sorted(listed) == sorted(wanted)
    assert report["rest"] == []


def test_what_is_too_much_is_summed_by_module(tmp_path):
    noun = large(num_buffers=4000)
    (report,) = data(page(noun, tmp_path))["reports"]
    assert 1000 <= len(report["buffers"]) < 4000
    sums = [size * count for size, count, *_ in report["buffers"]]
    left = [size for size, *_ in report["rest"]]
    assert sum(sums) + sum(left) == noun.memory.where().bytes
    counts = [count for _, count, *_ in report["buffers"] + report["rest"]]
    assert sum(counts) == 4000


def test_the_curve_and_the_spans_are_in_the_page(tmp_path):
    noun = large()
    found = data(page(noun, tmp_path))
    (report,) = found["reports"]
    curve, spans = noun.memory.curve, noun.time.spans
    assert report["curve"]["positions"] == list(curve.positions)
    assert report["curve"]["series"] == [[n, list(c)] for n, c in curve.bytes]
    assert report["curve"]["fragmentation"] == list(curve.fragmentation_bytes)
    assert [found["strings"][i] for i in report["curve"]["labels"]] == list(
        curve.labels
    )
    assert len(report["spans"]) == len(spans)
    for row, span in zip(report["spans"], spans, strict=True):
        assert [found["strings"][i] for i in row[:4]] == [
            span.stream,
            span.phase,
            span.scope,
            span.op,
        ]
        exact = (span.start_us, span.duration_us, span.exposed_us)
        assert row[4:7] == pytest.approx(exact, rel=1e-5)
        assert row[7] == span.times


def test_a_thinner_curve_keeps_the_peak(tmp_path):
    noun = large()
    peak = max(noun.memory.curve.totals_bytes)
    for report in data(page([noun] * 10, tmp_path))["reports"]:
        series = [column for _, column in report["curve"]["series"]]
        assert len(report["curve"]["positions"]) < 400
        assert max(map(sum, zip(*series, strict=True))) == peak


def test_more_categories_than_colours_keep_their_sum(tmp_path):
    rules = tuple((f"rule {n}", (n, 3 * n)) for n in range(30))
    noun = changed(curve=Curve((0, 5), rules, labels=("a", "b")))
    found = data(page(noun, tmp_path))
    series = dict(found["reports"][0]["curve"]["series"])
    assert len(series) == 7
    assert "rule 29" in series
    assert [sum(column) for column in zip(*series.values(), strict=True)] == [435, 1305]


def test_categories_have_colours_of_their_own():
    names = ["kernels", "forward", "tables", "norms", "others"]
    found = tones(names)
    assert found["forward"] == "forward"
    assert found["others"] == "constant"
    assert len({found[name] for name in names}) == len(names)


def test_a_page_tells_of_another_packing_where_one_was_sought(tmp_path):
    packing = Packing(arena_bytes=6 * GIB, packed_bytes=5 * GIB, bound_bytes=4 * GIB)
    assert f'data-packed-bytes="{5 * GIB}"' in page(changed(packing=packing), tmp_path)
    assert "data-packed-bytes" not in page(MEASUREMENT, tmp_path)


def test_a_page_tells_bounds_of_the_time_where_they_are_known(tmp_path):
    text = page(changed(critical_path_us=38_100.0, compiler_us=51_200.0), tmp_path)
    rows = re.findall(r'<td class="k">([^<]*)<td class="n">([^<]*)<', text)
    assert rows[-2:] == [
        ("critical path", "38.1 ms"),
        ("XLA&#39;s own estimate", "51.2 ms"),
    ]
    assert "critical path" not in page(MEASUREMENT, tmp_path)


def test_a_page_of_several_targets_has_a_row_and_a_section_for_each(tmp_path):
    targets = ["h100:8", "a100:8", "h200:8"]
    text = page([changed(target=t) for t in targets], tmp_path)
    for number, target in enumerate(targets, 1):
        assert f'href="#r{number}"' in text
        assert f'id="r{number}"' in text
        assert target in text


def test_bars_of_several_targets_are_shares_of_the_longest_step(tmp_path):
    slower = dataclasses.replace(MEASUREMENT.time, step_us=MEASUREMENT.time.step_us * 4)
    both = [MEASUREMENT, dataclasses.replace(MEASUREMENT, time=slower)]
    widths = re.findall(
        r"width:([\d.]+)%;background:var\(--step\)", page(both, tmp_path)
    )
    assert widths[:2] == ["25.00", "100.00"]


def test_programs_are_named_where_there_are_several(tmp_path):
    names = ["gpt", "gpt_with_recompute"]
    text = page([changed(program=name) for name in names], tmp_path)
    assert re.findall(r'class="above"><td[^>]*>([^<]*)<', text) == names
    assert 'class="above"' not in page([MEASUREMENT, MEASUREMENT], tmp_path)


def test_names_cannot_break_a_page(tmp_path):
    bad = Buffer(GIB, (2,), EVIL, "forward", EVIL, EVIL, EVIL)
    curve = Curve((0, 1), ((EVIL, (1, 2)),), labels=(EVIL, EVIL))
    text = page(
        changed(program=EVIL, buffers=(bad,), notes=(EVIL,), curve=curve), tmp_path
    )
    assert "<script>alert" not in text
    assert "<img" not in text
    assert EVIL in html.unescape(text)
    assert EVIL in data(text)["strings"]


def test_a_page_shows_where_memory_ends(tmp_path):
    assert 'class="verdict yes"' in page(MEASUREMENT, tmp_path)
    text = page(changed(device_bytes=10 * GIB), tmp_path)
    assert 'class="verdict no"' in text
    assert "does not fit by 3.25 GiB" in text


def test_a_measurement_without_buffers_has_a_page(tmp_path):
    text = page(changed(buffers=(), curve=None, spans=()), tmp_path)
    assert "data-part" not in text.split("<main>")[1].split("<script")[0]
    assert format_bytes(MEASUREMENT.memory.total_bytes) in text


def test_a_page_of_tens_of_thousands_of_buffers_is_short(tmp_path):
    text = page(large(num_buffers=40_000), tmp_path)
    assert len(text.encode()) < 400_000


def test_a_page_says_what_would_fall_where_that_was_asked(tmp_path):
    assert "What would fall" not in page(MEASUREMENT, tmp_path)
    memory = dataclasses.replace(MEASUREMENT.memory, what_if=WHAT_IF)
    asked = dataclasses.replace(MEASUREMENT, memory=memory)
    text = page(asked, tmp_path)
    assert "What would fall" in text
    assert shown(text, "residual-bytes") == [3 * GIB, 2 * GIB, GIB, GIB]
    assert shown(text, "donation-bytes") == [GIB]
    assert shown(text, "checkpoint-bytes") == [GIB, 0]  # the one that frees is not told
    assert "1 of 2 checkpointed regions free all that is computed again." in text
    assert EVIL not in text


def test_what_would_fall_says_so_where_there_is_nothing(tmp_path):
    memory = dataclasses.replace(MEASUREMENT.memory, what_if=WhatIf())
    text = page(dataclasses.replace(MEASUREMENT, memory=memory), tmp_path)
    for sentence in (
        "No value of the forward pass is alive at the peak.",
        "Donating more arguments saves nothing",
        "Nothing is checkpointed.",
    ):
        assert sentence in text
    assert shown(text, "residual-bytes") == []


def test_a_long_list_of_what_would_fall_is_cut_and_says_so(tmp_path):
    many = tuple(Residual(f"block/{n}", "dot", 1, n, n) for n in range(40))
    memory = dataclasses.replace(MEASUREMENT.memory, what_if=WhatIf(many))
    text = page(dataclasses.replace(MEASUREMENT, memory=memory), tmp_path)
    assert len(shown(text, "residual-bytes")) == 2 * 12
    assert "28 smaller ones are left out." in text
