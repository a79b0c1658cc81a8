"""Decision: what is to be done about one unit, and how its layers are run so."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import jax

from revremat._action import Action
from revremat._errors import UserError
from revremat._plan import UnitPlan
from revremat.program.arrays._buffers import Each
from revremat.program.engine._keep import Layer, resolve
from revremat.program.engine._plain import is_plain, run_plain
from revremat.program.engine._run_stack import run_stack
from revremat.program.engine._split import run_chunks
from revremat.program.engine._stack import Stack
from revremat.program.engine._unit import Unit, run_unit
from revremat.program.ir._ops import Constant, Op, Value, flatten, read, run
from revremat.program.units._sites import Site, with_body
from revremat.program.units._units import FoundUnit

Step = Callable[..., None]
"""Runs layers on the values so far, and adds what they make.

It is called with those values and, where units inside of the layers are decided about,
too, with `inside=`: the layer's body with those replaced.
"""

Loop = Callable[[list[Any]], list[Any]]
"""Runs a loop that is a part of a layer: its results, from what it takes."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What is to be done about one unit.

    Attributes:
      unit: The unit.
      plan: An action for each of its layers.
      shortened: Whether there may be fewer actions than layers; the layers beyond them
        are left out.
      gradient_barrier: Whether layers outside of loops compute all of their gradients
        before the backward pass goes on.
      is_distributed: Whether several devices compute the program.
      puts_gradients_off: Whether the compiler may put off gradients of weights of
        unrolled layers.
      is_checked: Whether what its layers keep is known to be what the plan says.
    """

    unit: FoundUnit
    plan: UnitPlan
    shortened: bool = False
    gradient_barrier: bool = False
    is_distributed: bool = False
    puts_gradients_off: bool = False
    is_checked: bool = False

    @property
    def gradient_lag(self) -> int | None:
        """As of `Stack`."""
        if self.puts_gradients_off:
            return None
        return int(self.is_distributed and not self.gradient_barrier)

    def within_recomputed(self) -> "Decision":
        """The same where enclosing layers are recomputed, and nothing outlives one."""
        sites = tuple(replace(site, num_scans=0) for site in self.unit.sites)
        return replace(self, unit=replace(self.unit, sites=sites))


def steps_of(
    decision: Decision, loops: Mapping[Op, Loop] = MappingProxyType({})
) -> Iterator[tuple[Op, tuple[Op, ...], Step]]:
    """Where to run what instead of which operations.

    Args:
      decision: The unit and its actions.
      loops: How to run loops that are parts of its layers.
    """
    if not decision.is_checked:
        check_kept(decision)
    unit, actions = _with_loops(decision.unit, loops), decision.plan.actions
    for one, taken, is_chain in _parts(unit, actions):
        sites = one.sites
        if is_chain:
            ops = tuple(op for site in sites for op in site.ops)
            # By then whatever the layers take beside one another's results is made.
            step = partial(_run_chain, one, taken, decision)
            yield sites[-1].ops[0], ops, step
            continue
        for site in sites:
            own, taken = taken[: site.length], taken[site.length :]
            step = partial(_run_site, site, own, decision)
            if not site.is_loop and not own:
                step = partial(_skip_site, site, unit.chain)
            yield site.ops[0], site.ops, step


def loops_of(decision: Decision) -> dict[Op, Loop]:
    """How to run loops that are parts of layers about which is decided, too."""
    check_kept(decision)
    unit, actions, found = decision.unit, decision.plan.actions, {}
    for site in unit.sites:
        taken, actions = actions[: site.length], actions[site.length :]
        constants = [atom.value for atom in lifted(site)]

        def loop(values, site=site, taken=taken, constants=constants):
            return _execute(site, taken, decision, [*constants, *values])

        found[site.ops[0]] = loop
    return found


def _with_loops(unit: FoundUnit, loops: Mapping[Op, Loop]) -> FoundUnit:
    """The unit with loops in its layers replaced: those of its first layer, in all."""
    first = unit.sites[0]
    body, before = first.body, len(first.body.ops) - len(first.ops)
    within = {
        body.ops[before + k]: loops[op] for k, op in enumerate(first.ops) if op in loops
    }
    if not within:
        return unit

    def layer(*args: Any) -> list[Any]:
        env = dict(zip(body.inputs, args, strict=True))
        run(body.ops, env, lambda op, v: within[op](v) if op in within else None)
        return [read(env, out) for out in body.outputs]

    avals = [v.aval for v in body.inputs]
    changed = flatten(jax.make_jaxpr(layer)(*avals), keep_names=True)
    layers: dict[tuple[bool, ...], Layer] = {}
    sites = (replace(site, body=changed, layers=layers) for site in unit.sites)
    return replace(unit, sites=tuple(sites))


def _parts(
    unit: FoundUnit, actions: tuple[Action, ...]
) -> Iterator[tuple[FoundUnit, tuple[Action, ...], bool]]:
    """Parts of a unit with their actions, and whether each is run as one chain.

    Layers that are computed in chunks stand apart from the chains before and after.
    Layers beyond the actions belong to the last chain.
    """
    if unit.is_loop or not unit.chain:
        yield unit, actions, False
        return
    start = 0
    for in_chunks, alike in groupby(actions, lambda action: action.chunks > 1):
        taken = tuple(alike)
        stop = start + len(taken)
        is_last = stop == len(actions)
        sites = unit.sites[start:] if is_last else unit.sites[start:stop]
        links = len(taken) > 1 or any(action.inverts for action in taken)
        yield replace(unit, sites=sites), taken, links and not in_chunks
        start = stop
    if not actions:
        yield unit, (), False


def _run_site(
    site: Site,
    actions: tuple[Action, ...],
    decision: Decision,
    env: dict[Value, Any],
    inside: Any = None,
) -> None:
    if inside is not None:
        site = with_body(site, inside)
    values = [read(env, atom) for atom in site.inputs]
    results = _execute(site, actions, decision, values)
    env.update(zip(site.outputs, results, strict=True))


def _execute(
    site: Site,
    actions: tuple[Action, ...],
    decision: Decision,
    values: Sequence[Any],
) -> list[Any]:
    return execute(
        site,
        f"unit {decision.unit.name!r}",
        actions,
        values,
        gradient_barrier=decision.gradient_barrier,
        gradient_lag=decision.gradient_lag,
    )


def _skip_site(site: Site, chain: Sequence[int], env: dict[Value, Any]) -> None:
    """Leave a layer of a chain out: what comes in goes out."""
    results = [read(env, site.inputs[k]) for k in chain]
    env.update(zip(site.outputs, results, strict=True))


def _run_chain(
    unit: FoundUnit,
    actions: tuple[Action, ...],
    decision: Decision,
    env: dict[Value, Any],
) -> None:
    """Run sites that follow one another as one stack, whose weights are not stacked.

    Layers beyond the actions are left out: what comes in goes out.
    """
    sites, last = unit.sites[: len(actions)], unit.sites[-1]
    first = sites[0]
    own = [k for k in range(len(first.inputs)) if k not in unit.chain]
    order = (*unit.chain, *own)
    reorder = lambda program: replace(
        program, inputs=tuple(program.inputs[k] for k in order)
    )
    stack = Stack(
        body=reorder(first.body),
        num_consts=0,
        num_carry=len(unit.chain),
        length=len(sites),
        reverse=False,
        actions=actions,
        inverse=None if first.inverse is None else reorder(first.inverse),
        name=f"unit {unit.name!r}",
        in_mask=tuple((first.in_mask or ())[k] for k in order),
        held=tuple(first.held[k] for k in order),
        order=tuple(map(order.index, range(len(order)))),
        unrolled=True,
        gradient_lag=decision.gradient_lag,
    )
    init = [read(env, first.inputs[k]) for k in unit.chain]
    xs = [Each(tuple(read(env, site.inputs[k]) for site in sites)) for k in own]
    carry, _ = run_stack(stack, [], init, xs)
    env.update(zip(last.outputs, carry, strict=True))


def check_kept(decision: Decision) -> None:
    """Compare what every layer keeps with what the plan says it does."""
    unit, plan = decision.unit, decision.plan
    label = f"unit {unit.name!r}"
    layer = unit.sites[0].linearized(label)
    for action, on_device, on_host in set(
        zip(plan.actions, plan.device_names, plan.host_names, strict=True)
    ):
        kept = resolve(layer, action, label)
        for where, values, names in (
            ("on the device", kept.saved, on_device),
            ("in host memory", kept.offloaded, on_host),
        ):
            unknown = [name for name in names if name not in layer.names]
            if unknown or {layer.names[name] for name in names} != set(values):
                raise UserError(
                    f"{label} under {action!r} keeps {_names(layer, values)} {where}, "
                    f"and the plan says {', '.join(names) or 'nothing'}; search again."
                )


def _names(layer: Layer, values: Sequence[Value]) -> str:
    found = {value: name for name, value in layer.names.items()}
    return ", ".join(found[value] for value in values) or "nothing"


def lifted(site: Site) -> list[Constant]:
    """What a site of one operation takes beside the operation's inputs, in front."""
    count = len(site.inputs) - len(site.ops[0].inputs)
    return [atom for atom in site.inputs[:count] if isinstance(atom, Constant)]


