"""Card: the facts about one kind of device that compilers and estimates need."""

import functools
import os
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat._io._files import folder_of, read_text
from revremat._io._json import parse_json

GPU_CARDS = ("v100", "a100", "a6000", "h100", "h800", "h200", "b200")
TPU_CARDS = ("v4", "v5e", "v5p", "v6e")


@dataclass(frozen=True)
class Card:
    """One kind of device: what it has, and how much of it a program gets.

    Attributes:
      key: How targets write it (`h100`).
      platform: `cuda`, `tpu` or `cpu`.
      name: The maker's name for it.
      device_memory_size: Bytes of memory of one device.
      memory_bandwidth: Bytes/s.
      peak_flops: FLOP/s by dtype, a multiply-add as two; `float32` is outside the
        matrix units.
      link_bandwidth: Bytes/s one way to the other devices of a host.
      network_bandwidth: Bytes/s one way from one device to another host.
      pcie_bandwidth: Bytes/s between a device and its host's memory.
      launch_us: Time from one kernel to the next.
      matmul_efficiency: Share of `peak_flops` that large matmuls reach.
      memory_efficiency: Share of `memory_bandwidth` that streaming kernels reach.
      link_efficiency: Share of the links that large collectives reach.
      transfer_efficiency: Share of `pcie_bandwidth` that large copies reach.
      collective_latency_us: Time to start a collective.
      hop_us: Time from one device of a host to the next, for the smallest message.
      network_hop_us: The same from host to host.
      reserve_bytes: Needed on a device beside the program; see `cards.toml`.
      nccl_reserve_bytes: Needed on top of it on more than one device.
      curves: Rates that were measured, by class of work and its size (see
        `rate_at`). Where there is one it replaces peak and efficiency.
      kernels: Microseconds of single kernels that were measured, by what they do (see
        `kernel_key`); they count in place of what curves say.
      measured: The factors and the reserve come from a run on such a card.
      description: XLA's own description, for cards that are compiled for unseen.

    Example:
      >>> import revremat as rr
      >>> card = rr.target("h100:1").card
      >>> card.key, card.platform
      ('h100', 'cuda')
    """

    key: str
    platform: str
    name: str
    device_memory_size: int
    memory_bandwidth: float
    peak_flops: dict[str, float] = field(hash=False)
    link_bandwidth: float
    network_bandwidth: float
    pcie_bandwidth: float
    launch_us: float
    matmul_efficiency: float
    memory_efficiency: float
    link_efficiency: float
    transfer_efficiency: float
    collective_latency_us: float
    reserve_bytes: int
    hop_us: float = 0.0
    network_hop_us: float = 0.0
    nccl_reserve_bytes: int = 0
    curves: dict[str, tuple[tuple[float, float], ...]] = field(
        default_factory=dict, hash=False
    )
    kernels: dict[str, float] = field(default_factory=dict, hash=False)
    measured: bool = False
    description: dict[str, int | float | str] = field(default_factory=dict, hash=False)

    @property
    def stream_bandwidth(self) -> float:
        """Bytes/s that streaming kernels reach."""
        return self.memory_bandwidth * self.memory_efficiency


def measured_folder() -> Path:
    """Where measured cards lie: `$REVREMAT_CARDS`, or the user's cache folder.

    Example:
      >>> from revremat import xla
      >>> xla.measured_folder().is_absolute()
      True
    """
    return folder_of("REVREMAT_CARDS", "cards")


@functools.cache
def _tables() -> dict[str, dict]:
    text = resources.files("revremat.xla.target").joinpath("cards.toml").read_text()
    return tomllib.loads(text)


def load_card(key: str) -> Card:
    """The facts of the card that targets write as `key`.

    A measurement in `measured_folder()` (what `make card` writes) or beside the
    package replaces the data sheet's factors and reserve.

    Args:
      key: As targets write it, such as `h100`.

    Raises:
      UserError: No such card.

    Example:
      >>> from revremat import xla
      >>> xla.load_card("a100").name
      'NVIDIA A100-SXM4-80GB'
    """
    if key in GPU_CARDS:
        card = _gpu_card(key)
    elif key in TPU_CARDS:
        card = _tpu_card(key)
    elif key == "cpu":
        card = _cpu_card()
    else:
        known = " ".join((*GPU_CARDS, *TPU_CARDS))
        raise UserError(
            f"unknown device {key!r}: write one of {known}, or 'cpu:N' or 'local'"
        )
    return _with_measurement(card)


