"""Measuring a card: its programs, values, kernels and plans; here without one."""

import contextlib
import dataclasses
import json
import os
import re
import socket
import tarfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.calibrate import (
    device,
    facts,
    kernels,
    make_plans,
    plan_files,
    programs,
    schedule,
    trace,
    variants,
)
from experiments.calibrate.records import Writer, latest, read
from experiments.calibrate.tasks import estimates, exact, steps
from experiments.calibrate.values import fill
from revremat.xla import load_card, measured_folder, traced_for
from tests.experiments import card_machine

pytestmark = pytest.mark.usefixtures("no_network")
GIB = 2**30
ROOT = Path(__file__).parents[2]
OLDEST = re.search(r"jax==(\S+)", (ROOT / "tools" / "oldest.txt").read_text())


@pytest.fixture
def no_network():
    """Whatever a job does, it opens no socket to another machine."""
    tried = card_machine.watch_sockets()
    yield
    assert tried == []


@pytest.fixture
def job(tmp_path):
    """A job of the CPU in tiny sizes."""

    def make(kind, subject="", platform="cpu"):
        tell = Writer(tmp_path / "results.jsonl", f"{kind} {subject}".strip(), 1)
        return device.Job(subject, platform, "quick", tmp_path, tmp_path / "hlo", tell)

    return make


def of(name):
    """The fingerprint of a program in its tiny size."""
    return variants.fingerprint(programs.make(name, programs.Here(), "quick"))


def told(job, kind):
    return [r for r in read(job.out / "results.jsonl") if r.kind == kind]


@pytest.mark.parametrize(
    ("address", "is_seen"),
    [
        (("192.0.2.1", 80), True),
        (("2001:db8::1", 80), True),
        (("127.0.0.1", 9), False),
        (("::1", 9), False),
        ("/tmp/no such socket", False),
    ],
)
def test_sockets_to_other_machines_are_seen(address, is_seen):
    tried = card_machine.watch_sockets()
    family = socket.AF_INET6 if "::" in address[0] else socket.AF_INET
    if isinstance(address, str):
        family = socket.AF_UNIX
    with socket.socket(family) as one, contextlib.suppress(OSError):
        one.setblocking(False)
        one.connect(address)
    assert bool(tried) == is_seen


def test_another_platform_than_the_one_to_be_measured_is_refused():
    device.require("cpu")
    with pytest.raises(device.WrongPlatform, match=r"write --platform cpu to measure"):
        device.require("gpu")


def test_a_run_measures_bytes_and_steps_beside_what_was_said(job, monkeypatch):
    about = {"bytes": 100_000, "estimate_us": 7.0, "untuned": "2 of 9"}
    made = {
        "target": "cpu:1", "jax": "7", "tuning": "h100", "fingerprint": of("mlp"),
        "variants": [{"name": "baseline", "plan": None, **about}],
    }  # fmt: skip
    monkeypatch.setattr(plan_files, "read", lambda *_: made)
    ours = job("run", "mlp")
    steps.run(ours)
    (compiled,) = told(ours, "compiled")
    step, specs = programs.make("mlp", programs.Here(), "quick").make_step()
    m = rr.measure(step, *specs, target="cpu:1", donate=(0,))
    # On the CPU an ahead-of-time compile is the compile that runs.
    assert compiled["bytes"] == m.memory.total_bytes
    (predicted,) = told(ours, "predicted")
    assert (predicted["bytes"], predicted["estimate_us"]) == (100_000, 7.0)
    same, checked = told(ours, "checked")
    assert same["agrees"]
    assert "fingerprint is" in same["sentence"]
    assert not checked["agrees"]
    assert checked["sentence"].startswith(
        "100,000 bytes were said ahead of time with the tuning of h100, which lacks 2 "
        "of 9 kernels, the compile here takes "
    )
    timed = [r for r in told(ours, "measured") if r["what"] == "steps"]
    assert [len(r["times_s"]) for r in timed] == [2]
    assert timed[0]["not_finite"] == 0
    # Held to what was said before anything is timed.
    assert checked.line < timed[0].line
    assert len(list((ours.hlo).glob("*.txt.gz"))) == 1


