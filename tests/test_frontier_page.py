"""The drawing of a frontier: where dots, ticks and names are."""

import pytest

from revremat._frontier import Frontier, Point
from revremat._report.page import _frontier
from revremat._report.page._frontier import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    _Axis,
    _labels,
    chart,
)


@pytest.mark.parametrize(
    ("low", "high", "base", "most", "found"),
    [
        (0, 100, 1000.0, 5, [0, 25, 50, 75, 100]),
        (10, 90, 1000.0, 4, [25, 50, 75]),
        (40, 60, 1000.0, 5, [40, 45, 50, 55, 60]),
        (1000, 9000, 1000.0, 5, [2000, 4000, 6000, 8000]),
        (0, 7 * 1024, 1024.0, 7, [k * 1024 for k in (0, 2, 4, 6)]),
        (0, 4 * 1024, 1024.0, 5, [k * 1024 for k in range(5)]),
        (0.0, 0.5, 1000.0, 5, [0, 0.2, 0.4]),
    ],
)
def test_ticks_are_round_and_within_the_axis(low, high, base, most, found):
    assert _Axis(low, high, base, 0, 100).ticks(most) == pytest.approx(found)


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0, 100, {0: 0.0, 106: 100.0, 53: 50.0}),
        (100, 200, {94: 0.0, 206: 100.0, 150: 50.0}),
        (50, 50, {45: 0.0, 55: 100.0}),  # a margin of a tenth where all are equal
        (0, 0, {0: 0.0, 1: 100.0}),
    ],
)
def test_an_axis_has_a_margin(low, high, places):
    axis = _Axis(low, high, 1000.0, 0, 100)
    assert {value: axis(value) for value in places} == places


def label(x, y):
    return {"x": x, "y": y, "label": "name"}


@pytest.mark.parametrize(
    ("dots", "found"),
    [
        ([(500, 100)], [(510, 91, "start")]),
        ([(WIDTH * 0.8, 100)], [(810, 91, "start")]),
        ([(801, 100)], [(791, 91, "end")]),
        ([(500, 100), (500, 200)], [(510, 91, "start"), (510, 191, "start")]),
        # At least 17 apart where they would lie on one another, in steps of 2.
        ([(500, 100), (500, 101)], [(510, 91, "start"), (510, 108, "start")]),
        ([(500, 100), (500, 117)], [(510, 91, "start"), (510, 108, "start")]),
        ([(500, 101), (500, 100)], [(510, 91, "start"), (510, 108, "start")]),
        ([(500, 100), (640, 100)], [(510, 91, "start"), (650, 91, "start")]),
        ([(500, 100), (639, 100)], [(510, 91, "start"), (649, 109, "start")]),
        ([(500, HEIGHT)], [(510, HEIGHT - 56, "start")]),
    ],
)
def test_names_stand_beside_their_dots(dots, found):
    placed = _labels([label(*dot) for dot in dots])
    assert [(one["x"], one["y"], one["anchor"]) for one in placed] == found
    assert {one["text"] for one in placed} == {"name"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("baseline", "n"), ("preset", "n"), ("searched", ""), ("compiled", "")],
)
def test_the_baseline_and_presets_carry_their_names(kind, name):
    point = _frontier.Point("n", kind, 2048, 1500.0, None)
    dot = _frontier._dot(point, 1.0, 2.0, True)
    assert (dot["label"], dot["title"]) == (name, "n: 2.00 KiB, 1.50 ms")
    assert dot["kind"] == kind.replace(" ", "-")


@pytest.mark.parametrize(
    ("usable", "is_drawn"),
    [(80, False), (140, True), (203, True), (300, True), (310, False)],
)
def test_the_memory_is_drawn_where_programs_are_near_it(usable, is_drawn):
    points = (Point("a", "baseline", 200, 9.0), Point("b", "preset", 205, 5.0))
    place = chart(Frontier("a", "h100:1", usable, points, 2))["usable"]
    assert (place is not None) == is_drawn
    assert place is None or LEFT <= place <= WIDTH - RIGHT
