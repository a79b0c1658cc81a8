"""Several processes train as one, stop as one, and go on as one."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import launch, records

ROOT = Path(__file__).parents[2]
FEW = ("--train.num-steps", "6", "--train.save-every", "3", "--train.valid-every", "3")
# FSDP, tensor, sequence and data parallelism at once on the eight devices.
ALL_AXES = (
    *("--train.target", "cpu:8", "--sharding.fsdp", "2", "--sharding.model", "2"),
    *("--sharding.sequence", "True", "--sharding.fsdp-min-size", "64"),
)


def rows_of(folder: Path) -> list[dict]:
    """Everything in the metrics but speed."""
    return [
        {key: row[key] for key in row if not key.endswith("_per_s")}
        for row in records.read_metrics(folder / "metrics.jsonl")
    ]


def num_rows(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(records.read_metrics(file)) if file.exists() else 0


def saved_steps(folder: Path) -> list[int]:
    found = (folder / "checkpoints").glob("*")
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def end(process, timeout=300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def pids(launcher) -> dict[int, int]:
    """The processes of a launcher, by their index."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    found = {}
    for pid in children.split():
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "--process-id" in line:
            found[int(line[line.index("--process-id") + 1])] = int(pid)
    return found


def wait_for_rows(process, folder: Path, number: int) -> None:
    while num_rows(folder) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def two_workers(told) -> list[tuple[int, str, str]]:
    """Runs `joined_worker.py` as two processes, each told which of them it is."""
    script = str(Path(__file__).with_name("joined_worker.py"))
    started, port = [], launch.free_port()
    for index in range(2):
        arguments, environment = told(index, port)
        started.append(
            subprocess.Popen(
                [sys.executable, script, *arguments],
                env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return [end(process) for process in started]


def by_arguments(index: int, port: int) -> tuple[list[str], dict[str, str]]:
    return ["2", str(index), f"localhost:{port}"], {}


def by_slurm(index: int, port: int) -> tuple[list[str], dict[str, str]]:
    """What `srun` sets, and a port, which JAX makes out of the job's number else."""
    return [], {
        "JAX_COORDINATOR_PORT": str(port),
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
    }


@pytest.mark.every_commit("by_arguments")
@pytest.mark.parametrize("told", [by_arguments, by_slurm])
def test_two_processes_share_a_batch_and_what_happens_to_them(told):
    (code, out, err), (other_code, other_out, other_err) = two_workers(told)
    assert (code, other_code) == (1, 1), err + other_err
    said, other_said = (json.loads(text.splitlines()[-1]) for text in (out, other_out))
    common = {
        "count": 2,
        "devices": 4,
        "sum": 276.0,
        "handed_out": ["of process 0"],
        # Process 1 is asked to stop while all are at step 3.
        "stopped": ["", "", "", "", "SIGTERM", "SIGTERM"],
    }
    assert said == common | {"index": 0, "rows": [0, 1, 2, 3]}
    assert other_said == common | {"index": 1, "rows": [4, 5, 6, 7]}
    assert other_err == "error: no room on this machine\n"
    assert err == "error: process 1 of 2 stopped: no room on this machine\n"


def assert_close(folder: Path, other: Path, rel: float) -> None:
    pairs = zip(rows_of(folder), rows_of(other), strict=True)
    for got, want in pairs:
        assert got == pytest.approx(want, rel=rel)


@pytest.mark.slow
def test_two_processes_train_as_one(trainer, tmp_path):
    args = (*FEW, "--train.target", "cpu:2", "--sharding.fsdp", "2")
    code, out, err = end(trainer.launch(2, tmp_path / "two", *args))
    assert (code, err) == (0, "")
    assert "on 2 x cpu in 2 processes" in out
    assert out.count("from the beginning") == 1
    assert saved_steps(tmp_path / "two") == [3, 6]
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["settings"]["processes"] == 2
    code, _, err = trainer.run(tmp_path / "one", *args)
    assert (code, err) == (0, "")
    assert_close(tmp_path / "two", tmp_path / "one", rel=1e-6)


@pytest.mark.slow
def test_fifty_steps_on_all_axes_in_four_processes_are_those_of_one(trainer, tmp_path):
    args = (*ALL_AXES, "--train.num-steps", "50")
    code, out, err = end(trainer.launch(4, tmp_path / "four", *args))
    assert (code, err) == (0, "")
    assert "on 8 x cpu in 4 processes" in out
    code, _, err = trainer.run(tmp_path / "one", *args)
    assert (code, err) == (0, "")
    assert_close(tmp_path / "four", tmp_path / "one", rel=1e-6)


@pytest.mark.slow
def test_killed_six_times_in_any_process_the_curve_is_the_same(trainer, tmp_path):
    args = (*ALL_AXES, "--train.num-steps", "100", "--train.save-every", "5")
    code, _, err = end(trainer.launch(4, tmp_path / "whole", *args))
    assert (code, err) == (0, "")
    folder, chance = tmp_path / "run", random.Random(0)
    for victim in (0, 1, 2, 3, 0, 2):
        process = trainer.launch(4, folder, *args)
        start = max(saved_steps(folder), default=0)
        wait_for_rows(process, folder, start + chance.randint(1, 9))
        time.sleep(chance.uniform(0, 0.1))
        os.kill(pids(process)[victim], signal.SIGKILL)
        since = time.monotonic()
        code, _, err = end(process)
        took_s = time.monotonic() - since
        print(f"process {victim} of step {num_rows(folder)}: {took_s:.1f} s")
        assert took_s < 15
        assert code == 1
        assert err == (
            f"error: process {victim} of 4 was ended by SIGKILL; the others were "
            "ended; the same command goes on from the last whole checkpoint\n"
        )
    code, _, err = end(trainer.launch(4, folder, *args))
    assert (code, err) == (0, "")
    assert rows_of(folder) == rows_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_all_save_one_step_and_go_on_in_another_number(
    trainer, tmp_path, number
):
    args = ("--train.target", "cpu:2", "--train.save-every", "1000")
    folder = tmp_path / "run"
    process = trainer.launch(2, folder, *args)
    wait_for_rows(process, folder, 3)
    process.send_signal(number)
    code, out, err = end(process)
    assert (code, err) == (0, "")
    (step,) = saved_steps(folder)
    assert f"{number.name}: saved step {step}; the same command goes on from it" in out
    assert num_rows(folder) == step < 60
    code, out, err = trainer.run(folder, *args)
    assert (code, err) == (0, "")
    assert f"going on from step {step}" in out
    assert "processes was 2 and is 1" in out
    assert num_rows(folder) == 60


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 1])
def test_one_process_that_is_asked_to_stop_stops_all(trainer, tmp_path, asked):
    process = trainer.launch(2, tmp_path, "--train.target", "cpu:2")
    wait_for_rows(process, tmp_path, 3)
    os.kill(pids(process)[asked], signal.SIGTERM)
    code, out, err = end(process)
    assert (code, err) == (0, "")
    assert f"SIGTERM: saved step {saved_steps(tmp_path)[-1]};" in out


