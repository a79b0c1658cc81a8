"""Checkpoints that a run can always go on from.

A checkpoint is written into a temporary folder and renamed when it is whole, so that a
kill or a full disk leaves nothing that looks like one. Writing goes on behind training.
"""

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
from orbax.checkpoint import v1 as ocp

from revremat._errors import UserError


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: Where they are; made if absent.
      keep: How many of the newest are kept.

    Raises:
      UserError: If the folder cannot be made or read.
    """

    def __init__(self, folder: Path, keep: int):
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._folder = folder
        with _one_sentence(lambda: f"cannot open the checkpoints in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(folder)
            self._checkpointer = ocp.training.Checkpointer(
                folder.absolute(),
                preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            )
        self.last_step: int | None = self._newest()
        """Step of the newest whole checkpoint, None before there is one."""
        self._pending: tuple[int, Any] | None = None

    def save(self, step: int, state: Any, batches: grain.DatasetIterator) -> None:
        """Begin to write a checkpoint; returns when the arrays may be overwritten.

        Raises:
          UserError: If this one cannot be begun or the one before it failed.
        """
        self.wait()
        if self.last_step == step:
            return
        with self._saving(step):
            response = self._checkpointer.save_checkpointables_async(
                step, {"state": state, "batches": batches}, force=True
            )
        self._pending = (step, response)

    def wait(self) -> None:
        """Wait until the last checkpoint is whole.

        Raises:
          UserError: If it could not be written.
        """
        if self._pending is None:
            return
        (step, response), self._pending = self._pending, None
        with self._saving(step):
            response.result()
        self.last_step = step

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
        path = self._folder / str(self.last_step)
        with _one_sentence(
            lambda: f"cannot read the checkpoint {path}",
            "delete that folder to go on from the one before it",
        ):
            loaded = self._checkpointer.load_checkpointables(
                self.last_step, {"state": state, "batches": batches}
            )
        return loaded["state"]

    def close(self) -> None:
        """Wait for the last checkpoint and let go of the folder."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):
                self._checkpointer.close()

    def _newest(self) -> int | None:
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    @contextlib.contextmanager
    def _saving(self, step: int) -> Iterator[None]:
        def subject() -> str:
            return f"cannot save step {step} to {self._folder}"

        since = "the start" if self.last_step is None else f"step {self.last_step}"
        advice = f"make room and run the same command: it goes on from {since}"
        try:
            with _one_sentence(subject, advice):
                yield
        except UserError:
            self._pending = None
            with contextlib.suppress(OSError):
                _remove_unfinished(self._folder)
            raise


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(path)


@contextlib.contextmanager
def _one_sentence(subject: Callable[[], str], advice: str = "") -> Iterator[None]:
    """Turn whatever a checkpoint library raises into one sentence of ours."""
    try:
        yield
    except Exception as error:
        advice = f"; {advice}" if advice else ""
        raise UserError(f"{subject()}: {_reason(error)}{advice}") from error


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    for known in ("No space left on device", "File too large", "Permission denied"):
        if known in str(error):
            return known
    first_line = str(error).strip().split("\n")[0]
    return first_line[:200] or type(error).__name__
