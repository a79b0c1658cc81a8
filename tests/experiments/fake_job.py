"""A job as the runner starts it, which does what $FAKE_JOBS says instead."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from experiments.calibrate.job import _end_with_the_runner
from experiments.calibrate.records import Writer

kind, subject, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2], strict=True))
name = f"{kind} {subject}".strip()
tell = Writer(Path(given["--out"], "results.jsonl"), name, int(given["--attempt"]))
told = json.loads(os.environ.get("FAKE_JOBS", "{}"))
what = told.get(name, told.get(kind, "ok"))
threading.Thread(target=_end_with_the_runner, daemon=True).start()
if kind == "doctor":
    about = {"platform": given["--platform"], "jax": "7", "python": "3", "cores": 2}
    machine = told.get("machine", "a device")
    tell("note", machine=machine, device="device", total_bytes=80 * 2**30, **about)
tell("measured", what="steps", variant="baseline", median_s=0.5, round=0, not_finite=0)
match what:
    case "fail":
        tell("failed", error="ValueError: no kernel", tail="...", whole=True)
        sys.exit(1)
    case "crash":
        print("allocator: 17 lines", "the last word", sep="\n", flush=True)
        os.abort()
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "exit":
        sys.exit(3)
    case "hang":
        time.sleep(60)
    case "part":
        tell("failed", variant="dots", error="ValueError: no such dots", tail="...")
    case "noise":
        print("x" * 1_000_000)
