"""What each pass gains: searches that leave one out, and the table of them."""

import pytest

from experiments.bench import passes
from revremat import _search
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, TapeOracle, budgets_of, state_of


@pytest.fixture(scope="module")
def start():
    """A search that knows nothing, of layers that are on tape or made up."""
    case, tape = CASES["repeats-cpu"], Tape.load("repeats-cpu")
    oracle = TapeOracle(tape, Model(tape.graph, on_host=False))
    ask = _search.Asking(passes.Remembering(oracle))
    return state_of(case, tape).within(budgets_of(case, tape)[1]), ask


@pytest.fixture(scope="module")
def known(start):
    return passes.states(*start)


def test_a_search_by_all_passes_finds_what_any_search_finds(start, known):
    state = _search.decide(*start)
    assert passes.Found.of(known[-1]) == passes.Found.of(state)
    assert known[-1].trials.keys() == state.trials.keys()


@pytest.mark.parametrize("name", ["candidates", "runners up", "bound", "peel"])
def test_a_search_without_a_pass_is_the_one_that_never_had_it(start, known, name):
    rest = [one for one in passes.PASSES if _search.name_of(one) != name]
    state, ask = start
    expected = _search.run_all(state, ask, rest)
    found = passes.without(name, known, ask) or known[-1]
    assert found.trials.keys() == expected.trials.keys()
    assert passes.Found.of(found) == passes.Found.of(expected)


def test_passes_that_no_search_can_do_without_are_not_left_out():
    names = passes.optional_passes()
    assert not {"baseline", "profile layers", "calibrate", "solve"} & set(names)
    assert {"unroll", "hedge (on host)", "without barrier"} <= set(names)


def row(without, step_us=100.0, size=2**20, fits=True, **about):
    found = {"bytes": size, "step_us": step_us, "fits": fits}
    place = {
        "program": "moe",
        "size": "tiny",
        "target": "h100:1",
        "budget_bytes": 2**21,
    }
    return {**place, "without": without, **found, **about}


@pytest.mark.parametrize(
    ("less", "last"),
    [
        (row("unroll", 110.0), "1.00 MiB, 110 us"),
        (row("unroll", 90.0, 2**22, fits=False), "4.00 MiB, 90 us, does not fit"),
        (row("unroll", 100.05), None),
        (row("unroll", 90.0), None),
    ],
)
def test_a_row_says_what_is_lost_without_a_pass(less, last):
    head, *lines = passes.table([row(""), less]).splitlines()
    assert head.split("  ")[0] == "without"
    if last is None:
        assert lines[1] == "an equally good plan is found without: unroll"
    else:
        assert lines[0].startswith("unroll   moe      2.00 MiB  1.00 MiB, 100 us")
        assert lines[0].endswith(last)
        assert lines[2] == "an equally good plan is found without: none"


def test_a_pass_that_changed_nothing_is_named_as_such():
    text = passes.table([row(""), {**row("peel"), "same": True}])
    assert text.splitlines()[-1] == "changed nothing: peel"


def test_programs_of_another_size_are_others(tmp_path, monkeypatch):
    asked = []

    def rows(options, name):
        asked.append((name, options.program(name)["size"]))
        yield {**row(""), **options.program(name)}

    monkeypatch.setattr(passes, "rows", rows)
    out = tmp_path / "passes.json"
    for size in (None, "tiny", "tiny", "cpu"):
        assert passes.main(passes.Options(("gpt2_xl",), size, out=out)) == 0
    assert asked == [("gpt2_xl", "tiny"), ("gpt2_xl", "cpu")]
    assert len(passes.read(out)) == 2


def test_an_unknown_program_is_one_sentence(capsys):
    assert passes.main(passes.Options(("nonsense",))) == 2
    assert capsys.readouterr().out.startswith("no program 'nonsense'; there are ")