@pytest.mark.parametrize(
    ("kind", "name", "other"),
    [("race", "tiny_matmuls", "00"), ("run", "mlp", "00"), ("run", "mlp", None)],
)
def test_plans_of_another_program_are_told_and_only_the_baseline_runs(
    job, monkeypatch, kind, name, other
):
    made = plan_files.read(name, "quick")
    assert made is not None
    monkeypatch.setattr(plan_files, "read", lambda *_: made | {"fingerprint": other})
    timed = []
    monkeypatch.setattr(steps, "_timed", lambda *_: timed.append(len(read(path))))
    ours = job(kind, name)
    path = ours.out / "results.jsonl"
    getattr(steps, kind)(ours)
    (checked,) = told(ours, "checked")
    assert not checked["agrees"]
    assert f"fingerprint {other}, this one has" in checked["sentence"]
    assert told(ours, "predicted") == []
    assert [r["variant"] for r in told(ours, "compiled")] == ["baseline"]
    assert checked.line < min(timed)  # before anything is timed


def test_a_variant_that_cannot_be_compiled_is_one_line_and_the_rest_run(
    job, monkeypatch
):
    def broken(w, batch):
        raise ValueError("no such\nkernel")

    problem = programs.make("mlp", programs.Here(), "quick")
    ways = [
        variants.Variant("broken", broken, {"bytes": 1}),
        variants.Variant("baseline", problem.loss, {}),
    ]
    monkeypatch.setattr(variants, "variants", lambda *_: ways)
    ours = job("run", "mlp")
    steps.run(ours)
    (failed,) = told(ours, "failed")
    assert failed["error"] == "ValueError: no such"
    assert [r["variant"] for r in told(ours, "compiled")] == ["baseline"]


def test_running_out_of_memory_is_the_result_of_a_run_with_too_little(job, monkeypatch):
    def run_out(self, compiled):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nallocator: ...")

    monkeypatch.setattr(steps.Arguments, "step", run_out)
    monkeypatch.setattr(device, "require", lambda platform: None)
    ours = job("over", "mlp", platform="gpu")
    steps.over(ours)
    (found,) = [r for r in told(ours, "measured") if r["what"] == "fit"]
    assert (found["ran_out"], found["in_stage"], found["steps"]) == (True, "steps", 0)
    assert found["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert found["tail"].endswith("allocator: ...")
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        steps.fit(job("fit", "mlp", platform="gpu"))


@pytest.mark.slow
def test_exact_inverses_are_counted_bit_by_bit(job):
    ours = job("exact")
    exact.exact(ours)
    (found,) = told(ours, "measured")
    assert (found["depth"], found["numbers"]) == (50, 256)
    for way in ("inverse", "pull_back", "step"):
        assert found[f"wrong_after_{way}"] == found[f"largest_error_after_{way}"] == 0
    assert found["maps_of_other_kernels"] == []
    assert 0 <= found["gradient_error_to_saved"] < 0.02
    assert 0 <= found["gradient_error_to_plain"] < 0.02
    pair = (jnp.array([1.0, 2.0]), jnp.array([jnp.nan, 0.0]))
    assert exact._differing(pair, (jnp.array([1.0, 3.0]), pair[1])) == 2


SPECS = (
    {
        "params": {
            "kernel": jax.ShapeDtypeStruct((400, 64), "float32"),
            "scale": jax.ShapeDtypeStruct((4,), "float32"),
            "bias": jax.ShapeDtypeStruct((4,), "bfloat16"),
        },
        "opt_state": {"nu": jax.ShapeDtypeStruct((400, 64), "float32")},
        "var": jax.ShapeDtypeStruct((4,), "float32"),
        "step": jax.ShapeDtypeStruct((), "int32"),
    },
    {
        "tokens": jax.ShapeDtypeStruct((8, 64), "int32"),
        "x": jax.ShapeDtypeStruct((64, 64), "float32"),
    },
)


def test_values_are_what_training_begins_with():
    state, batch = fill(SPECS, num_labels=50)
    same = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert same((state, batch)) == same(SPECS)
    assert not state["opt_state"]["nu"].any()  # negative ones are NaN one step later
    assert state["step"] == 0
    assert not state["params"]["bias"].any()
    assert (state["params"]["scale"] == 1).all()
    assert (state["var"] == 1).all()
    assert float(state["params"]["kernel"].var()) == pytest.approx(1 / 400, rel=0.05)
    assert float(batch["x"].var()) == pytest.approx(1, rel=0.1)
    assert set(map(int, batch["tokens"].ravel())) == set(range(50))


@pytest.mark.parametrize(
    ("tree", "number"),
    [
        ({"a": [1.0, jnp.nan], "b": [jnp.inf]}, 2),
        ({"a": [1.0], "n": [3]}, 0),
        ({}, 0),
    ],
)
def test_numbers_that_are_not_finite_are_counted(tree, number):
    assert device.not_finite({k: jnp.array(v) for k, v in tree.items()}) == number


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_group_has_kernels_of_distinct_names(platform):
    suite = kernels.suite(platform)
    for group in kernels.groups(platform):
        names = [k.name for k in suite[group]]
        assert names
        assert len(set(names)) == len(names)


def test_products_read_two_arrays_and_streams_are_larger_than_caches():
    product = kernels.suite("gpu", quick=True)["matmul"][0]
    _, (a, b) = product.make()
    assert not (a == b).all()
    for group in ("elementwise", "reduction", "transfer"):
        assert all(k.bytes >= 10 * 50e6 for k in kernels.suite("gpu")[group])


def test_launches_are_timed_within_graphs_and_without():
    suite = kernels.suite("gpu")
    assert suite["graph"][0].options == {}
    assert suite["launch"][0].options == {"xla_gpu_enable_command_buffer": ""}
    run, arguments = suite["launch"][0].make()
    text = jax.jit(run).lower(*arguments).as_text()
    assert text.count("dot_general") == 50
    assert text.count("optimization_barrier") == 50


def test_copies_are_timed_alone_and_beside_products():
    names = [k.name for k in kernels.suite("gpu", quick=True)["overlap"]]
    assert names == ["products", "copies", "products and copies"]


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(0, 2)], 2), ([(5, 6), (0, 2), (1, 3)], 4), ([(0, 9), (1, 2)], 9)],
)
def test_spans_are_covered_once(spans, length):
    assert trace.length(spans) == length


