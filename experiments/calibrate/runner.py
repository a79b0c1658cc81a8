"""Runs jobs one after the other, each in a process of its own, and keeps what they say.

Of the standard library alone: whatever is wrong with JAX, the card or a package is then
one line of the results, and not the end of the run.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from experiments.calibrate import plan_files, schedule, summary
from experiments.calibrate.records import (
    Record,
    Writer,
    in_one_line,
    latest,
    read,
)
from experiments.calibrate.schedule import Job
from experiments.files import write_whole

ROOT = Path(__file__).parents[2]
RESULTS, LOG, SUMMARY = "results.jsonl", "log.txt", "summary.txt"
CARD, TUNING, HLO = "card.json", "autotune.tgz", "hlo.tgz"
FILES = (RESULTS, LOG, SUMMARY, CARD, TUNING, HLO)
"""All that a run writes."""

JOB_MODULE = "experiments.calibrate.job"

CLOSING_S = 25.0
"""Kept back at the end: the card's figures, the summary, the packed files."""

_MOST_LOG = 200_000
"""Characters of one job's output; the end is kept."""

_MOST_PACKED = 15 << 20
"""Bytes of a packed file."""

_USUAL_SHARE = 0.97
"""Of the card's memory: what is left is more than any card's reserve."""


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
      out: Where the files go; a run that finds some there goes on.
      seconds: For all of it.
      platform: What has to be here: `gpu` or `cpu`.
      quick: Tiny sizes, for tests.
      only: Names or kinds of jobs; all by default.
      cards: Where reports look for measured cards; the usual place if None, and none
        for tiny sizes, which are no measurement.
      absent: The device is not here: only what its records and the compiler say.
    """

    out: Path
    seconds: float = 540.0
    platform: str = "gpu"
    quick: bool = False
    only: tuple[str, ...] = ()
    cards: Path | None = None
    absent: bool = False

    @property
    def scale(self) -> str:
        """The size of programs."""
        return "quick" if self.quick else "card" if self.platform == "gpu" else "cpu"


def run(options: Options) -> int:
    """Runs what is left, while there is time.

    Returns:
      0 if all jobs that were begun ended well, 1 if not, 2 if nothing can be measured
      here.
    """
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    with _Workplace(options) as place, _ended_by_signal():
        try:
            return _run(options, place, end)
        finally:
            place.pack()
            print(place.summarize(), end="", flush=True)


def _run(options: Options, place: "_Workplace", end: float) -> int:
    results = options.out / RESULTS
    before = read(results)
    if options.absent:
        return _by_compiler(options, place)
    if not place.perform(schedule.DOCTOR, schedule.DOCTOR.limit_s):
        print(f"error: {place.last_error}", file=sys.stderr)
        return 2
    if told := _other_machine(before, read(results), options):
        print(f"error: {told}", file=sys.stderr)
        return 2
    left = schedule.next_jobs(schedule.jobs(options.platform), read(results))
    if options.only:
        left = [job for job in left if {job.name, job.kind} & {*options.only}]
    good = True
    for job in left:
        if job.kind == "again" and not (options.out / CARD).exists():
            place.perform(schedule.CARD, schedule.CARD.limit_s)
        rest = end - time.monotonic() - CLOSING_S
        least_s = min(5, job.least_s) if options.quick else job.least_s
        if rest < least_s:
            why = f"{max(0, rest):.0f} s are left, and it needs {least_s:.0f}"
            place.writer(job)("skipped", why=f"{why}; the next run goes on with it")
            continue
        # Limits are of a card's time; tiny sizes run on whatever machine there is.
        limit_s = job.limit_s * (3 if options.quick else 1)
        good &= place.perform(job, min(limit_s, rest), is_rest=rest < limit_s)
    place.perform(schedule.CARD, schedule.CARD.limit_s)
    return 0 if good else 1


def _by_compiler(options: Options, place: "_Workplace") -> int:
    """The card's figures, and estimates by them, from the records of a run."""
    if not any(r.get("machine") for r in read(options.out / RESULTS)):
        print(
            f"error: {options.out} holds no results of a device: name the folder of "
            "a run, or run where the device is, without --absent",
            file=sys.stderr,
        )
        return 2
    good = place.perform(schedule.CARD, schedule.CARD.limit_s)
    for job in schedule.jobs(options.platform):
        is_wanted = not options.only or {job.name, job.kind} & {*options.only}
        if job.by_compiler and is_wanted:
            good &= place.perform(job, options.seconds)
    return 0 if good else 1


