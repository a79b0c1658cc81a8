"""Measuring a card: here on the CPU, in tiny sizes; factors from timings made up."""

import json

import jax
import pytest

import revremat as rr
from experiments.calibrate import facts, kernels, programs
from experiments.calibrate.__main__ import Notes, main
from revremat.xla import load_card

GIB = 2**30
TINY = ["--quick", "--groups", "elementwise", "--programs", "mlp"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Nothing is written into the repository."""
    monkeypatch.setattr("experiments.calibrate.__main__.Notes", _notes_in(tmp_path))
    return tmp_path


def _notes_in(folder):
    return lambda path, machine: Notes(folder / path.name, machine)


def test_one_command_measures_this_machine(places, capsys, monkeypatch):
    where = ["--out", str(places / "out"), "--cards", str(places / "cards")]
    assert main([*TINY, *where]) == 0
    result = json.loads((places / "out" / "card-cpu.json").read_text())
    run, said = (result["jobs"][f"{job} mlp"] for job in ("run", "predict"))
    # On the CPU an ahead-of-time compile is the compile that runs.
    assert said["bytes"] == run["compiled_bytes"] > 0
    assert run["seconds"] > 0
    assert not said["calibrated"]
    assert result["calibrated"]["mlp"]["calibrated"]
    assert result["machine"]["cores"] > 0
    out = capsys.readouterr().out
    table = (places / "out" / "card-cpu.txt").read_text()
    assert table in out
    assert max(map(len, table.splitlines())) <= 100
    # Reports take it from there.
    monkeypatch.setenv("REVREMAT_CARDS", str(places / "cards"))
    assert load_card("cpu").measured
    assert load_card("cpu").memory_efficiency == result["card"]["memory_efficiency"]


def test_a_stopped_run_goes_on_and_a_failed_job_is_tried_again(places, monkeypatch):
    asked = []

    def stops_at(limit):
        def run_job(job, options, machine=None, cards=""):
            asked.append(job)
            if job == "probe":
                return MACHINE
            if len(asked) > limit:
                raise KeyboardInterrupt
            return {"error": "no memory"} if job == "kernels matmul" else GOOD[job]

        monkeypatch.setattr("experiments.calibrate.__main__.run_job", run_job)

    where = ["--out", str(places / "out"), "--cards", str(places / "cards")]
    arguments = ["--groups", "elementwise", "matmul", "--programs", "mlp", *where]
    stops_at(4)
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    assert not (places / "out").exists()
    asked.clear()
    stops_at(100)
    assert main(arguments) == 1  # one job failed, the others count
    assert asked == ["probe", "kernels matmul", "run mlp", "predict mlp", "predict mlp"]
    result = json.loads((places / "out" / "card-h100.json").read_text())
    assert result["jobs"]["kernels matmul"] == {"error": "no memory"}
    assert result["card"]["memory_efficiency"] == 0.5


MACHINE = {
    "platform": "gpu",
    "kind": "NVIDIA H100 80GB HBM3",
    "jax": "0.12",
    "python": "3.13",
    "cores": 8,
    "key": "h100",
    "target": "h100:1",
    "missing": "",
    "about": "one of 1",
}


def kernel(seconds, flops=0.0, size=0.0, dtype="bfloat16"):
    return {"seconds": seconds, "flops": flops, "bytes": size, "dtype": dtype}


H100 = load_card("h100")
STREAM = 0.5 * H100.memory_bandwidth
GOOD = {
    "reserve": {"outside_bytes": 700 * 2**20 + 1, "total_bytes": 79 * GIB},
    "kernels elementwise": {"1": kernel(1.0, 1.0, STREAM)},
    "run mlp": {
        "compiled_bytes": 3 * GIB,
        "allocator_peak_bytes": 5 * GIB,
        "seconds": 0.002,
    },
    "predict mlp": {"bytes": 3 * GIB, "seconds": 0.001, "flops": 1.0},
}


def test_factors_are_those_that_explain_the_timings():
    done = {
        **GOOD,
        "kernels matmul": {
            "small": kernel(1.0, 1e13),
            "large": kernel(1.0, 6e14),
            "f32": kernel(1.0, 3e14, dtype="float32"),
            "f16": kernel(1.0, 7e14, dtype="float16"),
            "broken": {"failed": "no such kernel"},
        },
        "kernels arithmetic": {"1": kernel(1.0, 4e13, dtype="float32")},
        "kernels launch": {
            "50": kernel(100e-6 + 50 * 4e-6, 50 * 2 * 32**3),
            "250": kernel(100e-6 + 250 * 4e-6, 250 * 2 * 32**3),
        },
        "kernels transfer": {
            "to": kernel(1.0, size=0.4 * H100.pcie_bandwidth),
            "from": kernel(1.0, size=0.6 * H100.pcie_bandwidth),
        },
        "kernels norm": {"error": "gone"},
    }
    card = facts.card(done, MACHINE)
    efficiency = card["matmul_efficiency"]
    assert efficiency * H100.peak_flops["bfloat16"] == pytest.approx(6e14, rel=1e-3)
    assert efficiency * card["peak_flops"]["tf32"] == pytest.approx(3e14, rel=1e-3)
    assert efficiency * card["peak_flops"]["float16"] == pytest.approx(7e14, rel=1e-3)
    assert card["peak_flops"]["float32"] == pytest.approx(4e13)
    assert card["memory_efficiency"] == 0.5
    assert card["launch_us"] == pytest.approx(4.0)
    assert card["transfer_efficiency"] == pytest.approx(0.48)
    # Outside of the pool, and what the allocator gave beyond the compile.
    assert card["reserve_bytes"] == 701 * 2**20 + 2 * GIB
    assert card["device_memory_size"] == 79 * GIB


def test_a_measured_card_is_taken_by_reports(tmp_path, monkeypatch):
    card = facts.card(GOOD, MACHINE)
    (tmp_path / "h100.json").write_text(json.dumps({"card": card}))
    monkeypatch.setenv("REVREMAT_CARDS", str(tmp_path))
    assert rr.target("h100:8").card.measured
    assert rr.target("h100:8").card.memory_efficiency == 0.5


def test_nothing_measured_changes_nothing():
    failed = {job: {"error": "gone"} for job in GOOD}
    assert facts.card(failed, MACHINE) == {}


def test_an_unknown_card_still_has_a_table():
    machine = MACHINE | {"key": "", "target": "", "missing": "no description"}
    result = {
        "machine": machine,
        "card": facts.card(GOOD, machine),
        "data_sheet": facts.data_sheet(""),
        "jobs": {k: v for k, v in GOOD.items() if not k.startswith("predict")},
        "calibrated": {},
        "seconds": 1.0,
        "load_before": 0.0,
    }
    text = facts.table(result)
    assert "no predictions to compare with: no description" in text
    assert "5.00 GiB" in text


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"machine": 1}', '{"done": {}}'])
def test_damaged_notes_are_begun_again(tmp_path, damage):
    (tmp_path / "n.json").write_text(damage)
    assert Notes(tmp_path / "n.json", MACHINE).done == {}


def test_notes_of_other_versions_are_begun_again(tmp_path):
    Notes(tmp_path / "n.json", MACHINE).keep("run mlp", GOOD["run mlp"])
    assert Notes(tmp_path / "n.json", MACHINE).done == {"run mlp": GOOD["run mlp"]}
    assert Notes(tmp_path / "n.json", MACHINE | {"jax": "0.13"}).done == {}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_group_has_kernels_of_distinct_names(platform):
    suite = kernels.suite(platform)
    for group in kernels.groups(platform):
        names = [k.name for k in suite[group]]
        assert names
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", programs.NAMES)
def test_programs_of_a_card_compile_for_one(name):
    """In the sizes that a card gets: nothing there may fail for want of a test."""
    target = rr.target("cpu:1")
    problem = programs.make(name, target, "gpu")
    step, specs = problem.make_step()
    out = jax.eval_shape(step, *specs)
    first, state = jax.tree.map(lambda x: (x.shape, x.dtype), (out[0], specs[0]))
    assert first == state
    assert problem.donate == (0,)
