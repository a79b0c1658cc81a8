"""Processes: what is told of them, which rows each reads, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments import cli, data, launch, processes
from experiments.global_arrays import on_devices, rows_here
from experiments.processes import ProcessesConfig
from experiments.train import main
from revremat import sharding


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", ProcessesConfig()),
        ("--processes 1", ProcessesConfig(1)),
        (
            "--processes 4 --process-id 3 --coordinator node001:1234",
            ProcessesConfig(4, 3, "node001:1234"),
        ),
        (
            "--processes=2 --process-id=0 --coordinator=[::1]:80",
            ProcessesConfig(2, 0, "[::1]:80"),
        ),
    ],
)
def test_the_command_line_says_which_process_of_how_many(line, told):
    assert cli.parse(["gpt", *line.split()]).processes == told
    processes.check(told)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--process-id 0", "--process-id needs --processes N"),
        ("--coordinator a:1", "--coordinator needs --processes N"),
        ("--processes 0", "--processes is 0: write 1 or more"),
        ("--processes -2", "--processes is -2: write 1 or more"),
        ("--processes 2", "--processes 2 needs --process-id I; on one machine `python"),
        ("--processes 2 --process-id 1", "--processes 2 needs --coordinator HOST:PORT"),
        ("--processes 2 --coordinator a:1", "--processes 2 needs --process-id I"),
        (
            "--processes 2 --process-id 2 --coordinator a:1",
            "--process-id is 2 of --processes 2: write 0 to 1",
        ),
        (
            "--processes 2 --process-id -1 --coordinator a:1",
            "--process-id is -1 of --processes 2: write 0 to 1",
        ),
        (
            "--processes 2 --process-id 1 --coordinator node001",
            "--coordinator is 'node001': write HOST:PORT of process 0",
        ),
        (
            "--processes 2 --process-id 1 --coordinator a:70000",
            "--coordinator is 'a:70000': write HOST:PORT",
        ),
        (
            "--processes 3 --process-id 1 --coordinator a:1 --train.target cpu:8",
            "cpu:8 has 8 devices, which 3 processes cannot share evenly: write cpu:9",
        ),
        (
            "--processes 4 --process-id 1 --coordinator a:1 --train.target cpu:2",
            "cpu:2 has 2 devices, which 4 processes cannot share evenly: write cpu:4",
        ),
    ],
)
def test_what_is_told_in_part_is_one_sentence(capsys, tmp_path, line, sentence):
    assert main(["gpt", "--train.dir", str(tmp_path / "run"), *line.split()]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert sentence in err
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_in_use_is_one_sentence(capsys):
    port = launch.free_port()
    with launch.socket.socket() as other:
        other.bind(("", port))
        other.listen()
        told = f"--processes 2 --process-id 0 --coordinator localhost:{port}"
        assert main(["gpt", *told.split()]) == 1
    err = capsys.readouterr().err
    assert f"process 0 cannot listen at port {port} (" in err
    assert "choose another port, the same for all" in err


ROOT = Path(__file__).parents[2]
SLURM = {"SLURM_STEP_NODELIST": "node[001-002]", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("environment", "joins"),
    [
        ({}, False),
        (SLURM | {"SLURM_NTASKS": "2"}, True),
        (SLURM | {"SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "8"}, False),  # of a batch script: no step of `srun`
        ({"OMPI_COMM_WORLD_SIZE": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
    ],
)
def test_a_process_joins_others_where_a_cluster_started_several(environment, joins):
    assert processes.in_cluster(environment) == joins


@pytest.mark.parametrize(
    ("target", "count", "devices"),
    [("cpu:8", 4, 2), ("cpu:8", 8, 1), ("cpu:2", 2, 1), ("local", 3, 0)],
)
def test_processes_share_the_cpu_devices_evenly(target, count, devices):
    assert processes.local_cpu_devices(target, count) == devices


# ---- Data ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1, 2), (3, 4, 5)],
        [(0, 3), (1, 4), (2, 5)],
        [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)],
        [(5,), (0, 1, 2, 3, 4)],
    ],
)
def test_the_rows_of_all_processes_are_the_batch_of_one(rows):
    examples = [{"x": np.array(i)} for i in range(37)]
    one = data.train_batches(examples, 6, 0)
    parts = [data.train_batches(examples, 6, 0, part) for part in rows]
    for _ in range(14):  # into the third epoch
        batch, read = next(one)["x"], [next(part)["x"] for part in parts]
        for part, found in zip(rows, read, strict=True):
            np.testing.assert_array_equal(batch[list(part)], found)
    assert [part.get_state() for part in parts] == [one.get_state()] * len(rows)
    held_out = data.valid_batches(examples, 6, 3)
    for part in rows:
        for got, want in zip(
            data.valid_batches(examples, 6, 3, part), held_out, strict=True
        ):
            np.testing.assert_array_equal(got["x"], want["x"][list(part)])


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        ({"data": 8}, PartitionSpec("data")),
        ({"data": 2, "fsdp": 2, "model": 2}, PartitionSpec(("data", "fsdp"))),
        ({"model": 8}, PartitionSpec()),
        ({"data": 2, "model": 4}, PartitionSpec("data", "model")),
    ],
)
def test_batches_lie_where_they_should(axes, spec):
    mesh = sharding.make_mesh(axes, jax.devices()[:8])
    x = np.arange(16 * 4).reshape(16, 4)
    where = NamedSharding(mesh, spec)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    rows = rows_here(like)
    assert rows == tuple(range(16))
    found = on_devices({"x": x}, {"x": like}, rows)["x"]
    assert found.sharding == where
    np.testing.assert_array_equal(found, x)


# ---- The launcher's command line -----------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "how many processes? write python -m experiments.launch --processes N"),
        ("train.py gpt", "how many processes?"),
        ("--processes", "--processes is '': write a whole number, 1 or more"),
        ("--processes four train.py gpt", "--processes is 'four': write a whole"),
        ("--processes 0 train.py gpt", "--processes is '0': write a whole number"),
        ("--processes -1 train.py gpt", "--processes is '-1': write a whole number"),
        ("--processes=2", "what is to be run?"),
        ("--processes 2 gpt", "'gpt' is not train.py, which alone is run: write"),
        ("--processes 2 other/train.py gpt", "'other/train.py' is not train.py"),
        ("--processes 2 train.py gpt --process-id 1", "--process-id stands behind"),
        ("--processes 2 train.py gpt --processes=2", "--processes=2 stands behind"),
    ],
)
def test_what_the_launcher_does_not_understand_is_one_sentence(capsys, line, sentence):
    assert launch.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("folder", ["", "experiments/", f"{ROOT}/experiments/"])
def test_the_launcher_runs_train_py_however_it_is_named(folder):
    script = f"{folder}train.py"
    assert launch.parse(["--processes", "2", script, "gpt"]) == (2, ["gpt"])


EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}


@pytest.mark.parametrize(
    ("count", "line", "environment", "ids"),
    [
        (4, "gpt", EIGHT, ["0,1", "2,3", "4,5", "6,7"]),
        (8, "gpt", EIGHT, list("01234567")),
        (2, "gpt", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["0", "1"]),
        (1, "gpt", EIGHT, [None]),
        (2, "gpt", {}, [None, None]),
        (2, "gpt", {"CUDA_VISIBLE_DEVICES": ""}, [None, None]),
        (2, "gpt", {"CUDA_VISIBLE_DEVICES": "-1"}, [None, None]),
        (2, "gpt", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [None, None]),
        (2, "gpt", {"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, ["0", "1"]),
        (3, "gpt --train.target cpu:3", EIGHT, [None] * 3),
        (3, "gpt --train.target=cpu:3", EIGHT, [None] * 3),
        (3, "gpt", EIGHT | {"JAX_PLATFORMS": "cpu"}, [None] * 3),
    ],
)
def test_the_launcher_gives_each_process_its_share_of_the_gpus(
    tmp_path, count, line, environment, ids
):
    found = launch.gpus_of_each(count, line.split(), environment, tmp_path)
    assert [own.get("JAX_LOCAL_DEVICE_IDS") for own in found] == ids


def test_what_several_processes_say_is_told_once_and_what_one_repeats_again(capsys):
    said = "Traceback", "  ^^^^", "  ^^^^", "no room"
    children: Any = [
        SimpleNamespace(lines=[(0.0, f"{line}\n") for line in few])
        for few in (said, (*said, "of the second"))
    ]
    launch._pass_on(children, 1.0, {})
    told = capsys.readouterr().err.splitlines()
    assert told == [*said, "of the second"]


def test_gpus_are_counted_by_the_driver(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    found = launch.gpus_of_each(2, ["gpt"], {}, tmp_path)
    assert found == [{"JAX_LOCAL_DEVICE_IDS": "0"}, {"JAX_LOCAL_DEVICE_IDS": "1"}]
    with pytest.raises(ValueError, match="has 2 GPUs, which 3 processes cannot share"):
        launch.gpus_of_each(3, ["gpt"], {}, tmp_path)
