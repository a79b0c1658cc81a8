"""A pytest plugin: which lines of `revremat/` each test runs, and how long it takes.

    COVERED=map.jsonl PYTHONPATH=tools .venv/bin/python -m pytest -n 0 -p covered TESTS

One line of JSON per test that passed: its name, its processor seconds, its lines by
file. A test that takes more than `COVERED_SECONDS` of them is stopped and left out.
"""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path.cwd()
_PACKAGE = str(ROOT / "revremat") + os.sep
_TOOL = sys.monitoring.COVERAGE_ID
_EVENTS = sys.monitoring.events
_seen: dict[str, set[int]] = defaultdict(set)


def _started(code, _offset):
    if str(code.co_filename).startswith(_PACKAGE):
        sys.monitoring.set_local_events(_TOOL, code, _EVENTS.LINE)
    return sys.monitoring.DISABLE


def _line(code, number):
    _seen[code.co_filename].add(number)
    return sys.monitoring.DISABLE


def pytest_configure():
    sys.monitoring.use_tool_id(_TOOL, "covered")
    sys.monitoring.register_callback(_TOOL, _EVENTS.PY_START, _started)
    sys.monitoring.register_callback(_TOOL, _EVENTS.LINE, _line)
    sys.monitoring.set_events(_TOOL, _EVENTS.PY_START)


def pytest_unconfigure():
    sys.monitoring.set_events(_TOOL, 0)
    sys.monitoring.free_tool_id(_TOOL)


def _too_slow(*_):
    raise TimeoutError("too slow for the map")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _seen.clear()
    sys.monitoring.restart_events()
    signal.signal(signal.SIGPROF, _too_slow)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, float(os.environ.get("COVERED_SECONDS", "5")))
    try:
        result = yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    lines = {
        str(Path(name).relative_to(ROOT)): sorted(numbers)
        for name, numbers in sorted(_seen.items())
    }
    entry = {
        "test": item.nodeid,
        "seconds": round(time.process_time() - start, 3),
        "lines": lines,
    }
    with open(os.environ["COVERED"], "a") as file:
        print(json.dumps(entry, separators=(",", ":")), file=file)
    return result
