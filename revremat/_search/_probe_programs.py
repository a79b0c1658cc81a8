"""Probe programs: smaller programs than a problem's, which tell what a layer costs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from revremat._action import RECOMPUTE, Action
from revremat._apply import rewritten
from revremat._graph import Graph, Unit
from revremat._search._heuristics import Heuristics
from revremat._search._probes import DEPTHS
from revremat.program._decision import Decision
from revremat.program._isolated import isolated_unit
from revremat.program._loss import TracedLoss
from revremat.program.ir._costs import num_operations
from revremat.program.ir._ops import Value
from revremat.program.units._sites import Site


def small_units(
    traced: TracedLoss, graph: Graph, heuristics: Heuristics
) -> frozenset[str]:
    """Units that are worth compiling without the rest of the program."""
    number = num_operations(traced.found.program)
    if number <= heuristics.isolate_operations:
        return frozenset()
    return frozenset(
        unit.name
        for unit in graph.units
        if is_small_part(traced, unit, number, heuristics)
    )


def shorten(
    loss: Callable[..., Any],
    graph: Graph,
    actions: Mapping[str, tuple[Action, ...]],
    gradient_barrier: bool = False,
) -> Callable[..., Any]:
    """A loss of the same arguments with fewer layers.

    Not the same function: the layers beyond the actions given are left out, and their
    weights get zero gradients.

    Args:
      loss: What was given to `rr.trace`.
      graph: What came out.
      actions: From unit to the actions of its first layers; fewer than it has only
        where it is `skippable`.
      gradient_barrier: Whether layers' gradients are held together.

    Returns:
      A function with the signature of `loss`.
    """

    return rewritten(
        loss,
        lambda traced: [
            _first_layers(traced, graph, name, given, gradient_barrier)
            for name, given in actions.items()
        ],
        keep_checkpoints=graph.keep_checkpoints,
        gradient_barrier=gradient_barrier,
    )


def isolate(
    traced: TracedLoss,
    graph: Graph,
    name: str,
    actions: tuple[Action, ...],
    gradient_barrier: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The first layers of one unit and nothing else, forward and backward.

    Args:
      traced: The program.
      graph: What `rr.trace` made of it.
      name: A unit that `is_small_part`.
      actions: Of its first layers, as for `shorten`.
      gradient_barrier: As for `shorten`.

    Returns:
      A step and its arguments.
    """
    return isolated_unit(_first_layers(traced, graph, name, actions, gradient_barrier))


def is_small_part(
    traced: TracedLoss, unit: Unit, number: int, heuristics: Heuristics
) -> bool:
    """Whether a unit is better compiled without the rest of the program.

    It is where the program is large and the unit a small part of it: compiled whole
    once for every candidate of every unit, a U-Net would take hours.

    Args:
      traced: The program.
      unit: One of its units.
      number: Operations of the program.
      heuristics: Numbers that decide.
    """
    sites = {found.name: found for found in traced.units}[unit.name].sites
    ours = {site.ops[0] for site in traced.found.sites}
    if not all(site.ops[0] in ours for site in sites):
        return False  # Within another operation, where values have no place outside.
    if any(map(_is_sharded, sites)):
        return False
    left_out = max(0, len(sites) - DEPTHS[-1]) if unit.skippable else 0
    is_call = len(sites[0].ops) == 1
    layer = num_operations(sites[0].body) + is_call
    whole = number - left_out * layer
    part = (len(sites) - left_out) * layer
    is_large = whole > heuristics.isolate_operations
    return is_large and part < heuristics.isolate_part * whole


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
    gradient_barrier: bool,
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
    return Decision(
        found[name],
        plan,
        shortened=True,
        gradient_barrier=gradient_barrier,
        is_distributed=graph.num_devices > 1,
    )
