"""The command: files in, files out, and one sentence for every mistake."""

import csv
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from revremat._cli import main
from revremat.allocation import AllocationProblem, Buffer, read_problem, validate

DATA = Path(__file__).parent / "data"
EXAMPLE = "id,lower,upper,size\na,0,2,4\nb,1,3,8\nc,2,4,4\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="problem.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def allocate(path, **options):
    words = [word for k, v in options.items() for word in (f"--{k}", str(v))]
    return main(["allocate", str(path), *words])


def refusal(capsys, *args, **options):
    """The one sentence that a refused request prints."""
    assert allocate(*args, **options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_rows_come_back_with_offsets(write, tmp_path, capsys):
    path, out = write(EXAMPLE), tmp_path / "out.csv"
    assert allocate(path, out=out) == 0
    assert "12 bytes" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    offsets = [int(row["offset"]) for row in rows]
    assert validate(read_problem(path), offsets, 12) == 12
    # What was written can be read again; its offsets are replaced.
    assert allocate(out, out=out, capacity=12) == 0
    assert list(csv.DictReader(out.read_text().splitlines())) == rows


def test_the_drawing_has_a_rectangle_for_each_buffer(write, tmp_path):
    svg = tmp_path / "packing.svg"
    path = write("id,lower,upper,size\n<&>,0,2,4\nb,1,3,8\n")
    assert allocate(path, svg=svg) == 0
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
    assert allocate(path) == 0
    assert "memory        8 bytes" in capsys.readouterr().out
    waits = write(
        "stream,step,after_stream,after_step\ncopy,0,main,0\nmain,5,copy,0\n", "w.csv"
    )
    assert allocate(path, deps=waits) == 0
    assert "memory        4 bytes" in capsys.readouterr().out


def test_a_buffer_read_on_another_stream_is_kept_for_it(write, capsys):
    path = write(STREAMS)
    reads = write(
        "stream,step,after_stream,after_step,reads\ncopy,3,main,0,x\n", "r.csv"
    )
    assert allocate(path, deps=reads) == 0
    # y may be written while the copy of x is still being read.
    assert "memory        12 bytes" in capsys.readouterr().out


def test_one_stream_and_no_waits_are_intervals(write, capsys):
    path = write("id,lower,upper,size,stream\nx,0,1,4,a\ny,1,2,4,a\n")
    assert allocate(path) == 0
    assert "memory        4 bytes" in capsys.readouterr().out


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
    assert allocate(path, out=tmp_path / "no" / "out.csv") == 2
    assert "cannot write" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["problem.csv"]


def test_mutated_files_never_crash(write, capsys):
    """Every mutation is packed or refused; nothing else comes out."""
    rng = random.Random(0)
    original = (DATA / "input.12.csv").read_text()
    pieces = ["-", "0", "9" * 30, ",", "\n", '"', "id", "b1", " ", "x", "\t", "é", "."]
    codes = set()
    for _ in range(120):
        text = original
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(pieces) + text[at + rng.randint(0, 6) :]
        code = allocate(write(text), seconds=0.2)
        err = capsys.readouterr().err
        assert code == 0 or (code == 2 and err.count("\n") == 1), text
        codes.add(code)
    assert codes == {0, 2}
