"""Cut: smaller programs than a problem's, to price what a layer costs in it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from revremat._apply import by_position
from revremat._graph import Graph, Unit
from revremat._measure import Request
from revremat._plan import RECOMPUTE, Action
from revremat._problem import Problem
from revremat.program._alone import alone
from revremat.program._costs import num_operations
from revremat.program._loss import TracedLoss, trace_loss
from revremat.program._ops import Value
from revremat.program._rewrite import Decision
from revremat.program._sites import Site
from revremat.xla import Target

DEPTHS = (4, 8)
"""Layers in a cut program."""

_LARGE = 1000
"""Operations of a program that is worth pricing piece by piece."""
_SMALL_PART = 1 / 2
_PASSES = 2
"""Over what a layer takes and gives: as far off as its time alone was seen to be."""
_NEGLIGIBLE = 1 / 200
"""Of a program's time."""


@dataclass(frozen=True)
class UnitCut:
    """How a program is cut to the layers of one unit.

    Attributes:
      step: From the actions of the first layers to what is compiled.
      is_alone: Whether that is without the rest of the program.
      kept_by_others: Bytes that other units' layers keep in it, per device.
      share: Part of an activation that lies on one device.
    """

    step: Callable[[tuple[Action, ...]], Request]
    is_alone: bool
    kept_by_others: float
    share: float


@dataclass(frozen=True)
class Cuts:
    """The smaller programs of a search.

    Attributes:
      problem: The program.
      traced: Its loss.
      graph: What `rr.trace` made of it.
      target: Where it would run.
      units: All about which is decided; those left out stay as written.
      around: Units that have those inside and rebuild everything.
      in_order: Whether gradients are computed in order, as a plan says it.
    """

    problem: Problem
    traced: TracedLoss
    graph: Graph
    target: Target
    units: Sequence[Unit]
    around: Sequence[Unit] = ()
    in_order: bool = False

    @property
    def share(self) -> float:
        """Part of an activation that lies on one device."""
        return _share(self.problem.specs[1:])

    def within(self, unit: Unit) -> UnitCut:
        """How to price one unit in the program, other ones rebuilding everything."""
        kept = sum(
            u.num_layers * u.kept(RECOMPUTE).device_bytes
            for u in self.units
            if u != unit
        )
        step = functools.partial(self._shortened, unit.name)
        return UnitCut(step, False, self.share * kept, self.share)

    def best(self, unit: Unit, program_us: float) -> UnitCut:
        """How to price one unit: without the rest of the program where that will do.

        Args:
          unit: One of the units.
          program_us: Time of the program as it was written.
        """
        on_one = self.target.num_devices == 1  # else shardings within are not known
        if not (on_one and is_small_part(self.traced, unit, DEPTHS[-1])):
            return self.within(unit)
        if self._fused_us(unit) > _NEGLIGIBLE * program_us:
            return self.within(unit)
        step = functools.partial(self._isolated, unit.name)
        return UnitCut(step, True, 0.0, self.share)

    def _fused_us(self, unit: Unit) -> float:
        """Time that layers may take more alone than fused with what is around them."""
        if unit.kind == "scan":  # a loop is not fused with anything
            return 0.0
        values = unit.values
        taken = sum(v.num_bytes for v in values if v.role == "input")
        given = sum(values[k].num_bytes for k in unit.outputs)
        moved_bytes = _PASSES * unit.num_layers * (taken + given)
        return 1e6 * moved_bytes / self.target.card.stream_bandwidth

    def _isolated(self, name: str, actions: tuple[Action, ...]) -> Request:
        step, specs = isolate(self.traced, self.graph, name, actions, self.in_order)
        return Request(step, specs, name=self.problem.name)

    def _shortened(self, name: str, actions: tuple[Action, ...]) -> Request:
        rebuilt = (*self.around, *self.units)
        chosen = {u.name: (RECOMPUTE,) * u.num_layers for u in rebuilt}
        chosen[name] = actions
        loss = shorten(self.problem.loss, self.graph, chosen, self.in_order)
        return step_of(self.problem, loss)


