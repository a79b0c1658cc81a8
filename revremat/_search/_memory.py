"""Memory: what the programs of a search take, kept for the next one of this process.

A second budget asks for many programs that the first one measured. Those on the disk
need no compile, but each is traced and lowered again to find them there.
"""

import collections
import functools
import hashlib
import threading

from revremat._graph import Graph
from revremat._measurement import Measurement
from revremat._search._keys import ProbeKey, ProgramKey
from revremat.xla import Lowered, cache_folder

Known = dict[tuple[ProbeKey | ProgramKey, bool], Measurement]
"""By program, and by whether its compile was exact."""

_MOST_PROBLEMS = 8
"""Of the ones that were searched last; a measurement takes some hundred kB."""


def known_of(baseline: Lowered, graph: Graph) -> Known:
    """What is known of a problem; whoever measures more puts it there.

    Args:
      baseline: Its step without a plan, which says what is computed, for which target,
        by which versions, and where compiles are kept.
      graph: Its units.
    """
    parts = cache_folder(), baseline.identity, baseline.target, graph.to_json()
    return _memory().of(hashlib.sha256(repr(parts).encode()).hexdigest())


class _Memory:
    """The last few problems."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: collections.OrderedDict[str, Known] = collections.OrderedDict()

    def of(self, problem: str) -> Known:
        with self._lock:
            found = self._of.setdefault(problem, {})
            self._of.move_to_end(problem)
            while len(self._of) > _MOST_PROBLEMS:
                self._of.popitem(last=False)
            return found


@functools.cache
def _memory() -> _Memory:
    return _Memory()
