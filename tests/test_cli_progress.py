"""What commands show while they work: lines where there is no terminal."""

import contextlib
import io
import re
import sys
import time
from types import SimpleNamespace

import pytest

import revremat as rr
from revremat._cli import _main, _pipes, _progress, main
from revremat._cli._progress import progress

PROGRAM = """
import time
import jax, jax.numpy as jnp
import revremat as rr

def problem(target):
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32)

    def loss(w, x):
        time.sleep(0.25)  # tracing takes long
        return jnp.sum(jnp.tanh(x @ w))

    w = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return rr.Problem(loss=loss, specs=(w, x), name="slow")
"""


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(_progress, "FIRST_LINE_SECONDS", 0.02)
    monkeypatch.setattr(_progress, "MOST_SECONDS", 0.1)


def test_what_is_done_soon_prints_nothing(capsys):
    with progress("title") as report:
        report("one", 0, 1)
    assert capsys.readouterr() == ("", "")


def test_lines_say_what_is_done_and_for_how_long(soon, capsys):
    with progress("search p on cpu:1") as report:
        time.sleep(0.05)
        report("12 x recompute all", 3, 17)
        time.sleep(0.15)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "revremat: search p on cpu:1: tracing, 0 s"
    assert lines[-1] == "revremat: search p on cpu:1: 3/17 12 x recompute all, 0 s"


def test_lines_become_rarer(soon, capsys):
    with progress("title"):
        time.sleep(0.5)
    # After 20, 60, 140 and 240 ms, and every 100 ms from there.
    assert 3 <= len(capsys.readouterr().err.splitlines()) <= 7


def test_nothing_is_printed_after_the_end_or_an_error(soon, capsys):
    with pytest.raises(RuntimeError), progress("title"):
        raise RuntimeError
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_closed_standard_error_is_no_fault(soon, monkeypatch):
    closed = io.StringIO()
    closed.close()
    with progress("title"):
        monkeypatch.setattr(sys, "stderr", closed)
        time.sleep(0.1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_bar_that_goes_in_the_end(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress("search [p] on cpu:1") as report:
        time.sleep(0.15)
        report("12 x [bold]all[/bold]\x07", 3, 12)
        time.sleep(0.25)
        report("tracing", 0, 0)
        time.sleep(0.15)
    told = screen.getvalue()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told).replace("\n", "\r").split("\r")
    shown = [line.rstrip() for line in lines if line.strip()]
    bar = "━" * 24
    assert any(line.endswith("search [p] on cpu:1") for line in shown)
    of_twelve = [line for line in shown if line.startswith("3/12")]
    assert of_twelve
    assert all(r"12 x [bold]all[/bold]\x07" in line for line in of_twelve)
    assert any(line[5:].strip()[:24].count("━") >= 6 for line in of_twelve)
    assert max(
        line.count("━") + line.count("╸") + line.count("╺") for line in shown
    ) == (len(bar))
    assert shown[-1].endswith("tracing")
    assert "0/0" not in told
    # What was drawn is taken away.
    assert told.rstrip().endswith("\x1b[2K")


def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch):
    """What it would have read is lost, and the command ends as it would have."""

    def gone(*_):
        raise BrokenPipeError

    def run(self):
        print("a long table")
        sys.stdout.flush()
        return 1

    duplicated, number = [], sys.stdout.fileno()
    closed = SimpleNamespace(write=gone, flush=gone, fileno=lambda: number)
    monkeypatch.setattr(_main.Targets, "run", run)
    monkeypatch.setattr(_pipes.os, "dup2", lambda *one: duplicated.append(one))
    with contextlib.redirect_stdout(closed):  # pyright: ignore
        assert main(["targets"]) == 1
        assert sys.stdout is closed
    assert {onto for _, onto in duplicated} == {number}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report slow.py:problem", r"report slow.py:problem on cpu:1: tracing and com"),
        ("search slow.py:problem --budget 1GiB", r"search slow.py:problem on cpu:1: "),
    ],
)
def test_commands_show_progress_while_they_trace(
    soon, tmp_path, monkeypatch, capsys, words, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(PROGRAM)
    main([*words.split(), "--target", "cpu:1"])
    out, err = capsys.readouterr()
    assert re.search(rf"^revremat: {said}", err, re.MULTILINE)
    assert "revremat: " not in out
    assert rr.UserError.__name__ not in err
