"""Run `train.py` as several processes of this machine.

    python -m experiments.launch --processes 4 train.py gpt --train.target cpu:8

What follows `train.py` is its own command line. Ctrl-C and SIGTERM reach all processes,
which save the same step and stop. Where one of them dies, the others are ended, and one
sentence names it. The exit code is that of `train.py`.
"""

import contextlib
import ctypes
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

USAGE = "python -m experiments.launch --processes N train.py NAME [--KEY VALUE ...]"
_TRAIN = Path(__file__).with_name("train.py")
_OURS = ("--processes", "--process-id", "--coordinator")
_RESUME = "the same command goes on from the last whole checkpoint"
# Who sees a peer go tells it soon after; what it says meanwhile is not passed on.
_HELD_BACK_S = 1.0
# For the sentences of processes that all stop for one reason.
_GRACE_S = 5.0
_OF_A_PEER = re.compile(r"error: process \d+ of \d+")


def main(args: list[str]) -> int:
    """Run the command line; 0 done or stopped, 1 failed, 2 not understood."""
    try:
        count, rest = parse(args)
        own = gpus_of_each(count, rest, os.environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run(count, rest, own)


def parse(args: list[str]) -> tuple[int, list[str]]:
    """The number of processes, and the command line of each.

    Raises:
      ValueError: With the sentence, if it is not `--processes N train.py ...`.
    """
    flag, _, value = args[0].partition("=") if args else ("", "", "")
    if flag != "--processes":
        raise ValueError(f"how many processes? write {USAGE}")
    rest = args[1:] if value else args[2:]
    value = value or "".join(args[1:2])
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"--processes is {value!r}: write a whole number, 1 or more")
    if not rest:
        raise ValueError(f"what is to be run? write {USAGE}")
    script, *rest = rest
    if not is_train(script):
        raise ValueError(
            f"{script!r} is not train.py, which alone is run: write {USAGE}"
        )
    for arg in rest:
        if arg.partition("=")[0] in _OURS:
            raise ValueError(
                f"{arg} stands behind train.py: leave it out, each process gets its own"
            )
    return int(value), rest


def is_train(script: str) -> bool:
    """Whether a path is `train.py`, from the root of the repository or beside it."""
    path = Path(script)
    return path in (Path("train.py"), Path("experiments/train.py")) or (
        path.exists() and path.samefile(_TRAIN)
    )


def gpus_of_each(
    count: int, args: list[str], environment: Mapping[str, str], root: Path = Path("/")
) -> list[dict[str, str]]:
    """Which of this machine's NVIDIA GPUs each process sees, as its environment.

    Args:
      count: Processes.
      args: Of `train.py`.
      environment: Of the launcher.
      root: Of the file system.

    Raises:
      ValueError: With the sentence, if they cannot have equally many.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        gpus = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    else:
        gpus = len([*itertools.takewhile(_is_device, listed.split(","))])
    on_cpu = environment.get("JAX_PLATFORMS") == "cpu" or any(
        part.startswith("cpu") for part in _values(args, "--train.target")
    )
    if on_cpu or not gpus or count == 1 or "JAX_LOCAL_DEVICE_IDS" in environment:
        return [{} for _ in range(count)]
    if gpus % count:
        raise ValueError(
            f"this machine has {gpus} GPU{'s' * (gpus > 1)}, which {count} processes "
            "cannot share evenly: write another --processes, or --train.target cpu:N"
        )
    each = gpus // count
    ids = [range(each * index, each * (index + 1)) for index in range(count)]
    return [{"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, own))} for own in ids]


def _values(args: list[str], flag: str) -> list[str]:
    after = [value for name, value in itertools.pairwise(args) if name == flag]
    return after + [arg.partition("=")[2] for arg in args if arg.startswith(flag + "=")]


@dataclass
class Child:
    """One of the processes.

    Attributes:
      index: Which one.
      process: Is being run.
      lines: What it says on standard error and is not passed on yet, with the time.
      errors: Of that, the sentences it ends with.
    """

    index: int
    process: subprocess.Popen
    lines: list[tuple[float, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    def read(self) -> None:
        """Take in standard error to its end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("error: "):
                self.errors.append(line)
            else:
                self.lines.append((time.monotonic(), line))


