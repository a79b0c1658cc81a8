"""The search benchmark: its rivals do what their descriptions say, and it resumes."""

import dataclasses
import itertools
import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from experiments.bench import batches, clock, contest, measured_gain, versus
from experiments.bench.contest import arena_of, budgets_of
from experiments.bench.programs import Entry
from experiments.bench.programs import __main__ as table
from experiments.bench.rivals import (
    RIVALS,
    Arena,
    Estimator,
    Greedy,
    Line,
    MemoryBudget,
    Splits,
)
from experiments.bench.rivals._budget import Part
from experiments.bench.rivals._greedy import drops
from experiments.bench.rivals._knapsack import knapsack
from experiments.bench.rivals._ladder import tensors
from revremat._choose import Search
from revremat.policies import PRESETS, Menu, Price, preset

LAYERS, WIDTH, ROWS = 6, 16, 512


def layer(w, x):
    """Contracts over 16, over 48, and over 16 with a wider result."""
    wide = rr.name(x @ w["up"], "wide")
    back = rr.name((wide * wide) @ w["down"], "back")
    wider = rr.name((back * back) @ w["out"], "wider")
    return x + (wider * wider).reshape(*x.shape, 4).sum(-1)


def loss(w, x):
    return (rr.stack(layer, w, x) ** 2).mean()


def problem() -> rr.Problem:
    shape = lambda *s: jax.ShapeDtypeStruct((LAYERS, *s), jnp.float32)
    w = {"up": shape(16, 48), "down": shape(48, 16), "out": shape(16, 64)}
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


@pytest.fixture(scope="module")
def graph():
    return rr.trace(loss, *problem().specs)


@pytest.fixture(scope="module")
def search():
    found = Search(problem(), rr.target("cpu:1"))
    found.prepare()
    return found


@pytest.fixture
def arena(graph):
    """Bytes are what is kept, and time is what is rebuilt."""
    unit = graph["stack"]

    def compile(name, actions):
        actions = actions or {"stack": (rr.SAVE,) * LAYERS}
        kept = [unit.kept(action) for action in graph.plan(actions).units[0].actions]
        return SimpleNamespace(
            name=name,
            bytes=sum(k.device_bytes for k in kept),
            time_us=float(sum(k.rebuild_flops + k.host_bytes for k in kept)),
        )

    return Arena((unit,), compile, lambda: ())


def test_the_estimators_order_is_contracting_dimension_then_width(graph, arena):
    assert {t.name: (t.contracting, t.width) for t in tensors(graph["stack"])} == {
        "wide": (16, 48),
        "back": (48, 16),
        "wider": (16, 64),
    }
    ladder = Estimator(arena)
    assert [t.name for t in ladder.tensors] == ["back", "wider", "wide"]
    steps = [ladder.rematerialize(1 - k / 3)["stack"][0] for k in range(4)]
    keeps = [("back", "wide", "wider"), ("wide", "wider"), ("wide",), ()]
    assert [step.save for step in steps] == keeps
    steps = [ladder.offload(1 - k / 6)["stack"][0] for k in range(7)]
    assert [(len(s.save), s.offload) for s in steps] == [
        (3, ()),
        (2, ("back",)),
        (1, ("back", "wider")),
        (0, ("back", "wide", "wider")),
        (0, ("wide", "wider")),
        (0, ("wide",)),
        (0, ()),
    ]


def test_products_stand_in_where_a_program_is_no_transformer():
    def plain(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((32, 8), jnp.float32)
    traced = rr.trace(lambda w, x: rr.stack(plain, w, x).sum(), w, x)
    assert [t.contracting for t in tensors(traced["stack"])] == [8, 8]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), max_size=4
    ),
    st.integers(0, 30),
)
def test_the_knapsack_is_as_good_as_trying_everything(items, capacity):
    weights, values, counts = ([item[k] for item in items] for k in range(3))
    taken = knapsack(weights, [float(v) for v in values], counts, capacity)
    total = lambda per, number: sum(a * b for a, b in zip(per, number, strict=True))
    assert all(0 <= n <= most for n, most in zip(taken, counts, strict=True))
    assert total(weights, taken) <= capacity
    every = itertools.product(*(range(n + 1) for n in counts))
    best = max(total(values, n) for n in every if total(weights, n) <= capacity)
    assert total(values, taken) == best


def test_a_knapsack_of_three_equal_items_and_room_for_one():
    assert knapsack([1], [5.0], [3], 1) == [1]