def _other_machine(before: list[Record], now: list[Record], options: Options) -> str:
    """Why results here cannot go on; "" if they can."""
    found = [
        [r["machine"] for r in records if r.get("machine")]
        for records in (before, now[len(before) :])
    ]
    if found[0] and found[0][-1] != found[1][-1]:
        return (
            f"{options.out} holds results of {found[0][-1]}, and this is "
            f"{found[1][-1]}: choose another folder"
        )
    return ""


class _Workplace:
    """The files of a run, and the folder of what is not kept as it is."""

    def __init__(self, options: Options):
        self.options, self.last_error = options, ""
        self._scratch = Path(tempfile.mkdtemp(prefix="calibrate-"))
        self.tuning, self.hlo = self._scratch / "autotune", self._scratch / "hlo"
        self._packed: dict[str, object] = {}

    def __enter__(self) -> "_Workplace":
        for half in self.options.out.glob("*.tmp"):  # of a run that was killed
            half.unlink()
        for folder, name in ((self.tuning, TUNING), (self.hlo, HLO)):
            folder.mkdir()
            with (
                contextlib.suppress(OSError, EOFError, tarfile.TarError, zlib.error),
                tarfile.open(self.options.out / name) as tar,
            ):
                tar.extractall(folder, filter="data")
            self._packed[name] = _state(folder)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def writer(self, job: Job) -> Writer:
        """Of a job's next attempt."""
        earlier = [r for r in read(self._results) if r.job == job.name]
        tried = max((r.attempt for r in earlier if r.kind == "begun"), default=0)
        return Writer(self._results, job.name, tried + 1)

    @property
    def _results(self) -> Path:
        return self.options.out / RESULTS

    @property
    def _cards(self) -> list[str]:
        """For the command line of a job: where reports look for measured cards."""
        if self.options.cards is not None:
            return ["--cards", str(self.options.cards.resolve())]
        if self.options.quick:
            return []
        return ["--cards", os.environ.get("REVREMAT_CARDS", "")]

    def perform(self, job: Job, limit_s: float, is_rest: bool = False) -> bool:
        """Runs one job to its end or its limit; whether it ended well.

        Args:
          job: The job.
          limit_s: After which it is stopped.
          is_rest: That is what is left of the run, and less than the job's own limit.
        """
        write = self.writer(job)
        environment = environment_of(job, self.options, self.tuning)
        try:
            share = self._share(job)
        except LookupError as error:
            write("skipped", why=str(error))
            return True
        if share is not None:
            environment["XLA_CLIENT_MEM_FRACTION"] = f"{share:.4f}"
        about = {"is_rest": is_rest, "revision": job.revision, "memory_fraction": share}
        write("begun", limit_s=round(limit_s, 1), **about)
        print(f"{job.name} (at most {limit_s:.0f} s)", flush=True)
        command = [
            *(sys.executable, "-m", JOB_MODULE, job.kind),
            *(job.subject, "--out", str(self.options.out.resolve())),
            *("--attempt", str(write.attempt), "--platform", self.options.platform),
            *("--scale", self.options.scale, "--hlo", str(self.hlo)),
            *self._cards,
        ]
        began, cpu_s = time.monotonic(), _cpu_s()
        log = self.options.out / LOG
        with log.open("ab") as output:
            output.write(f"=== {job.name}, attempt {write.attempt}\n".encode())
            output.flush()
            start = output.tell()
            code = _wait(command, environment, output, limit_s)
        tail = _trim(log, start)
        found = {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(_cpu_s() - cpu_s, 1),
        }
        told = [r for r in read(self._results) if r.job == job.name]
        own = [r for r in told if r.attempt == write.attempt and r.kind == "failed"]
        if code is None:
            cut = {"error": f"stopped after {limit_s:.0f} s", "is_cut": True}
            write("ended", **found, **cut, tail=tail)
        elif code == 0:
            write("ended", **found)
        elif own and own[-1].get("whole"):
            write("ended", **found, error=own[-1]["error"], exit_code=code)
        else:
            last = tail.strip().splitlines()[-1:] or ["it said nothing"]
            error = f"ended with exit code {code}: {last[0]}"[:300]
            write("ended", **found, error=error, exit_code=code, tail=tail)
        mine = [r for r in read(self._results) if r.job == job.name]
        self.last_error = mine[-1].get("error", "")
        self.pack()
        self.summarize()
        return not self.last_error

    def summarize(self) -> str:
        """Writes the tables of all records; no trouble with them ends the run."""
        try:
            text = summary.text(read(self._results))
        except Exception as error:
            text = f"no tables can be made of {RESULTS}: {in_one_line(error)}\n"
        write_whole(self.options.out / SUMMARY, text)
        return text

    def _share(self, job: Job) -> float | None:
        """Of the card's memory, for this job; None where there is no such limit."""
        if self.options.platform == "cpu":
            return None
        if job.room == "all":
            return _USUAL_SHARE
        found = latest(read(self._results))
        total = [r for r in found["doctor"] if r.get("total_bytes")]
        made = plan_files.read(job.subject, self.options.scale)
        variant = plan_files.to_fit(made)
        needed = variant["bytes"] if variant else None
        # What this compiler said here comes before what was said ahead of time, where
        # that is of the same plan.
        is_same = False
        for r in found.get(f"race {job.subject}", []):
            if variant and r.get("variant") == variant["name"]:
                if r.kind == "predicted":
                    is_same = r["bytes"] == variant["bytes"]
                elif r.kind == "compiled" and is_same:
                    needed = r["bytes"]
        if not total or needed is None:
            raise LookupError(f"no plan of {job.subject} says how many bytes it takes")
        return fraction(needed, total[-1]["total_bytes"], job.room)

    def pack(self) -> None:
        """Tuning and compiled modules as one file each, if they changed."""
        for folder, name in ((self.tuning, TUNING), (self.hlo, HLO)):
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            now = _state(folder)
            if not files or self._packed.get(name) == now:
                continue
            temporary = self.options.out / f"{name}.tmp"
            with tarfile.open(temporary, "w:gz", compresslevel=5) as tar:
                for path in files:
                    # A file beyond the limit would be lost as a whole.
                    if temporary.stat().st_size < _MOST_PACKED - path.stat().st_size:
                        tar.add(path, str(path.relative_to(folder)))
            os.replace(temporary, self.options.out / name)
            self._packed[name] = now


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """What is in a folder: names, sizes and times."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    stats = [(str(p), p.stat()) for p in files]
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def fraction(plan_bytes: int, total_bytes: int, room: str) -> float:
    """For `XLA_CLIENT_MEM_FRACTION`: four digits, rounded up where a plan has to fit.

    Three digits, or rounding down, would take up to 85 MB from an 80 GB card.

    >>> fraction(20_570_348_072, 85_029_158_912, "plan")
    0.242
    >>> fraction(20_570_348_072, 85_029_158_912, "less")
    0.2299
    """
    wanted = plan_bytes if room == "plan" else plan_bytes * 95 // 100
    return -(-wanted * 10_000 // total_bytes) / 10_000


def environment_of(job: Job, options: Options, tuning: Path) -> dict[str, str]:
    """What a job's process is started with."""
    found = dict(os.environ)
    # The caller's folders stay: wheels that were carried along lie there.
    places = [str(ROOT), *found.get("PYTHONPATH", "").split(os.pathsep)]
    wheels = [str(w) for p in places if p for w in sorted(Path(p).glob("*.whl"))]
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [*places, *wheels]))
    on_gpu = options.platform == "gpu" and not job.by_compiler
    # The CPU stands beside the card, and never in its place: each job asserts that.
    found["JAX_PLATFORMS"] = "cuda,cpu" if on_gpu else "cpu"
    found["JAX_NUM_CPU_DEVICES"] = "1"
    found["REVREMAT_CARDS"] = os.devnull  # predictions are the data sheet's
    found["TF_CPP_MIN_LOG_LEVEL"] = "1"
    found["PYTHONUNBUFFERED"] = "1"
    # As users are told to run: all at once, with a share of their own. Both names of
    # the share set at once, and jaxlib refuses to start.
    found.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)
    found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    if options.quick:  # kernels are made in half of the time, and are as slow as that
        found["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    if on_gpu:
        flag = f"--xla_gpu_per_fusion_autotune_cache_dir={tuning}"
        found["XLA_FLAGS"] = f"{found.get('XLA_FLAGS', '')} {flag}".strip()
    return found


def _wait(
    command: list[str], environment: dict[str, str], output: IO[bytes], limit_s: float
) -> int | None:
    """The exit code, or None if it took too long.

    The job reads from a pipe whose other end is held here: where this process is
    killed, the pipe ends and so does the job.
    """
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdin:
            child.stdin.close()


def _cpu_s() -> float:
    """What all jobs so far took of the cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _trim(log: Path, start: int) -> str:
    """Cuts what a job said to its end; returns its last lines."""
    with log.open("r+b") as file:
        file.seek(start)
        said = file.read()
        if len(said) > _MOST_LOG:
            said = b"[...]\n" + said[-_MOST_LOG:]
            file.seek(start)
            file.write(said)
            file.truncate()
    return "\n".join(said.decode(errors="replace").splitlines()[-30:])[-4000:]


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """A request to end is an exception here, so that the summary is still written."""

    def stop(*_: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
