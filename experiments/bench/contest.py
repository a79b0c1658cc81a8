"""One program: what the search returns at several budgets, and what its rivals do."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import revremat as rr
from experiments.bench.rivals import RIVALS, Arena, Rival
from revremat import policies
from revremat._bytes import format_bytes
from revremat._choose import Search
from revremat._compiled import Actions
from revremat._fitted import Row
from revremat._graph import Unit
from revremat.policies import PRESETS, Candidate, Menu, preset

Tell = Callable[[str], None]
_JUST_UNDER = 0.999
_TO_SPARE = 1.001


def budgets_of(search: Search, number: int) -> list[int]:
    """Evenly spaced by ratio, from just under plain to the smallest that was compiled.

    Args:
      search: Prepared.
      number: How many, 2 or more.
    """
    plain = _JUST_UNDER * search.add("as written", None).bytes
    limit = _TO_SPARE * policies.smallest_bytes(search.menus())
    host_bytes = search.target.host_bytes
    choice = policies.choose(search.menus(), limit, host_budget_bytes=host_bytes)
    if choice is not None:
        search.try_mix(choice)
    smallest = min(plain, search.best(0).bytes)
    ratio = (smallest / plain) ** (1 / (number - 1))
    return [*(int(plain * ratio**k) for k in range(number - 1)), math.ceil(smallest)]


def arena_of(search: Search) -> Arena:
    """The search's program for rivals, who share its compiles.

    Plans that keep the same are compiled once, whatever their names.
    """
    rows: dict[Any, Row] = {}
    menus: list[Menu] = []

    def compile(name: str, actions: Actions | None) -> Row | None:
        key = None if actions is None else _kept(search.units, actions)
        if key not in rows:
            rows[key] = search.add(name, actions, in_order=False)
        return rows[key]

    def presets() -> tuple[Menu, ...]:
        if not menus:
            menus.extend(_preset_menus(search))
        return tuple(menus)

    return Arena(tuple(search.units), compile, presets)


def _kept(units: list[Unit], actions: Actions) -> tuple[Any, ...]:
    found = []
    for unit in units:
        for action in actions[unit.name]:
            kept = unit.kept(action)
            how = action.kind, action.chunks, action.every, action.unroll
            found.append((*how, kept.saved, kept.offloaded, kept.ahead))
    return tuple(found)


def _preset_menus(search: Search) -> list[Menu]:
    """Measured prices of the presets, by two compiles each."""
    menus = []
    for prices in search.prices:
        nearest = {n: _nearest(prices.unit, prices.choices, n) for n in PRESETS}
        prices.refine(dict.fromkeys(nearest.values()))
        menu = prices.menu()
        by_name = {p.name: p for p in menu.prices}
        found = (dataclasses.replace(by_name[nearest[n]], name=n) for n in PRESETS)
        menus.append(dataclasses.replace(menu, prices=tuple(found)))
    return menus


def _nearest(unit: Unit, choices: Mapping[str, Candidate], name: str) -> str:
    """The candidate whose price is the preset's: its own where it has one."""
    if name in choices:
        return name
    kept = unit.kept(preset(unit, name).action)
    distances = []
    for other, candidate in choices.items():
        action = candidate.action
        plain = action.can_group and action.every == 1 and not action.unroll
        if action.kind != "invert" and plain:
            mine = unit.kept(action)
            size = abs(mine.device_bytes - kept.device_bytes)
            flops = abs(mine.rebuild_flops - kept.rebuild_flops)
            distances.append((size, flops, other))
    return min(distances)[-1]