QUICK = [n for n in programs.NAMES if not re.match("revbifpn|efficientnet|unet", n)]


def checked(name):
    """A step returns what it replaces, and its loss is the one that is planned."""
    problem = programs.make(name, rr.target("cpu:1"), "card")
    step, specs = problem.make_step()
    with traced_for(rr.target("h100:1")):  # attention of cuDNN, which is not here
        out = jax.eval_shape(step, *specs)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert shapes(out[0]) == shapes(specs[0])
    assert problem.donate == (0,)


@pytest.mark.parametrize("name", QUICK)
def test_programs_of_a_card_can_be_traced_in_its_size(name):
    checked(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*programs.NAMES} - {*QUICK}))
def test_large_programs_of_a_card_can_be_traced_in_its_size(name):
    checked(name)


def test_jobs_name_programs_that_there_are():
    for platform in ("gpu", "cpu"):
        for found in schedule.jobs(platform):
            assert found.subject in ("", *programs.NAMES)
    assert {*make_plans.BUDGETS} <= {*make_plans.IN_A_RACE} <= {*programs.NAMES}


@pytest.mark.parametrize("name", make_plans.IN_A_RACE)
def test_plans_were_compiled_by_the_oldest_jax_for_the_card_and_fit(name):
    made = plan_files.read(name, "card")
    assert made is not None
    assert OLDEST is not None
    assert (made["target"], made["jax"]) == ("h100:1", OLDEST[1])
    names = [v["name"] for v in made["variants"]]
    assert names[:2] == ["baseline", "recompute all"]
    assert len(set(names)) == len(names)
    for variant in made["variants"]:
        assert variant["bytes"] > GIB
        assert variant["estimate_us"] > 0
    if name in make_plans.BUDGETS:
        assert made["tuning"] == make_plans.RUN.name
        budget = int(make_plans.BUDGETS[name].removesuffix("GiB")) * GIB
        (searched,) = [v for v in made["variants"] if "searched" in v["name"]]
        assert plan_files.to_fit(made) == searched
        assert searched["bytes"] <= budget
    else:
        assert plan_files.to_fit(made) == min(
            made["variants"][1:], key=lambda v: v["bytes"]
        )