def test_the_memory_budget_saves_no_more_than_its_share(arena):
    rival = MemoryBudget(arena)
    (part,) = rival.parts
    fastest = LAYERS * part.num_bytes(part.saved(part.fastest))
    unit = arena.units[0]
    inputs = LAYERS * unit.kept(rr.RECOMPUTE).device_bytes
    sizes = []
    for share in (0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0):
        actions = rival.propose(share)["stack"]
        kept = sum(unit.kept(action).device_bytes for action in actions) - inputs
        assert kept <= (share + 1e-3) * fastest
        sizes.append(kept)
    assert sizes[0] == 0 < sizes[2] < sizes[-1]
    assert sizes == sorted(sizes)


def test_the_memory_budget_keeps_one_value_behind_each_product(arena):
    part = Part(arena.units[0])
    names = {part.unit.values[k].name for k in part.saved(part.fewer)}
    assert names == {"wide", "back", "wider"}
    (heavy, *_) = part.items
    assert part.unit.operations[heavy[0]].kind == "dot_general"
    assert part.saved(()) == frozenset()  # nothing forbidden: inputs alone


def test_greedy_drops_most_bytes_per_flop_first(graph):
    unit = graph["stack"]
    found = drops(unit)
    ratios = [drop.bytes_per_flop for drop in found]
    assert ratios == sorted(ratios, reverse=True)
    assert unit.kept(found[-1].action) == unit.kept(rr.RECOMPUTE)
    assert not found[0].action.save or unit.kept(found[0].action).rebuild_flops < 1e6


