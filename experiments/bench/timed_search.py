"""A search whose every program is also run, on a machine that is at hand.

What the clock says of a kernel follows from its arithmetic and its traffic. Where the
target is this very machine, the kernels of every program that the search has compiled
can be timed, each among the others of its program, and the clock then adds up those.
"""

import dataclasses
import glob
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

from experiments.bench.programs import values
from revremat import xla
from revremat._apply import apply
from revremat._choose import Search
from revremat._cut import step_of
from revremat._fitted import Row
from revremat._measure import Request
from revremat._measurement import Measurement, Time
from revremat.xla._kernel_key import kernel_key

_STEPS, _FASTEST = 12, 3
_ROUNDS = 5
_CALLS = {"while", "conditional", "call"}


class TimedSearch(Search):
    """As `Search`, on the device that it runs on itself."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._settled: set[Any] = set()
        super().__init__(*args, **kwargs)

    def ask(self, steps: Sequence[tuple[str, Request]]) -> list[Measurement]:
        """Steps by the target's compiler, each with the times of its own kernels."""
        found = []
        for name, request in steps:
            self._time(request)
            found += super().ask([(name, request)])
        return found

    def time_again(self, rows: Sequence[Row]) -> bool:
        """Times whole programs several times more, in turn; the median counts.

        Of many that are about as fast, the first choice is the one whose first time
        happened to be short: that one is no longer looked at.

        Returns:
          Whether there were any that had not been timed again before.
        """
        keys = {id(row): key for key, row in self.rows.items()}
        new = dict.fromkeys(keys[id(row)] for row in rows)
        new = [key for key in new if key not in self._settled]
        times: dict[Any, list[Time]] = {key: [] for key in new}
        for _ in range(_ROUNDS):
            for key in new:
                row = self.rows[key]
                loss = self.problem.loss
                loss = loss if row.plan is None else apply(loss, row.plan)
                request = step_of(self.problem, loss)
                self._time(request)
                times[key].append(super().ask([(row.name, request)])[0].time)
        for key in new:
            row = self.rows[key]
            time = sorted(times[key], key=lambda t: t.step_us)[_ROUNDS // 2]
            measurement = dataclasses.replace(row.measurement, time=time)
            self.rows[key] = dataclasses.replace(row, measurement=measurement)
            self._settled.add(key)
        return bool(new)

    def _time(self, request: Request) -> None:
        """Runs a step; from here on its kernels take what they took in it."""
        card = self.target.card
        known = card.kernels | kernel_times(request, self.target)
        card = dataclasses.replace(card, kernels=known)
        self.target = dataclasses.replace(self.target, card=card)


def kernel_times(request: Request, target: xla.Target) -> dict[str, float]:
    """Microseconds of every kernel of a step, by what it does.

    Those of the fastest steps, each step taken as a whole: what else runs on the
    machine only adds, and the fastest run of every kernel would be too fast where one
    runs once a step, less so in a loop. Where several do the same, their mean.
    """
    step, donate = request.step, request.donate
    lowered = xla.lower_step(step, request.specs, target, donate=donate)
    compiled = lowered.program.compile(compiler_options=dict(lowered.options))
    module = xla.Module.from_bytes(xla.read_compiled(compiled).hlo)
    events = _profile(compiled, list(values(request.specs)), replaces=bool(donate))
    found = {
        i.id: _by_step(events[i.name])
        for computation in module.computations.values()
        for i in computation.instructions
        if i.name in events and i.opcode not in _CALLS
    }
    totals = [sum(us[k] for us, _ in found.values()) for k in range(_STEPS)]
    best = sorted(range(_STEPS), key=totals.__getitem__)[:_FASTEST]
    sums: dict[str, list[float]] = defaultdict(list)
    for number, (us, times) in found.items():
        key = kernel_key(module.instructions[number], module)
        sums[key].append(sum(us[k] for k in best) / (times * _FASTEST))
    return {key: sum(us) / len(us) for key, us in sums.items()}


def _profile(
    compiled: Any, arguments: list[Any], *, replaces: bool
) -> dict[str, list[float]]:
    """Microseconds of all executions of every instruction, in order."""

    def run() -> None:
        results = jax.block_until_ready(compiled(*arguments))
        if replaces:
            arguments[0] = results[0]

    for _ in range(2):
        run()
    options = ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(_STEPS):
                run()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        for plane in ProfileData.from_file(path).planes:
            for line in plane.lines:
                for event in line.events:
                    at = event.start_ns, event.duration_ns / 1e3
                    found[event.name].append(at)
    return {name: [us for _, us in sorted(at)] for name, at in found.items()}


def _by_step(durations: list[float]) -> tuple[list[float], float]:
    """What an instruction took in every step, and how often it ran in each."""
    each, uneven = divmod(len(durations), _STEPS)
    if uneven:  # a branch that is not always taken
        return [sum(durations) / _STEPS] * _STEPS, len(durations) / _STEPS
    parts = [durations[k * each : (k + 1) * each] for k in range(_STEPS)]
    return [sum(part) for part in parts], each
