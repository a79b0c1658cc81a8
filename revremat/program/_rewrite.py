"""Running a surveyed program with some of its units run as a plan says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import jax

from revremat import _compat
from revremat._action import Action, check_actions
from revremat._errors import UserError
from revremat._plan import UnitPlan
from revremat.program.arrays._avals import is_differentiable
from revremat.program.arrays._buffers import Each
from revremat.program.engine._add_up import add_up
from revremat.program.engine._keep import Layer, resolve
from revremat.program.engine._plain import is_plain, run_plain
from revremat.program.engine._run_stack import run_stack
from revremat.program.engine._split import run_chunks
from revremat.program.engine._stack import Stack
from revremat.program.engine._unit import Unit, run_unit
from revremat.program.ir._ops import (
    Constant,
    Op,
    Region,
    Value,
    flatten,
    read,
    run,
)
from revremat.program.ir._placement import num_devices
from revremat.program.units._passing import passing
from revremat.program.units._sites import (
    REPEATED,
    SEGMENT,
    Site,
    Survey,
    with_body,
)
from revremat.program.units._survey import survey
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


def rewrite(
    found: Survey,
    decisions: Sequence[Decision],
    args: Sequence[Any],
    gradient_barrier: bool = False,
) -> list[Any]:
    """Evaluate the program with its units replaced; its outputs, flat.

    Args:
      found: The program.
      decisions: About its units.
      args: What it is given.
      gradient_barrier: Whether gradients of values that pass over a layer are added up
        before that is differentiated, whether or not anything is decided about it.

    Raises:
      UserError: A unit cannot take an action, or what it would keep differs from what
        the plan says it keeps.
    """
    chosen: dict[Op, Step] = {}
    covered: set[Op] = set()
    recomputed = {decision.unit.name for decision in decisions}
    decisions = [
        decision.within_recomputed()
        if decision.unit.enclosing in recomputed
        else decision
        for decision in decisions
    ]
    for decision in decisions:
        unit, taken = decision.unit, decision.plan.actions
        label = f"unit {unit.name!r}"
        check_actions(label, taken, unit.facts, shortened=decision.shortened)
    repeats = [d.unit for d in decisions if d.unit.kind in REPEATED]
    layers = {op for unit in repeats for site in unit.sites for op in site.ops}
    loops: dict[Op, Loop] = {}
    around = []
    parts: dict[str, list[Decision]] = {}
    for decision in decisions:
        enclosing = decision.unit.enclosing
        if decision.unit.kind == SEGMENT and enclosing in recomputed:
            parts.setdefault(enclosing, []).append(decision)
        elif decision.unit.is_loop and decision.unit.sites[0].ops[0] in layers:
            loops |= _loops_of(decision)
        else:
            around.append(decision)
    for decision in around:
        if decision.unit.name in parts:
            check_kept(decision)
            inside = _with_parts(decision.unit, parts[decision.unit.name])
            decision = replace(decision, unit=inside, is_checked=True)
        for at, ops, step in steps_of(decision, loops):
            chosen[at] = step
            covered.update(ops)
    return _Rewriter(chosen, covered, gradient_barrier).run(found, args)


def _loops_of(decision: Decision) -> dict[Op, Loop]:
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


def _with_parts(group: FoundUnit, decisions: Sequence[Decision]) -> FoundUnit:
    """A group of segments with some of them run as decided whenever it is run."""
    (site,) = group.sites
    body, before = site.body, len(site.body.ops) - len(site.ops)
    same = dict(zip(site.ops, body.ops[before:], strict=True))
    chosen: dict[Op, Step] = {}
    covered: set[Op] = set()
    for decision in decisions:
        for at, ops, step in steps_of(decision):
            chosen[same[at]] = step
            covered.update(same[op] for op in ops)
    rewriter = _Rewriter(chosen, covered)
    found = Survey(body, (), {})

    def run_group(*args: Any) -> list[Any]:
        return rewriter.run(found, args)

    avals = [v.aval for v in body.inputs]
    changed = flatten(jax.make_jaxpr(run_group)(*avals), keep_names=True)
    return replace(group, sites=(replace(site, body=changed, layers={}),))


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


@dataclass(frozen=True, eq=False)
class _Rewriter:
    chosen: dict[Op, Step]
    covered: set[Op]
    gradient_barrier: bool = False
    passed: dict[Survey, Mapping[Op, tuple[Value, ...]]] = field(default_factory=dict)
    """What passes over layers, of each program that was asked about."""

    def run(self, found: Survey, args: Sequence[Any]) -> list[Any]:
        program = found.program
        env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))
        untouched, done = self._untouched(found), set[Region]()
        passed = self._passed(found)
        for op in program.ops:
            if op in passed and (op in self.chosen or op not in self.covered):
                there = [value for value in passed[op] if value in env]
                added_up = add_up([env[value] for value in there])
                env.update(zip(there, added_up, strict=True))
            if (region := untouched.get(op)) in done:
                continue
            # What gives weights another form stands before what the region takes.
            if region is not None and env.keys() >= _values(region.op.inputs):
                _bind_region(region, env)
                done.add(region)
            elif op in self.chosen:
                changed = self._changed(found, op)
                self.chosen[op](
                    env, **({"inside": changed["jaxpr"]} if changed else {})
                )
            elif op not in self.covered:
                values = [read(env, atom) for atom in op.inputs]
                if op.kind == "shard_map" and (inner := self._mapped(found, op)):
                    env.update(zip(op.outputs, inner(*values), strict=True))
                    continue
                changed = self._changed(found, op)
                results = _compat.bind(op.eqn, values, op.scope, **changed)
                env.update(zip(op.outputs, results, strict=True))
        return [read(env, out) for out in program.outputs]

    def _passed(self, found: Survey) -> Mapping[Op, tuple[Value, ...]]:
        """What passes over layers, if its gradients are to be added up before them."""
        if not self.gradient_barrier:
            return {}
        if found not in self.passed:
            self.passed[found] = passing(found)
        return self.passed[found]

    def _untouched(self, found: Survey) -> dict[Op, Region]:
        """Operations of checkpoints in which nothing is changed, with those."""
        concerned = {*self.chosen, *self.covered}
        for op, places in found.inner.items():
            if any(self._concerns(inside) for _, _, inside in places):
                concerned.add(op)
        return {
            op: region  # the outermost one comes last
            for region in found.program.regions
            if concerned.isdisjoint(region.ops)
            for op in region.ops
        }

    def _mapped(self, found: Survey, op: Op) -> Callable[..., Any] | None:
        """A `shard_map` whose program is rewritten, where that changes anything."""
        for _, _, inside in found.inner.get(op, ()):
            if self._concerns(inside):
                run = lambda *args, inside=inside: tuple(self.run(inside, args))
                return _compat.shard_mapped(op.eqn, run, op.scope)
        return None

    def _changed(self, found: Survey, op: Op) -> dict[str, Any]:
        """The programs inside an operation, rewritten, where that changes anything."""
        changed: dict[str, Any] = {}
        for key, place, inside in found.inner.get(op, ()):
            if not self._concerns(inside):
                continue
            avals = [v.aval for v in inside.program.inputs]
            closed = jax.make_jaxpr(lambda *a, inside=inside: self.run(inside, a))(
                *avals
            )
            if place is None:
                changed[key] = closed
            else:
                branches = list(changed.get(key, op.eqn.params[key]))
                branches[place] = closed
                changed[key] = tuple(branches)
        return changed

    def _concerns(self, found: Survey) -> bool:
        has_site = any(site.ops[0] in self.chosen for site in found.sites)
        return (
            has_site
            or bool(self._passed(found))
            or any(
                self._concerns(inside)
                for places in found.inner.values()
                for _, _, inside in places
            )
        )


def _values(atoms: Sequence[Any]) -> set[Value]:
    return {atom for atom in atoms if isinstance(atom, Value)}


def _bind_region(region: Region, env: dict[Value, Any]) -> None:
    """Run a checkpoint as its author wrote it."""
    op = region.op
    results = _compat.bind(op.eqn, [read(env, a) for a in op.inputs], op.scope)
    pairs = zip(region.outputs, results, strict=True)
    env.update((out, result) for out, result in pairs if isinstance(out, Value))


def act(
    f: Callable[..., Any], actions: tuple[Action, ...], label: str
) -> Callable[..., Any]:
    """A function of one scan or block, with that run under the given actions."""

    def acted(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        found = survey(closed, [is_differentiable(aval) for aval in closed.in_avals])
        sites = {site.ops[0]: site for site in found.sites}

        def rewritten(op: Op, values: list[Any]) -> list[Any] | None:
            if op not in sites:
                return None
            check_actions(label, actions, sites[op].facts)
            # What is differentiated is seen when it happens.
            site = replace(sites[op], in_mask=None)
            constants = [atom.value for atom in lifted(site)]
            values = [*constants, *values]
            lag = int(num_devices(site.body) > 1)
            return execute(site, label, actions, values, gradient_lag=lag, by_hand=True)

        env = dict(zip(found.program.inputs, jax.tree.leaves(args), strict=True))
        run(found.program.ops, env, rewritten)
        outs = [read(env, out) for out in found.program.outputs]
        return jax.tree.structure(shapes).unflatten(outs)

    return acted


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
