"""Training steps in several ways: how long they take, and whether they fit."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

import revremat as rr
from experiments.calibrate import device, plan_files, programs, variants
from experiments.calibrate.device import Job
from experiments.calibrate.trace import kernels
from experiments.calibrate.values import fill
from experiments.calibrate.variants import Variant

_NEARLY = 0.01
"""Of predicted bytes: what autotuning may add without being told as a mismatch."""

_SKIPPED_STEPS = 2
"""The first steps of an executable load it and record its graphs."""


class Arguments:
    """The one state on the device, which goes from one executable to the next.

    Args:
      specs: What the step takes: the state, then data.
      num_labels: Whole numbers are below that.
    """

    def __init__(self, specs: Any, num_labels: int):
        self._specs, self._num_labels = specs, num_labels
        self.state: Any = None
        self._rest: list[Any] = []

    def refill(self) -> None:
        """Begins anew; what was there is given back first."""
        self.state, self._rest = None, []
        self.state, *self._rest = fill(self._specs, self._num_labels)
        jax.block_until_ready((self.state, self._rest))

    def step(self, compiled: Any) -> Any:
        """One step; the state is what it returns."""
        self.state, out = compiled(self.state, *self._rest)
        return out


def _races(name: str) -> bool:
    """The variants of a race; the other presets can wait."""
    known = ("baseline", "unrolled", "recompute all")
    return name in known or plan_files.is_searched(name)


def race(job: Job) -> None:
    """The ways to run a program in one process, the one of least bytes first.

    Each is compiled, held to what was said of it, and timed for ten steps; then all are
    timed once more, so that the spread is known.
    """
    _race(job, job.subject, _races, rounds=2, steps=3 if job.is_quick else 10)


def run(job: Job) -> None:
    """The baseline of a program: its bytes, the allocator's peak, a few steps."""
    _race(job, job.subject, "baseline".__eq__, rounds=1, steps=2 if job.is_quick else 5)


def _race(
    job: Job,
    program: str,
    is_wanted: Callable[[str], bool],
    *,
    rounds: int,
    steps: int,
) -> None:
    jax.config.update("jax_compiler_enable_remat_pass", False)
    problem, found = _variants(job, program, is_wanted)
    _, specs = problem.make_step()
    arguments = Arguments(specs, programs.num_labels(program, job.scale))
    ready = []
    for variant in sorted(found, key=lambda v: v.predicted.get("bytes", 0)):
        compiled = _compiled(job, problem, variant)
        if compiled is not None:
            if arguments.state is None:
                _fill(job, arguments)
            if _timed(job, arguments, variant.name, compiled, 0, steps):
                ready.append((variant.name, compiled))
    for number in range(1, rounds):
        for name, compiled in ready:
            _timed(job, arguments, name, compiled, number, steps)
    for name, compiled in ready:
        _profiled(job, arguments, name, compiled)


def alternatives(job: Job) -> None:
    """What others would write: XLA's own pass on unrolled layers, fused attention.

    And of the uniform presets that are not in the race the one of least estimated time.
    """
    steps = 3 if job.is_quick else 10
    problem, found = _variants(job, job.subject, lambda name: not _races(name))
    fastest = sorted(found, key=lambda v: v.predicted.get("estimate_us", 0))[:1]
    ways = [(job.subject, problem, variant, False) for variant in fastest]
    other = f"{job.subject}_fused"
    if other in programs.NAMES:
        fused = programs.make(other, programs.Here(), job.scale)
        way = Variant("fused attention", fused.loss, {})
        ways.insert(0, (other, fused, way, False))
    # What was said ahead of time is of programs without XLA's pass.
    made = plan_files.read(job.subject, job.scale)
    for variant in variants.variants(problem, made, "unrolled".__eq__):
        way = Variant("unrolled with XLA's remat pass", variant.loss, {})
        ways.insert(0, (job.subject, problem, way, True))
    for program, problem, variant, remat_pass in ways:
        jax.config.update("jax_compiler_enable_remat_pass", remat_pass)
        try:
            compiled = _compiled(job, problem, variant)
            if compiled is None:
                continue
            arguments = Arguments(
                problem.make_step()[1], programs.num_labels(program, job.scale)
            )
            _fill(job, arguments)
            _timed(job, arguments, variant.name, compiled, 0, steps)
        except Exception as error:  # the others may still run
            job.tell("failed", variant=variant.name, **device.told(error))


def fit(job: Job) -> None:
    """A searched plan for 20 steps, with no more memory than it was planned for."""
    _twenty_steps(job, must_run_out=False)


def over(job: Job) -> None:
    """The same with 5 % less: it has to run out of memory."""
    if job.platform == "cpu":
        job.tell("note", what="a CPU has no such limit: nothing can run out here")
    _twenty_steps(job, must_run_out=job.platform != "cpu")


