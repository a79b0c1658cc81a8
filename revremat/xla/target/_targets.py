"""Target: the machine to compile for, present or not."""

import functools
import importlib.metadata
import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from revremat._errors import UserError
from revremat.xla.target import _platforms
from revremat.xla.target._cards import GPU_CARDS, TPU_CARDS, Card, load_card

FORMS = "'local', 'cpu:8', 'h100:8', 'a100:280x8' (hosts x devices) or 'v5e:4x4'"


@dataclass(frozen=True)
class Target:
    """A number of devices of one kind, and how to reach their compiler.

    Attributes:
      spec: As it was written, in its shortest form (`h100:8`, `a100:280x8`).
      card: Facts about one device.
      num_hosts: Hosts.
      devices_per_host: Devices in each.
      topology: The slice's shape, for a TPU.
      present: The devices are in this machine.

    Example:
      >>> import revremat as rr
      >>> target = rr.target("h100:8")
      >>> target.num_devices, target.platform
      (8, 'cuda')
      >>> target.usable_bytes == target.memory_bytes - target.reserve_bytes
      True
    """

    spec: str
    card: Card
    num_hosts: int
    devices_per_host: int
    topology: tuple[int, ...] = ()
    present: bool = False

    @property
    def platform(self) -> str:
        """`cuda`, `tpu` or `cpu`."""
        return self.card.platform

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a GPU for which programs are compiled ahead of time."""
        return self.platform == "cuda" and not self.present

    @property
    def runs_here(self) -> bool:
        """Whether programs for it can be run on this machine."""
        return self.present or self.platform == "cpu"

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.num_hosts * self.devices_per_host

    @property
    def memory_bytes(self) -> int:
        """Memory of one device; CPU devices share their machine's."""
        if self.platform == "cpu":
            return self.card.device_memory_size // self.num_devices
        return self.card.device_memory_size

    @property
    def reserve_bytes(self) -> int:
        """What the runtime needs on each device beside the program.

        CUDA context, NCCL, cuBLAS and cuDNN workspaces: an ahead-of-time compile
        counts them as zero. A documented default, or what `make card` measured.
        """
        many = self.num_devices > 1
        return self.card.reserve_bytes + self.card.nccl_reserve_bytes * many

    @property
    def usable_bytes(self) -> int:
        """What a program may take on each device."""
        return self.memory_bytes - self.reserve_bytes

    @property
    def host_bytes(self) -> float:
        """Host memory that each device may offload to.

        Pinned memory of one process is capped at 64 GB by default, and one process
        serves all of a host's devices; on CPU nothing is gained by it.
        """
        return 0.0 if self.platform == "cpu" else 64e9 / self.devices_per_host

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables a run needs so that it gets `usable_bytes`."""
        if self.platform != "cuda":
            return {}
        fraction = math.floor(1000 * self.usable_bytes / self.memory_bytes) / 1000
        return {"XLA_CLIENT_MEM_FRACTION": f"{fraction:.3f}"}

    @property
    def devices(self) -> list[Any]:
        """The devices, real ones or descriptions that only compile.

        Raises:
          UserError: The wheels that compile for this platform are missing.
        """
        return list(_devices(self))

    def mesh(self, axes: Mapping[str, int]) -> Mesh:
        """A mesh of all the target's devices, with Auto axes.

        Args:
          axes: Size of each axis by name, outermost first; one size may be -1.

        Returns:
          A `jax.sharding.Mesh`.

        Raises:
          UserError: The sizes do not multiply to the number of devices.
        """
        sizes = dict(axes)
        open_axes = [name for name, size in sizes.items() if size == -1]
        known = math.prod(size for size in sizes.values() if size != -1)
        if len(open_axes) == 1 and known > 0 and self.num_devices % known == 0:
            sizes[open_axes[0]] = self.num_devices // known
        allowed = all(size >= 1 for size in sizes.values())
        if not allowed or math.prod(sizes.values()) != self.num_devices:
            wrote = ", ".join(f"{name}: {size}" for name, size in axes.items())
            raise UserError(
                f"the mesh {{{wrote}}} has {math.prod(axes.values())} devices but "
                f"{self.spec} has {self.num_devices}: write sizes that multiply to "
                f"{self.num_devices}"
            )
        types = (AxisType.Auto,) * len(sizes)
        return _platforms.mesh_of(self.devices, sizes, types)

    def missing(self) -> str:
        """What to install or change before this target can be used; "" if nothing."""
        if self.present:
            return ""
        if self.platform == "cpu":
            available = _platforms.request_cpu_devices(self.num_devices)
            if available >= self.num_devices:
                return ""
            return (
                f"JAX already started with {available} CPU device"
                f"{'s' * (available != 1)}: set JAX_NUM_CPU_DEVICES={self.num_devices}"
            )
        if self.platform == "cuda":
            if not _is_installed("jax_plugins.xla_cuda13"):
                return "pip install 'revremat[gpu-targets]' (Linux)"
            return _other_versions("jax-cuda13-plugin", "jax-cuda13-pjrt")
        if not _is_installed("libtpu"):
            return "pip install 'revremat[tpu-targets]' (Linux, x86-64)"
        return ""

    def __str__(self) -> str:
        return self.spec


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _other_versions(*wheels: str) -> str:
    """What to install where wheels are missing or not of jaxlib's version."""
    found = {}
    for wheel in ("jaxlib", *wheels):
        try:
            found[wheel] = importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            found[wheel] = "none"
    wanted = found.pop("jaxlib")
    if set(found.values()) == {wanted}:
        return ""
    lines = " ".join(f"{wheel}=={wanted}" for wheel in wheels)
    told = ", ".join(f"{wheel} {version}" for wheel, version in found.items())
    return f"pip install {lines} (jaxlib is {wanted}, found {told})"


