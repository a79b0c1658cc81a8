"""Pages in a browser: they open, hover, click, sort, and show the right numbers."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import revremat as rr
from revremat import Buffer, Curve, Span
from revremat._format import format_bytes, format_us
from tests.browser import Browser, find_browser
from tests.measurements import BUFFERS, GIB, MEASUREMENT, changed
from tests.pages import large

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason="no Chromium on PATH: install one (Debian: apt-get install chromium)",
)
EVIL = "</script><script>document.title='broken'</script><b>&amp;"


@pytest.fixture(scope="module")
def browser():
    running = Browser.start(find_browser() or "")
    yield running
    running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Some measurements and the files of their pages."""
    folder = tmp_path_factory.mktemp("pages")
    nouns = {
        "small": MEASUREMENT,
        "large": large(),
        "several": [large(num_buffers=300), changed(target="a100:8")],
        "too large": large(device_bytes=10 * GIB),
    }
    return {
        name: (noun, rr.write(noun, folder / f"{name}.html"))
        for name, noun in nouns.items()
    }


@pytest.fixture
def tab(browser):
    """The browser; a page that complained or asked for anything fails the test."""
    yield browser
    assert browser.complaints == []
    assert [r for r in browser.requests if not r.startswith("file:")] == []
    assert len(browser.requests) <= 1


def box(tab, selector):
    """The middle of an element, scrolled into view, and its size."""
    found = tab.evaluate(
        f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.scrollIntoView({{block: "center", behavior: "instant"}});
          const b = element.getBoundingClientRect();
          return [b.x + b.width / 2, b.y + b.height / 2, b.width, b.height];
        }})()"""
    )
    tab.settle()
    return found


def texts(tab, selector):
    return tab.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter((e) => e.offsetParent !== null || e.ownerSVGElement)"
        ".map((e) => e.textContent)"
    )


def tip(tab):
    """The tooltip's heading and its rows; None while it is hidden."""
    return tab.evaluate(
        """(() => {
          const tip = document.getElementById("tip");
          if (tip.hidden) return null;
          const rows = [...tip.querySelectorAll("tr")].map((row) =>
            [row.cells[0].textContent, row.cells[1].textContent]);
          return [tip.firstChild.textContent, Object.fromEntries(rows)];
        })()"""
    )


def hover_curve(tab, share):
    """Points at the curve, so far through the schedule."""
    selector = '[data-part="curve"] svg'
    middle_x, middle_y, width, _ = box(tab, selector)
    left, right = tab.evaluate(
        """(() => {
          const box = document.querySelector('[data-part="curve"] .axis').getBBox();
          return [box.x, box.x + box.width];
        })()"""
    )
    x = middle_x - width / 2 + left + share * (right - left)
    tab.hover(x, middle_y)
    return x, middle_y


