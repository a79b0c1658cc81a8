"""What every baseline is given, and what it answers with."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.bench.plain_jax import Loops
from experiments.bench.searching import Row
from revremat import Action, Unit, UserError
from revremat.policies import UnitOptions

Actions = Mapping[str, tuple[Action, ...]]
_CLOSE = 0.002
_NOT_MONOTONE = (0.25, 0.5, 0.125)


@dataclass(frozen=True)
class Comparison:
    """A program on a target.

    Attributes:
      units: About which is decided; the same for everyone.
      compile: A whole program, by its name for people and the actions of its units
        (None: the baseline); the answer is None for what cannot be expressed or
        compiled.
      presets: Each unit's measured costs of the presets, by the presets' names, in
        loops (False) or unrolled (True).
      write: The program with its loops in plain JAX (None: as they are) and with XLA's
        own remat pass at a limit (None: off).
      ways: In which its loops may be written otherwise; none where it has none.
      num_layers: Of those loops together.
      limit: That of the pass, for so many bytes of the step; None where there is none.
    """

    units: tuple[Unit, ...]
    compile: Callable[[str, Actions | None], Row | None]
    presets: Callable[[bool], tuple[UnitOptions, ...]]
    write: Callable[[Loops | None, int | None], Row | None] = lambda loops, limit: None
    ways: tuple[Loops, ...] = ()
    num_layers: int = 0
    limit: Callable[[float], int | None] = lambda bytes: None


class Baseline(ABC):
    """One way to choose.

    Args:
      comparison: The program.
    """

    name: ClassVar[str]
    unroll: ClassVar[bool] = False
    """Whether loops are unrolled in all that it proposes."""

    def __init__(self, comparison: Comparison):
        self.comparison = comparison
        self.rows: list[Row] = []

    @abstractmethod
    def ask(self, budget_bytes: int) -> None:
        """Compiles what it proposes for a budget."""

    def best(self, budget_bytes: int) -> Row | None:
        """The fastest of all that it proposed for any budget that fits this one."""
        fitting = [r for r in self.rows if r.bytes <= budget_bytes]
        return min(fitting, key=lambda r: (r.time_us, r.bytes), default=None)

    def compile(self, name: str, actions: Actions | None) -> Row | None:
        """Compiles a proposal, and remembers it."""
        if self.unroll and actions is not None:
            actions = {unit: _unrolled(few) for unit, few in actions.items()}
            actions = self._only_loops(actions)
            name = f"{name}, unrolled"
        try:
            row = self.comparison.compile(name, actions)
        except UserError:  # the unit cannot take such an action
            return None
        return self.keep(row)

    def keep(self, row: Row | None) -> Row | None:
        """Remembers what a proposal takes."""
        if row is not None and row not in self.rows:
            self.rows.append(row)
        return row

    @property
    def is_idle(self) -> bool:
        """Whether it would propose what another does: there is nothing to unroll."""
        return self.unroll and not any(map(_can_unroll, self.comparison.units))

    def _only_loops(self, actions: Actions) -> Actions:
        """Unrolled where there is a loop, and as they are where there is none."""
        loops = {unit.name for unit in self.comparison.units if _can_unroll(unit)}
        return {
            unit: few if unit in loops else tuple(a(unroll=False) for a in few)
            for unit, few in actions.items()
        }


def _can_unroll(unit: Unit) -> bool:
    return unit.is_loop and unit.num_layers > 1


def _unrolled(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    return tuple(action(unroll=True) for action in actions)


class Line:
    """Proposals in a row, from what needs least memory (0) to what needs most (1).

    Args:
      propose: The actions at a position.
      compile: As `Baseline.compile` does.
      name: What reports call the proposals.
    """

    def __init__(
        self,
        propose: Callable[[float], Actions],
        compile: Callable[[str, Actions], Row | None],
        name: str,
    ):
        self.propose, self.compile, self.name = propose, compile, name
        self.known: dict[float, tuple[Any, float]] = {}

    def ask(self, budget_bytes: int, most: int) -> None:
        """Looks for the last position that fits, by at most so many compiles.

        Compiles for earlier budgets bound the search. It is a bisection whose middle is
        where a straight line between the two sides meets the budget.
        """
        left = most
        for end in (1.0, 0.0):
            left -= self._at(end)
        if all(size > budget_bytes for _, size in self.known.values()):
            for position in _NOT_MONOTONE:  # less kept may need more working space
                if left > 0:
                    left -= self._at(position)
        while left > 0:
            fitting = [p for p, (_, size) in self.known.items() if size <= budget_bytes]
            if not fitting:
                return
            low = max(fitting)
            high = min((p for p in self.known if p > low), default=None)
            if high is None:
                return
            (a, low_bytes), (b, high_bytes) = self.known[low], self.known[high]
            if a == b or budget_bytes - low_bytes <= _CLOSE * budget_bytes:
                return
            share = (budget_bytes - low_bytes) / max(1.0, high_bytes - low_bytes)
            middle = self._between(low, high, min(0.95, max(0.05, share)))
            if middle is None:
                return
            left -= self._at(middle)

    def _between(self, low: float, high: float, share: float) -> float | None:
        """A position whose proposal is neither end's; None if there is none."""
        ends = [self.known[p][0] for p in (low, high)]
        guess, below, above = low + share * (high - low), low, high
        for _ in range(24):
            found = _key(self.propose(guess))
            if found not in ends:
                return guess
            below, above = (guess, above) if found == ends[0] else (below, guess)
            guess = (below + above) / 2
        return None

    def _at(self, position: float) -> bool:
        """Whether that took a compile."""
        if position in self.known:
            return False
        actions = self.propose(position)
        key = _key(actions)
        for found, size in self.known.values():
            if found == key:
                self.known[position] = (key, size)
                return False
        row = self.compile(f"{self.name} {position:.3f}", actions)
        self.known[position] = (key, float("inf") if row is None else row.bytes)
        return True


def _key(actions: Actions) -> tuple[Any, ...]:
    return tuple(sorted(actions.items()))
