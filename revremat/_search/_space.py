"""Space: what is fixed for one search."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from revremat import policies
from revremat._action import OFFLOAD
from revremat._graph import Graph, Unit
from revremat._search._heuristics import Heuristics
from revremat.policies import Candidate
from revremat.xla import Target


@dataclass(frozen=True)
class Space:
    """What is fixed for one search.

    Attributes:
      graph: The program's units.
      target: Where it will run.
      units: About which is decided; the others stay as they are.
      enclosing: Units that have those inside and recompute everything.
      nesting: How many units lie around the innermost of those that are decided.
      pools: From unit to all that is proposed for its layers.
      proposed: From unit to the candidates that get costs at first.
      untouched: Units with so few bytes that they stay as they are.
      chain: The segments of a program without equal layers; None if it has none.
      argument_bytes: What the loss is given, per device, as far as that is known.
      small_units: Units that are worth compiling without the rest of the program.
      unroll: Whether layers of loops may be unrolled.
      repeats_loss: Whether the step may run the loss several times.
      most_compiles: How many programs may be measured; None for as many as it takes.
      most_to_choose: How many, if that is more, while nothing is chosen that fits; 0
        where that makes no difference.
      most_on_paper: How many, if that is less, once unrolled layers fit that recompute;
        likewise.
      ends_unrolled: Whether the search ends where unrolled layers that recompute are
        best, before it looks further at what stays in loops.
      heuristics: Numbers that decide.
    """

    graph: Graph
    target: Target
    units: tuple[Unit, ...]
    pools: Mapping[str, policies.Pool]
    proposed: Mapping[str, tuple[Candidate, ...]]
    enclosing: tuple[Unit, ...] = ()
    nesting: int = 0
    untouched: tuple[str, ...] = ()
    chain: policies.Chain | None = None
    argument_bytes: int = 0
    small_units: frozenset[str] = frozenset()
    unroll: bool = True
    repeats_loss: bool = False
    most_compiles: int | None = None
    most_to_choose: int = 0
    most_on_paper: int = 0
    ends_unrolled: bool = False
    heuristics: Heuristics = field(default_factory=Heuristics)

    def can_offload(self, unit: Unit) -> bool:
        """Whether layers may keep values on the host."""
        facts = self.graph.facts(unit.name, [u.name for u in self.enclosing])
        return self.target.platform != "cpu" and not OFFLOAD.refused_by(facts)

    @cached_property
    def first_alike(self) -> Mapping[str, Unit]:
        """From unit to the first that computes the same, which has the same costs."""
        first: dict[tuple[object, ...], Unit] = {}
        return {u.name: first.setdefault(_costs_of(u, self), u) for u in self.units}


def _costs_of(unit: Unit, space: Space) -> tuple[object, ...]:
    """What has to be equal for layers of two units to cost the same."""
    return (
        unit.kind,
        unit.fingerprint,
        unit.num_layers,
        unit.residuals_of,
        unit.values,
        unit.skippable,
        unit.chained,
        unit.enclosing and space.graph[unit.enclosing].fingerprint,
        unit.name in space.small_units,
    )
