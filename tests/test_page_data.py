"""What the page's drawings and tables are made of, to the byte and the pixel."""

import dataclasses
from typing import Any

import pytest

from revremat import Buffer, Curve
from revremat._frontier import Frontier, Point
from revremat._report.page import _curve_legend, _modules, _report, _times
from revremat._report.page._colours import tones
from revremat._report.page._embedded import (
    _curve,
    _largest,
    _rest,
    _rows,
    _Strings,
    clipped,
    drawable,
    embedded,
)
from revremat._report.page._frontier import chart
from tests.measurements import BUFFERS, GIB, MEASUREMENT, MIB, changed

# ---- The drawing of a frontier -------------------------------------------------------

POINTS = (
    Point("recompute all", "preset", 1 * GIB, 60e3),
    Point("4 x save", "searched", 2 * GIB, 50e3),
    Point("slow", "compiled", 2 * GIB, 70e3),
    Point("baseline", "baseline", 3 * GIB, 40e3),
)


def drawn(usable=4 * GIB, points=POINTS) -> Any:
    return chart(Frontier("gpt", "h100:8", usable, points, 7))


def test_dots_are_drawn_where_their_bytes_and_times_are():
    """A margin of six of a hundred all around, and what is best on top."""
    found = drawn()
    places = {d["title"].split(":")[0]: (d["x"], d["y"]) for d in found["dots"]}
    at = lambda gib: round(84 + (gib - 0.82) / 3.36 * 892, 1)
    of = lambda ms: round(408 - (ms - 38.2) / 33.6 * 390, 1)
    assert places == {
        "recompute all": (at(1), of(60)),
        "4 x save": (at(2), of(50)),
        "slow": (at(2), of(70)),
        "baseline": (at(3), of(40)),
    }
    assert [d["best"] for d in found["dots"]] == [False, True, True, True]
    assert found["dots"][0]["title"].startswith("slow")
    x = [at(n) for n in (1, 2, 3)]
    y = [of(n) for n in (60, 50, 40)]
    steps = [(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[2], y[1]), (x[2], y[2])]
    steps.append((976.0, y[2]))
    assert found["line"] == " ".join(f"{a},{b}" for a, b in steps)
    assert [text for _, text in found["x_ticks"]] == [
        f"{n:.2f} GiB" for n in (1, 1.5, 2, 2.5, 3, 3.5, 4)
    ]
    assert found["x_ticks"][2][0] == at(2)
    assert [text for _, text in found["y_ticks"]] == [
        "40.0 ms",
        "50.0 ms",
        "60.0 ms",
        "70.0 ms",
    ]
    assert found["y_ticks"][0][0] == of(40)
    frame = [found[side] for side in ("left", "right", "top", "bottom")]
    assert frame == [84, 976, 18, 408]
    assert [row["point"].name for row in found["rows"]] == [
        "baseline",
        "slow",
        "4 x save",
        "recompute all",
    ]
    assert [row["best"] for row in found["rows"]] == [True, False, True, True]
    assert {label["text"] for label in found["labels"]} == {"baseline", "recompute all"}


