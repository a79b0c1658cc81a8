"""Asking: how passes ask an oracle, the only thing in a search that costs time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from revremat._measure import Failure
from revremat._measurement import Measurement
from revremat._search._keys import BASELINE, Request
from revremat._search._state import OutOfCompiles, State

Progress = Callable[[str, int, int], None]
"""Told what is compiled next, how many compiles are done, and how many there may be."""


class RequestOracle(Protocol):
    """Whatever answers requests, which name programs by their keys.

    `CompilerOracle` makes their steps, about which an `Oracle` is asked.
    """

    def measure(self, requests: Iterable[Request]) -> Sequence[Measurement | Failure]:
        """What becomes of each, in order; the next is taken when its turn comes."""
        ...


@dataclass(frozen=True)
class Asking:
    """How passes ask: of each program once, with what is known as the answer.

    Attributes:
      oracle: Is asked.
      expected: About how many programs there will be.
      progress: Called before each.
    """

    oracle: RequestOracle
    expected: int = 0
    progress: Progress | None = None

    def __call__(self, state: State, requests: Sequence[Request]) -> State:
        """What is known after these programs were measured.

        Raises:
          OutOfCompiles: There are more new ones than are allowed; as many as are were
            measured.
          Exception: The baseline does not compile; whatever JAX or XLA raises.
        """
        unique = {r.key: r for r in reversed(requests)}
        new = [unique[key] for key in dict.fromkeys(r.key for r in requests)]
        new = [request for request in new if not state.knows(request)]
        left_out = 0 if state.room is None else max(0, len(new) - state.room)
        new = new[: len(new) - left_out]
        told = self._told(new, state.num_compiles)
        outcomes = self.oracle.measure(told) if new else []
        for request, outcome in zip(new, outcomes, strict=True):
            if isinstance(outcome, Failure) and request.key == BASELINE:
                raise outcome.error
            state = state.with_measured(request, outcome)
        if left_out:
            raise OutOfCompiles(state, left_out)
        for request in requests:
            state = state.with_expected(request)
        return state

    def _told(self, requests: Sequence[Request], done: int) -> Iterator[Request]:
        for number, request in enumerate(requests, done):
            if self.progress is not None:
                total = max(number + 1, self.expected)
                self.progress(request.label, number, total)
            yield request
