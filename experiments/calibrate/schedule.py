"""Which jobs there are, in the order of what they tell, each with its time limit."""

from dataclasses import dataclass
from typing import Literal

from experiments.calibrate.records import Record, latest, state_of


@dataclass(frozen=True)
class Job:
    """One job, which runs in a process of its own.

    Attributes:
      kind: What is done.
      subject: Of which program or group; "" where there is but one.
      limit_s: Seconds after which it is stopped. What it wrote by then counts.
      least_s: Seconds without which it is not begun.
      room: How much of the card's memory it gets: all that is usable, what its plan
        takes by its compile, or 5 % less than that.
      by_compiler: It needs the compiler alone and runs without the device.
    """

    kind: str
    subject: str = ""
    limit_s: float = 60.0
    least_s: float = 15.0
    room: Literal["all", "plan", "less"] = "all"
    by_compiler: bool = False

    @property
    def name(self) -> str:
        """As records call it."""
        return f"{self.kind} {self.subject}".strip()


DOCTOR = Job("doctor", "", 45)
CARD = Job("card", "", 30, 5, by_compiler=True)

FITTED = ("gpt2_xl_24", "tiny_matmuls", "t5_large", "vit_l_384")
"""Programs whose plans get no more memory than they were compiled to."""

RUN = (
    *("mlp", "conv_net", "accumulated", "rematted", "offloaded", "moe", "recurrence"),
    *("vit_l_384", "unet", "efficientnet_b7", "revbifpn_s0", "revbifpn_s2"),
)
"""Programs whose baseline is compared with what was said ahead of time: all but the
three that race first."""

_COMPILED_SLOWLY = ("revbifpn_s0", "revbifpn_s2", "unet", "efficientnet_b7")
"""Programs of hundreds of different layers: an H100's 16 cores took more than two
minutes to compile the first of them, so they come last and get four."""


def _fit(program: str) -> list[Job]:
    return [
        Job("fit", program, 50, 25, "plan"),
        Job("over", program, 40, 25, "less"),
    ]


def jobs(platform: str) -> list[Job]:
    """All jobs of a platform but the first and the last, most telling ones first."""
    listed = [
        Job("race", "gpt2_xl_24", 230, 50),
        *_fit("gpt2_xl_24"),
        Job("exact", "", 90, 30),
        Job("race", "tiny_matmuls", 50, 20),
        Job("offload", "", 60, 20),
        Job("kernels", "", 75, 30),
        Job("alternatives", "gpt2_xl_24", 80, 40),
        Job("race", "t5_large", 150, 60),
        *(Job("run", n, 90, 30) for n in RUN if n not in _COMPILED_SLOWLY),
        Job("gradients", "", 90, 30),
        Job("race", "vit_l_384", 230, 60),
        *(job for name in FITTED[1:] for job in _fit(name)),
        *(Job("run", n, 240, 60) for n in RUN if n in _COMPILED_SLOWLY),
        Job("race", "efficientnet_b7", 230, 60),
        *(Job("again", name, 120, 60, by_compiler=True) for name in FITTED),
    ]
    if platform == "cpu":
        listed.insert(7, Job("curves", "", 120, 30))
    return listed


def next_jobs(listed: list[Job], records: list[Record]) -> list[Job]:
    """Those that are left: what failed by itself comes again after all others."""
    states = {job: state_of(found) for job, found in latest(records).items()}
    left = [job for job in listed if states.get(job.name) != "done"]
    return sorted(left, key=lambda job: states.get(job.name) == "failed")
