"""Checkpoints that a run can always go on from.

A checkpoint is written into a temporary folder and renamed when it is whole, so that a
kill or a full disk leaves nothing that looks like one. Writing goes on behind training.
The files have no checksums of their own: a flipped bit would load as a weight. So each
array's bits are summed on the device before they are saved and after they are loaded.
"""

import asyncio
import atexit
import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from experiments.event_loops import loops_that_end_their_tasks
from experiments.files import Hold
from revremat import UserError


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: Where they are; made if absent.
      keep: How many of the newest are kept.

    Raises:
      UserError: If the folder cannot be made or read, or another run is at work in it.
    """

    def __init__(self, folder: Path, keep: int):
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._folder = folder
        self._hold = None
        with _one_sentence(f"cannot open the checkpoints in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:
                self._hold = Hold(folder)
                _remove_unfinished(folder)
            self._checkpointer = ocp.training.Checkpointer(
                str(folder.absolute()),
                preservation_policy=_latest(keep),
            )
        self._pending: tuple[int, Any] | None = None

    @property
    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first."""
        pending = self._pending[0] if self._pending else None
        found = [info.step for info in self._checkpointer.checkpoints]
        return [step for step in found if step != pending]

    @property
    def last_step(self) -> int | None:
        """Step of the newest whole checkpoint, None before there is one."""
        return self.steps[-1] if self.steps else None

    def path(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self._folder / str(step)

    def save(self, step: int, state: Any, batches: grain.DatasetIterator) -> None:
        """Begin to write a checkpoint; returns when the arrays may be overwritten.

        Raises:
          UserError: If this one cannot be begun or the one before it failed.
        """
        self.wait()
        if self.last_step == step:
            return
        facts: Any = {"bit_sums": bit_sums(state)}
        with self._saving(step):
            response = self._checkpointer.save_checkpointables_async(
                step,
                {"state": state, "batches": _Position(batches)},
                force=True,
                custom_metadata=facts,
            )
        self._pending = (step, response)

    def wait(self) -> None:
        """Wait until the last checkpoint is whole.

        Raises:
          UserError: If it could not be written.
        """
        if self._pending is None:
            return
        step, response = self._pending
        with self._saving(step):
            response.result()
        self._pending = None

    def load(self, state: Any, batches: grain.DatasetIterator) -> Any:
        """The newest whole checkpoint.

        Args:
          state: Shapes, dtypes and shardings of what was saved.
          batches: Is moved to where it was.

        Returns:
          The state, sharded as asked, whatever the mesh it was saved from.

        Raises:
          UserError: If it cannot be read or holds something else.
        """
        *before, newest = self.steps
        advice = f"go on from step {before[-1]}" if before else "start again"
        with _one_sentence(
            f"cannot read the checkpoint {self.path(newest)}",
            f"delete that folder to {advice}",
        ):
            metadata = self._checkpointer.checkpointables_metadata(newest)
            facts: Any = metadata.custom_metadata
            if not facts:
                raise ValueError("files are missing")
            with loops_that_end_their_tasks():
                loaded = self._checkpointer.load_checkpointables(
                    newest, {"state": state, "batches": _Position(batches)}
                )["state"]
            sums = zip(facts["bit_sums"], bit_sums(loaded), strict=True)
            for name, (saved, now) in zip(_paths(loaded), sums, strict=True):
                if saved != now:
                    raise ValueError(f"the bits of {name} have changed since")
        return loaded

    def close(self) -> None:
        """Wait for the last checkpoint and let go of the folder."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):
                self._checkpointer.close()
            self._sweep()
            if self._hold is not None:
                self._hold.close()
            # After a failed save the library's threads write on for a moment; this
            # runs when they have ended.
            atexit.register(self._sweep_at_exit)

    def _sweep_at_exit(self) -> None:
        """Unless another run is at work in the folder by now."""
        if jax.process_index() != 0:
            return
        with contextlib.suppress(OSError):
            hold = Hold(self._folder)
            self._sweep()
            hold.close()

    def _sweep(self) -> None:
        if jax.process_index() != 0:
            return
        with contextlib.suppress(OSError):
            _remove_unfinished(self._folder)

    @contextlib.contextmanager
    def _saving(self, step: int) -> Iterator[None]:
        since = "the start" if self.last_step is None else f"step {self.last_step}"
        with _one_sentence(
            f"cannot save step {step} to {self._folder}",
            f"make room and run the same command: it goes on from {since}",
        ):
            yield


class _Position:
    """Which batch is next: the same in all processes, so one file says it.

    The file is the one that grain itself writes where there is one process.
    """

    _FILE = "process_0-of-1.json"

    def __init__(self, batches: grain.DatasetIterator):
        self._batches = batches

    async def save(self, directory: Any) -> Awaitable[None]:
        return self._write(directory, json.dumps(self._batches.get_state(), indent=4))

    async def _write(self, directory: Any, text: str) -> None:
        folder = await directory.await_creation()
        if jax.process_index() == 0:
            await asyncio.to_thread((folder / self._FILE).write_text, text)

    async def load(self, directory: Any) -> Awaitable[None]:
        return self._read(directory)

    async def _read(self, directory: Any) -> None:
        text = await asyncio.to_thread((directory / self._FILE).read_text)
        self._batches.set_state(json.loads(text))


def _bit_sums(leaves: list[jax.Array]) -> jax.Array:
    def total(leaf):
        unsigned = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
        return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32).sum()

    return jnp.stack([total(leaf) for leaf in leaves])


def bit_sums(state: Any) -> list[int]:
    """For each array the sum of its words' bits modulo 2^32.

    Integer sums do not depend on their order, so neither on the mesh.
    """
    leaves = jax.tree.leaves(state)
    return jax.jit(_bit_sums, out_shardings=everywhere(leaves[0]))(leaves).tolist()


def everywhere(array: jax.Array) -> NamedSharding | None:
    """How a result lies whole on every device of an array's mesh, if it has one."""
    if isinstance(array.sharding, NamedSharding):
        return NamedSharding(array.sharding.mesh, PartitionSpec())
    return None


def _paths(state: Any) -> list[str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [jax.tree_util.keystr(k, simple=True, separator="/") for k, _ in leaves]


def _latest(keep: int) -> Any:
    return ocp.training.preservation_policies.LatestN(keep)


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(path)


@contextlib.contextmanager
def _one_sentence(subject: str, advice: str = "") -> Iterator[None]:
    """Turn whatever a checkpoint library raises into one sentence of ours."""
    try:
        yield
    except Exception as error:
        # Of coroutines that the library had not begun when another failed.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        advice = f"; {advice}" if advice else ""
        raise UserError(f"{subject}: {_reason(error)}{advice}") from error


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    for known, words in _REASONS.items():
        if known in text:
            return words
    first_line = text.strip().split("\n")[0]
    return first_line[:160] or type(error).__name__


_REASONS = {
    "No space left on device": "no space left on device",
    "File too large": "file too large",
    "Permission denied": "permission denied",
    "DATA_LOSS": "its data are damaged",
    "OUT_OF_RANGE": "a file is cut short",
    "were not found in the checkpoint": "files are missing",
    "NOT_FOUND": "a file is missing",
}