SAID = [name for name in schedule.RUN if name not in make_plans.LEFT_OUT]


@pytest.mark.parametrize("name", SAID)
def test_bytes_of_every_program_that_runs_were_said_for_the_card(name):
    made = plan_files.read(name, "card")
    assert made is not None
    assert made["variants"][0]["name"] == "baseline"
    # It has to run on a card of 80 GB.
    assert made["variants"][0]["bytes"] < load_card("h100").device_memory_size


@pytest.mark.parametrize("name", ["gpt2_xl_24", "tiny_matmuls", "t5_large"])
def test_plans_are_of_the_programs_that_there_are(name):
    made = plan_files.read(name, "card")
    problem = programs.make(name, programs.Here(), "card")
    found = variants.variants(problem, made)
    assert made is not None
    assert [v.name for v in found] == [v["name"] for v in made["variants"]]


def test_plans_are_made_by_one_command(tmp_path, capsys):
    words = ["mlp", "--scales", "quick", "--out", str(tmp_path)]
    assert make_plans.main(words) == 0
    made = plan_files.read("mlp", "quick", tmp_path)
    assert made is not None
    assert [v["name"] for v in made["variants"]] == ["baseline"]
    assert made["jax"] == jax.__version__
    capsys.readouterr()
    assert made["fingerprint"] == of("mlp")
    assert make_plans.main(words) == 0  # what is there is not made a second time
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("there", "is_made"),
    [
        ({}, True),
        ({"jax": jax.__version__, "tuning": "h100"}, False),
        ({"jax": jax.__version__, "tuning": None}, True),
        ({"jax": jax.__version__}, True),
        ({"jax": "0.1", "tuning": "h100"}, True),
    ],
)
def test_plans_are_made_where_they_are_of_another_jax_or_tuning(
    tmp_path, monkeypatch, there, is_made
):
    run, out = tmp_path / "h100", tmp_path / "plans"
    run.mkdir()
    out.mkdir()
    (tmp_path / "kernel.pb").write_text("triton")
    with tarfile.open(run / "autotune.tgz", "w:gz") as tar:
        tar.add(tmp_path / "kernel.pb", "device/kernel.pb")
    (out / "mlp.json").write_text(json.dumps({"scales": {"card": there}}))
    asked = []

    def make(name, scale, most_compiles, tuning, kept):
        found = measured_folder() / "h100.tuning"
        asked.append([p.name for p in found.rglob("*.pb")])
        return {"tuning": tuning}

    monkeypatch.setattr(make_plans, "make", make)
    before = os.environ["REVREMAT_CARDS"]
    words = ["mlp", "--scales", "card", "--out", str(out), "--tuning", str(run)]
    assert make_plans.main(words) == 0
    assert os.environ["REVREMAT_CARDS"] == before
    assert asked == [["kernel.pb"]] * is_made
    found = json.loads((out / "mlp.json").read_text())["scales"]["card"]
    assert found["tuning"] == ("h100" if is_made else there["tuning"])


@pytest.mark.parametrize("words", [(), ("--search",)])
def test_a_plan_that_was_searched_is_kept_and_compiled_anew(
    tmp_path, monkeypatch, words
):
    made = plan_files.read("tiny_matmuls", "quick")
    assert made is not None
    old = {"bytes": 7, "estimate_us": 7.0, "untuned": ""}
    older = json.dumps(made["variants"][1]["plan"])
    plan = json.loads(rr.Plan.from_json(older).to_json())
    made["variants"] = [{"name": "searched 3KiB", "plan": plan, **old}]
    text = json.dumps({"scales": {"quick": made | {"jax": "0.1"}}})
    (tmp_path / "tiny_matmuls.json").write_text(text)
    monkeypatch.setattr(make_plans, "_plans", lambda graph, scale: [("baseline", None)])
    words = ["tiny_matmuls", "--scales", "quick", "--out", str(tmp_path), *words]
    assert make_plans.main(words) == 0
    found = plan_files.read("tiny_matmuls", "quick", tmp_path)
    assert found is not None
    # In the tiny scale nothing is searched.
    assert len(found["variants"]) == 1 + ("--search" not in words)
    if kept := plan_files.searched(found):
        assert (kept["name"], kept["plan"]) == ("searched 3KiB", plan)
        assert kept["bytes"] > old["bytes"]


