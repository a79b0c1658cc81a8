"""What others wrote is printed as one harmless line, and errors are short sentences."""

import pytest
from rich.text import Text

import revremat as rr
from revremat import UserError
from revremat._cli._program import ProgramError
from revremat._printable import (
    masked,
    printable,
    printable_lines,
    sentence,
)
from revremat._report._text import new_table
from tests.measurements import MEASUREMENT, changed

NASTY = {
    "escape": ("a\x1b[31mb", r"a\x1b[31mb"),
    "bell": ("\x07", r"\x07"),
    "one byte escape": ("\x9b2J", r"\x9b2J"),
    "carriage return": ("good\rbad", r"good\rbad"),
    "line end": ("a\nb", r"a\nb"),
    "other line end": ("a\u2028b\x85", r"a\u2028b\x85"),
    "right to left": ("a\u202eb\u2066c\u200f", r"a\u202eb\u2066c\u200f"),
    "nothing to see": ("\u200b\ufeff\xad", r"\u200b\ufeff\xad"),
    "half a pair": ("\ud800", r"\ud800"),
    "zero": ("\x00\x7f", r"\x00\x7f"),
}


@pytest.mark.parametrize("case", NASTY)
def test_what_cannot_be_seen_is_written_as_an_escape(case):
    text, shown = NASTY[case]
    assert printable(text) == shown
    assert printable(shown) == shown
    assert len(masked(text)) == len(text)


@pytest.mark.parametrize("text", ["", "'plain'", "Größe 重い ✓ é", "wide\u3000\xa0"])
def test_what_can_be_seen_stays(text):
    assert printable(text) == printable_lines(text) == masked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "no unit is called {!r}; the units are: stack, head",
        "{}: cannot read a plan from it; search again, or write another path",
        "the answer is {!r}, and that (\x1b) is no number: write one such as 60GiB",
        "it has {}: write one of these",
    ],
)
@pytest.mark.parametrize(
    "foreign",
    ["x" * 10_000, "many words " * 900, "\x1b" * 5000, "it's 'so' " * 99],
)
def test_a_sentence_is_cut_where_others_wrote_it(text, foreign):
    error = UserError(text.format(foreign))
    assert len(str(error)) == 400
    assert str(error).isprintable()
    begin, _, end = text.rpartition("{" + ("!r}" if "!r" in text else "}"))
    assert str(error).startswith(begin)
    assert str(error).endswith(printable(end))


def test_short_sentences_stay_as_they_are():
    assert str(UserError("a 'b' c: write d")) == "a 'b' c: write d"
    assert sentence("x" * 400) == "x" * 400


@pytest.mark.parametrize(("size", "each"), [(48, False), (49, True)])
def test_of_words_only_long_ones_are_cut_by_themselves(size, each):
    text = " ".join(["x" * size] * 10)
    assert (sentence(text).count("…") > 1) == each
    assert len(sentence(text)) == 400


@pytest.mark.parametrize("size", [399, 400, 401, 402])
def test_a_middle_is_cut_out_to_the_character(size):
    text = "".join("ab, "[k % 4] for k in range(size))
    found = sentence(text)
    assert len(found) == min(size, 400)
    assert (found == text) == (size <= 400)
    if size > 400:
        assert found == f"{text[:200]}…{text[-199:]}"


def test_a_traceback_of_the_users_program_keeps_its_lines():
    error = ProgramError("it failed:\n" + "  a long line \x1b[2J\n" * 100)
    assert str(error).count("\n") == 101
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("name", ["a\x1b]0;owned\x07", "b\u202ecod.exe", "c\x9b31m"])
@pytest.mark.parametrize("color", [False, True])
def test_a_report_shows_names_without_control_characters(name, color):
    buffers = [
        b.__class__(**{**vars(b), "scope": name, "op": name, "source": name})
        for b in MEASUREMENT.memory.buffers
    ]
    m = changed(buffers=tuple(buffers))
    for shown in (
        m.__class__(**{**vars(m), "program": name, "target": name, "notes": (name,)}),
        [m, m.__class__(**{**vars(m), "target": name})],
    ):
        text = rr.render(shown, color=color)
        assert name not in text
        for sign in ("\x07", "\x9b", "\u202e", "\x1b]"):
            assert sign not in text


def test_brackets_in_names_are_no_markup():
    table = new_table("[bold]name[/]")
    table.add_row("[red]a[/red]")
    table.add_row(Text("[link=http://x]b[/link] :smile:"))
    text = rr.render(table, color=True)
    for shown in ("[bold]name[/]", "[red]a[/red]", "[link=http://x]b[/link] :smile:"):
        assert shown in text


def test_what_is_typed_comes_back_without_control_characters(capsys):
    from revremat._cli import main

    assert main(["diff", "a.json", "b.json", "c\x1b[2J\x07.json"]) == 2
    told = capsys.readouterr().err
    assert "\x07" not in told
    assert r"\x07" in told
    assert main(["report", "c\x1b[2J\x07.py:problem"]) == 2
    assert r"\x1b[2J\x07.py" in capsys.readouterr().err