def _twenty_steps(job: Job, *, must_run_out: bool) -> None:
    jax.config.update("jax_compiler_enable_remat_pass", False)
    chosen = plan_files.to_fit(plan_files.read(job.subject, job.scale))
    wanted = chosen["name"] if chosen else "baseline"
    problem, (variant, *_) = _variants(job, job.subject, wanted.__eq__)
    stage, done, told, failure = "compile", 0, {}, None
    try:
        compiled = _compiled(job, problem, variant, catch=False)
        arguments = Arguments(
            problem.make_step()[1], programs.num_labels(job.subject, job.scale)
        )
        stage = "fill"
        _fill(job, arguments)
        stage = "steps"
        for _ in range(20):
            jax.block_until_ready(arguments.step(compiled))
            done += 1
        found = {"ran_out": False, "not_finite": device.not_finite(arguments.state)}
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        failure = error
        told = device.told(error) if must_run_out else {}
        found = {"ran_out": True, "in_stage": stage}
    job.tell(
        "measured",
        what="fit",
        variant=variant.name,
        **found,
        steps=done,
        memory=device.memory(stage),
        **told,
    )
    if failure and not must_run_out:
        raise failure


def _variants(
    job: Job, program: str, is_wanted: Callable[[str], bool] = lambda name: True
) -> tuple[rr.Problem, list[Variant]]:
    """A program and its variants, what was said of them written down first."""
    problem = programs.make(program, programs.Here(), job.scale)
    made = plan_files.read(program, job.scale)
    try:
        found = variants.variants(problem, made, is_wanted)
    except variants.Mismatch as error:
        job.tell("checked", program=program, agrees=False, sentence=str(error))
        return problem, variants.variants(problem, None)
    if made is not None:
        sentence = f"the program's fingerprint is {made['fingerprint']}, as planned"
        job.tell("checked", program=program, agrees=True, sentence=sentence)
        for variant in found:
            job.tell(
                "predicted",
                program=program,
                variant=variant.name,
                target=made["target"],
                jax=made["jax"],
                **variant.predicted,
            )
    return problem, found


def _compiled(
    job: Job, problem: rr.Problem, variant: Variant, *, catch: bool = True
) -> Any:
    """A variant compiled for this device, its bytes held to the prediction.

    Returns None, and says why, where it cannot be compiled.
    """
    try:
        step, specs = problem.make_step(variant.loss)
        began = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=problem.donate).lower(*specs)
        between = time.perf_counter()
        compiled = lowered.compile()
    except Exception as error:
        if not catch:
            raise
        job.tell(
            "failed", variant=variant.name, in_stage="compile", **device.told(error)
        )
        return None
    stated: Any = compiled.memory_analysis()
    here = variants.bytes_of(compiled)
    job.tell(
        "compiled",
        variant=variant.name,
        bytes=here,
        argument_bytes=stated.argument_size_in_bytes,
        output_bytes=stated.output_size_in_bytes,
        alias_bytes=stated.alias_size_in_bytes,
        temp_bytes=stated.temp_size_in_bytes,
        host_temp_bytes=getattr(stated, "host_temp_size_in_bytes", None),
        lower_s=round(between - began, 2),
        compile_s=round(time.perf_counter() - between, 2),
    )
    found = device.memory("compiled")  # autotuning has its part in the peak
    job.tell("measured", what="memory", variant=variant.name, memory=found)
    said = variant.predicted.get("bytes")
    if said is not None:
        off = here / said - 1
        job.tell(
            "checked",
            variant=variant.name,
            agrees=abs(off) <= _NEARLY,
            sentence=f"{said:,} bytes were said ahead of time "
            f"{variant.predicted['tuning']}, the compile here takes {here:,} "
            f"({off:+.2%})",
        )
    device.keep_hlo(job, f"{job.tell.job}-{variant.name}", compiled)
    return compiled


def _fill(job: Job, arguments: Arguments) -> None:
    began = time.perf_counter()
    arguments.refill()
    took = round(time.perf_counter() - began, 2)
    found = device.memory("filled")
    job.tell("measured", what="arguments filled", seconds=took, memory=found)


def _timed(
    job: Job, arguments: Arguments, name: str, compiled: Any, number: int, steps: int
) -> bool:
    """Times steps of one variant; False if it cannot run, and a line says why."""
    run: Callable[[], Any] = lambda: arguments.step(compiled)
    try:
        first = device.times(run, _SKIPPED_STEPS if number == 0 else 1)
        found = device.times(run, steps)
    except Exception as error:
        job.tell("failed", variant=name, in_stage="steps", **device.told(error))
        if not device.is_out_of_memory(error):
            raise
        arguments.refill()  # the step may have taken the old one
        return False
    bad = device.not_finite(arguments.state)
    job.tell(
        "measured",
        what="steps",
        variant=name,
        round=number,
        median_s=statistics.median(found),
        fastest_s=min(found),
        times_s=found,
        skipped_s=first,
        not_finite=bad,
        memory=device.memory("steps"),
    )
    if bad:
        arguments.refill()  # the next one is timed on numbers
    return True


def _profiled(job: Job, arguments: Arguments, name: str, compiled: Any) -> None:
    """One step by its kernels: which of them an estimate has wrong."""
    try:
        run = lambda: jax.block_until_ready(arguments.step(compiled))
        rows = kernels(run, times=1)
    except Exception as error:  # what was timed without a profiler counts all the same
        job.tell("failed", variant=name, in_stage="profile", **device.told(error))
        return
    device.keep_kernels(job, f"{job.tell.job}-{name}", rows)
    job.tell(
        "measured",
        what="profile",
        variant=name,
        kernels=sum(row["number"] for row in rows),
        busy_s=sum(row["seconds"] for row in rows),
    )