@pytest.mark.parametrize(
    ("notes", "lacks", "words"),
    [
        (["with what autotuning chose"], "", "with the tuning of h100"),
        (
            ["a", "3 of 30 kernels that XLA tunes are not in the tuning of h100 and"],
            "3 of 30",
            "with the tuning of h100, which lacks 3 of 30 kernels",
        ),
        (
            ["some kernels that XLA tunes are not in the tuning of h100 and", "b"],
            "some",
            "with the tuning of h100, which lacks some kernels",
        ),
    ],
)
def test_kernels_that_are_not_in_the_tuning_are_counted(notes, lacks, words):
    assert make_plans.untuned(notes) == lacks
    assert plan_files.how("h100", lacks) == words


def of_the_card():
    """Programs and variants that the card compiled, and what each took there."""
    for name, records in latest(read(make_plans.RUN / "results.jsonl")).items():
        kind, _, program = name.partition(" ")
        for r in records:
            is_known = r.kind == "compiled" and plan_files.read(program, "card")
            if kind in ("race", "run") and is_known and "searched" not in r["variant"]:
                yield program, r["variant"], r["bytes"]


@pytest.mark.parametrize(("program", "variant", "here"), [*of_the_card()])
def test_with_the_tuning_bytes_ahead_of_time_are_those_of_the_card(
    program, variant, here
):
    made = plan_files.read(program, "card")
    assert made is not None
    said = {v["name"]: v for v in made["variants"]}[variant]
    assert said["bytes"] == here


def of_todays_model():
    """Programs and variants, what was said of them, and the estimate of today.

    That is of the modules that the card compiled, which are the same programs.
    """
    row = r"^(\w+) / (.+?) +[\d.]+ ms +(?:[\d.]+ ms|-) +([\d.]+) ms"
    text = (make_plans.RUN / "by_kernel.txt").read_text()
    for program, name, estimate_ms in re.findall(row, text, re.MULTILINE):
        for variant in (plan_files.read(program, "card") or {}).get("variants", ()):
            if variant["name"] == name and not plan_files.is_searched(name):
                yield program, name, variant["estimate_us"], float(estimate_ms)


def test_there_are_such_programs():
    assert len([*of_the_card()]) > 15
    assert len([*of_todays_model()]) > 15


@pytest.mark.parametrize(
    ("program", "variant", "said_us", "now_ms"), [*of_todays_model()]
)
def test_estimates_of_plans_are_of_todays_time_model(program, variant, said_us, now_ms):
    assert said_us == pytest.approx(1e3 * now_ms, 0.01)


def kernel(seconds, flops=0.0, size=0.0, dtype="bfloat16"):
    return {"seconds": seconds, "flops": flops, "bytes": size, "dtype": dtype}


H100 = load_card("h100")
STREAM = kernel(1.0, 1.0, 0.5 * H100.memory_bandwidth)


