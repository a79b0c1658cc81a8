"""What a program has decided by itself: found again in what it wrote into itself.

Stacks that run under given actions and chains of couplings hide their layers in a
function with a derivative of its own. The mark they leave in it says how its layers'
residuals are restored; the function itself says what plain autodiff would keep.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from revremat._action import Action
from revremat.program.ir._actions_mark import read_actions
from revremat.program.ir._ops import as_closed
from revremat.program.units._sites import Survey
from revremat.program.units._survey import survey
from revremat.program.units._units import FoundUnit, units_of


@dataclass(frozen=True, eq=False)
class FoundActions:
    """A unit and the actions its layers run under.

    Attributes:
      unit: The unit; its name starts with the path to it.
      actions: One for each layer.
    """

    unit: FoundUnit
    actions: tuple[Action, ...]


def actions_in(found: Survey) -> tuple[FoundActions, ...]:
    """What a surveyed program has decided by itself, in program order."""
    fixed_units: list[FoundActions] = []
    for op, mask in found.own_derivatives:
        closed = as_closed(op.eqn.params["call_jaxpr"])
        if (choice := read_actions(closed)) is None:
            continue
        label, actions = choice
        inside = survey(closed, mask)
        units = units_of(inside, mask)
        each = {s.ops[0]: a for s, a in zip(inside.sites, actions, strict=False)}
        for unit in units:
            name = label if len(units) == 1 else f"{label}/{unit.name}"
            count = unit.num_layers
            own = actions if len(actions) == count else actions[:1] * count
            if len(actions) == len(inside.sites) == sum(len(u.sites) for u in units):
                # A chain: layers of several kinds, with an action for each in order.
                own = tuple(each[site.ops[0]] for site in unit.sites)
            fixed_units.append(FoundActions(unit.renamed(name), own))
    for _, _, inside in _inner(found):
        fixed_units += actions_in(inside)
    return tuple(fixed_units)


def _inner(found: Survey) -> Iterator[tuple[str, int | None, Survey]]:
    for places in found.inner.values():
        yield from places