def step_of(problem: Problem, loss: Callable[..., Any]) -> Request:
    """The step of a problem with another loss."""
    step, specs = problem.make_step(loss)
    return Request(step, tuple(specs), problem.donate, problem.name)


def _share(data: Any) -> float:
    """Part of an activation that lies on one device, judging by the data."""
    whole = here = 0
    for leaf in jax.tree.leaves(data):
        shape, sharding = np.shape(leaf), getattr(leaf, "sharding", None)
        whole += math.prod(shape)
        here += math.prod(sharding.shard_shape(shape) if sharding else shape)
    return here / whole if whole else 1.0


def shorten(
    loss: Callable[..., Any],
    graph: Graph,
    actions: Mapping[str, tuple[Action, ...]],
    in_order: bool = False,
) -> Callable[..., Any]:
    """A loss of the same arguments with fewer layers.

    Not the same function: the layers beyond the actions given are left out, and their
    weights get zero gradients.

    Args:
      loss: What was given to `rr.trace`.
      graph: What came out.
      actions: From unit to the actions of its first layers; fewer than it has only
        where it is `skippable`.
      in_order: Whether gradients are computed in order, as a plan says it.

    Returns:
      A function with the signature of `loss`.
    """

    @functools.wraps(loss)
    def shortened(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = by_position(loss, args, kwargs)
        bound = functools.partial(loss, **kwargs)
        functools.update_wrapper(bound, loss)
        traced = trace_loss(bound, args)
        decisions = [
            _first_layers(traced, graph, name, given, in_order)
            for name, given in actions.items()
        ]
        return traced.run(decisions)

    return shortened


def isolate(
    traced: TracedLoss,
    graph: Graph,
    name: str,
    actions: tuple[Action, ...],
    in_order: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The first layers of one unit and nothing else, forward and backward.

    Args:
      traced: The program.
      graph: What `rr.trace` made of it.
      name: A unit that `is_small_part`.
      actions: Of its first layers, as for `shorten`.
      in_order: As for `shorten`.

    Returns:
      A step and its arguments.
    """
    return alone(_first_layers(traced, graph, name, actions, in_order))


def is_small_part(traced: TracedLoss, unit: Unit, most_layers: int) -> bool:
    """Whether a unit is better priced without the rest of the program.

    It is where the program is large and the unit a small part of it: compiled whole
    once for every way back of every unit, a U-Net would take hours.

    Args:
      traced: The program.
      unit: One of its units.
      most_layers: Layers in a cut.
    """
    sites = {found.name: found for found in traced.units}[unit.name].sites
    ours = {site.ops[0] for site in traced.found.sites}
    if not all(site.ops[0] in ours for site in sites):
        return False  # Within another operation, where values have no place outside.
    if any(map(_is_sharded, sites)):
        return False
    left_out = max(0, len(sites) - most_layers) if unit.skippable else 0
    is_call = len(sites[0].ops) == 1
    layer = num_operations(sites[0].body) + is_call
    whole = num_operations(traced.found.program) - left_out * layer
    part = (len(sites) - left_out) * layer
    return whole > _LARGE and part < _SMALL_PART * whole


def _is_sharded(site: Site) -> bool:
    """Whether values' types say how they lie on devices."""
    explicit = jax.sharding.AxisType.Explicit
    avals = [atom.aval for atom in site.inputs if isinstance(atom, Value)]
    meshes = [aval.sharding.mesh for aval in avals if hasattr(aval, "sharding")]
    return any(explicit in mesh.axis_types for mesh in meshes)


def _first_layers(
    traced: TracedLoss,
    graph: Graph,
    name: str,
    actions: tuple[Action, ...],
    in_order: bool,
) -> Decision:
    unit, n = graph[name], len(actions)
    whole = unit.plan((actions + (RECOMPUTE,) * unit.num_layers)[: unit.num_layers])
    plan = dataclasses.replace(
        whole,
        actions=whole.actions[:n],
        device_names=whole.device_names[:n],
        host_names=whole.host_names[:n],
    )
    found = {unit.name: unit for unit in traced.units}
    return Decision(found[name], plan, shortened=True, in_order=in_order)
