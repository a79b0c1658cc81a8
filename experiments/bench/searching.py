"""A search that is asked about several budgets, and about programs by hand.

The search's state is immutable; this is what holds the newest one. Whatever is measured
for one budget counts for the next.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import revremat as rr

# Private: benchmarks ask one search about many budgets, and compile plans of their own
# in it; a user's search begins with a budget and ends with a plan.
from revremat import Unit, _search, policies
from revremat.policies import Assignment, Candidate, UnitOptions

Actions = Mapping[str, rr.Action | Sequence[rr.Action]]
"""Of every unit: one for all of its layers, or one for each."""
Row = _search.Row


class Searching:
    """One program on one target.

    Args:
      problem: The program.
      target: Where it would run.
      progress: Called before each compile; whatever it raises ends the search.
      unroll: Whether layers of loops may be unrolled.
      timed: Whether what is compiled is run, on this machine.
    """

    def __init__(
        self,
        problem: rr.Problem,
        target: rr.Target,
        progress: Callable[[str, int, int], None] | None = None,
        unroll: bool = True,
        timed: bool = False,
    ):
        self.problem, self.target, self.progress = problem, target, progress
        self.written, self.timed = 0, timed
        self.state, self.ask = _search.begin(
            problem, target, unroll=unroll, timed=timed, progress=progress
        )

    @property
    def units(self) -> tuple[Unit, ...]:
        """All about which is decided."""
        return self.state.units

    @property
    def done(self) -> int:
        """Programs measured so far."""
        return self.state.num_compiles + self.written

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

    @property
    def has_long_loops(self) -> bool:
        """Whether there are loops that the search would not unroll whole."""
        costs = self.state.costs
        return any(u.is_loop and not costs[u.name].can_unroll for u in self.units)

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

    def presets(self) -> list[Row]:
        """The program under each uniform preset; those that do not compile left out."""
        found = []
        for name in policies.PRESETS:
            actions = {u.name: policies.preset(u, name).action for u in self.units}
            found.append(self.add(name, actions))
        return [row for row in found if row is not None]

    def add(self, name: str, actions: Actions | None) -> Row | None:
        """A program by hand; None if it does not compile."""
        key = self.key_of(actions)
        self.state = self.ask(self.state, [_search.Request(key, name)])
        return self.state.row(key)

    def write(self, name: str, loss: Any, limit: int | None) -> Row | None:
        """The step of another loss of the same arguments; None if it does not compile.

        Args:
          name: What tables call it.
          loss: What takes the problem's loss's place.
          limit: That of XLA's own remat pass, in percent; None where that is off.
        """
        if self.progress is not None:
            self.progress(name, self.done, self.done + 1)
        step, specs = self.problem.make_step(loss)
        plan = rr.Plan((), program="", remat_pass_percent=limit)
        one = rr.Step(step, tuple(specs), self.problem.donate, name, plan)
        try:
            self.written += 1
            measure = _search.run_step if self.timed else rr.measure
            return Row(name, None, measure(one, target=self.target))
        except (rr.UserError, jax.errors.JaxRuntimeError):
            return None

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
        self.state = _search.refine(self.state, self.ask, support)
        return self.done > before

    def try_assignment(self, assignment: Assignment) -> Row | None:
        """Measures an assignment whole; None if it does not compile."""
        assignments = [(assignment.counts, assignment.bytes)]
        self.state, (row,) = _search.try_assignments(self.state, self.ask, assignments)
        return row

    def assign(self, options: Sequence[UnitOptions], limit: float, **how: Any):
        """The fastest assignment of these options within a limit."""
        return self.state.assign(options, limit, **how)
