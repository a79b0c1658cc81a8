"""Running a surveyed program with some of its units run as a plan says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from revremat import _compat
from revremat._action import check_actions
from revremat.program._decision import (
    Decision,
    Loop,
    Step,
    check_kept,
    loops_of,
    steps_of,
)
from revremat.program.engine._add_up import add_up
from revremat.program.ir._ops import Op, Region, Value, flatten, read
from revremat.program.units._passing import passing
from revremat.program.units._sites import REPEATED, SEGMENT, Survey
from revremat.program.units._units import FoundUnit


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
            loops |= loops_of(decision)
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
