"""Choose: candidates are priced, a mix is chosen, the compiler decides."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from revremat import policies, xla
from revremat._apply import apply
from revremat._bounds import bounds
from revremat._compiled import Actions, Compiled, Progress, best_of
from revremat._cut import Cuts
from revremat._errors import UserError
from revremat._finer import look_closer
from revremat._fitted import UNKNOWN, Fit, Row, holders, not_sent, times_alive
from revremat._format import format_bytes
from revremat._graph import Unit
from revremat._levels import look_inside, units_at
from revremat._measurement import Measurement
from revremat._order import put_in_order, try_without_order
from revremat._plan import RECOMPUTE, SAVE, Action
from revremat._prices import (
    KEEP_ALL,
    NUM_EDGES,
    REFERENCE,
    UnitPrices,
    correct,
    hold,
    summary,
)
from revremat._problem import Problem
from revremat._refine import WORTH_A_COMPILE, is_filled, try_ends, use_up
from revremat._rivals import NEAR, NUM_RIVALS, try_rivals
from revremat._smallest import try_smallest
from revremat._twins import drop_maxima, write_out
from revremat.policies import Candidate, Choice, Counts, Menu
from revremat.program._loss import trace_loss
from revremat.xla import Target

_MOST_TIGHTENINGS = 5
_FAR = 1.1
_MOST_CANDIDATES = 12
_FEWEST_CANDIDATES = 3
# As written, two second prices, the choice, and once more if it came out too large.
_AFTER_PRICING = 5


class Search(Compiled):
    """One search: what is asked of the compiler, and what is made of its answers.

    Attributes:
      full: Programs near which nothing is faster that fits the budget.
    """

    def __init__(
        self,
        problem: Problem,
        target: Target,
        progress: Progress | None = None,
        most_compiles: int | None = None,
        unroll: bool = True,
        level: int = 0,
        around: Sequence[Unit] = (),
    ):
        super().__init__(problem, target, progress, most_compiles)
        self.unroll, self.level, self.around = unroll, level, around
        self.inside: dict[bool, Search | None] = {}
        self.budget = 0
        self.full: list[Measurement] = []
        self.prices: list[UnitPrices] = []
        self.priced = False
        self.closer: set[tuple[str, str]] = set()
        self.reference: Row | None = None
        again = lambda *args: problem.loss(*args)  # JAX remembers functions it traced
        with xla.traced_for(target):
            self.traced = trace_loss(again, problem.specs)
        if self.traced.fingerprint != self.graph.fingerprint:
            raise UserError(
                "the loss is another program each time it is traced, so no plan can "
                "hold for it; give it whatever changes between calls (Python's random "
                "numbers, a counter, the time) as an argument."
            )
        self.pools = self._pools()
        every = self._propose(_MOST_CANDIDATES)
        for most in range(_MOST_CANDIDATES - 1, _FEWEST_CANDIDATES - 1, -1):
            if self.room_for(self.num_needed):
                break
            every = self._propose(most)
        self.left = tuple(
            name
            for name, menu in every.items()
            if len(menu) > 1 and name not in {u.name for u in self.units}
        )
        if not self.units:
            raise UserError(
                "there is nothing to decide: every way back keeps the same values for "
                "the backward pass"
            )
        if not level and not self.room_for(self.num_needed):
            raise UserError(
                f"{most_compiles} compiles are too few for this program: a search "
                f"needs {self.num_needed} or more"
            )

    def _pools(self) -> dict[str, policies.Pool]:
        """What is proposed for every unit."""
        card = self.target.card
        products = card.matmul_efficiency * max(card.peak_flops.values())
        flops = (products, card.peak_flops["float32"])
        rates = policies.Rates(*(f / card.stream_bandwidth for f in flops))
        units = units_at(self.graph, self.level)
        return {u.name: policies.Pool(u, rates) for u in units}

    def _propose(self, most: int) -> dict[str, tuple[policies.Candidate, ...]]:
        """Candidates of every unit, at most so many each; sets what is priced."""
        every = {
            name: pool.worth_compiling(
                offload=self.can_send(pool.unit),
                ahead=self.target.num_devices > 1,
                most=most,
            )
            for name, pool in self.pools.items()
        }
        few = policies.shortlist(every, self.graph.units)
        units = [u for u in self.graph.units if u.name in few]
        self.cuts = Cuts(
            self.problem, self.traced, self.graph, self.target, units, self.around
        )
        self.prices = [
            UnitPrices(u, few[u.name], self.cuts.within(u), self.ask) for u in units
        ]
        return every

    @property
    def units(self) -> Sequence[Unit]:
        """All about which is decided."""
        return self.cuts.units

    @property
    def choices(self) -> dict[str, dict[str, Candidate]]:
        """The candidates of every unit, by their names."""
        return {prices.unit.name: prices.choices for prices in self.prices}

    def can_send(self, unit: Unit) -> bool:
        """Whether layers may keep values on the host.

        Loops and branches around a unit cannot keep its stacks there.
        """
        return self.target.platform != "cpu" and not (unit.inside or unit.in_branch)

    @property
    def num_needed(self) -> int:
        """Compiles without which there is no answer."""
        return sum(p.num_first_compiles for p in self.prices) + 1 + _AFTER_PRICING

    def prepare(self) -> None:
        """The program as it was written, and the first price of everything."""
        self.expected = self.done + sum(p.num_first_compiles for p in self.prices)
        self.expected += 2 + NUM_RIVALS + 2 * len(self.units) + _MOST_TIGHTENINGS // 2
        self.expected += 2 * NUM_EDGES * any(p.has_edges for p in self.prices)
        if self.unroll:
            self.expected += sum(len(p.written_out()) for p in self.prices)
        if self.most_compiles is not None:
            self.expected = min(self.expected, self.most_compiles)
        written = self.written()
        put_in_order(self)
        self._price(written)
        while lost := self._lost():
            self._leave(lost)
            self._price(written)
        drop_maxima(self)
        if self.most_compiles is None:
            write_out(self)
        self.priced = True

    def fit(self, budget_bytes: int) -> Fit:
        """The plan for a budget; all that was compiled for other ones counts, too."""
        self.budget = budget_bytes
        if not self.level:
            self.full.clear()
        written = self.written()
        if (arguments := written.measurement.memory.argument_bytes) > budget_bytes:
            counts, _ = self.all_alike(REFERENCE, RECOMPUTE)
            self.try_all([(counts, UNKNOWN)])
            size = format_bytes(arguments)
            return self._answer(0.0, f"the step's arguments alone ({size})")
        if not self.priced:
            self.prepare()
        if not self.prices:  # nothing that could be decided compiles
            return self._answer(0.0)
        bound_us, greedy_us = 0.0, None
        choice = self._tighten()
        if choice is None and write_out(self):
            choice = self._tighten()
        if choice is not None:
            try_rivals(self, choice)
            if write_out(self, choice.support):
                choice = self._tighten() or choice
                try_rivals(self, choice)
            if look_closer(self):
                choice = self._tighten() or choice
                try_rivals(self, choice)
            for way in ("unroll", "on_host"):
                if self._is_doubtful(choice, way) and self.room_for(1):
                    surer = self._tighten(without=(way,))
                    if surer is not None:
                        try_rivals(self, surer, without=(way,))
        try_smallest(self)
        use_up(self)
        if (best := self.best_priced()) is not None:
            if best.bytes <= budget_bytes:
                bound_us, greedy_us = bounds(self, best)
            bound_us = max(0.0, try_ends(self, best, bound_us))
            use_up(self)
        if (inside_us := look_inside(self)) < bound_us:
            bound_us, greedy_us = inside_us, None
        bound_us = try_without_order(self, bound_us)
        return self._answer(bound_us, greedy_us=greedy_us)

    def within(self, around: Sequence[Unit]) -> "Search":
        """A search of what is inside of this one's units, into the same rows.

        Args:
          around: Those of them that rebuild everything.
        """
        left = None if self.most_compiles is None else self.most_compiles - self.done
        asked = (self.problem, self.target, self.progress, left, self.unroll)
        inner = type(self)(*asked, self.level + 1, (*self.around, *around))
        inner.rows, inner.full = self.rows, self.full
        inner.failed, inner.dropped = self.failed, self.dropped
        inner.most_compiles = self.most_compiles
        return inner

    def add_all(
        self,
        programs: Sequence[tuple[str, Actions | None, float]],
        in_order: bool | None = None,
    ) -> list[Row | None]:
        """As `Compiled` does, with what is around rebuilding everything."""
        rebuilt = {u.name: RECOMPUTE for u in self.around}
        whole = [
            (name, actions if actions is None else {**rebuilt, **actions}, predicted)
            for name, actions, predicted in programs
        ]
        return super().add_all(whole, in_order)

    def _answer(
        self,
        bound_us: float,
        held_by: str = "",
        greedy_us: float | None = None,
    ) -> Fit:
        best, share, times = self.best(self.budget), self.cuts.share, 1.0
        if self.reference is not None:
            written = self.written()
            times = times_alive(written, self.reference, self.graph, share)
            share *= min(1.0, max(0.0, times)) if self.target.num_devices > 1 else 1.0
            times = max(1.0, times) if self.problem.step is not None else 1.0
        plan = dataclasses.replace(
            best.plan or self.graph.plan({}),
            target=self.target.spec,
            budget_bytes=self.budget,
            predicted_bytes=_known(best.predicted_bytes),
            compiled_bytes=best.bytes,
            held_by=held_by or holders(best, self.graph, share, times),
        )
        return Fit(
            loss=apply(self.problem.loss, plan) if plan.units else self.problem.loss,
            plan=plan,
            measurement=best.measurement,
            rows=tuple(self.rows.values()),
            menus=self.menus(),
            bound_us=min(bound_us, best.time_us) if best.bytes <= self.budget else 0.0,
            greedy_us=greedy_us,
            filled=is_filled(self, best),
            num_compiles=self.done,
            most_compiles=self.most_compiles,
            is_cut_short=self.is_cut_short and not held_by,
            left=self.left,
            not_sent=not_sent(best, self.graph, share, self.reference),
            dropped=tuple(self.dropped),
        )

    @property
    def host_bytes(self) -> float:
        """What layers may keep on the host of each device, beside the program's own."""
        own = self.reference.measurement.memory.host_bytes if self.reference else 0
        return max(0.0, self.target.host_bytes - own)

    def menus(self) -> tuple[Menu, ...]:
        """What is known of all prices; nothing before the first."""
        return tuple(prices.menu() for prices in self.prices if prices.deep)

    # Prices ---------------------------------------------------------------------------

    def _price(self, written: Row) -> None:
        """The first prices of everything, set right."""
        self.reference = None
        for prices in self.prices:
            prices.start(self.cuts.best(prices.unit, written.time_us))
            prices.price_roughly()
        if self.prices and all(prices.has_reference for prices in self.prices):
            self._correct()

    def _lost(self) -> list[str]:
        """Units without the price that all others are held to; it did not compile."""
        if self.reference is not None:
            return []
        without = [p.unit.name for p in self.prices if not p.has_reference]
        return without or [p.unit.name for p in self.prices]

    def _leave(self, lost: Sequence[str]) -> None:
        """Leaves units as they are written without which the others compile.

        Any one that cannot be rebuilt fails all programs that rebuild it.
        """
        kept: list[UnitPrices] = []
        for prices in self.prices:
            counts = {
                p.unit.name: ((REFERENCE, p.unit.num_layers),) for p in [*kept, prices]
            }
            if self.room_for(1) and self.try_all([(counts, UNKNOWN)])[0] is not None:
                kept.append(prices)
        if len(kept) == len(self.prices):  # only shortened programs fail
            kept = [p for p in kept if p.unit.name not in lost]
        self.prices = kept
        self.cuts = dataclasses.replace(self.cuts, units=[p.unit for p in kept])

    def _correct(self) -> None:
        """Sets the constant of all prices right by one whole program."""
        counts, actions = self.all_alike(REFERENCE, RECOMPUTE)
        alone = [prices for prices in self.prices if prices.cut.is_alone]
        predict = lambda: policies.predict_bytes(self.menus(), counts)
        row = self.add(self._name(counts), actions, UNKNOWN if alone else predict())
        if row is None:
            return
        if alone and not self._hold(row):
            for prices in alone:
                prices.start(self.cuts.within(prices.unit))
                prices.price_roughly()
            if not all(prices.has_reference for prices in alone):
                return
        correct(self.prices, row.bytes, predict)
        # Where units are priced alone, what it takes is not known before.
        self.reference = self.add(self._name(counts), actions, predict())

    def _hold(self, reference: Row) -> bool:
        """Whether prices are the program's, or there is no room for other ones."""
        rebuilt = reference.measurement
        written = self.written().measurement
        needed = sum(p.num_first_compiles for p in self.prices if p.cut.is_alone)
        # All kept, the prices, and a choice by them.
        if hold(self.prices, written, rebuilt) or not self.room_for(1 + needed + 1):
            return True
        # As written it need not keep everything.
        counts, actions = self.all_alike(KEEP_ALL, SAVE)
        kept = self.add(self._name(counts), actions)
        return kept is None or hold(self.prices, kept.measurement, rebuilt)

    def all_alike(self, name: str, action: Action) -> tuple[Counts, Actions]:
        """Every layer of the program the same."""
        return (
            {u.name: ((name, u.num_layers),) for u in self.units},
            {u.name: action for u in self.units},
        )

    def layers_us(self, row: Row) -> float:
        """Time of a compiled program's layers by their prices."""
        runs = self.counts_of(row)
        return sum(
            p.layers_us(runs[p.unit.name]) for p in self.prices if p.unit.name in runs
        )

    # Choice ---------------------------------------------------------------------------

    def _tighten(self, without: Sequence[str] = ()) -> Choice | None:
        """The best mix by its prices, compiled; the limit moves until it fits.

        Args:
          without: Ways that no layer takes, as `menus_without` has them.

        Returns:
          The first choice.
        """
        limit, first = float(self.budget), None
        failed: list[policies.Support] = []
        for _ in range(_MOST_TIGHTENINGS):
            if first and not self.room_for(1):
                break
            choice = self.choose(limit, without=without, excluding=failed)
            if choice is None and first is None:  # Prices may be a little too high.
                least = self.choose(None, without=without)
                choice = least if least and least.bytes <= NEAR * self.budget else None
            if choice is None:
                break
            first = first or choice
            if (row := self.try_mix(choice)) is None:
                failed.append(choice.support)
                continue
            error = row.bytes - choice.bytes
            if row.bytes > self.budget:
                less = self.budget - error
                menus = self.menus_without(without)
                if self.mix(menus, less) is None:
                    # By this one none fits, but smaller ones may miss by less.
                    least = policies.smallest_bytes(menus, self.host_bytes)
                    floor = least if least < choice.bytes else less
                    less = (floor + choice.bytes) / 2
                limit = min(limit, less) - 1e-4 * self.budget
            elif -error > WORTH_A_COMPILE * self.budget and limit < (
                self.budget - error
            ):
                limit = self.budget - error  # it came out smaller: use what is left
            else:
                break
        return first

    def counts_of(self, row: Row) -> Counts:
        """A row's plan as runs of candidates."""
        decided, found = self._decided(row), {}
        for prices in self.prices:
            if (unit := prices.unit.name) in decided:
                runs = groupby(map(prices.names.__getitem__, decided[unit]))
                found[unit] = tuple((name, len(list(run))) for name, run in runs)
        return found

    def choose(
        self, limit: float | None, without: Sequence[str] = (), **how: Any
    ) -> Choice | None:
        """A choice whose prices come from two compiles, while there is room for them.

        Without a limit it is the smallest of those that are alike in all of a unit.
        """
        while True:
            menus = self.menus_without(without)
            if (within := limit) is None:
                within = policies.smallest_bytes(menus, self.host_bytes)
            choice = self.mix(menus, within, **how)
            if choice is None or not self.refine(choice.support):
                return choice

    def menus_without(self, ways: Sequence[str]) -> Sequence[Menu]:
        """Prices of what is not of these ways.

        Args:
          ways: "unroll", what is written out; "on_host"; "closer", what a second look
            added.
        """
        menus = self.menus()
        for way in ways:
            menus = [menu.only(self._lacking(way, menu.unit)) for menu in menus]
        return menus

    def _lacking(self, way: str, unit: str) -> set[str]:
        """Names of a unit's candidates that are not of a way."""
        if way == "closer":
            is_of = lambda c: (unit, c.name) in self.closer
        else:
            is_of = lambda c: getattr(c.action, way)
        return {c.name for c in self.choices[unit].values() if not is_of(c)}

    def _is_doubtful(self, choice: Choice, way: str) -> bool:
        """Whether prices want what may be slower or larger beside other layers.

        What crosses to the host hides behind other layers, always. Written out layers
        are fused with one another, and are doubtful where nothing that has any fits or
        something that has takes much more than its prices say.
        """
        if all(name in self._lacking(way, unit) for unit, name in choice.support):
            return False
        rows = [row for row in self.rows.values() if row.takes("unroll")]
        fits = any(row.bytes <= self.budget for row in rows)
        return way == "on_host" or not fits or bool(self.far_off)

    @property
    def far_off(self) -> tuple[str, ...]:
        """Ways whose programs take much more than their prices say."""
        rows = [row for row in self.rows.values() if row.takes("unroll")]
        far_off = any(row.bytes > _FAR * row.predicted_bytes for row in rows)
        return ("unroll",) if far_off else ()

    def mix(self, menus: Sequence[Menu], limit: float, **how: Any) -> Choice | None:
        """The fastest mix of what is on the menus that the host has room for."""
        menus = [menu.distinct() for menu in menus]
        return policies.choose(menus, limit, host_budget_bytes=self.host_bytes, **how)

    def refine(self, support: policies.Support) -> bool:
        """Compiles the second price of what is chosen; whether there are new ones."""
        used: dict[str, list[str]] = {}
        for unit, name in sorted(support):
            used.setdefault(unit, []).append(name)
        names = [used.get(prices.unit.name, []) for prices in self.prices]
        pairs = list(zip(self.prices, names, strict=True))
        missing = sum(prices.num_to_refine(few) for prices, few in pairs)
        if not missing or not self.room_for(missing + 1):
            return False
        for prices, few in pairs:
            prices.refine(few)
        return True

    def try_mix(self, choice: Choice) -> Row | None:
        return self.try_all([(choice.counts, choice.bytes)])[0]

    def try_all(self, mixes: Sequence[tuple[Counts, float]]) -> list[Row | None]:
        """Compiles mixes whole, each with the bytes expected of it; None if one fails.

        Mixes of candidates that were dropped since they were made are left out.
        """
        programs, places = [], []
        for place, (counts, predicted) in enumerate(mixes):
            if not self._are_there(counts):
                continue
            actions = {}
            for unit, runs in counts.items():
                choices = self.choices[unit]
                listed = (choices[name].action for name, n in runs for _ in range(n))
                actions[unit] = tuple(listed)
            programs.append((self._name(counts), actions, predicted))
            places.append(place)
        rows = dict(zip(places, self.add_all(programs), strict=True))
        return [rows.get(place) for place in range(len(mixes))]

    def _are_there(self, counts: Counts) -> bool:
        """Whether no candidate of a mix was dropped since it was made."""
        return all(
            name in self.choices[unit]
            for unit, runs in counts.items()
            for name, _ in runs
        )

    def _name(self, counts: Counts) -> str:
        around = {u.name: ((REFERENCE, u.num_layers),) for u in self.around}
        return summary({**around, **counts})

    def best_priced(self) -> Row | None:
        """The best one whose actions have prices: presets need not be candidates."""
        rows = [row for row in self.rows.values() if self.is_priced(row)]
        return best_of(rows, self.budget) if rows else None

    def is_priced(self, row: Row) -> bool:
        known = {prices.unit.name: prices.names.keys() for prices in self.prices}
        if row.plan is None or row.plan.in_order != self.in_order:
            return False
        actions = self._decided(row)
        return actions.keys() == known.keys() and all(
            known[unit] >= set(taken) for unit, taken in actions.items()
        )

    def _decided(self, row: Row) -> dict[str, tuple[Action, ...]]:
        """A row's actions without those of what is around, if those are as here."""
        actions = row.plan.actions if row.plan else {}
        for unit in self.around:
            if actions.pop(unit.name, ()) != (RECOMPUTE,) * unit.num_layers:
                return {}
        return actions


def _known(predicted: float) -> int | None:
    return None if math.isnan(predicted) else round(predicted)
