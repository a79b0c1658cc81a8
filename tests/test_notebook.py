"""Nouns in notebooks: escaped, small, the text of a terminal."""

import dataclasses
import html

import pytest

import revremat as rr
from tests.measurements import BUFFERS, MEASUREMENT, changed
from tests.test_frontier import FRONTIER
from tests.test_saved import GRAPH, PLAN

NOUNS = {"measurement": MEASUREMENT, "plan": PLAN, "graph": GRAPH, "front": FRONTIER}


@pytest.mark.parametrize("name", NOUNS)
def test_a_noun_shows_what_a_terminal_shows(name):
    shown = NOUNS[name]._repr_html_()
    text = rr.render(NOUNS[name]).rstrip("\n")
    assert shown.startswith("<pre style=")
    assert shown.endswith(f"{html.escape(text)}</pre>")


def test_a_fit_shows_itself_too():
    assert rr.Fit._repr_html_ is rr.Plan._repr_html_


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", "a&b", 'x" onload="y'])
def test_nothing_in_a_name_becomes_html(evil):
    buffers = (dataclasses.replace(BUFFERS[0], scope=evil, source=evil), *BUFFERS[1:])
    for noun in (
        changed(program=evil, buffers=buffers),
        dataclasses.replace(PLAN, target=evil),
    ):
        shown = noun._repr_html_()
        assert html.escape(evil) in shown
        body = shown.removeprefix("<pre").partition(">")[2].removesuffix("</pre>")
        assert not set(body) & set("<>\"'")


def test_a_long_noun_is_cut():
    (unit,) = PLAN.units
    many = dataclasses.replace(
        PLAN, units=tuple(dataclasses.replace(unit, name=f"u{k}") for k in range(500))
    )
    shown = many._repr_html_()
    assert shown.count("\n") == 60
    assert "441 more lines: print(rr.render(...))</pre>" in shown
