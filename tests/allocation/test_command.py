"""The command: files in, files out, and one sentence for every mistake."""

import csv
import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from revremat.allocation import AllocationProblem, Buffer, read_problem, validate
from revremat.allocation._command import AllocateOptions, run

DATA = Path(__file__).parent / "data"
EXAMPLE = "id,lower,upper,size\na,0,2,4\nb,1,3,8\nc,2,4,4\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="problem.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def refusal(capsys, *args, **options):
    """The one sentence that a refused request prints."""
    assert run(AllocateOptions(*args, **options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_rows_come_back_with_offsets(write, tmp_path, capsys):
    path, out = write(EXAMPLE), tmp_path / "out.csv"
    assert run(AllocateOptions(path, out=out)) == 0
    assert "12 bytes" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    offsets = [int(row["offset"]) for row in rows]
    assert validate(read_problem(path), offsets, 12) == 12
    # What was written can be read again; its offsets are replaced.
    assert run(AllocateOptions(out, out=out, capacity=12)) == 0
    assert list(csv.DictReader(out.read_text().splitlines())) == rows


def test_the_drawing_has_a_rectangle_for_each_buffer(write, tmp_path):
    svg = tmp_path / "packing.svg"
    path = write("id,lower,upper,size\n<&>,0,2,4\nb,1,3,8\n")
    assert run(AllocateOptions(path, svg=svg)) == 0
    tree = ElementTree.parse(svg)
    titles = [t.text or "" for t in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3  # the drawing's own besides
    assert any(title.startswith("<&>: 4 bytes at ") for title in titles)


def test_an_end_column_is_inclusive(write):
    upper = read_problem(write("id,lower,upper,size\na,0,2,4\n", "upper.csv"))
    end = read_problem(write("id,lower,end,size\na,0,1,4\n", "end.csv"))
    assert upper == end == AllocationProblem((Buffer("a", 0, 2, 4),))


def test_alignment_and_groups_are_columns(write):
    path = write("id,lower,upper,size,alignment,group\na,0,1,3,,g\nb,0,1,8,4,g\n")
    assert read_problem(path).buffers[1] == Buffer("b", 0, 1, 8, 4, "g")
    assert read_problem(path).buffers[0].alignment_bytes == 1


STREAMS = "id,lower,upper,size,stream\nx,0,1,4,main\ny,5,6,4,main\nz,0,1,4,copy\n"


def test_streams_share_nothing_unless_one_waits(write, capsys):
    path = write(STREAMS)
    assert run(AllocateOptions(path)) == 0
    assert "makespan     8 bytes" in capsys.readouterr().out
    waits = write(
        "stream,step,after_stream,after_step\ncopy,0,main,0\nmain,5,copy,0\n", "w.csv"
    )
    assert run(AllocateOptions(path, deps=waits)) == 0
    assert "makespan     4 bytes" in capsys.readouterr().out


def test_a_buffer_read_on_another_stream_is_kept_for_it(write, capsys):
    path = write(STREAMS)
    reads = write(
        "stream,step,after_stream,after_step,reads\ncopy,3,main,0,x\n", "r.csv"
    )
    assert run(AllocateOptions(path, deps=reads)) == 0
    # y may be written while the copy of x is still being read.
    assert "makespan     12 bytes" in capsys.readouterr().out


def test_one_stream_and_no_waits_are_intervals(write, capsys):
    path = write("id,lower,upper,size,stream\nx,0,1,4,a\ny,1,2,4,a\n")
    assert run(AllocateOptions(path)) == 0
    assert "makespan     4 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'id'"),
        ("id,lower,upper\na,0,1\n", "no column 'size'"),
        ("id,lower,upper,size,colour\n", "'colour' that is not known"),
        ("id,lower,upper,size,size\n", "'size' twice"),
        ("id,lower,upper,end,size\n", "both 'upper' and 'end'"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2.*-4 bytes"),
        ("id,lower,upper,size\na,0,1,1e3\n", "line 2.*'1e3' under 'size'"),
        ("id,lower,upper,size\na,0,1,\n", "'' under 'size'"),
        ("id,lower,upper,size\na,0,1,99999999999999999999\n", "below 2\\*\\*62"),
        (f"id,lower,upper,size\na,0,1,{'9' * 99}\n", "not a whole number"),
        (f"id,lower,upper,size\na,0,1,{2**61}\nb,0,1,{2**61}\n", "sum must stay"),
        ("id,lower,upper,size\na,0,1,4\na,0,1,4\n", "'a' appears twice"),
        ("id,lower,upper,size\na,1,1,4\n", "line 2.*ends at 1 but starts at 1"),
        ("id,lower,upper,size\na,2,1,4\n", "at least 3"),
        ("id,lower,upper,size\na,0,1\n", "3 cells under 4 columns"),
        ("id,lower,upper,size\na,0,1,4,5\n", "5 cells under 4 columns"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", "alignment of 0 bytes"),
        (
            "id,lower,upper,size,alignment,group\n"
            f"a,0,1,4,{2**61 - 1},g\nb,0,1,4,{2**31 - 1},g\n",
            "no common multiple",
        ),
        (b"\xff\xfe\x00id", "no UTF-8 text"),
        ("id,lower,upper,size\na\0,0,1,4\n", "zero bytes"),
        ('id,lower,upper,size\n"a"b,0,1,4\n', "line 2"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(write, capsys, text, message):
    assert re.search(message, refusal(capsys, write(text)))


def test_mistakes_in_the_request_are_one_sentence_each(write, tmp_path, capsys):
    path = write(EXAMPLE)
    assert "take 12 bytes" in refusal(capsys, path, capacity=11)
    assert "capacity of -1 bytes" in refusal(capsys, path, capacity=-1)
    assert "cannot be read" in refusal(capsys, tmp_path / "none.csv")
    assert "cannot be read" in refusal(capsys, tmp_path)
    assert "above zero" in refusal(capsys, path, seconds=0)
    circle = write(
        "stream,step,after_stream,after_step\nmain,0,copy,0\ncopy,0,main,0\n", "c.csv"
    )
    streams = write(STREAMS, "streams.csv")
    assert "for itself" in refusal(capsys, streams, deps=circle)
    unknown = write("stream,step,after_stream,after_step\nmain,0,gpu,0\n", "u.csv")
    assert "stream 'gpu'" in refusal(capsys, streams, deps=unknown)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(write, tmp_path, capsys):
    path = write(EXAMPLE)
    assert run(AllocateOptions(path, out=tmp_path / "no" / "out.csv")) == 2
    assert "cannot write" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["problem.csv"]


def test_mutated_files_never_crash(write, capsys):
    """Every mutation is packed or refused; nothing else comes out."""
    rng = random.Random(0)
    original = (DATA / "input.12.csv").read_text()
    pieces = ["-", "0", "9" * 30, ",", "\n", '"', "id", "b1", " ", "x", "\t", "é", "."]
    codes = set()
    for _ in range(400):
        text = original
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(pieces) + text[at + rng.randint(0, 6) :]
        code = run(AllocateOptions(write(text), seconds=0.2))
        err = capsys.readouterr().err
        assert code == 0 or (code == 2 and err.count("\n") == 1), text
        codes.add(code)
    assert codes == {0, 2}


def test_runs_as_a_program(write):
    def call(*args):
        command = [sys.executable, "-m", "revremat.allocation", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    path = write(EXAMPLE)
    done = call(path, "--capacity", "12")
    # A busy machine may be slow enough for a line of progress.
    said = [line for line in done.stderr.splitlines() if "needed" not in line]
    assert (done.returncode, said) == (0, [])
    assert "optimal" in done.stdout
    refused = call(path, "--capacity", "11")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
