"""One sentence for a process whose peer is gone, and an end.

Through the key-value store of JAX's coordination service each process says that it is
alive, and what went wrong with it. A collective whose peer has died may wait forever,
so a thread looks at that, and ends the process.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import jax

from revremat import UserError

PATIENCE_S = 30.0
"""A process that says nothing for so long is gone: less is a busy machine.

JAX's own limit is 100 s. It aborts the process with a message of many lines.
"""
_SHORT_PATIENCE_S = 8.0
"""The same where a collective has failed already."""
_FAREWELL_S = 5.0
_ALIVE, _FAILED, _ENDED = "revremat/alive/", "revremat/failed/", "revremat/ended/"
RESUME = "the same command goes on from the last whole checkpoint"


class Watch:
    """Says that this process is alive, and looks after the others.

    Args:
      client: Of JAX's coordination service.
      index: Which process this is.
      count: How many there are.
    """

    def __init__(self, client: Any, index: int, count: int):
        self._client, self._index, self._count = client, index, count
        # All ask process 0: many processes ask less often.
        self._pause_s = 0.5 + count / 100
        self._patience_s = PATIENCE_S
        self._telling = threading.Lock()
        self._done = threading.Event()
        self._last_answer = time.monotonic()
        for work in (self._look, self._look_at_the_coordinator):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """From here on processes may go when they like."""
        self._done.set()

    def fail(self, error: Exception) -> NoReturn:
        """Tell an error of this process, here and to the others, and end.

        An error of the runtime is a peer's most of the time: where the other threads
        find one that is gone, that is told instead.
        """
        if _is_of_runtime(error):
            self._patience_s = _SHORT_PATIENCE_S
            time.sleep(PATIENCE_S)
        expected = isinstance(error, UserError | OSError)
        if not expected:
            traceback.print_exception(error)
        sentence = str(error) if expected else _first_line(error)
        self._end(sentence, told=not expected)

    def _end(self, sentence: str, *, told: bool = False) -> NoReturn:
        # Never let go: who comes second waits for the end.
        self._telling.acquire()
        if sys.stdout.isatty():
            print("\033[?25h", end="")  # the cursor, which a progress bar hides
        sys.stdout.flush()
        if not told:
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        # Not waited for long: process 0, which is asked, may be the one that is gone.
        farewell = threading.Thread(target=self._part, args=(sentence,), daemon=True)
        farewell.start()
        farewell.join(_FAREWELL_S if self._index == 0 else 1.0)
        # Not by `sys.exit`: the runtime would wait for collectives at the end.
        os._exit(1)

    def _part(self, sentence: str) -> None:
        """Tell the others; process 0 has what is told and stays until all have read."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"{_FAILED}{self._index}", sentence)
            self._client.key_value_set(f"{_ENDED}{self._index}", "")
            while self._index == 0 and len(self._read(_ENDED)) < self._count:
                time.sleep(0.1)

    def _look(self) -> None:
        beat, changed = 0, {}
        while not self._done.wait(self._pause_s):
            beat += 1
            try:
                self._client.key_value_set(
                    f"{_ALIVE}{self._index}", str(beat), allow_overwrite=True
                )
                alive = self._read(_ALIVE)
                failed = self._read(_FAILED)
            except jax.errors.JaxRuntimeError:
                continue  # the other thread counts the time
            now = self._last_answer = time.monotonic()
            for peer in range(self._count):
                last = changed.setdefault(peer, (None, now))
                if last[0] != alive.get(peer):
                    changed[peer] = alive.get(peer), now
            self._judge(failed, {p: now - since for p, (_, since) in changed.items()})

    def _judge(self, failed: dict[int, str], silent_s: dict[int, float]) -> None:
        if failed and self._index not in failed:
            # An error of all is told by each in its own words.
            if self._done.wait(2.0):
                return
            peer, sentence = min(failed.items())
            self._end(f"{self._name(peer)} stopped: {sentence}")
        for peer, seconds in silent_s.items():
            if seconds > self._patience_s and not self._done.is_set():
                self._end(
                    f"{self._name(peer)} has not answered for {seconds:.0f} s: it was "
                    f"killed or its machine is gone; {RESUME}"
                )

    def _look_at_the_coordinator(self) -> None:
        while not self._done.wait(self._pause_s):
            seconds = time.monotonic() - self._last_answer
            if seconds > self._patience_s and not self._done.is_set():
                self._end(
                    f"{self._name(0)}, the coordinator, has not answered for "
                    f"{seconds:.0f} s: it was killed or its machine is gone; {RESUME}"
                )

    def _read(self, prefix: str) -> dict[int, str]:
        found = self._client.key_value_dir_get(prefix)
        return {int(key.rpartition("/")[2]): value for key, value in found}

    def _name(self, peer: int) -> str:
        return f"process {peer} of {self._count}"


def _is_of_runtime(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"
