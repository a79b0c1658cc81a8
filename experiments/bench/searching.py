"""A search that is asked about several budgets, and about programs by hand.

The search's state is immutable; this is what holds the newest one. Whatever is measured
for one budget counts for the next. Another oracle, such as `timed_search.TimedOracle`,
takes the compiler's place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import revremat as rr

# What a search knows in between is no public name: benchmarks look inside.
from revremat import Unit, _search
from revremat._search.passes._ask import refine, try_assignments
from revremat.policies import Assignment, Candidate, UnitOptions

Actions = Mapping[str, rr.Action | Sequence[rr.Action]]
"""Of every unit: one for all of its layers, or one for each."""
Row = _search.Row


class Searching:
    """One program on one target.

    Args:
      problem: The program.
      target: Where it would run.
      progress: Told before each compile; whatever it raises ends the search.
      unroll: Whether layers of loops may be unrolled.
      oracle: Measures programs; by default the target's compiler does.
    """

    def __init__(
        self,
        problem: rr.Problem,
        target: rr.Target,
        progress: Callable[[str, int, int], None] | None = None,
        unroll: bool = True,
        oracle: _search.Oracle | None = None,
    ):
        self.problem, self.target = problem, target
        self.state, self.ask = _search.begin(
            problem, target, oracle=oracle, unroll=unroll, progress=progress
        )

    @property
    def units(self) -> tuple[Unit, ...]:
        """All about which is decided."""
        return self.state.units

    @property
    def done(self) -> int:
        """Programs measured so far."""
        return self.state.num_compiles

    @property
    def rows(self) -> list[Row]:
        """Whole programs measured so far."""
        return [*self.state.rows.values()]

    @property
    def options(self) -> tuple[UnitOptions, ...]:
        """What is known of layers' costs."""
        return self.state.options

    @property
    def choices(self) -> dict[str, Mapping[str, Candidate]]:
        """The candidates of every unit, by their names."""
        return {unit: costs.candidates for unit, costs in self.state.costs.items()}

    def prepare(self) -> None:
        """Measures what layers cost."""
        self.state = _search.profile_all(self.state, self.ask)

    def fit(self, budget: int) -> rr.Fit:
        """The best plan for a budget."""
        self.state = _search.decide(self.state.within(budget), self.ask)
        return _search.answer(self.state, self.problem.loss)

    def baseline(self) -> Row:
        """The baseline, the program without a plan."""
        row = self.add("baseline", None)
        assert row is not None
        return row

    def add(self, name: str, actions: Actions | None) -> Row | None:
        """A program by hand; None if it does not compile."""
        key = self.key_of(actions)
        self.state = self.ask(self.state, [_search.Request(key, name)])
        return self.state.row(key)

    def key_of(self, actions: Actions | None) -> _search.ProgramKey:
        """A program by what its layers do."""
        if actions is None:
            return _search.BASELINE
        graph = self.state.space.graph
        listed = {
            unit: (given,) * graph[unit].num_layers
            if isinstance(given, rr.Action)
            else tuple(given)
            for unit, given in actions.items()
        }
        return self.state.key_of(listed, gradient_barrier=False)

    def best(self, budget: int) -> Row:
        """The fastest program so far that fits, or else the smallest."""
        return _search.best_of(self.state.rows.values(), budget)

    def refine(self, support: frozenset[tuple[str, str]]) -> bool:
        """Measures second costs; whether there are new ones."""
        before = self.done
        self.state = refine(self.state, self.ask, support)
        return self.done > before

    def try_assignment(self, assignment: Assignment) -> Row | None:
        """Measures an assignment whole; None if it does not compile."""
        mixes = [(assignment.counts, assignment.bytes)]
        self.state, (row,) = try_assignments(self.state, self.ask, mixes)
        return row

    def assign(self, options: Sequence[UnitOptions], limit: float, **how: Any):
        """The fastest assignment of these options within a limit."""
        return self.state.assign(options, limit, **how)