@pytest.mark.parametrize("kind", [MemoryBudget, Greedy, Estimator])
def test_rivals_fill_a_budget_as_far_as_their_steps_allow(kind, arena):
    rival = kind(arena, most=12)
    unit = arena.units[0]
    least = LAYERS * unit.kept(rr.RECOMPUTE).device_bytes
    most = LAYERS * unit.kept(rr.SAVE).device_bytes
    times = []
    for budget in (least - 1, least, (least + most) // 2, most):
        rival.ask(budget)
    for budget in (least - 1, least, (least + most) // 2, most):
        row = rival.best(budget)
        assert (row is None) == (budget < least)
        if row is not None:
            assert row.bytes <= budget
            times.append(row.time_us)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    st.integers(0, 1000),
    st.integers(2, 12),
)
def test_looking_along_a_line_ends_whatever_the_bytes(sizes, budget, most):
    asked = []

    def propose(position):
        return {"u": (rr.RECOMPUTE(save=[str(round(position * (len(sizes) - 1)))]),)}

    def compile(name, actions):
        size = sizes[int(actions["u"][0].save[0])]
        asked.append(size)
        return SimpleNamespace(bytes=size, time_us=0.0)

    Line(propose, compile, "line").ask(budget, most)
    assert len(asked) <= most
    if sizes == sorted(sizes) and most == 12 and sizes[0] <= budget:
        best = max(size for size in sizes if size <= budget)
        assert max(s for s in asked if s <= budget) >= best - 0.002 * budget - 1 or (
            len(asked) == most
        )


def test_every_rivals_answers_are_plans_that_compile_to_what_they_say(search):
    budget = budgets_of(search, 3)[1]
    arena = arena_of(search)
    for kind in RIVALS[1:]:
        rival = kind(arena)
        rival.ask(budget)
        assert all(row.plan is not None for row in rival.rows), kind.name
        row = rival.rows[-1]
        step = jax.value_and_grad(rr.apply(loss, row.plan))
        found = rr.measure(step, *search.problem.specs, target=search.target)
        assert found.memory.total_bytes == row.bytes, kind.name


def priced(unit, slope=1.0):
    """Prices by which a layer's bytes and time are what the arena says."""
    prices = []
    for name in PRESETS:
        kept = unit.kept(preset(unit, name).action)
        size = slope * kept.device_bytes
        prices.append(Price(name, size, 0.0, 0.0, float(kept.rebuild_flops)))
    return (Menu(unit.name, unit.num_layers, tuple(prices)),)


@pytest.mark.parametrize("slope", [1.0, 0.8, 1.2])
def test_splits_find_the_best_of_all_or_near_it_by_prices_that_are_off(arena, slope):
    unit = arena.units[0]
    arena = dataclasses.replace(arena, presets=lambda: priced(unit, slope))
    action = {name: preset(unit, name).action for name in PRESETS}
    every = [
        arena.compile("", {"stack": (action[a],) * n + (action[b],) * (LAYERS - n)})
        for a, b in itertools.permutations(PRESETS, 2)
        for n in range(LAYERS + 1)
    ]
    sizes = sorted({row.bytes for row in every})
    rival = Splits(arena, most=8)
    for budget in sizes:
        rival.ask(budget)
        enough = budget if slope == 1.0 else 0.85 * budget
        best = [row.time_us for row in every if row.bytes <= enough]
        assert rival.best(budget).time_us <= min(best, default=math.inf)
    assert rival.best(sizes[0] - 1) is None


def test_rivals_that_were_not_run_are_neither_beaten_nor_without_a_plan(
    whole, tmp_path, capsys
):
    only = dataclasses.replace(whole, out=tmp_path, rivals=("uniform preset",))
    assert versus.main(only) == 0
    (found,) = versus.read(tmp_path).values()
    assert len(versus.gains(found, "uniform preset")) == 2
    assert versus.gains(found, "greedy") == []
    assert "| small (cpu:1, 2) |" in (table := versus.markdown({"small": found}))
    assert table.splitlines()[2].endswith("| - |")
    assert versus.main(dataclasses.replace(only, rivals=("gredy",))) == 2
    assert "no rival 'gredy'; there are no remat" in capsys.readouterr().out


def test_programs_weigh_the_same_however_many_budgets_they_were_run_at():
    def done(*gains):  # None: the rival has no plan
        rows = [
            {
                "search": {"step_us": 1.0},
                "rivals": {"greedy": gain and {"step_us": gain}},
            }
            for gain in gains
        ]
        return {"budgets": rows}

    found = {"a": done(4.0), "b": done(2.0, 2.0, 2.0, 1.0), "c": done(None, None)}
    assert versus.means(found, "greedy") == {
        "mean of programs": pytest.approx(2 ** ((2 + 3 / 4) / 2)),
        "mean of budgets": pytest.approx(2.0),
    }


ENTRY = Entry("small", "novel", "cpu:1", lambda target, size: problem(), "a stack")


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.setattr(versus, "PROGRAMS", {"small": ENTRY})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    options = versus.Options(size="tiny", budgets=2, out=tmp_path_factory.mktemp("one"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versus, "PROGRAMS", {"small": ENTRY})
        assert versus.main(options) == 0
    return options


def _without_time(path):
    found = json.loads(path.read_text())
    return {k: v for k, v in found.items() if k not in ("seconds", "load")}


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


def test_searched_again_what_rivals_took_stays(whole, tmp_path, capsys):
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
    assert "versions is now" in capsys.readouterr().out
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
        yield next(contest.search_again(*args))
        raise versus.Stopped

    monkeypatch.setattr(versus, "search_again", first_only)
    assert versus.main(dataclasses.replace(whole, out=tmp_path, search_again=True)) == 1
    first, second = (at["search"] for at in json.loads(path.read_text())["budgets"])
    assert first is not None
    assert second is None


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
    (found,) = versus.read(whole.out).values()
    for at in found["budgets"]:
        assert at["search"] is not None
        for row in [at["search"], *at["rivals"].values()]:
            assert row is None or row["bytes"] <= at["budget_bytes"]
    assert found["budgets"][0]["rivals"]["no remat"] is None
    best = found["no_more_memory"]
    assert best["search"]["step_us"] <= best["fusion-aware"]["step_us"]
    assert set(found["compiles"]) == {"search", *(r.name for r in RIVALS)}


def test_the_readmes_table_has_a_row_for_each_program_and_the_means(whole, capsys):
    assert versus.main(dataclasses.replace(whole, markdown=True)) == 0
    head, rule, row, *means = capsys.readouterr().out.splitlines()
    assert head.startswith("| program | as written | searched | with least memory |")
    assert rule.count("---") == head.count("|") - 1
    assert row.startswith("| small (cpu:1, 2) | ")
    assert [mean.split("|")[1].strip() for mean in means] == list(
        versus.means({}, "greedy")
    )
    gains = lambda line: [cell.split()[0] for cell in line.split("|")[5:-1]]
    for mean in means:  # Of one program they are its own.
        assert gains(mean) == gains(row)


@pytest.mark.parametrize(
    ("plan", "rival_us", "says"),
    [
        ({"bytes": 998}, None, "within 0.3% 2, "),
        ({"bytes": 900}, 100.0, "the fastest plan there is takes no more 1, "),
        ({"bytes": 900, "bound_us": 99.9}, None, "is 0.2% faster 1; "),
        ({"bytes": 900, "bound_us": 99.0}, None, "other ones 1"),
        ({"bytes": 900, "bound_us": 99.9}, 99.0, "other ones 1"),
        (
            {"bytes": 900, "bound_us": 99.0, "filled": True},
            None,
            "that fits is faster 1",
        ),
        ({"bytes": 900, "bound_us": 99.0, "filled": True}, 99.0, "other ones 1"),
        ({"bytes": 1100, "bound_us": 99.9}, None, "budgets exceeded 1; "),
    ],
)
def test_what_is_left_of_a_budget_is_told_by_what_it_is_good_for(plan, rival_us, says):
    mine = {"step_us": 100.0, **plan}
    larger = {"bytes": 2000, "step_us": 90.0 if rival_us != 100.0 else 100.0}
    rival = rival_us and {"bytes": 990, "step_us": rival_us}
    found = [
        {"budget_bytes": 2000, "search": larger, "rivals": {}},
        {"budget_bytes": 1000, "search": mine, "rivals": {"greedy": rival}},
    ]
    told = "\n".join(versus.closely_met({"moe": {"budgets": found}}))
    assert says in told


def test_gains_leave_out_rivals_without_an_answer_and_not_the_search(capsys):
    at = lambda mine, theirs: {
        "search": mine and {"step_us": mine},
        "rivals": {"greedy": theirs and {"step_us": theirs}},
    }
    found = {"budgets": [at(2.0, 3.0), at(2.0, None), at(None, None), at(None, 1.0)]}
    *known, lost = versus.gains(found, "greedy")
    assert known == [1.5, None, None]
    assert math.isnan(lost)
    assert math.isnan(versus.geometric_mean([1.5, lost]))


@pytest.mark.parametrize(
    ("found", "says"),
    [({"bound_us": 80.0}, "25.0%"), ({"bound_us": 0.0}, "-"), ({}, "-")],
)
def test_a_bound_is_told_where_there_is_one(found, says):
    mine = {"name": "full", "bytes": 9, "step_us": 100.0, **found}
    at = {"budget_bytes": 10, "search": mine, "rivals": {r.name: None for r in RIVALS}}
    done = {"target": "cpu:1", "as_written": mine, "budgets": [at]}
    done |= {"compiles": {"search": 1}, "seconds": {"search": 1.0}}
    row = versus.rows_of("moe", done).splitlines()[2].split()
    assert row[:6] == ["10", "B", "100", "us", "10.0%", says]


@pytest.mark.parametrize(
    ("bench", "options"),
    [
        (versus, versus.Options(programs=("nonsense",))),
        (versus, versus.Options(largest_batch="nonsense")),
        (measured_gain, measured_gain.Options(programs=("nonsense",))),
        (clock, clock.Options(programs=("nonsense",))),
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

    class Searched:
        def __init__(self, problem, target, tell, most_compiles, unroll):
            self.size = batches.batch_of(problem)

        def fit(self, budget):
            fits = self.size <= min(budget, most_bytes)
            plan = SimpleNamespace(compiled_bytes=self.size, fits=fits, units=("plan",))
            measurement = measured(self.size, slowed_by(self.size / ROWS))
            return SimpleNamespace(plan=plan, measurement=measurement)

    written = SimpleNamespace(size=ROWS, step=1, measurement=measured(ROWS, 1.0))
    monkeypatch.setattr(batches, "Search", Searched)
    monkeypatch.setattr(rr, "largest", lambda *_, **__: written)
    found = batches.largest(problem(), rr.target("cpu:1"))
    assert found["factor"] == factor
    assert found["as_written"]["us_per_sample"] == 1.0
    tried = [one["batch"] for one in found["searched"]]
    assert tried == sorted(set(tried))
    assert len(tried) <= 4
    once = batches.largest(problem(), rr.target("cpu:1"), factors=(2.0,))
    assert once["factors"] == [2.0]
    assert once["factor"] == (2.0 if factor >= 2 else 1.0)
    assert [one["batch"] for one in once["searched"]] == [2 * ROWS]


def test_documents_print_the_results_there_are():
    root = versus.RESULTS.parents[2]
    printed = versus.markdown(versus.read(versus.RESULTS)).splitlines()
    docs = [line.strip() for line in (root / "docs/search.md").read_text().splitlines()]
    assert [line for line in printed if line not in docs] == []
    rows = [line for line in printed if "(h100" in line]
    shorter = [
        line.split(" (")[0] + " |" + "|".join(line.split("|")[2:5]) for line in rows
    ]
    readme = (root / "README.md").read_text().splitlines()
    assert [line for line in shorter if f"{line}|" not in readme] == []