def test_factors_are_those_that_explain_the_timings():
    timed = {
        "elementwise": [STREAM],
        "matmul": [
            kernel(1.0, 1e13),
            kernel(1.0, 6e14),
            kernel(1.0, 3e14, dtype="float32"),
            kernel(1.0, 7e14, dtype="float16"),
        ],
        "arithmetic": [kernel(1.0, 4e13, dtype="float32")],
        "launch": [
            kernel(100e-6 + n * 4e-6, n * 2 * 32**3, dtype="float32") for n in (50, 250)
        ],
        "graph": [kernel(1e-6, 50 * 2 * 32**3)],
        "transfer": [kernel(1.0, size=x * H100.pcie_bandwidth) for x in (0.4, 0.6)],
    }
    card = facts.card(timed, "h100", "gpu", None, 701 * 2**20 + 1, 79 * GIB)
    efficiency = card["matmul_efficiency"]
    assert efficiency * H100.peak_flops["bfloat16"] == pytest.approx(6e14, rel=1e-3)
    assert efficiency * card["peak_flops"]["tf32"] == pytest.approx(3e14, rel=1e-3)
    assert efficiency * card["peak_flops"]["float16"] == pytest.approx(7e14, rel=1e-3)
    assert card["peak_flops"]["float32"] == pytest.approx(4e13)
    assert card["memory_efficiency"] == 0.5
    assert "launch_us" not in card  # small products are no launches
    on_cpu = facts.card({"launch": timed["launch"]}, "", "cpu")
    assert on_cpu["launch_us"] == pytest.approx(4.0)
    assert card["transfer_efficiency"] == pytest.approx(0.48)
    assert card["reserve_bytes"] == 702 * 2**20
    assert card["device_memory_size"] == 79 * GIB


@pytest.mark.parametrize("key", ["h100", ""])
def test_nothing_measured_changes_nothing(key):
    assert facts.card({}, key, "gpu") == {}


def memory(stage, free, pool, peak):
    allocator = {"peak_bytes_in_use": peak, "pool_bytes": pool}
    driver = {"driver_free_bytes": free, "driver_total_bytes": 80 * GIB}
    return {"stage": stage, "allocator": allocator, **driver}


@pytest.mark.parametrize(
    ("tuning", "after", "beyond"),
    [(1, 9, 2), (9, 9, None), (None, None, None), (1, 6, -1)],
)
def test_what_autotuning_took_is_not_taken_for_the_programs(tuning, after, beyond):
    stages = [memory("compiled", 0, 0, tuning), memory("steps", 0, 0, after)]
    assert facts.beyond_bytes({"bytes": 7}, *stages) == beyond


