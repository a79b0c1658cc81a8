"""Many processes that train as one, joined by `jax.distributed`."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

import revremat as rr
from experiments.watch import Watch
from revremat import UserError

# Private: JAX has no public door to the key-value store of its coordination service.
from revremat._compat import coordination

_HANDED_OUT, _STOP = "revremat/handed_out/", "revremat/stop"
_MEETING = "revremat/meeting/"
# No limit of its own: the watch ends who waits for a process that is gone.
_DAY_MS = 86_400_000
_SOON_S = 10.0


@dataclass(frozen=True)
class ProcessesConfig:
    """Which process of how many this is.

    Attributes:
      count: Processes in all; None: as the cluster says, or one.
      index: Which of them this is, from 0.
      coordinator: `HOST:PORT` of process 0, where the others find it.
    """

    count: int | None = None
    index: int | None = None
    coordinator: str = ""


class Processes:
    """A process alone: nobody to ask and nobody to tell.

    Attributes:
      index: Which process this is.
      count: How many there are.
    """

    index, count = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this process reports and writes what there is once."""
        return self.index == 0

    def hand_out(self, name: str, make: Callable[[], Any]) -> Any:
        """What the first process makes, in all of them.

        Args:
          name: Of the thing, used once.
          make: Is called by the first process alone; returns what JSON can hold.
        """
        del name
        return make()

    def meet(self, name: str) -> None:
        """Wait until all are here, after work that takes some longer than others.

        A collective does not wait so long: on CPUs half a minute when it is begun.

        Args:
          name: Of the place, used once.
        """

    def agree_to_stop(self, step: int, requested: str) -> str:
        """Whether all stop after this step, which is done; asked after each step.

        Args:
          step: The number of the step.
          requested: Name of the signal that this process got, or "".

        Returns:
          Name of the signal that one of them got, or "" to go on.
        """
        del step
        return requested

    def fail(self, error: Exception) -> None:
        """Tell the others of an error that ends this process."""

    def leave(self) -> None:
        """Part from the others, when all are done."""


ALONE = Processes()


class Joined(Processes):
    """One process of several.

    Args:
      client: Of JAX's coordination service.
      index: Which process this is.
      count: How many there are.
    """

    def __init__(self, client: Any, index: int, count: int):
        self.index, self.count = index, count
        self._client = client
        self._watch = Watch(client, index, count)

    def hand_out(self, name: str, make: Callable[[], Any]) -> Any:
        """As `Processes.hand_out`; through JSON in the first process, too."""
        key = _HANDED_OUT + name
        if self.is_first:
            self._client.key_value_set(key, json.dumps(make()))
        return json.loads(self._client.blocking_key_value_get(key, _DAY_MS))

    def meet(self, name: str) -> None:
        """As `Processes.meet`."""
        self._client.wait_at_barrier(_MEETING + name, _DAY_MS)

    def agree_to_stop(self, step: int, requested: str) -> str:
        """As `Processes.agree_to_stop`: the step after the first request is the last.

        No process can be done with a step that another has not begun. So who is asked
        to stop writes down the step that it is about to begin, and all will have read
        that when the step is done.
        """
        found = self._read_stop()
        if found is None and requested:
            # An error where another process was first.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._client.key_value_set(_STOP, json.dumps([step + 1, requested]))
            found = self._read_stop()
        if found is None:
            return ""
        last, name = found
        return name if step >= last else ""

    def _read_stop(self) -> tuple[int, str] | None:
        try:
            return tuple(json.loads(self._client.key_value_try_get(_STOP)))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def fail(self, error: Exception) -> NoReturn:
        """As `Processes.fail`, and end this process: no collective ends any more."""
        self._watch.fail(error)

    def leave(self) -> None:
        """As `Processes.leave`; waits for all, and is alive for them meanwhile."""
        jax.distributed.shutdown()
        self._watch.stop()


