"""A search whose every program is also run, on a machine that is at hand.

What the step-time estimator says of a kernel follows from its arithmetic and its
traffic. Where the target is this very machine, the kernels of every program that the
search has compiled can be timed, each among the others of its program, and the
estimator then adds up those. Layers are costed by them, in programs cut short; of a
whole program the sum is what its steps take.
"""

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

import revremat as rr
from experiments.bench.programs import values
from experiments.bench.searching import Row, Searching
from experiments.calibrate.trace import durations_us
from revremat import xla
from revremat.xla import kernel_key

_STEPS, _SECONDS = 12, 0.4  # at least as many, and for at least so long
_PROFILED = 4
_SHARE = 4  # of steps that are the fastest ones
_ROUNDS = 5
_CALLS = {"while", "conditional", "call"}


class TimedOracle:
    """The compiler of the device that this runs on, and the device's own clock.

    Args:
      target: The device, as it is known so far.
    """

    def __init__(self, target: rr.Target):
        self.target = target

    def __call__(self, step: rr.Step) -> rr.Measurement:
        """Compiles a program, with the times of its own kernels."""
        with contextlib.suppress(Exception):  # the compiler says what fails, and how
            self._time(step)
        return rr.measure(step, target=self.target)

    def _time(self, step: rr.Step) -> None:
        """Runs a step; from here on its kernels take what they took in it."""
        card = self.target.card
        known = card.kernels | kernel_times(step, self.target)
        card = dataclasses.replace(card, kernels=known)
        self.target = dataclasses.replace(self.target, card=card)


class Retiming:
    """Times whole programs several times more, in turn; the median counts.

    Of many that are about as fast, the first assignment is the one whose first time
    happened to be short: that one is no longer looked at.

    Args:
      search: Whose programs they are; its oracle times them.
    """

    def __init__(self, search: Searching):
        self.search = search
        self.settled: set[Hashable] = set()

    def __call__(self, rows: Sequence[Row]) -> bool:
        """Whether there were any that had not been timed again before."""
        new = {self.search.state.key_of_row(row): row for row in rows}
        new = {key: row for key, row in new.items() if key not in self.settled}
        times: dict[Hashable, list[rr.Time]] = {key: [] for key in new}
        for _ in range(_ROUNDS):
            for key, row in new.items():
                times[key].append(self.search.measure_again(row).time)
        for key, row in new.items():
            median = sorted(times[key], key=lambda t: t.step_us)[_ROUNDS // 2]
            self.search.set_time(row, median)
            self.settled.add(key)
        return bool(new)


def kernel_times(step: rr.Step, target: xla.Target) -> dict[str, float]:
    """Microseconds of every kernel of a step, by what it does.

    Those of the fastest steps, each step taken as a whole: what else runs on the
    machine only adds, and the fastest run of every kernel would be too fast where one
    runs once a step, less so in a loop. Where several do the same, their mean.

    What a step takes between its kernels (loops are stepped, kernels are called) no
    profile says; it is the rest of what the step takes without a profiler, and every
    run of a kernel has the same share of it.
    """
    lowered = xla.lower_step(step.function, step.specs, target, donate=step.donate)
    compiled = lowered.program.compile(compiler_options=dict(lowered.options))
    module = xla.Module.from_bytes(xla.read_compiled(compiled).hlo)
    run = _runner(compiled, step)
    step_us = _step_us(run)
    events = durations_us(run, _PROFILED)
    found = {
        i.id: _by_step(events[i.name])
        for computation in module.computations.values()
        for i in computation.instructions
        if i.name in events and _is_kernel(i, module, events)
    }
    totals = [sum(us[k] for us, _ in found.values()) for k in range(_PROFILED)]
    best = [k for _, k in _fastest([(us, k) for k, us in enumerate(totals)])]
    kernels_us = _mean([totals[k] for k in best])
    runs = sum(times for _, times in found.values())
    # A profiler takes time itself: many small kernels are slower under it.
    slower = max(1.0, kernels_us / step_us)
    between_us = max(0.0, step_us - kernels_us) / max(1, runs)
    sums: dict[str, float] = defaultdict(float)
    numbers: dict[str, float] = defaultdict(float)
    for number, (us, times) in found.items():
        key = kernel_key(module.instructions[number], module)
        own_us = _mean([us[k] for k in best]) / slower + times * between_us
        sums[key] += max(0.0, own_us - times * target.card.launch_us)  # the estimator's
        numbers[key] += times
    return {key: us / numbers[key] for key, us in sums.items()}


def _is_kernel(i: Any, module: xla.Module, events: Mapping[str, Any]) -> bool:
    """Whether it was seen as one; of loops that XLA compiles whole nothing else is."""
    if i.opcode not in _CALLS:
        return True
    inside = [x for c in module.called(i) for x in c.instructions]
    return not any(
        x.name in events or (x.opcode in _CALLS and not _is_kernel(x, module, events))
        for x in inside
    )


def _runner(compiled: Any, step: rr.Step) -> Callable[[], None]:
    arguments = list(values(step.specs))

    def run() -> None:
        results = jax.block_until_ready(compiled(*arguments))
        if step.donate:
            arguments[0] = results[0]

    for _ in range(2):
        run()
    return run


def _step_us(run: Callable[[], None]) -> float:
    """What the fastest steps take.

    Of a step that a single thread takes, the thread's own time: while others use the
    core it takes none. Several threads have more of it than the clock on the wall.
    """
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < _STEPS or time.perf_counter() < began + _SECONDS:
        wall, own = time.perf_counter(), time.process_time()
        run()
        took = min(time.perf_counter() - wall, time.process_time() - own)
        found.append(1e6 * took)
    return _mean(_fastest(found))


def _by_step(durations: list[float]) -> tuple[list[float], float]:
    """What an instruction took in every step, and how often it ran in each."""
    each, uneven = divmod(len(durations), _PROFILED)
    if uneven:  # a branch that is not always taken
        return [sum(durations) / _PROFILED] * _PROFILED, len(durations) / _PROFILED
    parts = [durations[k * each : (k + 1) * each] for k in range(_PROFILED)]
    return [sum(part) for part in parts], each


def _fastest(values: list[Any]) -> list[Any]:
    return sorted(values)[: max(1, len(values) // _SHARE)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