def contest(
    problem: rr.Problem,
    target: rr.Target,
    *,
    num_budgets: int = 8,
    tell: Tell = print,
    stop: Callable[[], None] = lambda: None,
    unroll: bool = True,
    kinds: Sequence[type[Rival]] = RIVALS,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All of one program's figures, for JSON.

    The search runs first, at all budgets, and its answers are taken from what it
    compiled itself; then the rivals run.

    Args:
      problem: The program.
      target: Where it would run.
      num_budgets: How many budgets.
      tell: Gets a line now and then.
      stop: Called before each compile; whatever it raises ends the contest.
      unroll: Whether the search may write a loop's layers out.
      kinds: The rivals.
      known: Figures of before, whose budgets and rivals stay; only the search runs.

    Returns:
      Budgets, each with the search's answer and every rival's best (None where none of
      its proposals fits), what the program takes as it is written, the fastest that
      take no more, compiles and seconds.

    Raises:
      UserError: What is known is of another program, another target or other compilers.
    """
    began, load = time.perf_counter(), os.getloadavg()[0]
    search = Search(problem, target, lambda *_: stop(), unroll=unroll)

    def say(what: str) -> None:
        took = time.perf_counter() - began
        tell(f"{search.done} compiles, {took:.0f} s: {what}")

    search.prepare()
    plain = search.add("as written", None)
    budgets = budgets_of(search, num_budgets)
    if known is not None:
        _refuse_others(known, plain, target)
        budgets, kinds = [at["budget_bytes"] for at in known["budgets"]], ()
    say("prices")
    alone = []
    for budget in budgets:
        fit = search.fit(budget)
        first_us = fit.measurement.time.step_us if fit.plan.fits else None
        alone.append((first_us, fit.bound_us))
        say(f"searched at {format_bytes(budget)}")
    own = [search.best(budget) for budget in budgets]
    rows, compiles = list(search.rows.values()), {"search": search.done}
    seconds = {"search": time.perf_counter() - began}
    arena = arena_of(search)
    rivals = [kind(arena) for kind in kinds]
    for rival in rivals:
        before, start = search.done, time.perf_counter()
        for budget in budgets:
            rival.ask(budget)
        compiles[rival.name] = search.done - before
        seconds[rival.name] = time.perf_counter() - start
        say(rival.name)
    results = []
    nothing: dict[str, Any] = {"budgets": [{"rivals": {}}] * len(budgets)}
    past = nothing if known is None else known
    for budget, best, (first_us, bound_us), before in zip(
        budgets, own, alone, past["budgets"], strict=True
    ):
        mine = _row(best) if best.bytes <= budget else None
        if mine is not None:
            assert best.plan is not None
            mine["at_once_us"] = first_us
            mine["bound_us"] = bound_us
            mine["plan"] = [str(unit) for unit in best.plan.units]
        theirs = {r.name: _row(r.best(budget)) for r in rivals}
        theirs = {**before["rivals"], **theirs}
        results.append({"budget_bytes": budget, "search": mine, "rivals": theirs})
    no_more = [r for r in rows if r.plan is not None and r.bytes <= plain.bytes]
    fused = [r for r in no_more if _only_recomputes(r)]
    by_time = lambda r: (r.time_us, r.bytes)
    return {
        "target": target.spec,
        "versions": plain.measurement.versions,
        "unroll": unroll,
        "as_written": _row(plain),
        "units": {u.name: u.num_layers for u in search.units},
        "budgets": results,
        "no_more_memory": {
            "fusion-aware": _row(min(fused, key=by_time, default=None)),
            "search": _row(min(no_more, key=by_time, default=None)),
        },
        "compiles": {**past.get("compiles", {}), **compiles},
        "seconds": {
            **past.get("seconds", {}),
            **{name: round(s, 1) for name, s in seconds.items()},
        },
        "load": round(load, 1),
    }


def _refuse_others(known: dict[str, Any], plain: Row, target: rr.Target) -> None:
    """Rivals' figures stand beside the search's only if all else is the same."""
    now = {
        "target": target.spec,
        "versions": plain.measurement.versions,
        "as_written": _row(plain),
    }
    for what, value in now.items():
        if known[what] != value:
            raise rr.UserError(
                f"rivals' figures cannot stay, {what.replace('_', ' ')} is now {value} "
                f"and was {known[what]}: write --again instead"
            )


def _row(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"name": row.name, "bytes": row.bytes, "step_us": row.time_us}


def _only_recomputes(row: Row) -> bool:
    """Whether a plan is what a minimum cut can say: to keep or to rebuild."""
    assert row.plan is not None
    actions = (a for unit in row.plan.units for a in set(unit.actions))
    return all(
        a.kind in ("save", "recompute")
        and a.can_group
        and a.every == 1
        and not a.unroll
        for a in actions
    )


def plain_json(found: dict[str, Any]) -> str:
    """As it is written to a file."""
    return json.dumps(found, indent=1) + "\n"