def join(config: ProcessesConfig, target: str) -> Processes:
    """Find the other processes, where there are any; before JAX starts.

    Args:
      config: What the command line says; a cluster says it where that is silent.
      target: `local`, or `cpu:N` for N CPU devices in all.

    Returns:
      This process among the others.

    Raises:
      UserError: If what is said is not whole, or the others are not found.
    """
    check(config)
    if config.count == 1 or (config.count is None and not in_cluster(os.environ)):
        return Processes()
    if config.count is not None:
        local_cpu_devices(target, config.count)
    if config.index == 0:
        _check_port_is_free(config.coordinator)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    if config.coordinator.startswith(("localhost:", "127.0.0.1:")):
        jax.config.update("jax_check_proxy_envs", False)  # a proxy is not asked
    where = f" at {config.coordinator}" if config.coordinator else ""
    waiting = threading.Timer(
        _SOON_S, print, (f"waiting for the other processes{where}",), {"flush": True}
    )
    waiting.start()
    try:
        jax.distributed.initialize(
            config.coordinator or None,
            config.count,
            config.index,
            cluster_detection_method=None if config.count is None else "deactivate",
        )
    except (RuntimeError, ValueError, OSError, KeyError, ImportError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"cannot join the other processes: {reason}; write --processes N "
            "--process-id I --coordinator HOST:PORT, or --processes 1 to train alone"
        ) from error
    finally:
        waiting.cancel()
    client, index, count = coordination()
    try:
        devices = local_cpu_devices(target, count)
    except UserError:
        jax.distributed.shutdown()
        raise
    if devices:
        jax.config.update("jax_num_cpu_devices", devices)
    return Joined(client, index, count)


def check(config: ProcessesConfig) -> None:
    """Refuses what is said in part, or cannot be."""
    count, index = config.count, config.index
    if count is None:
        if index is not None or config.coordinator:
            given = "--process-id" if index is not None else "--coordinator"
            raise UserError(f"{given} needs --processes N: how many are there?")
        return
    if count < 1:
        raise UserError(f"--processes is {count}: write 1 or more")
    if count == 1:
        return
    if index is None or not config.coordinator:
        missing = "--process-id I" if index is None else "--coordinator HOST:PORT"
        raise UserError(
            f"--processes {count} needs {missing}; on one machine `python -m "
            f"experiments.launch --processes {count} train.py ...` starts them all"
        )
    if not 0 <= index < count:
        raise UserError(
            f"--process-id is {index} of --processes {count}: write 0 to {count - 1}"
        )
    host, _, port = config.coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(
            f"--coordinator is {config.coordinator!r}: write HOST:PORT of process 0, "
            "such as node001:12345"
        )


def in_cluster(environment: Mapping[str, str]) -> bool:
    """Whether something started this process as one of several.

    JAX finds out which one it is. It would do so for one process, too, and leave it one
    device of those it has.
    """
    here = environment.get
    of_slurm = here("SLURM_STEP_NODELIST") and here("SLURM_NTASKS", "1") != "1"
    of_open_mpi = here("OMPI_COMM_WORLD_SIZE", "1") != "1"
    of_kubernetes = here("KUBERNETES_SERVICE_HOST") and here("JOB_COMPLETION_INDEX")
    of_tpus = "," in here("TPU_WORKER_HOSTNAMES", "")
    return bool(of_slurm or of_open_mpi or of_kubernetes or of_tpus)


def local_cpu_devices(target: str, count: int) -> int:
    """How many CPU devices each process has of `cpu:N`; 0 of another target.

    Raises:
      UserError: If they cannot have equally many.
    """
    if target == "local":
        return 0
    wanted = rr.target(target)
    if wanted.platform != "cpu":
        return 0
    if wanted.num_devices % count:
        more = -(-wanted.num_devices // count) * count
        raise UserError(
            f"train.target {target} has {wanted.num_devices} devices, which {count} "
            f"processes cannot share evenly: write cpu:{more}, or another --processes"
        )
    return wanted.num_devices // count


def _check_port_is_free(coordinator: str) -> None:
    """JAX's service would share the port with whoever has it, and wait."""
    port = coordinator.rpartition(":")[2]
    with socket.socket() as probe:
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise UserError(
                f"--coordinator {coordinator}: process 0 cannot listen at port {port} "
                f"({error.strerror}); choose another port, the same for all"
            ) from error
