"""The order of the jobs, what is kept of them, and the table at the end."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.calibrate import facts, kernels, programs
from experiments.files import write_whole
from revremat.xla import measured_folder

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 300
"""A job that takes longer is given up; the others still count."""


def main(arguments: list[str] | None = None) -> int:
    """Measures this machine's first device; 0 if every job came to its end."""
    options = _options(arguments)
    began, load = time.perf_counter(), os.getloadavg()[0]
    machine = run_job("probe", options)
    if "error" in machine:
        print(f"error: no device answers: {machine['error']}", file=sys.stderr)
        return 1
    name = machine["key"] or "-".join(machine["kind"].lower().split())
    print(f"{machine['kind']}: {machine['about']}")

    notes = Notes(
        ROOT / "runs" / f"card-{name}{'-quick' * options.quick}.json", machine
    )
    gpu = machine["platform"] == "gpu"
    groups = options.groups
    if not groups:
        groups = (*kernels.groups(machine["platform"]), *["curves"] * (not gpu))
    jobs = ["curves" if group == "curves" else f"kernels {group}" for group in groups]
    jobs += ["reserve"] * gpu
    aot = machine["missing"] == ""
    if not aot:
        print(f"no ahead-of-time predictions to compare with: {machine['missing']}")
    for program in options.programs:
        jobs += [f"run {program}", *([f"predict {program}"] * aot)]
    for number, job in enumerate(jobs, 1):
        if job not in notes.done:
            print(f"[{number}/{len(jobs)}] {job}", flush=True)
            notes.keep(job, run_job(job, options, machine))

    card = facts.card(notes.done, machine)
    result: dict[str, Any] = {
        "machine": machine,
        "card": card,
        "data_sheet": facts.data_sheet(machine["key"]),
        "jobs": notes.done,
    }
    # The estimates again, with the factors just measured.
    result["calibrated"] = {}
    if aot:
        folder = ROOT / "runs" / "cards"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{machine['key']}.json", json.dumps({"card": card}))
        for program in options.programs:
            found = run_job(f"predict {program}", options, machine, str(folder))
            result["calibrated"][program] = found
    result["load_before"] = round(load, 2)
    result["seconds"] = round(time.perf_counter() - began, 1)
    text = facts.table(result)
    options.out.mkdir(parents=True, exist_ok=True)
    place = write_whole(
        options.out / f"card-{name}.json", json.dumps(result, indent=1) + "\n"
    )
    write_whole(options.out / f"card-{name}.txt", text)
    print(text, end="")
    print(f"written to {place}")
    if machine["key"]:
        folder = options.cards or measured_folder()
        folder.mkdir(parents=True, exist_ok=True)
        copy = write_whole(
            folder / f"{machine['key']}.json",
            json.dumps({"card": card, "machine": machine}, indent=1) + "\n",
        )
        print(f"reports use it from now on: {copy}")
    notes.path.unlink(missing_ok=True)
    failed = [job for job, found in notes.done.items() if "error" in found]
    for job in failed:
        print(f"error: {job}: {notes.done[job]['error']}", file=sys.stderr)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="card", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "results")
    parser.add_argument("--cards", type=Path, help="where reports look for it")
    parser.add_argument("--groups", nargs="*", help="kernels to time; default: all")
    parser.add_argument("--programs", nargs="*", default=programs.NAMES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for tests")
    return parser.parse_args(arguments)


class Notes:
    """Results of finished jobs, kept on disk so that a stopped run goes on.

    Args:
      path: The file.
      machine: Notes of another machine, or of other versions, are begun again.
    """

    def __init__(self, path: Path, machine: dict[str, Any]):
        self.path, self._machine = path, machine
        self.done: dict[str, Any] = {}
        try:
            found = json.loads(path.read_text())
            if found["machine"] == machine:
                good = {k: v for k, v in found["done"].items() if "error" not in v}
                self.done = good
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # none yet, or damaged: everything is measured again

    def keep(self, job: str, found: dict[str, Any]) -> None:
        """Writes down one job's result."""
        self.done[job] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(
            self.path, json.dumps({"machine": self._machine, "done": self.done})
        )


def run_job(
    job: str,
    options: argparse.Namespace,
    machine: dict[str, Any] | None = None,
    cards: str = os.devnull,
) -> dict[str, Any]:
    """One job in a process of its own: its result, or `{"error": sentence}`."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "REVREMAT_CARDS": cards,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    if job.startswith("predict"):
        environment["JAX_PLATFORMS"] = "cpu"
    command = [sys.executable, "-m", "experiments.calibrate.jobs", *job.split()]
    if machine is not None:
        command += ["--target", machine["target"], "--platform", machine["platform"]]
    try:
        done = subprocess.run(
            command + ["--quick"] * options.quick,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            return json.loads(lines[-1])
        last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": last[-1]}
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {MOST_SECONDS} s"}
    except ValueError:
        return {"error": "its result could not be read"}


if __name__ == "__main__":
    sys.exit(main())
