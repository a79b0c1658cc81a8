"""The drawing: to scale, time to the right and memory upwards."""

from xml.etree import ElementTree

import pytest

from revremat.allocation import Allocation, AllocationProblem, Buffer, draw
from revremat.allocation._sections import Section
from revremat.allocation._svg import format_bytes

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(*buffers, offsets, makespan, bound=None, title="packing"):
    problem = AllocationProblem(tuple(Buffer(*b) for b in buffers))
    section = Section(0, (), makespan if bound is None else bound)
    allocation = Allocation(offsets, makespan, section, True, "", 0.0)
    return ElementTree.fromstring(draw(problem, allocation, title))


def rectangles(tree):
    """Those of buffers: x, y, width, height and colour, by name."""
    found = {}
    for rect in tree.iter(f"{SPACE}rect"):
        title = rect.find(f"{SPACE}title")
        if title is not None:
            numbers = [float(rect.get(k)) for k in ("x", "y", "width", "height")]
            found[title.text.partition(":")[0]] = (*numbers, rect.get("fill"))
    return found


def test_rectangles_are_to_scale():
    tree = drawn(
        *(("a", 10, 30, 100), ("b", 20, 50, 50), ("c", 30, 50, 100)),
        offsets=(0, 100, 0),
        makespan=200,
    )
    found = {name: row[:4] for name, row in rectangles(tree).items()}
    # From 84 to 944 for times 10 to 50; from 500 up to 40 for 200 bytes.
    assert found == {
        "a": (84.0, 270.0, 430.0, 230.0),
        "b": (299.0, 155.0, 645.0, 115.0),
        "c": (514.0, 270.0, 430.0, 230.0),
    }


def test_one_group_has_one_colour_and_colours_come_round():
    rows = [(f"b{k}", k, k + 1, 8, 1, "g" if k < 2 else "") for k in range(10)]
    found = rectangles(drawn(*rows, offsets=(0,) * 10, makespan=8))
    colours = [found[f"b{k}"][4] for k in range(10)]
    assert colours[0] == colours[1]
    assert len({*colours[1:8]}) == 7
    assert colours[8] == colours[1]


def test_empty_buffers_are_not_drawn():
    tree = drawn(("a", 0, 1, 0), ("b", 0, 1, 8), offsets=(0, 0), makespan=8)
    assert list(rectangles(tree)) == ["b"]
    assert list(rectangles(drawn(offsets=(), makespan=0))) == []


def texts(tree):
    return [t.text for t in tree.iter(f"{SPACE}text")]


@pytest.mark.parametrize(
    ("size", "until", "labelled"),
    [
        (24, 1000, True),
        (23, 1000, False),  # 11 high for 1000 bytes on 460
        (1000, 35, True),
        (1000, 34, False),  # 30 wide for a name of a letter
    ],
)
def test_names_stand_where_there_is_room(size, until, labelled):
    tree = drawn(
        ("a", 0, until, size), ("r", 0, 1000, 1000), offsets=(0, 0), makespan=1000
    )
    assert ("a" in texts(tree)) == labelled


def test_long_names_need_more_room():
    rows = ("a" * 10, 0, 70, 1000), ("r", 0, 1000, 1000)
    assert "a" * 10 in texts(drawn(*rows, offsets=(0, 0), makespan=1000))
    rows = ("a" * 11, 0, 70, 1000), ("r", 0, 1000, 1000)
    assert "a" * 11 not in texts(drawn(*rows, offsets=(0, 0), makespan=1000))


def lines(tree):
    return [
        (float(line.get("y1")), line.get("stroke"))
        for line in tree.iter(f"{SPACE}line")
    ]


def test_lines_are_at_nothing_at_the_bound_and_at_the_top():
    far = drawn(("a", 0, 1, 200), offsets=(0,), makespan=200, bound=100)
    assert lines(far) == [(500.0, "#333"), (270.0, "#c00"), (40.0, "#333")]
    assert "100 % above" in texts(far)[0]
    near = drawn(("a", 0, 1, 200), offsets=(0,), makespan=200, bound=195)
    assert len(lines(near)) == 2  # a fortieth apart, labels would overlap
    nearer = drawn(("a", 0, 1, 200), offsets=(0,), makespan=200, bound=194)
    assert len(lines(nearer)) == 3


def test_what_it_says():
    tree = drawn(("<a>", 3, 5, 2048), offsets=(0,), makespan=2048, title="x & y")
    assert tree.find(f"{SPACE}title").text == "x & y"
    first, *_ = texts(tree)
    assert first == "x & y: 2.00 KiB, 0 % above the lower bound, 1 buffers"
    assert texts(tree)[-2:] == ["time 3", "time 5"]
    titles = [t.text for t in tree.iter(f"{SPACE}title")]
    assert "<a>: 2.00 KiB at 0, time 3 to 5" in titles


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20 - 1, "1024.00 KiB"),
        (2**20, "1.00 MiB"),
        (2**30, "1.00 GiB"),
        (5 * 2**40, "5.00 TiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_bytes_in_binary_units(count, text):
    assert format_bytes(count) == text