def test_the_reserve_is_what_is_outside_of_the_pool_and_beyond_the_compile(job):
    ours = job("card")
    doctor, race = (Writer(ours.tell.path, n, 1) for n in ("doctor", "race mlp"))
    about = {"card": "h100", "total_bytes": 80 * GIB, "machine": "H100"}
    doctor("note", **about)
    doctor("measured", what="memory", memory=memory("first product", GIB, 78 * GIB, 1))
    race("compiled", variant="baseline", bytes=7 * GIB)
    before, after = (
        memory("compiled", GIB // 2, 78 * GIB, GIB),
        memory("steps", GIB * 3 // 4, 78 * GIB, 9 * GIB),
    )
    race("measured", what="memory", variant="baseline", memory=before)
    race("measured", what="steps", variant="baseline", memory=after)
    estimates.card(ours)
    file = json.loads((ours.out / "card.json").read_text())
    assert file["card"] == {
        "reserve_bytes": 3 * GIB + GIB // 2,
        "device_memory_size": 80 * GIB,
    }
    fields = {r["field"]: r for r in told(ours, "derived")}
    assert fields["reserve_bytes"]["value"] == 3 * GIB + GIB // 2
    assert fields["reserve_bytes"]["from_lines"] == [1, 4, 5]


@pytest.mark.parametrize(
    ("steps", "beyond"),
    [
        # Variant and peak after its steps, in order; each compile says 2, 5 and 9 GiB.
        ((("a", 2.5), ("b", 5.25)), 0.5),
        ((("a", 2.5), ("b", 5.25), ("a", 5.25)), 0.5),  # a second round: b's peak
        ((("c", 9.25), ("a", 9.25), ("b", 9.25), ("c", 9.25)), 0.25),
        ((("b", 5.0), ("a", 5.0), ("b", 5.75)), 0.75),  # it grew in its second round
        ((("b", 6.0), ("b", 6.0), ("c", 9.0)), 1.0),
    ],
)
def test_a_peak_counts_for_the_program_that_raised_it(job, steps, beyond):
    ours = job("card")
    doctor, race = (Writer(ours.tell.path, n, 1) for n in ("doctor", "race mlp"))
    doctor("note", card="h100", total_bytes=80 * GIB, machine="H100")
    sizes, known, peak = {"a": 2, "b": 5, "c": 9}, set(), 0.125
    for name, after in steps:
        if name not in known:
            race("compiled", variant=name, bytes=sizes[name] * GIB)
            found = memory("compiled", GIB, 78 * GIB, int(peak * GIB))
            race("measured", what="memory", variant=name, memory=found)
        known.add(name)
        peak = max(peak, after)
        found = memory("steps", GIB, 78 * GIB, int(peak * GIB))
        race("measured", what="steps", variant=name, memory=found)
    estimates.card(ours)
    file = json.loads((ours.out / "card.json").read_text())
    assert file["card"]["reserve_bytes"] == (1 + beyond) * GIB


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_what_autotuning_chose_lies_beside_the_cards_figures(
    job, tmp_path, platform, is_packed
):
    ours = dataclasses.replace(job("card"), platform=platform, cards=tmp_path / "cards")
    doctor = Writer(ours.tell.path, "doctor", 1)
    doctor("note", card="h100", total_bytes=80 * GIB, machine="H100")
    doctor("measured", what="memory", memory=memory("first product", GIB, 78 * GIB, 1))
    old = ours.cards / "h100.tuning" / "an older choice"
    old.parent.mkdir(parents=True)
    old.touch()
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "kernel.pb").write_text("triton")
    if is_packed:
        with tarfile.open(ours.out / "autotune.tgz", "w:gz") as tar:
            tar.add(tmp_path / "device", "device")
    estimates.card(ours)
    replaced = is_packed and platform == "gpu"
    found = {p.name for p in (ours.cards / "h100.tuning").rglob("*") if p.is_file()}
    assert found == ({"kernel.pb"} if replaced else {"an older choice"})


def test_reports_use_the_card_only_where_they_are_told_to(job, tmp_path, monkeypatch):
    ours = job("card")
    Writer(ours.tell.path, "doctor", 1)("note", card="h100", total_bytes=80 * GIB)
    Writer(ours.tell.path, "kernels", 1)(
        "measured", what="kernel", group="elementwise", kernel="1", **STREAM
    )
    folder = tmp_path / "cards"
    estimates.card(ours)
    assert not folder.exists()
    estimates.card(dataclasses.replace(ours, cards=folder))
    monkeypatch.setenv("REVREMAT_CARDS", str(folder))
    assert rr.target("h100:8").card.measured
    assert rr.target("h100:8").card.memory_efficiency == 0.5


def _plane(name, **lines):
    """As JAX's profiler gives it: lines of events, `(name, instruction, ns, ns)`."""
    made = [
        SimpleNamespace(
            name=line,
            events=[
                SimpleNamespace(name=n, stats=s, start_ns=t, duration_ns=d)
                for n, s, t, d in events
            ],
        )
        for line, events in lines.items()
    ]
    return SimpleNamespace(name=name, lines=made)


def test_kernels_are_those_on_the_streams_of_gpus(monkeypatch):
    of = lambda name: [("other", 1), ("hlo_op", name)]
    planes = [
        _plane("/host:CPU", Stream=[("fusion", of("fusion.1"), 0, 50_000)]),
        _plane(
            "/device:GPU:0",
            Steps=[("step", [], 0, 90_000)],
            Stream=[
                ("fusion", of("fusion.1"), 0, 1000),
                ("gemm", [], 1000, 8000),
                ("fusion", of("fusion.1"), 9000, 3000),
                ("MemcpyD2H", [], 8000, 6000),
            ],
        ),
    ]
    monkeypatch.setattr(trace, "_traced", lambda *_: contextlib.nullcontext(planes))
    rows = [tuple(row.values()) for row in trace.kernels(lambda: None, times=2)]
    assert rows == [
        ("gemm", "", 0.5, pytest.approx(4e-6)),
        ("MemcpyD2H", "", 0.5, pytest.approx(3e-6)),
        ("fusion", "fusion.1", 1.0, pytest.approx(2e-6)),
    ]
    assert trace.exposed_copies_s(lambda: None, times=2) == {
        "copying_s": pytest.approx(3e-6),
        "exposed_s": pytest.approx(1e-6),
        "busy_s": pytest.approx(7e-6),
    }
