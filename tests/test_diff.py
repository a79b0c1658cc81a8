"""What grew between two reports adds up, in text and in JSON."""

import dataclasses
import json

import pytest

import revremat as rr
from revremat import Memory
from revremat._cli import main
from revremat._report._diff import diff
from tests.measurements import BUFFERS, GIB, MEASUREMENT, changed

GROWN = changed(
    temp_bytes=8 * GIB,
    buffers=(dataclasses.replace(BUFFERS[0], bytes=6 * GIB), *BUFFERS[1:]),
    step_us=2 * MEASUREMENT.time.step_us,
)


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "before.json", tmp_path / "after.json"
    for path, m in zip(paths, (MEASUREMENT, GROWN), strict=True):
        path.write_text(m.to_json())
    return [str(p) for p in paths]


@pytest.mark.parametrize("by", [("phase",), ("phase", "scope"), ("source",)])
def test_categories_add_up_to_what_is_alive(by):
    data = diff(MEASUREMENT, GROWN, by=by)
    for side, m in enumerate((MEASUREMENT, GROWN)):
        listed = sum(row["bytes"][side] for row in data["categories"])
        assert listed == m.memory.where().bytes
    first = data["categories"][0]["bytes"]
    assert first[1] - first[0] == 2 * GIB
    assert data["bytes"]["temp"] == [6 * GIB, 8 * GIB]


def test_rules_are_categories_and_the_first_that_is_found_counts():
    memory: Memory = MEASUREMENT.memory
    rules = {"attention": "attn", "weights": r"^argument/.*params", "layers": "layer"}
    sums = memory.by_rule(rules)
    assert sums["attention"] == memory.where(scope="layer/attn*").bytes
    assert sums["weights"] == 3 * GIB
    assert sums["layers"] == memory.where(scope="layer/mlp").bytes
    assert sum(sums.values()) == memory.where().bytes


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"bad": "("}, r"the rule of 'bad', '\(', is no regular expression"),
        ({"scan": 1}, "the rule of 'scan', 1, is no regular expression"),
        ("attn", "rules='attn' is no table"),
        (["attn"], r"rules=\['attn'\] is no table"),
    ],
)
def test_rules_that_are_none_are_refused_before_anything_is_compiled(rules, says):
    memory: Memory = MEASUREMENT.memory
    with pytest.raises(rr.UserError, match=says):
        memory.by_rule(rules)
    compiled: list[int] = []
    with pytest.raises(rr.UserError, match=says):
        rr.measure(lambda: compiled.append(1), target="cpu:1", rules=rules)
    assert not compiled
    with pytest.raises(rr.UserError, match=says):
        rr.read(__file__, target="cpu:1", rules=rules)


def test_the_command_tells_what_grew(files, tmp_path, capsys):
    out = tmp_path / "diff.json"
    assert main(["diff", *files, "--rule", "attention=attn", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "attention" in text
    assert "+2.00 GiB" in text
    assert "+100.0 %" in text
    data = json.loads(out.read_text())
    assert data["schema"] == 1
    assert data["categories"][0]["key"] == ["attention"]


def test_equal_reports_say_so(files, capsys):
    assert main(["diff", files[0], files[0]]) == 0
    assert "nothing alive at the peak has changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rule", "attn"], "write --rule category=expression"),
        (["--rule", "a=("], "is no regular expression"),
        (["--by", "colour"], "write one of phase"),
        (["--by", "phase", "--rule", "a=b"], "write one of them"),
    ],
)
def test_mistakes_are_one_sentence(files, capsys, words, sentence):
    assert main(["diff", *files, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_files_that_are_no_report(files, tmp_path, capsys):
    for name, text in (("a", "[]"), ("b", "{}"), ("c", "x"), ("d", "7")):
        path = tmp_path / name
        path.write_text(text)
        assert main(["diff", files[0], str(path)]) == 2
    assert main(["diff", files[0], "nowhere.json"]) == 2
    assert capsys.readouterr().err.count("\n") == 5
