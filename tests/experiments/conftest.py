"""Running `train.py` as a person does: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "experiments" / "train.py"

TINY = """
gpt --model.num-layers 1 --model.width 16 --model.mlp-width 32 --model.num-heads 2
--model.seq-len 16 --model.dropout 0.1 --data.batch-size 8 --optim.warmup-steps 5
--train.num-steps 60 --train.save-every 5 --train.valid-every 30 --train.valid-batches 2
""".split()  # noqa: SIM905 - it reads as it is typed


class Trainer:
    """Starts runs that share what they compile.

    Args:
      cache: Folder for compiled programs.
    """

    args = TINY

    def __init__(self, cache: Path):
        self._environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def start(self, folder: Path, *args: str, **environment: str) -> subprocess.Popen:
        """A tiny run in a folder, with changes, not waited for."""
        return self._start([str(TRAIN)], folder, args, environment)

    def launch(self, count: int, folder: Path, *args: str) -> subprocess.Popen:
        """The same run in several processes: the process that looks after them."""
        command = ["-m", "experiments.launch", "--processes", str(count), "train.py"]
        return self._start(command, folder, args, {})

    def _start(self, command, folder, args, environment):
        return subprocess.Popen(
            [sys.executable, *command, *self.args, "--train.dir", str(folder), *args],
            cwd=ROOT,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, *args: str, **environment: str):
        """A tiny run to its end: exit code, standard output, standard error."""
        process = self.start(folder, *args, **environment)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err


@pytest.fixture(scope="session")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session")
def uninterrupted(trainer, tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    code, _, err = trainer.run(folder)
    assert code == 0, err
    return folder