def execute(
    site: Site,
    label: str,
    actions: tuple[Action, ...],
    values: Sequence[Any],
    *,
    gradient_barrier: bool = False,
    gradient_lag: int | None = 0,
    by_hand: bool = False,
) -> list[Any]:
    """Run one site under its actions: its outputs, from its inputs.

    Args:
      site: The site.
      label: What messages call it.
      actions: Of its layers; fewer where the others are left out.
      values: Its inputs.
      gradient_barrier: As of `Decision`.
      gradient_lag: As of `Decision`.
      by_hand: Whether the user wrote the actions, and whoever traces this finds them.
    """
    args, number = list(values), actions[0].chunks if actions else 1
    if number > 1:
        return run_chunks(site.chunks[number], number, actions[0], label, args)
    if not site.is_loop:
        unit = Unit(
            site.body,
            site.in_mask,
            site.held,
            actions[0],
            label,
            gradient_barrier=gradient_barrier,
            layers=site.layers,
        )
        return run_unit(unit, args)
    stack = Stack(
        body=site.body,
        num_consts=site.num_consts,
        num_carry=len(site.carried),
        length=site.length,
        reverse=site.reverse,
        actions=actions,
        inverse=site.inverse,
        name=label,
        in_mask=site.in_mask,
        shortened=len(actions) < site.length,
        gradient_lag=gradient_lag,
        at_once=site.num_scans > 0,
        layers=site.layers,
    )
    n, k = site.num_consts, site.num_consts + len(site.carried)
    run = run_plain if is_plain(stack) and not by_hand else run_stack
    carry, ys = run(stack, args[:n], args[n:k], args[k:])
    return [*carry, *ys]