@pytest.mark.parametrize(
    ("usable", "is_drawn"),
    [(2 * GIB, True), (4 * GIB, True), (9 * GIB // 2, True), (9 * GIB // 2 + 1, False)],
)
def test_what_is_usable_is_drawn_where_it_is_near(usable, is_drawn):
    """Up to half as much again as the largest program takes."""
    found = drawn(usable)
    assert (found["usable"] is not None) == is_drawn
    assert drawn(40 * GIB)["dots"] == drawn(3 * GIB)["dots"]


def test_one_point_has_a_drawing():
    found = drawn(100 * GIB, POINTS[:1])
    assert (found["dots"][0]["x"], found["dots"][0]["y"]) == (530.0, 213.0)
    assert found["line"] == "530.0,213.0 976.0,213.0"


# ---- Bars and tables -----------------------------------------------------------------


def test_bars_are_shares_of_the_device():
    """79 GiB; more where the step and the reserve are more."""
    found = _report(MEASUREMENT)
    sizes = {part["phase"]: part["bytes"] for part in found["parts"]}
    assert sizes == {
        "argument": 5 * GIB,
        "forward": 4 * GIB,  # what is on the host is not on the device
        "recompute": GIB,
        "backward": 512 * MIB,
        "output": 256 * MIB,
        "fragmentation": 512 * MIB,
    }
    used = sum(sizes.values())
    for part in found["parts"]:
        assert part["width"] == pytest.approx(100 * part["bytes"] / (79 * GIB))
    assert found["free"] == pytest.approx(100 * (77 - used / GIB) / 79)
    assert found["reserve"] == pytest.approx(100 * 2 / 79)
    assert found["end"] == 100
    assert found["num_buffers"] == len(BUFFERS)
    assert found["span_phases"] == ["forward", "recompute"]
    assert found["rate"] == pytest.approx(2.5e13 / 43_200 * 1e-6)
    small = _report(changed(device_bytes=8 * GIB))
    assert small["free"] == 0
    assert small["reserve"] == pytest.approx(100 * 2 / (2 + used / GIB))
    assert small["end"] == pytest.approx(100 * 8 / (2 + used / GIB))


def test_without_buffers_the_step_is_one_bar_and_without_time_no_rate():
    found = _report(changed(buffers=(), step_us=0.0))
    assert [part["phase"] for part in found["parts"]] == ["step", "fragmentation"]
    assert found["parts"][0]["bytes"] == MEASUREMENT.memory.total_bytes
    assert found["rate"] == 0.0


@pytest.mark.parametrize(("size", "shown"), [(10, False), (11, False), (12, True)])
def test_parts_that_nobody_could_see_are_not_shown(size, shown):
    buffers = (
        dataclasses.replace(BUFFERS[0], bytes=12_000 - size),
        dataclasses.replace(BUFFERS[3], bytes=size),
    )
    found = _report(changed(buffers=buffers, fragmentation_bytes=0))
    assert [part["shown"] for part in found["parts"]] == [True, shown]


@pytest.mark.parametrize(("number", "rest"), [(40, 0), (41, 1), (60, 20)])
def test_beyond_forty_modules_the_smaller_ones_are_one(number, rest):
    buffers = tuple(
        Buffer(1000 - k, (), "float32", "forward", f"m{k}") for k in range(number)
    )
    rows = _modules(changed(buffers=buffers))
    assert [row["scope"] for row in rows[:40]] == [f"m{k}" for k in range(40)]
    assert rows[0]["share"] == 100 * 1000 / MEASUREMENT.memory.total_bytes
    if rest:
        assert rows[40]["scope"] == f"{rest} smaller"
        assert rows[40]["phase"] == ""
        assert rows[40]["bytes"] == sum(1000 - k for k in range(40, number))
    assert len(rows) == 40 + bool(rest)


def test_of_each_stream_what_is_waited_for_is_solid():
    m = changed(
        exposed_transfer_us=200.0, critical_path_us=30_000.0, compiler_us=50_000.0
    )
    rows = {row["name"]: row for row in _times(m)}
    assert {name: row["us"] for name, row in rows.items()} == {
        "compute": 39_000,
        "of it recompute": 2_400,
        "collectives": 14_000,
        "host transfers": 800,
        "critical path": 30_000,
        "XLA's own estimate": 50_000,
    }
    widths = {name: (row["solid"], row["light"]) for name, row in rows.items()}
    assert widths == {
        "compute": pytest.approx((78, 0)),  # of the longest, which is XLA's
        "of it recompute": pytest.approx((3, 1.8)),
        "collectives": pytest.approx((8.4, 19.6)),
        "host transfers": pytest.approx((0.4, 1.2)),
        "critical path": pytest.approx((60, 0)),
        "XLA's own estimate": pytest.approx((100, 0)),
    }
    assert rows["of it recompute"]["note"] == "900 us hidden"
    assert rows["collectives"]["note"] == "4.20 ms exposed"
    assert rows["host transfers"]["note"] == "200 us exposed"
    few = [row["name"] for row in _times(changed(transfer_us=0.0, recompute_us=0.0))]
    assert few == ["compute", "collectives"]
    hidden = {r["name"]: r for r in _times(changed(hidden_recompute_us=0.0))}
    assert hidden["of it recompute"]["note"] == ""


def curve(*columns, fragmentation=(), labels=()):
    return Curve(
        positions=tuple(range(len(columns[0]))),
        bytes=tuple((f"c{k}", tuple(one)) for k, one in enumerate(columns)),
        fragmentation_bytes=tuple(fragmentation),
        labels=tuple(labels),
    )


@pytest.mark.parametrize(
    ("columns", "fragmentation", "parts", "is_told"),
    [
        (([0, 1000], [1, 0]), (), ["c0", "c1"], False),
        (([0, 2000], [1, 0]), (), ["c0"], False),
        (([0, 1000], [0, 0]), (0, 1), ["c0"], True),
        (([0, 3000], [0, 0]), (0, 1), ["c0"], False),
    ],
)
def test_a_legend_has_what_can_be_seen(columns, fragmentation, parts, is_told):
    """From a thousandth of the most that is alive."""
    found: Any = _curve_legend(
        changed(curve=curve(*columns, fragmentation=fragmentation))
    )
    assert (found["parts"], found["fragmentation"]) == (parts, is_told)


@pytest.mark.parametrize(
    "none", [None, Curve((), (), (), ()), curve([0, 0], [0, 0])], ids=["", "0", "zeros"]
)
def test_without_a_curve_there_is_no_legend(none):
    assert _curve_legend(changed(curve=none)) is None
    assert none is None or not drawable(none)


# ---- What is embedded ----------------------------------------------------------------


def test_equal_buffers_are_one_row_and_what_is_too_much_goes_by_module():
    buffers = [
        Buffer(
            1000 - k // 2, (2, 3), "bfloat16", "forward", f"a/{k // 2}", "op", "x.py:1"
        )
        for k in range(50)
    ]
    buffers.append(dataclasses.replace(BUFFERS[-1], bytes=3))
    strings = _Strings()
    rows, rest = _rows(buffers, strings, share=100)
    assert len(rows) == 20
    assert rows[0][:2] == [1000, 2]
    texts = [*strings.index]
    assert [texts[n] for n in rows[1][2:8]] == [
        "bf16[2,3]",
        "forward",
        "a/1",
        "a/1",
        "op",
        "x.py:1",
    ]
    assert rows[1][8] == 0
    left = [(size, n, texts[p], texts[m], host) for size, n, p, m, host in rest]
    assert left[0] == (2 * (1000 - 20), 2, "forward", "a/20", 0)
    assert left[-1] == (3, 1, "forward", "layer/attn", 1)
    assert sum(row[0] * row[1] for row in rows) + sum(one[0] for one in left) == sum(
        b.bytes for b in buffers
    )


def test_long_texts_leave_no_room_for_more_rows():
    buffers = [
        Buffer(9, (), "float32", "forward", "s", "", f"{k:0199}") for k in range(30)
    ]
    rows, rest = _rows(buffers, _Strings(), share=100)
    # 2000 characters of text, passed with the eleventh.
    assert (len(rows), [one[1] for one in rest]) == (10, [20])


@pytest.mark.parametrize(
    ("first", "rows"),
    [(187, 1001), (188, 1000)],  # 200,000 characters after a thousand, and one more
)
def test_a_page_holds_so_many_characters(first, rows):
    buffers = [
        Buffer(9, (), "float32", "forward", "s", "", f"{k:0{200 if k else first}}")
        for k in range(1002)
    ]
    assert len(_rows(buffers, _Strings(), share=1)[0]) == rows


@pytest.mark.parametrize(("number", "shown"), [(1500, 1500), (1501, 1500)])
def test_a_page_holds_so_many_rows(number, shown):
    buffers = [Buffer(9 + k, (), "float32", "forward", "s") for k in range(number)]
    rows, rest = _rows(buffers, _Strings(), share=1)
    assert (len(rows), len(rest)) == (shown, number > shown)


@pytest.mark.parametrize(("number", "others"), [(60, 0), (61, 1), (70, 10)])
def test_what_is_left_is_told_of_sixty_modules(number, others):
    left = [(Buffer(5, (), "f", "forward", f"m{k}"), 2) for k in range(number)]
    strings = _Strings()
    found = _rest(left, strings, [])
    texts = [*strings.index]
    names = [texts[row[3]] for row in found]
    assert names[:60] == [f"m{k}" for k in range(60)]
    assert names[60:] == ["(other modules)"] * bool(others)
    assert found[0][:2] == [10, 2]
    if others:
        assert found[60][:2] == [10 * others, 2 * others]


@pytest.mark.parametrize(
    ("count", "share", "positions"),
    [
        (1200, 1, 1200),
        (1201, 1, 601),
        (100, 24, 100 // 2),
        (50, 24, 50),
        (100, 1000, 50),
        (101, 1000, 34),
    ],
)
def test_a_curve_has_fewer_positions_where_many_share_a_page(count, share, positions):
    found = _curve(curve(range(1, count + 1)), _Strings(), share)
    assert len(found["positions"]) == positions
    # The one that stands for its neighbours has most in use.
    assert found["positions"][-1] == count - 1
    assert found["series"][0][1][-1] == count


def test_what_stands_for_a_stretch_has_most_in_use():
    strings = _Strings()
    column = [5, 9, 2, 1] * 25
    labels = [f"at {k}" for k in range(100)]
    found = _curve(
        curve(column, [0] * 100, fragmentation=range(100), labels=labels), strings, 1000
    )
    assert found["positions"] == [1 + 4 * (k // 2) + k % 2 for k in range(50)]
    assert found["series"] == [["c0", [9, 2] * 25]]
    assert found["fragmentation"] == found["positions"]
    texts = [*strings.index]
    assert [texts[n] for n in found["labels"]] == [
        f"at {k}" for k in found["positions"]
    ]
    bare = _curve(curve(column), _Strings(), 1000)
    assert (bare["fragmentation"], set(bare["labels"])) == ([], {0})


def test_small_categories_are_drawn_as_one():
    """Six have a colour each, and what is left has another."""
    seven = [(f"n{k}", [k, 7 - k]) for k in range(7)]
    assert _largest(seven) == seven
    eight = [*seven, ("n7", [1, 1])]
    kept = _largest(eight)
    assert [name for name, _ in kept] == ["n0", "n1", "n2", "n3", "n5", "n6", "others"]
    assert len(set(map(tones(name for name, _ in kept).get, dict(kept)))) == 7
    for k in range(2):
        assert sum(c[k] for _, c in kept) == sum(c[k] for _, c in eight)
    phases = [(name, [1]) for name in ("forward", "backward", "argument") * 4]
    assert _largest(phases) == phases


def test_users_categories_take_colours_of_phases_that_are_not_there():
    found = tones(["a", "forward", "b", "a", "others"])
    assert (found["a"], found["b"]) == ("argument", "recompute")
    assert (found["forward"], found["others"]) == ("forward", "constant")
    many = tones([f"k{k}" for k in range(7)])
    assert [many[f"k{k}"] for k in (0, 5, 6)] == ["argument", "output", "argument"]
    assert tones([])["fragmentation"] == "fragmentation"


@pytest.mark.parametrize(("size", "shown"), [(200, 200), (201, 200), (1000, 200)])
def test_long_names_lose_their_middle(size, shown):
    text = "".join(chr(0x100 + k % 500) for k in range(size))
    found = clipped(text)
    assert len(found) == shown
    assert found[:60] == text[:60]
    assert found[-139:] == text[-139:]
    assert ("…" in found) == (size > shown)


def test_texts_are_kept_once():
    strings = _Strings()
    assert [strings(text) for text in ("a", "bc", "a", "bc")] == [0, 1, 0, 1]
    assert (strings.size, [*strings.index]) == (3, ["a", "bc"])


def test_names_cannot_end_the_script():
    m = changed(buffers=(dataclasses.replace(BUFFERS[0], scope="</script>"),))
    assert "<" not in embedded([m])
    assert "\\u003c/script>" in embedded([m])