def target(spec: "str | Target") -> Target:
    """The machine that `spec` names, whether or not it is there.

    Args:
      spec: `local`, `cpu:8`, `h100:8`, `a100:280x8` (hosts x devices), `v5e:4x4`.

    Returns:
      A `Target`; nothing is compiled or allocated.

    Raises:
      UserError: The text names no card or no valid number of devices.

    Example:
      >>> import revremat as rr
      >>> h100 = rr.target("h100:8")
      >>> h100.num_devices, h100.platform
      (8, 'cuda')
    """
    if isinstance(spec, Target):
        return spec
    if not isinstance(spec, str):
        raise UserError(f"a target is text like {FORMS}, not {spec!r}")
    text = spec.strip().lower()
    if text == "local":
        return _local()
    key, _, counts = text.partition(":")
    if key == "local":
        raise UserError(
            f"{spec!r} names no part of this machine: write 'local' for all of it, or "
            "a kind and a number, as in 'cpu:2' or 'h100:2'"
        )
    card = load_card(key)
    if card.platform == "tpu":
        return _tpu(key, counts, card)
    match = re.fullmatch(r"(?:([1-9]\d{0,5})x)?([1-9]\d{0,5})", counts or "1")
    if not match or (card.platform == "cpu" and match[1]):
        raise UserError(f"{spec!r} names no number of devices: write {FORMS}")
    hosts, per_host = int(match[1] or 1), int(match[2])
    if card.platform == "cuda" and not match[1] and per_host > 8:
        if per_host % 8:
            raise UserError(
                f"{spec!r} is more devices than a host holds: write hosts x devices, "
                f"as in '{key}:{math.ceil(per_host / 8)}x8'"
            )
        hosts, per_host = per_host // 8, 8
    short = f"{key}:{hosts}x{per_host}" if hosts > 1 else f"{key}:{per_host}"
    return Target(short, card, hosts, per_host)


def _tpu(key: str, counts: str, card: Card) -> Target:
    if not re.fullmatch(r"[1-9]\d?(x[1-9]\d?){1,2}", counts):
        raise UserError(
            f"{key}:{counts} names no slice: write its shape, as in 'v5e:4x4' or "
            "'v5p:2x2x1'"
        )
    shape = tuple(int(n) for n in counts.split("x"))
    num_devices = math.prod(shape)
    per_host = min(4, num_devices)
    if num_devices % per_host:
        raise UserError(
            f"{key}:{counts} is {num_devices} chips, which whole hosts of {per_host} "
            "do not make up: write a slice there is, as in 'v5e:4x4' or 'v5p:2x2x1'"
        )
    return Target(
        f"{key}:{counts}", card, num_devices // per_host, per_host, topology=shape
    )


