"""One job, in a process of its own; the runner starts it.

python -m experiments.calibrate.job KIND SUBJECT --out DIR ...
"""

import argparse
import importlib
import os
import sys
import threading
import traceback
from pathlib import Path

from experiments.calibrate.records import Writer, in_one_line
from experiments.calibrate.runner import RESULTS

_TASKS = {
    "doctor": "doctor:doctor",
    "race": "steps:race",
    "run": "steps:run",
    "fit": "steps:fit",
    "over": "steps:over",
    "alternatives": "steps:alternatives",
    "exact": "exact:exact",
    "gradients": "gradients:gradients",
    "offload": "offload:offload",
    "kernels": "kernels:kernels",
    "curves": "kernels:curves",
    "card": "estimates:card",
    "again": "estimates:again",
}


def main() -> int:
    """Does what the command line says; 1, and a line that says why, if it cannot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=_TASKS)
    parser.add_argument("subject")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--scale", required=True)
    parser.add_argument("--hlo", type=Path, required=True)
    parser.add_argument("--cards", help="a folder; the usual one if empty")
    options = parser.parse_args()
    name = f"{options.kind} {options.subject}".strip()
    tell = Writer(options.out / RESULTS, name, options.attempt)
    threading.Thread(target=_end_with_the_runner, daemon=True).start()
    try:
        from experiments.calibrate import device

        by_compiler = options.kind in ("card", "again")
        # Never silently another device: before anything is timed, in each process.
        device.require("cpu" if by_compiler else options.platform)
        module, function = _TASKS[options.kind].split(":")
        task = importlib.import_module(f"experiments.calibrate.tasks.{module}")
        getattr(task, function)(
            device.Job(
                subject=options.subject,
                platform=options.platform,
                scale=options.scale,
                out=options.out,
                hlo=options.hlo,
                tell=tell,
                cards=_cards(options.cards),
            )
        )
    except Exception as error:
        traceback.print_exc()
        tail = traceback.format_exc()[-3000:]
        tell("failed", error=in_one_line(error), tail=tail, whole=True)
        return 1
    return 0


def _cards(named: str | None) -> Path | None:
    """Where reports look for measured cards; this process does without them."""
    if named is None:
        return None
    from revremat.xla import measured_folder

    hidden = os.environ.pop("REVREMAT_CARDS", None)
    try:
        return Path(named) if named else measured_folder()
    finally:
        if hidden is not None:
            os.environ["REVREMAT_CARDS"] = hidden


def _end_with_the_runner() -> None:
    """Ends this process when the runner is gone: the pipe from it ends then."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
