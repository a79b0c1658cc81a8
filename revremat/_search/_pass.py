"""Pass: one step of a search, from what is known to more of it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from revremat._search._keys import Request
from revremat._search._state import State

Ask = Callable[[State, Sequence[Request]], State]
"""What is known once some programs are; none is measured twice."""


class Pass(Protocol):
    """One step of a search; it reads a state, asks, and gives a state that knows more.

    It changes nothing else, so equal states ask the same.
    """

    def __call__(self, state: State, ask: Ask) -> State: ...
