"""Single kernels, and on a CPU single instructions: what a device's rates are."""

import jax

from experiments.calibrate import curves as of_cpu
from experiments.calibrate import device
from experiments.calibrate import kernels as suite
from experiments.calibrate.device import Job, told


def kernels(job: Job) -> None:
    """Seconds of every kernel of every group; one that cannot run stops no other."""
    listed = suite.suite(job.platform, job.is_quick)
    enough_s = 0.02 if job.is_quick else 0.3
    for group in suite.groups(job.platform):
        for kernel in listed[group]:
            try:
                run, arguments = kernel.make()
                lowered = jax.jit(run).lower(*arguments)
                compiled = lowered.compile(compiler_options=kernel.options or None)
                taken = device.seconds(
                    lambda c=compiled, a=arguments: c(*a), enough_s, 10
                )
            except Exception as error:
                job.tell("failed", group=group, kernel=kernel.name, **told(error))
                continue
            job.tell(
                "measured",
                what="kernel",
                group=group,
                kernel=kernel.name,
                seconds=taken,
                flops=kernel.flops,
                bytes=kernel.bytes,
                dtype=kernel.dtype,
            )
    job.tell("measured", what="memory", memory=device.memory("all libraries loaded"))


def curves(job: Job) -> None:
    """Rates of a CPU's instructions, by class of work and size."""
    job.tell(
        "measured",
        what="curves",
        curves=of_cpu.measure(job.is_quick),
        launch_us=of_cpu.launch_us(job.is_quick),
    )
