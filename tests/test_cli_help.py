"""`--help` as a newcomer reads it: names for what is asked, no types of Python's."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat._cli import _search, main
from revremat._search._result import Row
from tests.measurements import MEASUREMENT, changed

POSITIONALS = {
    "report": "PROGRAM",
    "search": "PROGRAM",
    "compare": "PROGRAM",
    "export": "PROGRAM PLAN",
    "diff": "BEFORE AFTER",
    "allocate": "FILE",
    "targets": "",
}


def shown(words, capsys):
    with pytest.raises(SystemExit) as ending:
        main(words)
    assert ending.value.code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("command", POSITIONALS)
def test_a_command_names_what_it_takes(command, capsys):
    text = shown([command, "--help"], capsys)
    usage = text.split("\n\n")[0]
    for name in POSITIONALS[command].split():
        assert name in usage
        assert re.search(rf"^\W*{name} ", text, re.MULTILINE)
    for word in ("STR", "PATH", "INT", "{None}", "default: None", "default: ''"):
        assert not re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", text), word


def test_the_first_page_lists_the_commands_and_says_how_to_begin(capsys):
    text = shown(["--help"], capsys)
    for command in POSITIONALS:
        assert f"• {command} " in text
    for word in ("revremat --version", "revremat report PROGRAM --target h100:8"):
        assert word in text


def test_without_a_word_it_says_how_to_begin(capsys):
    assert main([]) == 2
    text = capsys.readouterr().out
    assert "revremat report PROGRAM --target h100:8" in text
    assert text.count("usage: ") == 1


@pytest.mark.parametrize(
    ("fits", "name"),
    [(True, "searched, 75%: x"), (False, "searched, 75% (does not fit): x")],
)
def test_a_searched_row_says_whether_it_fits(fits, name):
    row = Row("x", None, MEASUREMENT)
    rows = [Row("y", None, changed(step_us=1.0)), row]
    plan = SimpleNamespace(fits=fits)
    found: Any = SimpleNamespace(rows=rows, measurement=MEASUREMENT, plan=plan)
    assert _search._searched(found, "75%") == Row(name, None, MEASUREMENT)


def test_a_comparison_says_what_its_figures_are(monkeypatch, capsys):
    target, problem = rr.target("h100:8"), SimpleNamespace(name="gpt")
    monkeypatch.setattr(_search, "_load", lambda *_: (target, problem))
    row = Row("dots", None, MEASUREMENT)
    monkeypatch.setattr(_search, "presets", lambda *_, **__: [row])
    assert main(["compare", "p.py:problem", "--target", "h100:8"]) == 0
    title, *_, table, _, figures, presets, _ = capsys.readouterr().out.splitlines()
    assert title == "gpt on h100:8"
    assert table.split() == ["dots", "11.2", "GiB", "43.2", "ms", "yes"]
    assert figures == "- bytes are per device; steps are estimates"
    assert presets.startswith("- dots, dots_no_batch: every layer saves what dots_")