def _local() -> Target:
    devices = jax.devices()
    first = devices[0]
    if first.platform == "cpu":
        return Target("local", load_card("cpu"), 1, len(devices), present=True)
    card = _card_of(first.device_kind)
    hosts = max(1, len({d.process_index for d in devices}))
    return Target("local", card, hosts, len(devices) // hosts, present=True)


def _card_of(kind: str) -> Card:
    """The card of a device, by what its driver calls it.

    Raises:
      UserError: It is none, a part of one, or one of another size or form.
    """
    if key := _DRIVERS_NAMES.get(kind):
        return load_card(key)
    words = _words(kind)
    for key in (*GPU_CARDS, *TPU_CARDS):
        card = load_card(key)
        if card.name == kind:
            return card
        if key not in words:
            continue
        size, known = (
            {word for word in some if word.endswith("gb")}
            for some in (words, _words(card.name))
        )
        if not _OTHER_FORMS & words and (size <= known or not known):
            return card
        raise UserError(
            f"this machine has {kind!r}, and of its kind revremat has facts about "
            f"{card.name!r} alone: write '{key}:1' for that, and a budget in bytes"
        )
    raise UserError(
        f"this machine has {kind!r}, a device revremat has no facts about: "
        "write a known target, as in 'h100:8'"
    )


_DRIVERS_NAMES = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}
_OTHER_FORMS = {"lite", "mig", "nvl", "pcie"}
"""Parts of a card, and forms with another memory and another speed."""


def _words(kind: str) -> set[str]:
    return set(kind.lower().replace("-", " ").split())


@functools.lru_cache(maxsize=64)
def _devices(wanted: Target) -> tuple[Any, ...]:
    if wanted.present:
        return tuple(jax.devices())
    if wanted.platform == "cpu":
        _platforms.request_cpu_devices(wanted.num_devices)
    lacking = wanted.missing()
    if lacking:
        raise UserError(f"target {wanted.spec} cannot be compiled for here: {lacking}")
    if wanted.platform == "cpu":
        return tuple(jax.devices("cpu")[: wanted.num_devices])
    if wanted.platform == "cuda":
        return _platforms.cuda_topology(
            gpu_target_config(wanted), wanted.num_hosts, wanted.devices_per_host
        )
    try:
        return _platforms.tpu_topology(wanted.spec)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise UserError(
            f"the compiler of {wanted.spec} knows no such slice: "
            f"{str(error).splitlines()[0]}; write one there is, as in 'v5e:4x4'"
        ) from None


_COPIED = (
    "threads_per_block_limit",
    "threads_per_warp",
    "shared_memory_per_block",
    "shared_memory_per_core",
    "threads_per_core_limit",
    "core_count",
    "fpus_per_core",
    "memory_bandwidth",
    "l2_cache_size",
    "clock_rate_ghz",
    "shared_memory_per_block_optin",
    "registers_per_core_limit",
    "registers_per_block_limit",
)


_SCHEDULED_SHARE = 4, 5
"""Of a card that is not there, what XLA's schedule may fill."""


def gpu_target_config(target: Target) -> str:
    """The target's card as text of XLA's `GpuTargetConfigProto`.

    XLA overlaps less where the values that are alive would not fit. Of a card that is
    there it knows what the allocator gets, which for a run as `Target.environment` says
    is `usable_bytes`; of one that is not there it takes a share of the memory. So it is
    told a size of which that share is `usable_bytes`.
    """
    d = target.card.description
    numerator, denominator = _SCHEDULED_SHARE
    size = -(-max(0, target.usable_bytes) * denominator // numerator)
    major, minor = str(d["compute_capability"]).split(".")
    accelerated = minor.endswith("a")
    capability = f"major: {major} minor: {minor.rstrip('a')}"
    if accelerated:
        capability += " feature_extension: ACCELERATED_FEATURES"
    lines = [f"  {name}: {d[name]}" for name in _COPIED]
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  device_memory_size: {size}",
            "  block_dim_limit_x: 2147483647",
            "  block_dim_limit_y: 65535",
            "  block_dim_limit_z: 65535",
            "  thread_dim_limit_x: 1024",
            "  thread_dim_limit_y: 1024",
            "  thread_dim_limit_z: 64",
            f"  cuda_compute_capability {{ {capability} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 patch: 0 }",
            "runtime_version { major: 13 minor: 0 patch: 0 }",
            f'device_description_str: "{target.card.name}"',
        ]
    )
