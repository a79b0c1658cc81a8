"""A whole run without a card, as it would be on a machine with one and no network."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.calibrate import runner
from experiments.calibrate.records import latest, read, state_of
from tests.experiments import card_machine

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Its Python, and the folder of wheels that is carried there."""
    folder = tmp_path_factory.mktemp("machine")
    return card_machine.make(folder / "venv"), card_machine.wheels(folder / "wheels")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A plain folder with what the command needs of the repository, and no more."""
    folder = tmp_path_factory.mktemp("tree")
    drop = shutil.ignore_patterns("__pycache__", "results")
    for name in ("revremat", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=drop)
    return folder


@pytest.fixture
def start(machine, tree, tmp_path):
    python, wheels = machine
    # Nothing of this machine's environment: what is not given there is not there.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["PYTHONPATH"] = str(wheels)

    def run(*words):
        command = [*card_machine.alone(), str(python), "-m", "experiments.calibrate"]
        command += ["--platform", "cpu", "--quick", "--out", str(tmp_path / "out")]
        command += words
        return subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("name", card_machine.LACKS)
def test_the_machine_lacks_what_it_lacks(machine, name):
    done = subprocess.run(
        [str(machine[0]), "-c", f"import {name}"], capture_output=True
    )
    assert b"ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('192.0.2.1', 80), 1)",
        "socket.getaddrinfo('example.org', 80)",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
    ],
)
def test_the_machine_has_no_network(machine, call):
    command = [str(machine[0]), "-c", f"import socket; {call}"]
    assert b"there is no network" in subprocess.run(command, capture_output=True).stderr


def test_where_the_system_can_there_is_no_network_at_all():
    if not (words := card_machine.alone()):
        pytest.skip("network namespaces are not allowed here")
    command = [*words, "cat", "/proc/net/dev"]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    assert re.findall(r"^ *(\S+):", found, re.MULTILINE) == ["lo"]


def test_a_whole_dry_run_ends_in_time_with_all_jobs_and_files(start, tmp_path):
    process = start("--seconds", "570")
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out[-3000:]
    records = read(tmp_path / "out" / "results.jsonl")
    states = {job: state_of(found) for job, found in latest(records).items()}
    assert {*states.values()} == {"done"}, states
    assert len(states) > 30
    assert [r.data for r in records if r.kind == "failed"] == []
    names = {path.name for path in (tmp_path / "out").iterdir()}
    # Nothing is autotuned on a CPU.
    assert names == {*runner.FILES} - {runner.TUNING}
    assert all(r["not_finite"] == 0 for r in records if "not_finite" in r.data)


def test_a_run_killed_anywhere_goes_on_and_repeats_nothing(start, tmp_path):
    results = tmp_path / "out" / "results.jsonl"
    words = ("--only", "race tiny_matmuls", "run mlp", "exact")
    for number in range(3):
        process = start(*words)
        # Killed after two more records: within the doctor, or within a job.
        wanted = len(read(results)) + 2 + 3 * number
        while process.poll() is None and len(read(results)) < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    out, _ = start(*words).communicate(timeout=300)
    records = read(results)
    for job in ("race tiny_matmuls", "run mlp", "exact"):
        ended = [r for r in records if r.job == job and r.kind == "ended"]
        assert len([r for r in ended if not r.get("error")]) == 1, out
    for line in results.read_text().splitlines():
        assert line == "" or json.loads(line)
    assert not re.search(r"Traceback", out)


def test_without_a_card_the_command_stops_and_measures_no_cpu(machine, tree, tmp_path):
    python, wheels = machine
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [str(python), "-m", "experiments.calibrate", "--out", str(tmp_path / "out")],
        cwd=tree, env=environment | {"PYTHONPATH": str(wheels)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert "write --platform cpu to measure this cpu" in error
    assert not any(r.kind == "measured" for r in read(tmp_path / "out/results.jsonl"))
    assert os.listdir(tmp_path / "out")
