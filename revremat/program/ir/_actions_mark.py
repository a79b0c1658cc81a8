"""A mark in a function with a derivative of its own: what it keeps, and why.

Dead code that costs nothing: an empty call whose name says it.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import jax

from revremat._action import Action
from revremat._primitives import CALLS
from revremat.program.ir._ops import CHOSEN_PREFIX


def write_actions(label: str, actions: Sequence[Action]) -> None:
    """Leave a mark in the function that is being traced."""
    runs = [[len(list(run)), asdict(action)] for action, run in groupby(actions)]
    _mark(CHOSEN_PREFIX + json.dumps([label, runs]))()


@functools.lru_cache(maxsize=256)
def _mark(name: str) -> Any:
    def mark() -> None:
        return None

    mark.__name__ = mark.__qualname__ = name
    return jax.jit(mark)


def read_actions(closed: Any) -> tuple[str, tuple[Action, ...]] | None:
    """The label and the actions of the mark in a closed jaxpr; None without one."""
    for eqn in closed.jaxpr.eqns:
        name = str(eqn.params.get("name", ""))
        if eqn.primitive.name in CALLS and name.startswith(CHOSEN_PREFIX):
            label, runs = json.loads(name.removeprefix(CHOSEN_PREFIX))
            listed = ("save", "offload", "ahead")
            actions: list[Action] = []
            for count, fields in runs:
                fields |= {key: tuple(fields[key]) for key in listed}
                actions += [Action(**fields)] * count
            return label, tuple(actions)
    return None
