"""Running a surveyed program with some of its units run as a plan says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from revremat import _compat
from revremat._errors import UserError
from revremat._plan import Action, UnitPlan
from revremat.program._keep import Layer, resolve
from revremat.program._ops import Op, Value, read
from revremat.program._stack import Stack, run_stack
from revremat.program._unit import Unit, run_unit
from revremat.program._units import FoundUnit, Site, Survey


@dataclass(frozen=True, eq=False)
class Decision:
    """What is to be done about one unit."""

    unit: FoundUnit
    plan: UnitPlan


def rewrite(
    found: Survey, decisions: Sequence[Decision], args: Sequence[Any]
) -> list[Any]:
    """Evaluate the program with its units replaced; its outputs, flat.

    Raises:
      UserError: What a unit would keep differs from what the plan says it keeps.
    """
    chosen: dict[Op, tuple[Site, str, tuple[Action, ...]]] = {}
    for decision in decisions:
        check_kept(decision)
        remaining = decision.plan.actions
        for site in decision.unit.sites:
            actions, remaining = remaining[: site.length], remaining[site.length :]
            chosen[site.ops[0]] = (site, decision.unit.name, actions)
    return _Rewriter(chosen).run(found, args)


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
                    f"{label} under {action!r} keeps {_names(layer, values)} {where}, and "
                    f"the plan says {', '.join(names) or 'nothing'}; search again."
                )


def _names(layer: Layer, values: Sequence[Value]) -> str:
    found = {value: name for name, value in layer.names.items()}
    return ", ".join(found[value] for value in values) or "nothing"


@dataclass(frozen=True, eq=False)
class _Rewriter:
    chosen: dict[Op, tuple[Site, str, tuple[Action, ...]]]

    def run(self, found: Survey, args: Sequence[Any]) -> list[Any]:
        program = found.program
        env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))
        done: set[Op] = set()
        for op in program.ops:
            if op in done:
                continue
            if op in self.chosen:
                site, name, actions = self.chosen[op]
                values = [read(env, atom) for atom in site.inputs]
                results = execute(site, name, actions, values)
                done.update(site.ops)
                env.update(zip(site.outputs, results, strict=True))
                continue
            values = [read(env, atom) for atom in op.inputs]
            changed = self._changed(found, op)
            results = _compat.bind(op.eqn, values, op.scope, **changed)
            env.update(zip(op.outputs, results, strict=True))
        return [read(env, out) for out in program.outputs]

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
        return any(site.ops[0] in self.chosen for site in found.sites) or any(
            self._concerns(inside)
            for places in found.inner.values()
            for _, _, inside in places
        )


def execute(
    site: Site, name: str, actions: tuple[Action, ...], values: Sequence[Any]
) -> list[Any]:
    """Run one site under its actions: its outputs, from its inputs."""
    label, args = f"unit {name!r}", [*site.constants, *values]
    if site.kind != "scan":
        unit = Unit(site.body, site.in_mask, site.held, actions[0], label)
        return run_unit(unit, args)
    stack = Stack(
        body=site.body,
        num_consts=site.num_consts,
        num_carry=site.num_carry,
        length=site.length,
        reverse=site.reverse,
        actions=actions,
        inverse=site.inverse,
        name=label,
        in_mask=site.in_mask,
    )
    n, k = site.num_consts, site.num_consts + site.num_carry
    carry, ys = run_stack(stack, args[:n], args[n:k], args[k:])
    return [*carry, *ys]
