"""XLA's own rematerialization pass: where it can be told a limit, and how.

On GPUs it recomputes what a program keeps until temporaries are below a limit: a share
of what XLA's part of the device's memory leaves beside the step's arguments and
results. That share is one of XLA's options, in percent, and all of the limit that a
program can set. XLA's part is `Target.usable_bytes`, for a run with
`Target.environment` as for a compile where the device is not.
"""

from collections.abc import Mapping

from revremat._compat import REMAT_LIMIT
from revremat._errors import UserError
from revremat.xla.target._targets import Target

_MOST_PERCENT = 1000


def remat_pass_refusal(target: Target) -> str:
    """Why the pass cannot be told a limit on a target; "" where it can.

    Args:
      target: What to compile for.

    Example:
      >>> import revremat as rr
      >>> from revremat import xla
      >>> xla.remat_pass_refusal(rr.target("cpu:1"))[:47]
      'XLA has no rematerialization pass for CPUs, so '
    """
    if target.platform == "cuda":
        return ""
    why = {
        "cpu": "XLA has no rematerialization pass for CPUs",
        "tpu": "the compiler of TPUs takes no limit for its rematerialization pass",
    }[target.platform]
    return f"{why}, so {target} cannot run such a plan: search again for {target}"


def remat_pass_options(target: Target, percent: int) -> Mapping[str, int]:
    """Compiler options with which the pass, where it is on, has this limit.

    Args:
      target: What to compile for.
      percent: As `Plan.remat_pass_percent`.

    Raises:
      UserError: It cannot be set there.

    Example:
      >>> import revremat as rr
      >>> from revremat import xla
      >>> dict(xla.remat_pass_options(rr.target("h100:1"), 95))
      {'xla_gpu_memory_limit_slop_factor': 95}
    """
    if refusal := remat_pass_refusal(target):
        raise UserError(
            f"the plan is for XLA's own remat pass at {percent} %, and {refusal}"
        )
    return {REMAT_LIMIT: percent}


def remat_pass_percent(
    target: Target, total_bytes: int, fixed_bytes: int
) -> int | None:
    """The limit with which the pass aims at so many bytes of a whole step.

    Args:
      target: Where it runs.
      total_bytes: Wanted.
      fixed_bytes: Arguments and results of the step, those that share memory once.

    Returns:
      Percent, rounded down; None where no limit says that.

    Example:
      >>> import revremat as rr
      >>> from revremat import xla
      >>> xla.remat_pass_percent(rr.target("h100:1"), 60 << 30, 20 << 30)
      69
    """
    most = target.usable_bytes - fixed_bytes
    wanted = total_bytes - fixed_bytes
    if remat_pass_refusal(target) or most <= 0 or wanted <= 0:
        return None
    percent = 100 * wanted // most
    return percent if 1 <= percent <= _MOST_PERCENT else None
