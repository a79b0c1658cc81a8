"""Residuals in host memory: what their way there and back adds to a step."""

import statistics
import time
from typing import Any

import jax

import revremat as rr
from experiments.calibrate import device, programs, variants
from experiments.calibrate.device import Job, told
from experiments.calibrate.trace import exposed_copies_s
from experiments.calibrate.values import fill

WAYS: dict[str, rr.Action] = {
    "save all": rr.SAVE,
    "save all (unrolled)": rr.SAVE(unroll=True),
    "offload": rr.OFFLOAD,
    "offload (unrolled)": rr.OFFLOAD(unroll=True),
    "recompute all": rr.RECOMPUTE,
}


def offload(job: Job) -> None:
    """Layers of two large products in five ways, those that copy under a profiler."""
    jax.config.update("jax_compiler_enable_remat_pass", False)
    problem = programs.make("products", programs.Here(), job.scale)
    graph = rr.trace(problem)
    for label, action in WAYS.items():
        try:
            loss = rr.apply(problem.loss, graph.plan({"stack": action}))
            _one(job, label, problem, loss)
        except Exception as error:  # the other ways may still run
            job.tell("failed", variant=label, **told(error))


def _one(job: Job, label: str, problem: rr.Problem, loss: Any) -> None:
    arguments = fill(problem.specs)
    began = time.perf_counter()
    compiled = jax.jit(jax.grad(loss)).lower(*problem.specs).compile()
    stated: Any = compiled.memory_analysis()
    job.tell(
        "compiled",
        variant=label,
        bytes=variants.bytes_of(compiled),
        temp_bytes=stated.temp_size_in_bytes,
        host_temp_bytes=getattr(stated, "host_temp_size_in_bytes", None),
        compile_s=round(time.perf_counter() - began, 2),
    )
    device.keep_hlo(job, f"offload-{label}", compiled)
    run = lambda: compiled(*arguments)
    first = device.times(run, 2)
    found = device.times(run, 3 if job.is_quick else 5)
    job.tell(
        "measured",
        what="steps",
        variant=label,
        median_s=statistics.median(found),
        fastest_s=min(found),
        times_s=found,
        skipped_s=first,
        not_finite=device.not_finite(run()),
        memory=device.memory("steps"),
    )
    if "offload" not in label:
        return
    copies = exposed_copies_s(lambda: jax.block_until_ready(run()), times=2)
    if copies is None:
        job.tell("note", variant=label, what="the trace shows no copies of a device")
    else:
        job.tell("measured", what="copies", variant=label, **copies)
