"""A made-up program: what layers take is written down, and what wholes take beside it.

One unit of equal layers in a loop, whose values `a` to `f` may be kept. Shortened
programs take what their layers cost, so costs are exact; whole ones take `error` bytes
more and `slower_us` longer. An oracle that tells this takes the compiler's place.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import revremat as rr
from revremat._graph import Graph, Operation, Unit, Value
from revremat._measurement import Measurement, Memory, Time
from revremat._search import Asking, Heuristics, ProbeKey, Request, Space, State
from revremat._search._probes import cuts
from revremat.policies import Candidate, Counts, Pool

NAMES = "abcdef"


@dataclass(frozen=True)
class Cost:
    """What a layer takes: bytes kept, time, bytes on the host; all else at the peak."""

    kept: float
    time_us: float
    host: float = 0.0
    base: float = 10.0


FULL, SAVE = Cost(1.0, 100.0), Cost(10.0, 50.0)
"""Of every world, unless it says something else."""


def unit_of(name: str = "u", layers: int = 8, **how: Any) -> Unit:
    """Layers whose values are made one after the other."""
    input = Value("x", False, (1,), "float32", 1, "input")
    made = [Value(n, False, (1,), "float32", 4, "made") for n in NAMES]
    ops = [
        Operation("tanh", (k,), (k + 1,), 2 * (k + 1), True, "", "")
        for k in range(len(NAMES))
    ]
    about = {"kind": "scan", "skippable": True, "chained": True, **how}
    return Unit(
        name,
        about.pop("kind"),
        "",
        layers,
        (input, *made),
        tuple(ops),
        tuple(range(1, len(NAMES) + 1)),
        weight_bytes=0,
        forward_flops=10,
        backward_flops=20,
        **about,
    )


def small(names: str = "a", **how: Any) -> rr.Action:
    """Another way than to save or recompute all."""
    return rr.RECOMPUTE(save=list(names), **how)


@dataclass
class World:
    """What programs take.

    Attributes:
      costs: From candidate to action and cost; `recompute all` and `save all` are there
        anyway.
      error: From runs of candidates to the bytes that the whole takes more.
      slower_us: Likewise, to time.
      peeled: Of a first (False) or last (True) layer that differs from the run beside
        it: bytes and time more than that has.
      layers: Of the unit.
      kind: Of the unit; layers of a scan cost as iterations of a loop.
      host_bytes: Of the target.
      asked: Whole programs, in order, as runs.
      probed: Shortened programs, in order.
    """

    costs: Mapping[str, tuple[rr.Action, Cost]] = field(default_factory=dict)
    error: Callable[[dict[str, int]], float] = lambda runs: 0.0
    slower_us: Callable[[dict[str, int]], float] = lambda runs: 0.0
    peeled: Mapping[bool, tuple[float, float]] = field(default_factory=dict)
    full: Cost = FULL
    none: Cost = SAVE
    layers: int = 8
    host_bytes: float = 1e9
    unit_names: tuple[str, ...] = ("u",)
    kind: str = "scan"
    asked: list[Any] = field(default_factory=list)
    probed: list[ProbeKey] = field(default_factory=list)

    def __post_init__(self):
        self.all = {
            "recompute all": (rr.RECOMPUTE, self.full),
            "save all": (rr.SAVE, self.none),
            **self.costs,
        }
        self.names = {action: name for name, (action, _) in self.all.items()}

    # ---- The oracle ------------------------------------------------------------------

    def measure(self, requests: Iterable[Request]) -> list[Measurement]:
        return [self._measured(request) for request in requests]

    def _measured(self, request: Request) -> Measurement:
        key = request.key
        if isinstance(key, ProbeKey):
            self.probed.append(key)
            return self._of({key.unit: key.actions}, is_whole=False)
        if key.actions is None:
            return self._of({u: (rr.SAVE,) * self.layers for u in self.unit_names})
        actions = dict(key.actions)
        self.asked.append(next(iter(self.counts(actions).values())))
        return self._of(actions)

    def counts(self, actions: Mapping[str, Iterable[rr.Action]]) -> Counts:
        """Runs of candidates."""
        return {
            unit: tuple(
                (name, len([*run]))
                for name, run in groupby(self.names[action] for action in few)
            )
            for unit, few in actions.items()
        }

    def _of(self, actions: Mapping[str, Any], is_whole: bool = True) -> Measurement:
        counts = self.counts(actions)
        peak, kept, host, time_us = 0.0, 0.0, 0.0, 0.0
        total: dict[str, int] = {}
        for runs in counts.values():
            runs = self._without_peeled(runs)
            for name, n in runs:
                total[name] = total.get(name, 0) + n
                cost = self.all[name][1]
                kept, host = kept + n * cost.kept, host + n * cost.host
                time_us += n * cost.time_us
                peak = max(peak, kept + cost.base)
        for runs in counts.values():
            for last in self._peeled_ends(runs):
                size, us = self.peeled[last]
                peak, time_us = peak + size, time_us + us
        if is_whole:
            peak += self.error(total)
            time_us += self.slower_us(total)
        return measured(peak, time_us, host)

    def _peeled_ends(self, runs: Any) -> list[bool]:
        return [
            last
            for last in (False, True)
            if last in self.peeled and len(runs) > 1 and runs[-last][1] == 1
        ]

    def _without_peeled(self, runs: Any) -> Any:
        """A peeled layer costs what it has more than the run beside it."""
        found = [list(run) for run in runs]
        for last in self._peeled_ends(runs):
            if last:
                found[-2][1] += 1
                found = found[:-1]
            else:
                found[1][1] += 1
                found = found[1:]
        return [tuple(run) for run in found]

    # ---- A search of it --------------------------------------------------------------

    def state(
        self, budget: float, *, are_exact: bool = True, **fixed: Any
    ) -> tuple[State, Asking]:
        """A state that knows the costs, and nothing of wholes but the baseline."""
        units = tuple(
            unit_of(name, self.layers, kind=self.kind) for name in self.unit_names
        )
        candidates = tuple(Candidate(n, action) for n, (action, _) in self.all.items())
        target: Any = SimpleNamespace(
            platform="cuda", host_bytes=self.host_bytes, num_devices=1, spec="a target"
        )
        fixed = {"unroll": False, "heuristics": Heuristics(), **fixed}
        space = Space(
            Graph(units, "", ""),
            target,
            units,
            pools={u.name: Pool(u) for u in units},
            proposed={u.name: candidates for u in units},
            **fixed,
        )
        state, ask = State.of(space), Asking(self)
        requests = [Request(rr._search.BASELINE, "baseline")]
        for unit in units:
            for candidate in candidates:
                few = cuts(unit, candidate.action, space.heuristics.most_whole)
                is_full = candidate.name == "recompute all"
                for actions in few if are_exact or is_full else few[-1:]:
                    requests.append(Request(state.probe_key(unit, actions), ""))
        state = ask(state, requests)
        calibration = {u.name: 0.0 for u in units}
        self.probed.clear()
        return (
            state.but(calibration=calibration, is_profiled=True).within(int(budget)),
            ask,
        )

    def tried(self, state: State, ask: Asking, *runs: tuple[str, int]) -> State:
        """A state that knows a whole program, too; it is not among those asked."""
        request = state.assignment_request({u: runs for u in self.unit_names})
        assert request is not None
        state = ask(state, [request])
        self.asked.clear()
        return state


def measured(size: float, time_us: float, host: float = 0.0) -> Measurement:
    """What is said of a program of so many bytes."""
    memory = Memory(0, 0, 0, size, host)  # pyright: ignore[reportArgumentType]
    time = Time(time_us, time_us)
    return Measurement("", "", "", 1, 1, 0, memory, time)
