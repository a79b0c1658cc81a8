"""Whether planned programs have the gradients of plain ones."""

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.calibrate import programs
from experiments.calibrate.device import Job, told
from experiments.calibrate.values import fill

COMPARED = ("tiny_matmuls", "gpt2_xl_24", "t5_large", "moe")
"""Programs whose gradients are compared, in the size of a CPU and in float32."""


def gradients(job: Job) -> None:
    """Gradients of planned programs beside plain ones, in float32 products."""
    jax.config.update("jax_compiler_enable_remat_pass", False)
    jax.config.update("jax_default_matmul_precision", "float32")
    scale = "quick" if job.is_quick else "cpu"
    for name in COMPARED[:2] if job.is_quick else COMPARED:
        problem = programs.make(name, programs.Here(), scale)
        arguments = fill(problem.specs, programs.num_labels(name, scale))
        plain = jax.jit(jax.grad(problem.loss))(*arguments)
        graph = rr.trace(problem)
        units = [unit.name for unit in graph.units if not unit.enclosing]
        for label, action in (("recompute all", rr.RECOMPUTE), ("offload", rr.OFFLOAD)):
            try:
                plan = graph.plan(dict.fromkeys(units, action))
                loss = rr.apply(problem.loss, plan)
                found = jax.jit(jax.grad(loss))(*arguments)
            except Exception as error:  # the others still count
                job.tell("failed", program=name, variant=label, **told(error))
                continue
            job.tell(
                "measured",
                what="gradients",
                program=name,
                variant=label,
                worst_relative_error=_worst(found, plain),
            )


def _worst(found, wanted) -> float:
    """The largest error of any array, over the array's largest number."""
    errors = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-30)),
        found,
        wanted,
    )
    return max(jax.tree.leaves(errors))
