"""Keys: which program is compiled, by what its layers do and by nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from revremat._action import Action
from revremat._graph import Graph
from revremat._plan import Plan

Actions = Mapping[str, Sequence[Action]]
"""From unit to the action of each of its layers."""


@dataclass(frozen=True)
class ProbeKey:
    """A shortened program: the first layers of one unit.

    Attributes:
      unit: Whose layers are left in.
      actions: Of those layers, in running order.
      recomputed: Other units, all of whose layers recompute everything in it.
      is_isolated: Whether it is those layers alone, without the rest of the program.
      gradient_barrier: Whether layers' gradients are held together.
    """

    unit: str
    actions: tuple[Action, ...]
    recomputed: tuple[str, ...]
    is_isolated: bool
    gradient_barrier: bool


@dataclass(frozen=True)
class ProgramKey:
    """A whole program.

    Attributes:
      actions: Of every layer of each unit that is decided, in program order; None for
        the baseline, which is the program without a plan.
      gradient_barrier: Whether layers' gradients are held together.
      remat_pass_percent: The limit of XLA's own remat pass; None where that is off.
      puts_gradients_off: Whether unrolled layers leave their gradients to the compiler.
    """

    actions: tuple[tuple[str, tuple[Action, ...]], ...] | None
    gradient_barrier: bool = False
    remat_pass_percent: int | None = None
    puts_gradients_off: bool = False

    @staticmethod
    def of(
        actions: Actions,
        gradient_barrier: bool,
        remat_pass_percent: int | None = None,
        puts_gradients_off: bool = False,
    ) -> "ProgramKey":
        """The key of a program whose units take these actions, in program order."""
        listed = tuple((unit, tuple(few)) for unit, few in actions.items())
        return ProgramKey(
            listed, gradient_barrier, remat_pass_percent, puts_gradients_off
        )

    def plan(self, graph: Graph) -> Plan | None:
        """What it says as a plan for a program; None for the baseline."""
        if self.actions is None:
            return None
        return graph.plan(
            dict(self.actions),
            gradient_barrier=self.gradient_barrier,
            remat_pass_percent=self.remat_pass_percent,
            puts_gradients_off=self.puts_gradients_off,
        )


BASELINE = ProgramKey(None)


@dataclass(frozen=True)
class Request:
    """One program to be measured.

    Attributes:
      key: Which.
      label: What it is called, for people.
      predicted_bytes: What is expected of a whole program; None if nothing is.
    """

    key: ProbeKey | ProgramKey
    label: str
    predicted_bytes: float | None = None