@pytest.mark.parametrize("name", ["small", "large", "several", "too large"])
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (800, True), (390, False)])
def test_a_page_opens_and_nothing_is_cut_or_overlaps(tab, pages, name, width, dark):
    tab.open(pages[name][1], width=width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # No two words of a chart share a place, and none leaves its chart.
    bad = tab.evaluate(
        """[...document.querySelectorAll(".chart svg")].flatMap((svg) => {
          const edge = svg.getBoundingClientRect();
          const words = [...svg.querySelectorAll("text")].map((e) =>
            [e.textContent, e.getBoundingClientRect()]);
          const out = words.filter(([, b]) => b.left < edge.left - 1
            || b.right > edge.right + 14 || b.top < edge.top - 2
            || b.bottom > edge.bottom + 2);
          const over = words.flatMap(([t, a], i) => words.slice(i + 1)
            .filter(([, b]) => a.left < b.right && b.left < a.right
              && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
            .map(([u]) => [t, u]));
          return [...out.map(([t]) => t), ...over];
        })"""
    )
    assert bad == []
    # What is written in a box of the treemap is in it whole.
    cut = tab.evaluate(
        """[...document.querySelectorAll(".cell > .name, .cell > .size, .title b")]
          .filter((e) => {
            const [a, b] = [e, e.closest(".cell, .tile")].map((x) =>
              x.getBoundingClientRect());
            return a.height > b.height + 1 || e.scrollWidth > Math.ceil(b.width);
          }).map((e) => e.textContent)"""
    )
    assert cut == []


def test_hovering_tells_the_bytes_of_each_category(tab, pages):
    noun, path = pages["large"]
    curve = noun.memory.curve
    tab.open(path)
    assert tip(tab) is None
    for share in (80.5 / 400, 280.5 / 400):
        hover_curve(tab, share)
        heading, rows = tip(tab)
        index = int(share * len(curve.positions))
        assert heading == curve.labels[index]
        columns = dict(curve.bytes)
        assert {name: rows[name] for name in columns} == {
            name: format_bytes(column[index]) for name, column in columns.items()
        }
        assert rows["in use"] == format_bytes(curve.totals_bytes[index])
        assert rows["fragmentation"] == format_bytes(curve.fragmentation_bytes[index])
    tab.hover(3, 3)
    assert tip(tab) is None


def test_arrow_keys_walk_through_the_curve(tab, pages):
    noun, path = pages["large"]
    curve = noun.memory.curve
    tab.open(path)
    box(tab, '[data-part="curve"]')
    tab.press("Tab")
    tab.evaluate("document.querySelector('[data-part=\"curve\"] svg').focus()")
    seen = []
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight"):
        tab.press(key)
        seen.append(tip(tab)[0])
    wanted = [curve.labels[curve.peak + step] for step in (-1, 0, 1)]
    assert seen == wanted
    tab.press("Home")
    assert tip(tab)[0] == curve.labels[0]


def test_dragging_looks_closer_and_a_button_goes_back(tab, pages):
    tab.open(pages["large"][1])
    before = texts(tab, '[data-part="curve"] text')
    x, y = hover_curve(tab, 0.2)
    tab.drag((x, y), (x + 150, y))
    closer = texts(tab, '[data-part="curve"] text')
    assert closer != before
    x, y, *_ = box(tab, '[data-part="curve"] .whole')
    tab.click(x, y)
    assert texts(tab, '[data-part="curve"] text') == before


def test_the_peak_and_the_limit_are_written(tab, pages):
    for name in ("small", "large", "too large"):
        noun, path = pages[name]
        tab.open(path)
        words = texts(tab, '[data-part="curve"] text')
        peak = format_bytes(max(noun.memory.curve.totals_bytes))
        assert any(word.startswith(f"peak: {peak}") for word in words)
        assert format_bytes(noun.usable_bytes) in words


def test_the_treemap_shows_all_phases_and_opens_by_a_click(tab, pages):
    noun, path = pages["small"]
    tab.open(path)
    tiles = lambda: tab.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.tile')].map((t) =>"
        "[t.dataset.name, Number(t.dataset.bytes)]))"
    )
    memory = noun.memory
    wanted = {phase: size for (phase,), size in memory.by("phase").items()}
    assert tiles() == wanted | {"fragmentation": memory.fragmentation_bytes}
    assert sum(tiles().values()) == memory.total_bytes
    x, y, _, height = box(tab, '.tile[data-name="argument"]')
    tab.hover(x, y - height / 2 + 8)
    assert tip(tab)[0] == "argument"
    assert tip(tab)[1]["bytes"] == format_bytes(5 * GIB)
    tab.click(x, y - height / 2 + 8)
    assert tiles() == {"state.params": 3 * GIB, "state.opt_state": 2 * GIB}
    assert texts(tab, ".trail b") == ["argument 5.00 GiB"]
    x, y, *_ = box(tab, ".trail button")
    tab.click(x, y)
    assert sum(tiles().values()) == memory.total_bytes


def test_the_treemap_is_used_by_keys_down_to_a_line_of_source(tab, pages):
    tab.open(pages["small"][1])
    tab.press("Tab")
    tab.evaluate("document.querySelector('.tile[data-name=\"forward\"]').focus()")
    for _ in range(3):
        tab.press("Enter")
    (leaf,) = texts(tab, ".trail b")
    assert leaf == "models/attention.py:37 4.00 GiB"
    assert texts(tab, ".tile .name") == ["bf16[24,1024,512] layer/attn/softmax/exp"]
    tab.press("Escape")
    assert texts(tab, ".trail b") == ["layer/attn 4.00 GiB"]