def _gpu_card(key: str) -> Card:
    tables = _tables()
    facts = dict(tables[key])
    if "same_as" in facts:
        facts = {**tables[facts.pop("same_as")], **facts}
    facts = {**tables["gpu"], **facts}
    scalar = (
        2e9 * facts["core_count"] * facts["fpus_per_core"] * facts["clock_rate_ghz"]
    )
    if "tensor_tflops_bf16" in facts:
        tensor = facts["tensor_tflops_bf16"] * 1e12
        matrix = {"bfloat16": tensor, "float16": tensor, "tf32": tensor / 2}
    else:  # Volta: no bfloat16 in its matrix units
        matrix = {"float16": facts["tensor_tflops_fp16"] * 1e12, "bfloat16": scalar}
    return Card(
        key=key,
        platform="cuda",
        peak_flops={**matrix, "float32": scalar, "float64": scalar / 2},
        link_bandwidth=facts["nvlink_links"] * facts["link_bandwidth"]
        or facts["pcie_bandwidth"],
        description={
            k: v for k, v in facts.items() if isinstance(v, int | float | str)
        },
        **{k: facts[k] for k in _common_fields() if k in facts},
    )


def _tpu_card(key: str) -> Card:
    tables = _tables()
    facts = {**tables["tpu"], **tables[key]}
    tensor = facts["tensor_tflops_bf16"] * 1e12
    return Card(
        key=key,
        platform="tpu",
        peak_flops={"bfloat16": tensor, "float16": tensor / 8, "float32": tensor / 8},
        link_bandwidth=facts["ici_bandwidth"],
        description={"clock_rate_ghz": facts["clock_rate_ghz"]},
        **{k: facts[k] for k in _common_fields() if k in facts},
    )


def _cpu_card() -> Card:
    facts = _tables()["cpu"]
    cores = num_cores()
    scalar = facts["core_gflops_f32"] * 1e9 * cores
    slow = ("loop_convolution", "loop_convolution_rows", "grouped_convolution")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Card(
        key="cpu",
        platform="cpu",
        link_bandwidth=facts["link_bandwidth"],
        device_memory_size=memory,
        peak_flops={
            "float32": scalar,
            "float64": scalar / 2,
            "bfloat16": scalar / 2,
            "float16": scalar / 4,
        },
        description={
            f"{kind}_flops": facts[f"core_gflops_{kind}"] * 1e9 * cores for kind in slow
        },
        **{k: facts[k] for k in _common_fields() if k in facts},
    )


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _common_fields() -> list[str]:
    made = {"key", "platform", "peak_flops", "link_bandwidth", "description"}
    names = [f.name for f in fields(Card) if f.name not in made]
    return names


_MOST_BYTES = 16 << 20  # of a measured card's file
MEASURABLE = (
    "launch_us",
    "matmul_efficiency",
    "memory_efficiency",
    "transfer_efficiency",
    "reserve_bytes",
    "device_memory_size",
    "peak_flops",
    "curves",
)
"""Fields of a card that a measured file may replace, under its key `card`."""


def _with_measurement(card: Card) -> Card:
    shipped = resources.files("revremat.xla.target").joinpath(
        "measured", f"{card.key}.json"
    )
    own = measured_folder() / f"{card.key}.json"
    place = str(own) if os.path.lexists(own) else "revremat's own"
    try:
        if os.path.lexists(own):
            text = read_text(own, most=_MOST_BYTES)
        elif shipped.is_file():
            text = shipped.read_text(encoding="utf-8")
        else:
            return card
        return with_changes(card, parse_json(text)["card"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"the device figures in {place} cannot be read ({error}): measure again "
            "with "
            "'make card' or delete it"
        ) from None


def with_changes(card: Card, found: dict[str, Any]) -> Card:
    """A card with measured fields in place of its own.

    Args:
      card: With the factors of its data sheet.
      found: Fields by name; those that cannot be measured are left out.

    Raises:
      ValueError: A value is no positive number, or means something else by now.
      TypeError: A value is no number at all.

    Example:
      >>> from revremat import xla
      >>> xla.with_changes(xla.load_card("h100"), {"launch_us": 9.0}).launch_us
      9.0
    """
    changes = {k: _checked(k, found[k]) for k in MEASURABLE if k in found}
    if "curves" in changes:
        if {"strided", "strided.crowded"} & set(changes["curves"]) == {"strided"}:
            raise ValueError("its curves are of an older version, by other sizes")
        changes["curves"] = {
            name: tuple((float(size), float(rate)) for size, rate in sorted(points))
            for name, points in changes["curves"].items()
        }
    if "peak_flops" in changes:
        changes["peak_flops"] = {**card.peak_flops, **changes["peak_flops"]}
    return replace(card, measured=True, **changes)


def _checked(name: str, value: Any) -> Any:
    """A measured field, if it is a positive number (or a table of them)."""
    numbers = value.values() if name == "peak_flops" else [value]
    if name == "curves":
        numbers = [x for points in value.values() for pair in points for x in pair]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name} is {value!r}")
        if not 0 <= number < float("inf") or (number == 0 and name != "reserve_bytes"):
            raise ValueError(f"{name} is {value!r}")
    return value
