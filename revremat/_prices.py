"""Prices: what one layer costs under each candidate, from compiles on the target.

A program's bytes are linear in the layers that keep something, with a constant for all
else; two compiles of the program cut to a few of its layers, at full width and batch,
give both. Measured on GPT at 24 layers, cuts to 4 and 8 predict the compiled bytes to
0.1 %; cuts to 2 and 4 were up to 3.6 % low.

One compile prices a candidate roughly, with the constant of the one that rebuilds
everything; the second is only spent on candidates that a choice really uses.

A unit that is a small part of a large program is compiled without the rest of it. What
its layers take and save, against rebuilding everything, is the same unless they are
light or the step runs the loss many times, which compiles of the whole program tell;
where the peak stands is set right by one of them.

A run of one layer is written out without a loop, and the compiler then fuses and
overlaps it with what is next to it: on GPT it saves a third of the layer's time. So the
first and the last layer have prices of their own, beside the run they stand next to.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from revremat._cut import DEPTHS, UnitCut
from revremat._graph import Unit
from revremat._measure import Failure, Request
from revremat._measurement import Measurement
from revremat._plan import RECOMPUTE, Action
from revremat.policies import Candidate, Counts, Menu, Price, Runs

Ask = Callable[[Sequence[tuple[str, Request]]], list[Measurement | Failure]]
"""Compiles steps on the target; texts say what they are, for people."""

REFERENCE, KEEP_ALL = "full", "none"
NUM_EDGES = 6
"""Actions tried at an end of a loop, those of all units together."""
_MOST_UNROLLED, _MOST_UNROLLED_OPERATIONS = 100, 15_000
"""Layers and all their operations; the compiler would take too long for more."""
_OFF, _NEGLIGIBLE = 0.25, 0.02
"""How far off prices may be: of a difference, and of the whole."""


def neighbour(runs: Runs, last: bool) -> tuple[str, bool]:
    """What the first or the last layer stands beside, and whether it stands alone.

    >>> neighbour([("save", 1), ("full", 22), ("save", 1)], last=False)
    ('full', True)
    >>> neighbour([("full", 24)], last=True)
    ('full', False)
    """
    ordered = runs[::-1] if last else runs
    stands_alone = len(runs) > 1 and ordered[0][1] == 1
    return ordered[1 if stands_alone else 0][0], stands_alone


_UNROLLED = ", unrolled"


def unrolled(name: str) -> str:
    """What a candidate is called whose layers are written out."""
    return name + _UNROLLED


def twin_of(candidate: Candidate) -> Candidate:
    """The same way back, its layers written out one after the other."""
    return Candidate(unrolled(candidate.name), candidate.action(unroll=True))


def plain_of(candidate: Candidate) -> Candidate:
    """The same way back in a loop."""
    name = candidate.name.removesuffix(_UNROLLED)
    return Candidate(name, candidate.action(unroll=False))


def summary(counts: Counts) -> str:
    """What a program is called, by the runs of each of its units.

    >>> summary({"scan_0": [("none", 1), ("full", 23)]})
    'none, 23 x full'
    >>> summary({"encoder": [("full", 12)], "decoder": [("none", 12)]})
    'encoder: 12 x full; decoder: 12 x none'
    """
    parts = []
    for unit, runs in counts.items():
        text = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in runs)
        parts.append(f"{unit}: {text}" if len(counts) > 1 else text)
    return "; ".join(parts)


def num_to_offer(few: Collection[Candidate]) -> int:
    """Compiles of first prices."""
    return len(_first_probes(few))


def _first_probes(few: Collection[Candidate]) -> list[tuple[str, int]]:
    """One compile for each candidate; two for segments, whose cuts are longer."""
    segmented = [(c.name, 0) for c in few if c.action.every > 1]
    return [*segmented, *((c.name, -1) for c in few)]


@dataclass(frozen=True)
class Probe:
    """One compile of a cut program.

    Attributes:
      num_layers: Layers that were left in and take the candidate's action.
      num_others: Layers that were left in and rebuild everything.
      bytes: Per device.
      host_bytes: Per device.
      time_us: Of the cut step.
    """

    num_layers: int
    num_others: int
    bytes: float
    host_bytes: float
    time_us: float


class UnitPrices:
    """The prices of one unit's candidates, every other unit rebuilding everything.

    Args:
      unit: The unit that is cut.
      choices: Its candidates; one is called `full` and keeps nothing but the input.
      cut: Cuts the program to it.
      ask: Compiles steps.

    Attributes:
      dropped: What candidates do that were dropped: they do not compile.
      passed_over: Candidates that are not worth a price written out: a twin is faster.
      slower_maxima: Maxima of a softmax that are better not kept.
    """

    def __init__(
        self, unit: Unit, choices: Sequence[Candidate], cut: UnitCut, ask: Ask
    ):
        self.unit, self.ask = unit, ask
        self.choices = {c.name: c for c in choices}
        self.dropped: set[Action] = set()
        self.passed_over: set[str] = set()
        self.slower_maxima: set[str] = set()
        self.start(cut)

    def start(self, cut: UnitCut) -> None:
        """Forgets all prices; the next ones are by this cut."""
        self.cut, self.correction = cut, 0.0
        self.deep: dict[str, Probe] = {}
        self.shallow: dict[str, Probe] = {}
        self.beside: dict[tuple[str, str, bool], Probe | None] = {}

    @property
    def has_reference(self) -> bool:
        """Whether there is the price of rebuilding everything."""
        return REFERENCE in self.deep and REFERENCE in self.shallow

    @property
    def names(self) -> dict[Action, str]:
        """What candidates are called, by what they do."""
        return {c.action: c.name for c in self.choices.values()}

    @property
    def num_first_compiles(self) -> int:
        """Compiles before the first choice."""
        return num_to_offer(self.choices.values()) + len(self._cuts(RECOMPUTE)) - 1

    @property
    def is_loop(self) -> bool:
        """Whether the layers are turns of a loop, which can be written out."""
        return self.unit.kind == "scan" and self.unit.num_layers > 1

    @property
    def has_edges(self) -> bool:
        """Whether a first and a last layer can have prices of their own."""
        return self.is_loop and self.unit.skippable and self.unit.num_layers > DEPTHS[1]

    @property
    def reference(self) -> Price:
        """The price of rebuilding everything."""
        return self._price(REFERENCE)

    def price_roughly(self) -> None:
        """One compile for each candidate, two for the reference."""
        reference = [(REFERENCE, 0)] if len(self._cuts(RECOMPUTE)) > 1 else []
        self._probe([*reference, *_first_probes(self.choices.values())])

    def least_rebuilt(self, beside: str, number: int) -> list[str]:
        """Candidates worth a price at an end: what sends nothing and rebuilds least."""
        options = []
        for name, candidate in self.choices.items():
            kept, action = self.unit.kept(candidate.action), candidate.action
            written = action.unroll or action.every > 1
            if name != beside and not (written or kept.ahead or action.on_host):
                options.append((kept.rebuild_flops, kept.device_bytes, name))
        return [name for *_, name in sorted(options)[:number]]

    def written_out(self) -> list[Candidate]:
        """The candidates written out, those that are not yet.

        What a layer of a loop keeps is copied into a stack of all layers' and out of it
        again, so what is fastest in a loop need not be so without one.
        """
        num_operations = self.unit.num_layers * len(self.unit.operations)
        is_long = self.unit.num_layers > _MOST_UNROLLED
        if not self.is_loop or is_long or num_operations > _MOST_UNROLLED_OPERATIONS:
            return []
        return [
            twin_of(candidate)
            for name, candidate in self.choices.items()
            if candidate.action.can_unroll
            and not candidate.action.unroll
            and unrolled(name) not in self.choices
            and candidate.action(unroll=True) not in self.dropped
            and name not in self.passed_over
        ]

    def offer(self, more: Sequence[Candidate]) -> None:
        """More candidates, and their first prices."""
        self.choices |= {c.name: c for c in more}
        self._probe(_first_probes(more))

    def num_to_refine(self, names: Iterable[str]) -> int:
        """Candidates among these that have no second price."""
        if not self._has_two_cuts:
            return 0
        return sum(name not in self.shallow for name in names)

    def refine(self, names: Iterable[str]) -> None:
        """The second compile of candidates, where it is missing."""
        self._probe([(name, 0) for name in names if name not in self.shallow])

    def edges(self, names: Sequence[str], beside: str, last: bool) -> dict[str, Price]:
        """What the first or the last layer costs more than its neighbours in a loop.

        Args:
          names: Candidates for that layer.
          beside: The candidate of its neighbours.
          last: The layer that runs last, else the first.

        Returns:
          Differences: kept bytes, host bytes and time; no base.
        """
        missing = [n for n in names if (n, beside, last) not in self.beside]
        few, asked = DEPTHS[1] - 1, []
        for name in missing:
            one, run = self.choices[name].action, (self.choices[beside].action,) * few
            actions = (*run, one) if last else (one, *run)
            label = f"{few} x {beside}, {name}" if last else f"{name}, {few} x {beside}"
            asked.append((label, actions))
        for name, probe in zip(missing, self._compile(asked), strict=True):
            self.beside[name, beside, last] = probe
        known = [n for n in names if self.beside[n, beside, last] is not None]
        return {name: self._edge(name, beside, last) for name in known}

    def known_edges(self, beside: str, last: bool) -> list[Price]:
        """Those prices of the first or the last layer that have been asked for."""
        known = [
            n
            for (n, b, end), probe in self.beside.items()
            if (b, end) == (beside, last) and probe is not None
        ]
        return [self._edge(name, beside, last) for name in known]

    def _edge(self, name: str, beside: str, last: bool) -> Price:
        probe, many = self.beside[name, beside, last], self.deep[beside]
        assert probe is not None
        return Price(
            name,
            probe.bytes - many.bytes,
            0.0,
            probe.host_bytes - many.host_bytes,
            probe.time_us - many.time_us,
        )

    def difference(self, name: str) -> tuple[float, float]:
        """Bytes kept and time of one layer, against rebuilding everything."""
        price, full = self._price(name), self._price(REFERENCE)
        return price.kept_bytes - full.kept_bytes, price.time_us - full.time_us

    def ends(self, runs: Runs) -> tuple[Runs, Runs, Runs]:
        """A first layer with a price outside of the loop, the loop, and a last one."""
        first, loop, last = (), tuple(runs), ()
        if self._stands_alone(runs, last=False):
            first, loop = loop[:1], loop[1:]
        if self._stands_alone(runs, last=True):
            loop, last = loop[:-1], loop[-1:]
        return first, loop, last

    def _stands_alone(self, runs: Runs, last: bool) -> bool:
        beside, stands_alone = neighbour(runs, last)
        name = runs[-1 if last else 0][0]
        return stands_alone and self.beside.get((name, beside, last)) is not None

    def layers_us(self, runs: Runs) -> float:
        """Time of all layers by their prices, of ends that stand alone by theirs."""
        total = sum(n * self._price(name).time_us for name, n in runs)
        for last in (False, True):
            if self._stands_alone(runs, last):
                name, (beside, _) = runs[-1 if last else 0][0], neighbour(runs, last)
                added = self._edge(name, beside, last).time_us
                total += self._price(beside).time_us + added - self._price(name).time_us
        return total

    def menu(self) -> Menu:
        """What is known of all prices."""
        prices = []
        for name, candidate in self.choices.items():
            price = self._price(name)
            base = max(0.0, price.base_bytes + self.correction)
            shortest = 2 if self.has_edges and not candidate.action.unroll else 1
            prices.append(
                dataclasses.replace(price, base_bytes=base, shortest_run=shortest)
            )
        return Menu(self.unit.name, self.unit.num_layers, tuple(prices))

    def _cuts(self, action: Action) -> list[tuple[Action, ...]]:
        """The layers of the cut programs, the shorter one first."""
        n = self.unit.num_layers
        if n == 1:
            return [(action,)]
        if not self.unit.skippable:  # the other half rebuilds everything instead
            whole, half = (action,) * n, (action,) * (n // 2)
            if action == RECOMPUTE:
                return [whole]
            return [(RECOMPUTE,) * (n - n // 2) + half, whole]
        few, more = DEPTHS if n > DEPTHS[1] else (max(1, n // 2), n)
        if action.every > 1:  # whole segments, and several: one is no loop
            few, more = 2 * action.every, 4 * action.every
        return [(action,) * few, (action,) * more]

    @property
    def _has_two_cuts(self) -> bool:
        return self.unit.num_layers > 1

    def _probe(self, wanted: Sequence[tuple[str, int]]) -> None:
        """Candidates at the shorter cut (0) and the longer one (-1)."""
        tables = {0: self.shallow if self._has_two_cuts else self.deep, -1: self.deep}
        missing = [(n, which) for n, which in wanted if n not in tables[which]]
        missing = list(dict.fromkeys(missing))
        asked = []
        for name, which in missing:
            actions = self._cuts(self.choices[name].action)[which]
            asked.append((f"{len(actions)} x {name}", actions))
        for (name, which), probe in zip(missing, self._compile(asked), strict=True):
            if probe is not None:
                tables[which][name] = probe
            elif name != REFERENCE:
                self._drop(name)
        if not self._has_two_cuts:
            self.shallow = self.deep
        elif len(self._cuts(RECOMPUTE)) == 1 and REFERENCE in self.deep:
            self.shallow[REFERENCE] = self.deep[REFERENCE]

    def _drop(self, name: str) -> None:
        """Forgets a candidate that does not compile."""
        if (candidate := self.choices.pop(name, None)) is not None:
            self.dropped.add(candidate.action)

    def _compile(
        self, cuts: Sequence[tuple[str, tuple[Action, ...]]]
    ) -> list[Probe | None]:
        steps = [
            (f"{self.unit.name}: {label}", self.cut.step(actions))
            for label, actions in cuts
        ]
        probes = []
        for (_, actions), m in zip(cuts, self.ask(steps), strict=True):
            if isinstance(m, Failure):
                probes.append(None)
                continue
            num_layers = sum(action != RECOMPUTE for action in actions)
            num_layers = num_layers or len(actions)
            probes.append(
                Probe(
                    num_layers,
                    len(actions) - num_layers,
                    m.memory.total_bytes,
                    m.memory.host_bytes,
                    m.time.step_us,
                )
            )
        return probes

    def _price(self, name: str) -> Price:
        deep, shallow = self.deep[name], self.shallow.get(name)
        if shallow is None:
            return self._rough_price(name)
        layers = deep.num_layers - shallow.num_layers
        if layers <= 0:
            action = self.choices[name].action
            kept = self.cut.share * self.unit.kept(action).device_bytes
            # Of several layers, the others' prices are against all rebuilt.
            own = self.deep[REFERENCE].host_bytes
            host = deep.host_bytes - own if self.unit.num_layers == 1 else 0.0
            time = deep.time_us if self.unit.num_layers == 1 else 0.0
        else:
            kept = (deep.bytes - shallow.bytes) / layers
            host = (deep.host_bytes - shallow.host_bytes) / layers
            if not shallow.num_others:  # what rebuilt layers have there is no price
                host -= self._host_when_rebuilt
            time = (deep.time_us - shallow.time_us) / layers
            if shallow.num_others:  # the slopes are against layers that rebuild all
                kept += self.cut.share * self.unit.kept(RECOMPUTE).device_bytes
        kept = max(0.0, kept)
        base = deep.bytes - deep.num_layers * kept - self.cut.kept_by_others
        return Price(name, kept, base, max(0.0, host), time)

    @property
    def _host_when_rebuilt(self) -> float:
        """Bytes that one layer has on the host even if it rebuilds everything."""
        deep, shallow = self.deep[REFERENCE], self.shallow.get(REFERENCE)
        layers = deep.num_layers - shallow.num_layers if shallow else 0
        if not shallow or layers <= 0:
            return 0.0
        return (deep.host_bytes - shallow.host_bytes) / layers

    def _rough_price(self, name: str) -> Price:
        """As if all but the kept bytes were as in the reference."""
        deep, full = self.deep[name], self._price(REFERENCE)
        reference = self.deep[REFERENCE]
        n = deep.num_layers
        kept = max(0.0, full.kept_bytes + (deep.bytes - reference.bytes) / n)
        time = full.time_us + (deep.time_us - reference.time_us) / n
        base = deep.bytes - n * kept - self.cut.kept_by_others
        host = max(0.0, deep.host_bytes - reference.host_bytes) / n
        return Price(name, kept, base, host, time)


def hold(
    prices: Sequence[UnitPrices], all_kept: Measurement, all_rebuilt: Measurement
) -> bool:
    """Whether prices say about what becomes of the program if it keeps everything.

    They do not where the step runs the loss more than once, or on more than one of the
    arguments that prices are made with, and a unit was priced without the program.

    Args:
      prices: Of all units.
      all_kept: The program all of whose layers keep everything.
      all_rebuilt: The program all of whose layers rebuild everything.
    """
    # Where that is no candidate, keeping everything is rebuilding everything.
    found = [p for p in prices if KEEP_ALL in p.choices]
    differences = [(p.unit.num_layers, *p.difference(KEEP_ALL)) for p in found]
    more_bytes = sum(n * size for n, size, _ in differences)
    more_us = sum(n * time for n, _, time in differences)
    size, time = all_rebuilt.memory.total_bytes, all_rebuilt.time.step_us
    found_us = all_kept.time.step_us - time
    found_bytes = all_kept.memory.total_bytes - size  # Less where the peak is elsewhere
    off_us = abs(found_us - more_us) - _OFF * max(abs(found_us), abs(more_us))
    off_bytes = found_bytes - (1 + _OFF) * more_bytes
    return off_us <= _NEGLIGIBLE * time and off_bytes <= _NEGLIGIBLE * size


def correct(
    prices: Sequence[UnitPrices], bytes_of_all: int, predict: Callable[[], float]
) -> None:
    """Sets the constant of all prices right by one whole program.

    Args:
      prices: Of all units, none of them set right yet.
      bytes_of_all: What the program takes with all units' layers rebuilding everything.
      predict: What the prices say it takes.
    """
    kept = sum(p.unit.num_layers * p.reference.kept_bytes for p in prices)
    for one in prices:
        if one.cut.is_alone:
            one.correction = bytes_of_all - kept - one.reference.base_bytes
    off = bytes_of_all - predict()
    for one in prices:
        one.correction += off