def run(count: int, args: list[str], own: list[dict[str, str]]) -> int:
    """Start the processes, each with its own variables, and watch them to the end.

    Returns:
      The exit code of all.
    """
    port = free_port()
    children = [
        _start(index, count, port, args, variables)
        for index, variables in enumerate(own)
    ]
    received: list[str] = []

    def forward(number: int, _) -> None:
        received.append(signal.Signals(number).name)
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    for child in children:
        child.reader = threading.Thread(target=child.read, daemon=True)
        child.reader.start()
    told: dict[str, int] = {}
    # All are asked each time: the one that has died is rarely the first.
    while None in (codes := [child.process.poll() for child in children]):
        if any(codes):
            break
        _pass_on(children, time.monotonic() - _HELD_BACK_S, told)
        time.sleep(0.05)
    ended = _ended_by_themselves(children)
    if not ended:
        _pass_on(children, time.monotonic(), told)
        return 0
    cause = _cause(ended)
    _tell(cause, count, received)
    return cause.process.returncode if cause.process.returncode in (1, 2) else 1


def _start(
    index: int, count: int, port: int, args: list[str], variables: dict[str, str]
) -> Child:
    told = ("--processes", "--process-id", "--coordinator")
    values = (str(count), str(index), f"localhost:{port}")
    flags = [part for pair in zip(told, values, strict=True) for part in pair]
    if count == 1:
        flags = flags[:2]
    if set(args) & {"-h", "--help"} or not args:
        flags = []
    process = subprocess.Popen(
        [sys.executable, str(_TRAIN), *args, *flags],
        env=_environment() | variables,
        stdin=subprocess.DEVNULL,
        stdout=None if index == 0 else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C in a terminal reaches the launcher alone, which forwards it.
        start_new_session=True,
        preexec_fn=_die_with_the_launcher,
    )
    return Child(index, process)


def _environment() -> dict[str, str]:
    """Processes find one another on this machine, whatever proxy there is."""
    root = str(_TRAIN.parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    beside = {"PYTHONPATH": os.pathsep.join(paths)}
    has_proxy = any(name.lower().endswith("_proxy") for name in os.environ)
    for name in ("no_proxy", "NO_PROXY") if has_proxy else ():
        hosts = filter(None, [os.environ.get(name, ""), "localhost,127.0.0.1,::1"])
        beside[name] = ",".join(hosts)
    return os.environ | beside


def _die_with_the_launcher() -> None:
    """On Linux the kernel ends a process whose launcher was killed."""
    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _is_device(name: str) -> bool:
    """CUDA counts the names in its list up to the first that is none."""
    return bool(re.fullmatch(r"\s*(\d+|(GPU|MIG)-.+)\s*", name))


def _pass_on(children: list[Child], until: float, told: dict[str, int]) -> None:
    """Print what was said before a time; what several say, once.

    Args:
      children: The processes.
      until: The time.
      told: From a line to the first that said it, whose further ones are new.
    """
    for number, child in enumerate(children):
        while child.lines and child.lines[0][0] <= until:
            _, line = child.lines.pop(0)
            if told.setdefault(line, number) == number:
                sys.stderr.write(line)
    sys.stderr.flush()


def _ended_by_themselves(children: list[Child]) -> list[Child]:
    """Those that failed, once the others have been ended."""
    by_signal = lambda: any((c.process.poll() or 0) < 0 for c in children)
    running = lambda: any(c.process.poll() is None for c in children)
    until = time.monotonic() + _GRACE_S
    while running() and not by_signal() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.1 * running())
    failed = [child for child in children if child.process.poll()]
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
    for child in children:
        child.process.wait()
        assert child.reader is not None
        child.reader.join(timeout=5)
    return failed


def _cause(failed: list[Child]) -> Child:
    """The one that the others' failures come from."""

    def rank(child: Child) -> int:
        code = child.process.returncode
        if code < 0:
            # The runtime aborts where it has lost another process.
            return 1 if code == -signal.SIGABRT else 0
        return 3 if any(map(_OF_A_PEER.match, child.errors)) else 2

    return min(failed, key=rank)


def _tell(child: Child, count: int, received: list[str]) -> None:
    code = child.process.returncode
    if child.errors:
        print(child.errors[-1], end="", file=sys.stderr)
        return
    if code < 0 and signal.Signals(-code).name in received:
        name = signal.Signals(-code).name
        how = "ended at once, nothing more was saved"
        print(f"error: {name}: {how}; {_RESUME}", file=sys.stderr)
        return
    who = f"process {child.index} of {count}" if count > 1 else "train.py"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        sys.stderr.writelines(line for _, line in child.lines)
        how = f"ended with exit code {code}"
    others = "; the others were ended" if count > 1 else ""
    print(f"error: {who} {how}{others}; {_RESUME}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