def test_areas_of_the_treemap_are_bytes(tab, pages):
    noun, path = pages["large"]
    tab.open(path)
    areas = tab.evaluate(
        "[...document.querySelectorAll('.tile')].map((t) => [Number(t.dataset.bytes),"
        "(t.offsetWidth + 2) * (t.offsetHeight + 2)])"
    )
    whole = tab.evaluate(
        "(() => { const t = document.querySelector('.treemap');"
        "return t.clientWidth * t.clientHeight; })()"
    )
    assert sum(area for _, area in areas) == pytest.approx(whole, rel=0.01)
    for size, area in areas:
        share = size / noun.memory.total_bytes
        assert area / whole == pytest.approx(share, rel=0.02, abs=1e-3)


def sizes(tab, rows="tr"):
    return [
        int(n)
        for n in tab.evaluate(
            f'[...document.querySelectorAll(\'[data-part="buffers"] {rows} > '
            "td[data-bytes]')].map((td) => td.dataset.bytes)"
        )
    ]


def press_button(tab, selector):
    x, y, *_ = box(tab, selector)
    tab.click(x, y)


def test_the_table_starts_with_groups_and_opens_to_buffers(tab, pages):
    noun, path = pages["small"]
    tab.open(path)
    # Host memory has rows of its own.
    assert sizes(tab) == [b.bytes for b in noun.memory.buffers]
    press_button(tab, "tr.group")
    (inside,) = texts(tab, "tr.inner")
    assert "bf16[24,1024,512]" in inside
    assert "models/attention.py:37" in inside


def test_the_table_lists_each_buffer_and_sorts(tab, pages):
    noun, path = pages["large"]
    tab.open(path)
    press_button(tab, '[data-group="each"]')
    press_button(tab, ".more")
    listed = sorted((b.bytes for b in noun.memory.buffers), reverse=True)
    assert sizes(tab) == listed
    press_button(tab, '[data-sort="bytes"]')
    assert sizes(tab) == listed[::-1]
    press_button(tab, '[data-sort="phase"]')
    phases = texts(tab, '[data-part="buffers"] tbody td.k')
    phases = [
        p for p in phases if p in ("argument", "forward", "recompute", "backward")
    ]
    assert len(phases) == len(listed)
    assert phases == sorted(phases)
    shown = texts(tab, '[data-part="buffers"] td[data-bytes]')
    assert shown == [format_bytes(size) for size in sizes(tab)]


def test_the_table_is_filtered(tab, pages):
    noun, path = pages["large"]
    tab.open(path)
    press_button(tab, '[data-group="each"]')
    press_button(tab, '[data-part="buffers"] input')
    tab.send("Input.insertText", text="recompute layer_7/ float32")
    tab.settle()
    wanted = [
        b.bytes
        for b in noun.memory.buffers
        if (b.phase, b.dtype) == ("recompute", "float32") and "layer_7/" in b.scope
    ]
    assert wanted
    assert sizes(tab) == wanted
    (found,) = texts(tab, ".found")
    total = format_bytes(sum(wanted))
    assert found == f"{len(wanted)} of 1,000 buffers, {total} on the device"


def test_the_timeline_tells_what_is_exposed_and_how_often_loops_run(tab, pages):
    tab.open(pages["small"][1])
    x, y, *_ = box(tab, '[data-span="2"]')
    tab.hover(x, y)
    heading, rows = tip(tab)
    assert heading == "psum"
    assert rows == {
        "starts at": "20.0 ms",
        "takes": "14.0 ms",
        "hidden": "9.80 ms",
        "exposed": "4.20 ms",
        "runs": "\u00d724",
    }
    spans = tab.evaluate(
        "[...document.querySelectorAll('[data-span], [data-exposed]')].map((r) =>"
        "Number(r.getAttribute('width')))"
    )
    scale = spans[0] / 30_000
    wanted = [scale * us for us in (30_000, 9_000, 14_000, 4_200)]
    assert spans == pytest.approx(wanted, abs=2)
    words = texts(tab, '[data-part="timeline"] text.strong')
    assert words == ["compute", "collectives"]


def test_spans_are_walked_by_keys(tab, pages):
    tab.open(pages["small"][1])
    tab.press("Tab")
    box(tab, '[data-part="timeline"]')
    tab.evaluate("document.querySelector('[data-part=\"timeline\"] svg').focus()")
    seen = []
    for key in ("Home", "ArrowRight", "ArrowRight"):
        tab.press(key)
        seen.append(tip(tab)[0])
    assert seen == ["layer/attn/dot_general", "psum", "layer/mlp/tanh"]


