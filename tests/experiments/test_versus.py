"""The search benchmark: what it runs, resumes and prints."""

import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import pytest

import revremat as rr
from experiments.bench import (
    batches,
    comparison,
    step_time,
    timed,
    versus,
    versus_gains,
    versus_tables,
)
from experiments.bench.programs import Entry
from experiments.bench.programs import __main__ as table
from tests.experiments.small_stack import ROWS, WIDTH, problem


@pytest.mark.slow
def test_baselines_that_were_not_run_are_neither_beaten_nor_without_a_plan(
    whole, tmp_path, capsys
):
    only = dataclasses.replace(whole, out=tmp_path, baselines=("uniform preset",))
    assert versus.main(only) == 0
    (found,) = versus_gains.read(tmp_path).values()
    assert len(versus_gains.gains(found, "uniform preset")) == 2
    assert versus_gains.gains(found, "greedy") == []
    assert "| small (cpu:1, 2) |" in (table := versus_tables.markdown({"small": found}))
    assert table.splitlines()[2].endswith("| - |")
    assert versus.main(dataclasses.replace(only, baselines=("gredy",))) == 2
    assert "no baseline 'gredy'; there are no remat" in capsys.readouterr().out


ENTRY = Entry("small", "novel", "cpu:1", lambda target, size: problem(), "a stack")


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.setattr(versus, "PROGRAMS", {"small": ENTRY})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    few = ("no remat", "uniform preset", "greedy")
    out = tmp_path_factory.mktemp("one")
    options = versus.Options(size="tiny", budgets=2, baselines=few, out=out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versus, "PROGRAMS", {"small": ENTRY})
        assert versus.main(options) == 0
    return options


def _without_time(path):
    found = json.loads(path.read_text())
    return {k: v for k, v in found.items() if k not in ("seconds", "load")}


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_writes_the_same(
    whole, tmp_path, capsys, monkeypatch
):
    parts = dataclasses.replace(whole, out=tmp_path)
    left = [20]

    def clock():
        left[0] -= 1
        return math.inf if left[0] < 0 else 0.0

    with monkeypatch.context() as patch:
        patch.setattr(versus.time, "monotonic", clock)
        assert versus.main(dataclasses.replace(parts, most=1.0)) == 1
    assert "stopped" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert versus.main(parts) == 0
    assert "mean of programs" in capsys.readouterr().out
    one, two = (folder / "small.json" for folder in (whole.out, tmp_path))
    assert _without_time(one) == _without_time(two)
    before = two.stat().st_mtime_ns
    assert versus.main(parts) == 0  # what is done is not run again
    assert two.stat().st_mtime_ns == before


@pytest.mark.slow
def test_searched_again_what_baselines_took_stays(whole, tmp_path, capsys):
    done, path = (whole.out / "small.json").read_text(), tmp_path / "small.json"
    before = json.loads(done)
    for at in before["budgets"]:
        at["search"] = None
    path.write_text(json.dumps(before))
    again = dataclasses.replace(whole, out=tmp_path, search_again=True, budgets=5)
    assert versus.main(again) == 0
    after = _without_time(path)
    assert after == _without_time(whole.out / "small.json")
    before["versions"] = "jax 0.1"
    path.write_text(json.dumps(before))
    assert versus.main(again) == 1
    assert "versions is " in capsys.readouterr().out
    assert json.loads(path.read_text()) == before


def test_searched_again_each_budget_that_is_done_stays_if_it_is_stopped(
    whole, tmp_path, monkeypatch
):
    done, path = (whole.out / "small.json").read_text(), tmp_path / "small.json"
    before = json.loads(done)
    for at in before["budgets"]:
        at["search"] = None
    path.write_text(json.dumps(before))

    def first_only(*args):
        yield next(comparison.search_again(*args))
        raise versus.Stopped

    monkeypatch.setattr(versus, "search_again", first_only)
    assert versus.main(dataclasses.replace(whole, out=tmp_path, search_again=True)) == 1
    first, second = (at["search"] for at in json.loads(path.read_text())["budgets"])
    assert first is not None
    assert second is None


@pytest.mark.slow
def test_searched_again_at_some_budgets_the_others_stay(whole, tmp_path, capsys):
    done, path = (whole.out / "small.json").read_text(), tmp_path / "small.json"
    before = json.loads(done)
    for at in before["budgets"]:
        at["search"] = {**at["search"], "name": "of before"}
    path.write_text(json.dumps(before))
    again = dataclasses.replace(whole, out=tmp_path, search_again=True)
    assert versus.main(dataclasses.replace(again, at=(2,))) == 0
    first, second = (at["search"] for at in json.loads(path.read_text())["budgets"])
    assert first["name"] == "of before"
    assert second["name"] != "of before"
    assert versus.main(dataclasses.replace(again, at=(3,))) == 1
    assert "no budget 3, there are 1 to 2" in capsys.readouterr().out


def test_every_answer_is_within_its_budget_and_the_search_has_one(whole):
    (found,) = versus_gains.read(whole.out).values()
    for at in found["budgets"]:
        assert at["search"] is not None
        for row in [at["search"], *at["baselines"].values()]:
            assert row is None or row["bytes"] <= at["budget_bytes"]
    assert found["budgets"][0]["baselines"]["no remat"] is None
    best = found["no_more_memory"]
    assert best["search"]["step_us"] <= best["fusion-aware"]["step_us"]
    assert set(found["compiles"]) == {"search", *whole.baselines}
    assert found["complete"]
    assert found["unrolled"]["bytes"] > 0


