"""In which layers two plans differ."""

from itertools import groupby
from typing import Any

from rich.text import Text

from revremat._format import format_bytes
from revremat._plan import Plan, UnitPlan
from revremat._report._text import new_table, render

PLANS_SCHEMA = 2
_ABSENT = "not in the plan"


def diff_plans(before: Plan, after: Plan) -> dict[str, Any]:
    """What differs between two plans, as the JSON of `revremat diff`.

    Returns:
      What is known of each, and of every unit with other actions its runs of layers.
    """
    old, new = ({unit.name: unit for unit in plan.units} for plan in (before, after))
    units = [
        {"unit": name, "before": _runs(old.get(name)), "after": _runs(new.get(name))}
        for name in dict.fromkeys([*old, *new])
    ]
    return {
        "schema": PLANS_SCHEMA,
        "before": _about(before),
        "after": _about(after),
        "units": [unit for unit in units if unit["before"] != unit["after"]],
    }


def plans_text(data: dict[str, Any]) -> str:
    """The same for people to read."""
    sides = (data["before"], data["after"])
    table = new_table("plan", "before", "after")
    for key in (
        *("target", "devices", "budget", "compiled"),
        *("gradient barrier", "gradients put off"),
        "XLA's remat pass",
        "program",
    ):
        values = [_told(side, key) for side in sides]
        if any(values):
            shown = "fingerprint" if key == "program" else key
            table.add_row(shown, *map(Text, values))
    parts = [render(table)]
    if data["units"]:
        units = new_table("unit", "before", "after")
        for unit in data["units"]:
            units.add_row(*(Text(unit[key]) for key in ("unit", "before", "after")))
        parts.append(render(units))
    else:
        parts.append("every layer has the same action in both\n")
    if sides[0]["program"] != sides[1]["program"]:
        parts.append("they are plans of different programs\n")
    return "\n".join(parts)


def _about(plan: Plan) -> dict[str, Any]:
    return {
        "program": plan.program,
        "target": plan.target,
        "num_devices": plan.num_devices,
        "budget_bytes": plan.budget_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "gradient_barrier": plan.gradient_barrier,
        "puts_gradients_off": plan.puts_gradients_off,
        "remat_pass_percent": plan.remat_pass_percent,
    }


def _told(side: dict[str, Any], key: str) -> str:
    if key == "gradient barrier":
        return "yes" if side["gradient_barrier"] else ""
    if key == "devices":
        return str(side["num_devices"]) if side["num_devices"] > 1 else ""
    if key == "gradients put off":
        return "yes" if side["puts_gradients_off"] else ""
    if key == "XLA's remat pass":
        percent = side["remat_pass_percent"]
        return "" if percent is None else f"{percent} %"
    value = side.get(key, side.get(f"{key}_bytes"))
    if value is None:
        return ""
    return value if isinstance(value, str) else format_bytes(value)


def _runs(unit: UnitPlan | None) -> str:
    """`12 x SAVE, 12 x RECOMPUTE`."""
    if unit is None:
        return _ABSENT
    runs = ((len(list(run)), action) for action, run in groupby(unit.actions))
    return ", ".join(f"{count} x {action!r}" for count, action in runs)