def test_several_measurements_have_charts_of_their_own(tab, pages):
    nouns, path = pages["several"]
    tab.open(path)
    assert texts(tab, "main > section:first-child td a") == ["h100:8", "a100:8"]
    for number, noun in enumerate(nouns, 1):
        words = texts(tab, f"#r{number} .trail b")
        assert words == [f"the peak {format_bytes(noun.memory.total_bytes)}"]


def test_names_are_only_ever_text(tab, tmp_path):
    buffers = tuple(
        Buffer(GIB, (n,), EVIL, "forward", EVIL, EVIL, EVIL) for n in (1, 2)
    )
    noun = changed(
        program=EVIL,
        buffers=buffers,
        curve=Curve((0, 1), ((EVIL, (GIB, GIB)),), labels=(EVIL, EVIL)),
        spans=(Span("compute", "forward", EVIL, EVIL, 0.0, 9_000.0),),
        notes=(EVIL,),
    )
    tab.open(rr.write(noun, tmp_path / "evil.html"))
    assert tab.evaluate("document.title") == f"{EVIL}: memory and time"
    hover_curve(tab, 0.5)
    assert tip(tab)[0] == EVIL
    x, y, *_ = box(tab, "[data-span]")
    tab.hover(x, y)
    assert tip(tab)[0] == f"{EVIL}/{EVIL}"
    press_button(tab, "tr.group")
    # Three scripts of our own, none of theirs.
    assert tab.evaluate("document.scripts.length") == 2
    assert tab.evaluate("document.querySelectorAll('main b > b').length") == 0


def test_odd_measurements_open(tab, tmp_path):
    tiny = Buffer(1, (), "", "output", "")
    odd = {
        "nothing": changed(buffers=(), curve=None, spans=()),
        "one byte": changed(
            argument_bytes=0,
            output_bytes=1,
            alias_bytes=0,
            temp_bytes=0,
            fragmentation_bytes=0,
            buffers=(tiny,),
            curve=Curve((0,), (("output", (1,)),)),
            spans=(Span("compute", "forward", "", "", 0.0, 0.0),),
            step_us=0.0,
        ),
        "host alone": changed(
            buffers=(BUFFERS[-1],), curve=Curve((0, 1), ()), fragmentation_bytes=0
        ),
    }
    for name, noun in odd.items():
        tab.open(rr.write(noun, tmp_path / f"{name}.html"))
        assert "NaN" not in tab.evaluate("document.querySelector('main').innerHTML")


def test_numbers_are_written_as_in_the_text_report(browser, pages):
    browser.open(pages["small"][1])

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.integers(-(2**50), 2**50), min_size=30, max_size=60),
        st.lists(st.floats(0, 1e9), min_size=30, max_size=60),
        st.lists(st.integers(0, 2**20), min_size=30, max_size=60),
    )
    def same(sizes, times, eighths):
        # Eighths of a unit are where rounding meets its ties.
        sizes = [*sizes, *(n * 2**27 for n in eighths)]
        times = [*times, *(n / 8 for n in eighths), *(n * 125 for n in eighths)]
        times += [9_994.9, 9_996.0, 99_950.0, 99_960.0, 999_600.0]  # one figure more
        sizes += [int(9.996 * 2**30), int(99.96 * 2**30)]
        assert browser.evaluate(f"{sizes}.map(formatBytes)") == [
            format_bytes(n) for n in sizes
        ]
        assert browser.evaluate(f"{times}.map(formatUs)") == [
            format_us(us) for us in times
        ]

    same()


def test_ticks_are_round_and_cover_the_axis(browser, pages):
    browser.open(pages["small"][1])
    for most in (1, 7, 900, 1023, 2**20, 1.3e9, 83 * GIB, 5e12):
        found = browser.evaluate(f"ticks(0, {most}, 6, BYTES)")
        values = [value for value, _ in found]
        assert values[0] == 0
        assert 2 <= len(values) <= 8
        assert most - values[-1] < values[1] - values[0]
        units = {label.split()[1] for _, label in found[1:]}
        assert len(units) == 1
        step = (values[1] - values[0]) / 1024 ** math.floor(math.log(most, 1024))
        assert str(float(f"{step:.3g}")).strip("0.")[0] in "125"


def test_a_printed_page_is_light_and_whole(tab, pages):
    tab.open(pages["large"][1], dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    tab.send("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert tab.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    ).startswith("#16")
    assert texts(tab, ".controls input") == []
    written = tab.send("Page.printToPDF", printBackground=True)["data"]
    assert len(written) > 10_000