@pytest.mark.slow
def test_the_readmes_table_has_a_row_for_each_program_and_the_means(whole, capsys):
    assert versus.main(dataclasses.replace(whole, markdown=True)) == 0
    table, budgets, fair = capsys.readouterr().out.split("\n\n")
    assert "| over presets in a scan | unrolling | sets | mixing |" in budgets
    assert "a baseline is 0.3% faster or more" in fair
    head, rule, row, *means = table.splitlines()
    assert head.startswith("| program | baseline | searched | with least memory |")
    assert rule.count("---") == head.count("|") - 1
    assert row.startswith("| small (cpu:1, 2) | ")
    assert [mean.split("|")[1].strip() for mean in means] == list(
        versus_gains.means({}, "greedy")
    )
    gains = lambda line: [cell.split()[0] for cell in line.split("|")[5:-1]]
    for mean in means:  # Of one program they are its own.
        assert gains(mean) == gains(row)


@pytest.mark.parametrize(
    ("bench", "options"),
    [
        (versus, versus.Options(programs=("nonsense",))),
        (versus, versus.Options(largest_batch="nonsense")),
        (timed, timed.Options(programs=("nonsense",))),
        (step_time, step_time.Options(programs=("nonsense",))),
        (table, table.Options(names=("nonsense",))),
    ],
)
def test_an_unknown_program_is_one_sentence(capsys, bench, options):
    assert bench.main(options) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("no program 'nonsense'; there are ")


def test_another_batch_is_the_same_program_on_more_data():
    small = problem()
    assert batches.batch_of(small) == ROWS
    large = batches.with_batch(small, 2 * ROWS)
    assert large.specs[1].shape == (2 * ROWS, WIDTH)
    step, specs = large.make_step()
    assert specs[1].shape == (2 * ROWS, WIDTH)
    assert jax.eval_shape(step, *specs)[0].shape == ()


@pytest.mark.parametrize(
    ("slowed_by", "most_bytes", "factor"),
    [
        (lambda factor: 1.0, 10**9, 8.0),
        (lambda factor: 1.0, 2 * ROWS, 2.0),
        (lambda factor: 1.0 + factor / 100, 10**9, 4.0),
        (lambda factor: 1.1, 10**9, 1.0),
    ],
    ids=["all fit", "memory ends it", "time ends it", "none holds"],
)
def test_the_largest_batch_fits_at_no_more_than_five_percent_lost(
    monkeypatch, slowed_by, most_bytes, factor
):
    """Every batch as large as its bytes, a sample 1 us as the program is written."""

    def measured(size: int, slower: float):
        time = SimpleNamespace(step_us=slower * size)
        memory = SimpleNamespace(total_bytes=size)
        return SimpleNamespace(time=time, memory=memory)

    def searched(problem, *, budget, **_):
        size = batches.batch_of(problem)
        fits = size <= min(budget, most_bytes)
        plan = SimpleNamespace(compiled_bytes=size, fits=fits, units=("plan",))
        measurement = measured(size, slowed_by(size / ROWS))
        return SimpleNamespace(plan=plan, measurement=measurement)

    written = SimpleNamespace(size=ROWS, step=1, measurement=measured(ROWS, 1.0))
    monkeypatch.setattr(rr, "fit", searched)
    monkeypatch.setattr(rr, "largest", lambda *_, **__: written)
    found = batches.largest(problem(), rr.target("cpu:1"))
    assert found["factor"] == factor
    assert found["baseline"]["us_per_sample"] == 1.0
    tried = [one["batch"] for one in found["searched"]]
    assert tried == sorted(set(tried))
    assert len(tried) <= 4
    once = batches.largest(problem(), rr.target("cpu:1"), factors=(2.0,))
    assert once["factors"] == [2.0]
    assert once["factor"] == (2.0 if factor >= 2 else 1.0)
    assert [one["batch"] for one in once["searched"]] == [2 * ROWS]


def test_documents_print_the_results_there_are_and_no_others():
    root, done = (
        versus_gains.RESULTS.parents[2],
        versus_gains.read(versus_gains.RESULTS),
    )
    texts = [versus_tables.markdown(done), versus_tables.budgets_table(done)]
    printed = "\n".join([*texts, *versus_tables.fair(done)]).splitlines()
    docs = [
        line.rstrip()
        for line in (root / "docs/benchmarks/index.md").read_text().splitlines()
    ]
    assert [line for line in printed if line not in docs] == []
    head = "| program | baseline | searched | with least memory |"
    assert any(line.startswith(head) for line in docs) == bool(done)


def test_with_another_kernel_a_programs_figures_have_a_file_of_their_own(tmp_path):
    options = versus.Options(out=tmp_path, attention="cudnn")
    assert versus._path("gpt2_xl", options) == tmp_path / "gpt2_xl-cudnn.json"
    (tmp_path / "gpt2_xl-cudnn.json").write_text(json.dumps({"complete": False}))
    assert not versus._is_done(tmp_path / "gpt2_xl-cudnn.json")
    assert versus_gains._place("gpt2_xl-cudnn")[0] == versus_gains._place("gpt2_xl")[0]