def by_hand(trainer, folder: Path, port: int, *args: tuple[str, ...]) -> list:
    """Processes without a launcher, each with its own arguments."""
    told = ("--processes", str(len(args)), "--coordinator", f"localhost:{port}")
    return [
        trainer.start(folder, *told, "--process-id", str(index), *more)
        for index, more in enumerate(args)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP)],
)
def test_without_a_launcher_the_others_name_who_is_gone(
    trainer, tmp_path, victim, number
):
    port = launch.free_port()
    args = ("--train.target", "cpu:2", "--train.num-steps", "100000")
    processes = by_hand(trainer, tmp_path, port, args, args)
    wait_for_rows(processes[0], tmp_path, 3)
    gone = processes.pop(victim)
    gone.send_signal(number)
    code, _, err = end(processes[0], timeout=60)
    gone.kill()
    end(gone)
    assert code == 1
    coordinator = ", the coordinator," if victim == 0 else ""
    assert re.fullmatch(
        f"error: process {victim} of 2{coordinator} has not answered for \\d+ s: it "
        "was killed or its machine is gone; the same command goes on from the last "
        "whole checkpoint\n",
        err,
    )


@pytest.mark.slow
def test_without_a_launcher_jax_ends_those_whose_coordinator_was_killed(
    trainer, tmp_path
):
    args = ("--train.target", "cpu:2", "--train.num-steps", "100000")
    first, second = by_hand(trainer, tmp_path, launch.free_port(), args, args)
    wait_for_rows(first, tmp_path, 3)
    first.kill()
    code, _, err = end(second, timeout=60)
    end(first)
    assert code == -signal.SIGABRT
    assert "This most likely indicates that another task died" in err


@pytest.mark.slow
def test_processes_of_different_commands_are_refused(trainer, tmp_path):
    both = by_hand(
        trainer, tmp_path / "run", launch.free_port(), (), ("--model.width", "32")
    )
    errors = [end(process) for process in both]
    assert [code for code, _, _ in errors] == [1, 1]
    own = (
        "process 1 differs from process 0 in its command and data: model.width is 32 "
        "and not 16; start all with one command"
    )
    assert errors[1][2].startswith(f"error: {own}")
    assert errors[0][2].startswith(f"error: process 1 of 2 stopped: {own}")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--model.num-layers", "0"), "model.num_layers is 0: write 1 or more"),
        (("--data.batch-size", "7"), "data.batch_size 7 does not split over 2 data-"),
        (("--train.target", "cpu:3"), "which 2 processes cannot share evenly: write"),
        (("--optim.learning-rate", "1e30"), "is not finite"),
        (("--train.plan", "/no/plan.json"), "/no/plan.json"),
    ],
)
def test_what_all_processes_refuse_is_told_once(trainer, tmp_path, args, sentence):
    process = trainer.launch(2, tmp_path / "run", "--train.target", "cpu:2", *args)
    code, _, err = end(process)
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
