"""Put faults into the code, one at a time, and see whether its tests notice.

    .venv/bin/python tools/mutants.py               # those of the sixty not tried yet
    .venv/bin/python tools/mutants.py --drawer xla  # those of one drawer
    .venv/bin/python tools/mutants.py --retry       # those that went unnoticed, again
    .venv/bin/python tools/mutants.py --named       # faults that once went unnoticed

Places are drawn by a fixed seed, in turn from all drawers of `revremat/`: by a hash of
a line and its neighbours, so that an edit elsewhere moves none of them. A fault
changes one line: an operator, a comparison, a sign, a number off by one, a dropped
term, `min` for `max`, two arguments or two branches swapped. Each is put into a copy of
the tree, and its drawer's tests run there, until one fails: those that run the line, by
a map that `covered.py` makes, or else those nearest to the file first. `mutants.toml`
says which tests those are, and which faults change nothing; `mutants.jsonl` keeps what
was found.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEED, COUNT = 20_251, 60
SIGNATURES = "tests/test_signatures.py"
FOUND = Path(__file__).with_suffix(".jsonl")
TIMEOUT_S = 240.0
"""For one call of pytest; a fault that makes it hang is noticed."""
MOST_BYTES = 6 * 2**30
"""A fault that makes a loop endless must not take the machine's memory."""
MAPPED_S, MAPPED_FILES = 30.0, 6
"""As many seconds of tests that run a line are tried, from as many files."""
PRELOADED = "pytest jax flax.nnx flax.linen optax numba scipy.optimize hypothesis rich"
"""What most tests import: loaded once, before a process is forked for each call."""

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Fault:
    """One line of one file, changed.

    Attributes:
      path: The file, from the repository's root.
      line: Its number, from 1.
      before: The line as it is.
      after: The line with the fault.
      around: The line above and the line below.
      test: The one that is known to notice it, "" if none is.
    """

    path: str
    line: int
    before: str
    after: str
    around: tuple[str, str] = ("", "")
    test: str = ""

    @property
    def drawer(self) -> str:
        parts = Path(self.path).parts
        return parts[1] if len(parts) > 2 else "."

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by, wherever the line stands."""
        return self.path, self.before.strip(), self.after.strip()

    def rank(self, seed: int) -> tuple[str, str]:
        """By which places are drawn, and the fault at each."""
        place = hash_of(seed, self.drawer, *self.around, self.before)
        return place, hash_of(seed, self.after)

    @property
    def name(self) -> str:
        return hash_of(*self.key, *self.around)[:12]


def hash_of(*parts: Any) -> str:
    text = "\n".join(str(part).strip() for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def faults_in(path: Path) -> list[Fault]:
    """All faults that can be put into a file, some of which may not parse."""
    lines = path.read_bytes().split(b"\n")
    name = str(path.relative_to(ROOT))
    found = {}
    for node in _statements(ast.parse(path.read_text())):
        for first, last, new in _changes(node):
            if first[0] != last[0]:
                continue
            number = first[0]
            old = lines[number - 1]
            start, stop = first[1], last[1]
            if (text := new(old[start:stop].decode())) is None:
                continue
            changed = (old[:start] + text.encode() + old[stop:]).decode()
            above = lines[number - 2].decode() if number > 1 else ""
            below = lines[number].decode() if number < len(lines) else ""
            if changed != old.decode():
                found[number, changed] = Fault(
                    name, number, old.decode(), changed, (above, below)
                )
    return [found[key] for key in sorted(found)]


def parses(fault: Fault) -> bool:
    lines = (ROOT / fault.path).read_text().split("\n")
    lines[fault.line - 1] = fault.after
    try:
        compile("\n".join(lines), fault.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that decide: no annotations, decorators, messages or texts."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of `zip`: a check of ours
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            items = value if isinstance(value, list) else [value]
            waiting += [item for item in items if isinstance(item, ast.AST)]


def _changes(node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int], Any]]:
    """From where to where a node's text changes, and how."""
    begin = lambda n: (n.lineno, n.col_offset)
    end = lambda n: (n.end_lineno, n.end_col_offset)
    swap = lambda one, other: (
        lambda text: text.replace(one, other, 1) if text.strip(" ()") == one else None
    )
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield end(left), begin(right), swap(*COMPARISONS[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield end(left), begin(right), swap(*OPERATORS[type(op)])
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield end(left), end(right), lambda _: ""  # a dropped term
        case ast.BoolOp(op=op, values=[left, right, *_]):
            pair = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield end(left), begin(right), swap(*pair)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield begin(node), begin(operand), lambda _: ""
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub(), value=value):
            pair = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            yield end(target), begin(value), swap(*pair)
        case ast.Constant(value=bool() as value):
            yield begin(node), end(node), lambda _, value=value: str(not value)
        case ast.Constant(value=int() as value):
            yield begin(node), end(node), lambda _, value=value: str(value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield begin(node), end(node), lambda _, name=name: NAMES[name]
        case ast.IfExp(body=body, test=_, orelse=orelse):
            yield begin(body), end(orelse), _swapped(node, body, orelse)
        case ast.Call(func=ast.Name(id="min" | "max")):
            pass  # their order says nothing
        case ast.Call(args=[one, other, *_]) if not isinstance(one, ast.Starred):
            yield begin(one), end(other), _swapped(node, one, other)


def _swapped(node: Any, one: Any, other: Any) -> Any:
    """Two parts of a text, each in the other's place."""

    def change(text: str) -> str | None:
        first = one.end_col_offset - one.col_offset
        second = other.col_offset - one.col_offset
        same = ast.dump(one) == ast.dump(other)
        return None if same else text[second:] + text[first:second] + text[:first]

    return change if node.lineno == node.end_lineno else lambda _: None


def drawn(count: int, seed: int) -> list[Fault]:
    """So many faults, from every drawer in turn, one at each place."""
    drawers = defaultdict(list)
    for path in sorted((ROOT / "revremat").rglob("*.py")):
        for fault in faults_in(path):
            drawers[fault.drawer].append(fault)
    queues = [_places(drawers[name], seed) for name in sorted(drawers)]
    found: list[Fault] = []
    while len(found) < count:
        found += [fault for queue in queues if (fault := next(queue, None))]
    return found[:count]


def _places(faults: Sequence[Fault], seed: int) -> Iterator[Fault]:
    taken = set()
    for fault in sorted(faults, key=lambda fault: fault.rank(seed)):
        place = fault.rank(seed)[0]
        if place not in taken and parses(fault):
            taken.add(place)
            yield fault


def named(about: dict[str, Any]) -> list[Fault]:
    """The faults that are written down, where their lines still stand."""
    found = []
    for one in about["named"]:
        lines = (ROOT / one["path"]).read_text().split("\n")
        for number, line in enumerate(lines, start=1):
            if one["before"] in line:
                changed = line.replace(one["before"], one["after"])
                found.append(
                    Fault(one["path"], number, line, changed, test=one["test"])
                )
                break
        else:
            print(f"{one['path']}: no line has {one['before']!r} any more")
    return found


def tests_of(fault: Fault, about: dict[str, Any], ran: list[Any]) -> list[list[str]]:
    """Which tests run, one call of pytest after another."""
    if fault.test:
        return [[fault.test]]
    of_drawer = [
        str(path.relative_to(ROOT))
        for pattern in about["tests"][fault.drawer]
        for path in sorted(ROOT.glob(pattern), key=lambda path: path.stat().st_size)
    ]
    of_drawer = list(dict.fromkeys(of_drawer))
    stem = Path(fault.path).stem.lstrip("_")
    module = fault.path.removesuffix(".py").replace("/", ".")
    is_near = lambda path: (
        Path(path).stem == f"test_{stem}" or f"{module} " in (ROOT / path).read_text()
    )
    near = [*about["near"].get(fault.path, ()), *filter(is_near, of_drawer)]
    near = [path for path in dict.fromkeys(near) if (ROOT / path).is_file()]
    if ran:
        return _mapped(fault, of_drawer, near, ran)
    rest = [path for path in of_drawer if path not in near]
    return [calls for calls in (near, rest) if calls]


def _mapped(
    fault: Fault, of_drawer: Sequence[str], near: Sequence[str], ran: list[Any]
) -> list[list[str]]:
    """Tests of the drawer that run the line, else the file: near and short ones first.

    Before them what the map does not know yet; and where a line is only run by an
    import, it may be a default of a public name.
    """
    file_of = lambda one: one["test"].split("::")[0]
    known = {file_of(one) for one in ran}
    latest = {one["test"]: one for one in ran if file_of(one) in of_drawer}
    runs_file = [one for one in latest.values() if fault.path in one["lines"]]
    runs_line = [one for one in runs_file if fault.line in one["lines"][fault.path]]
    first = [path for path in near if path not in known]
    first += [SIGNATURES] * (not runs_line and SIGNATURES in of_drawer)
    tests, seconds, files = [], 0.0, set()
    order = lambda one: (file_of(one) not in near, one["seconds"])
    for one in sorted(runs_line or runs_file or latest.values(), key=order):
        if len(files | {file_of(one)}) > MAPPED_FILES:
            continue
        files.add(file_of(one))
        seconds += one["seconds"] + 0.05
        if tests and seconds > MAPPED_S:
            break
        tests.append(one["test"])
    return [calls for calls in (first, tests[:12], tests[12:]) if calls]


def notices(fault: Fault, tree: Path, calls: Sequence[Sequence[str]]) -> str:
    """The test that fails, "" if none does."""
    file = tree / fault.path
    whole, stat = file.read_text(), file.stat()
    lines = whole.split("\n")
    assert lines[fault.line - 1] == fault.before, fault
    lines[fault.line - 1] = fault.after
    compiled = "njit" in whole
    for tests in calls:
        try:
            file.write_text("\n".join(lines))
            found = _first_failure(tree, tests, compiled)
        finally:
            file.write_text(whole)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if found == "too long" and _first_failure(tree, tests) == "too long":
            continue  # without the fault as well
        name = found.partition(" ")[2]
        if name in tests and _first_failure(tree, [name]):
            print(f"   {name} fails without it, too")
            continue
        if found:
            return found
    return ""


def _first_failure(tree: Path, tests: Sequence[str], compiled: bool = False) -> str:
    """Of tests that run in a process of their own, forked from this one.

    Numba keeps what it compiled, with whatever that called: a fault in another file
    would not be seen there. With `compiled` it begins with nothing.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryDirectory() as fresh:
        if not (child := os.fork()):
            if compiled:
                importlib.import_module("numba").config.CACHE_DIR = fresh
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            os.chdir(tree)
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            os._exit(_pytest(tests))
        stop = time.monotonic() + TIMEOUT_S
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.05)
            if time.monotonic() > stop:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "too long"
        out.seek(0)
        text = out.read().decode(errors="replace")
    if not (code := os.waitstatus_to_exitcode(ended[1])):
        return ""
    if "ERROR: not found: " in text:
        sys.exit("the map names tests that are gone: make it anew with covered.py")
    lines = [li for li in text.splitlines() if li.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0] if lines else f"pytest ended with {code}"


def _pytest(tests: Sequence[str]) -> int:
    import pytest

    command = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no"]
    command += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    try:
        return int(pytest.main([*command, *tests]))
    except BaseException:
        return 99
    finally:
        sys.stdout.flush()


def preload() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # as tests/conftest.py sets them
    os.environ["JAX_NUM_CPU_DEVICES"] = "8"
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    for name in PRELOADED.split():
        importlib.import_module(name)


def copied(folder: Path) -> Path:
    """The tree as git knows it, elsewhere; what was made there stays."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {*filter(None, listed.stdout.decode().split("\0"))}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(ROOT / name, folder / name)
    for path in (folder / "tests").rglob("*.py"):
        if str(path.relative_to(folder)) not in names:
            path.unlink()
    return folder


def read_lines(path: Path | None) -> list[Any]:
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(found: dict[str, Any]) -> None:
    FOUND.write_text("".join(f"{json.dumps(one)}\n" for one in found.values()))


def summary(faults: Sequence[Fault], found: dict[str, Any]) -> str:
    """By drawer: how many were noticed, change nothing, were not noticed."""
    counts = defaultdict(Counter)
    for fault in faults:
        outcome = found.get(fault.name, {}).get("outcome", "not tried")
        counts[fault.drawer][outcome] += 1
        counts["all"][outcome] += 1
    rows = [
        f"{name:14}" + ", ".join(f"{n} {what}" for what, n in sorted(of.items()))
        for name, of in sorted(counts.items())
    ]
    noticed, missed = counts["all"]["noticed"], counts["all"]["unnoticed"]
    share = f"{100 * noticed / max(noticed + missed, 1):.0f} % noticed"
    return "\n".join([*rows, share])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--count", type=int, default=COUNT, metavar="N")
    options.add_argument("--drawer", help="only faults of one drawer")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--retry", action="store_true", help="those unnoticed, again")
    options.add_argument("--named", action="store_true", help="those written down")
    options.add_argument("--list", action="store_true", help="show them, run nothing")
    options.add_argument("--covered", type=Path, help="the map that covered.py made")
    given = options.parse_args()
    about = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    same = {(e["path"], e["before"], e["after"]): e["why"] for e in about["same"]}
    faults = named(about) if given.named else drawn(given.count, given.seed)
    found = {one["name"]: one for one in read_lines(FOUND)}
    done = ["noticed"] if given.retry else ["noticed", "unnoticed"]
    preload() if not given.list else None
    tree = copied(Path(tempfile.gettempdir()) / f"mutants-{hash_of(ROOT)[:8]}")
    ran = read_lines(given.covered)
    for fault in faults:
        before = found.get(fault.name, {}).get("outcome")
        if given.drawer not in (None, fault.drawer):
            continue
        if not given.list and before in done and not given.named:
            continue
        print(f"{fault.path}:{fault.line} {before or ''}")
        print(f"   - {fault.before.strip()}\n   + {fault.after.strip()}")
        if given.list:
            continue
        start = time.monotonic()
        test = why = ""
        if not (why := same.get(fault.key, "")):
            test = notices(fault, tree, tests_of(fault, about, ran))
        outcome = "same" if why else "noticed" if test else "unnoticed"
        took = f"{time.monotonic() - start:.0f} s"
        print(f"   {outcome} {test or why} ({took})", flush=True)
        keys = dict(zip(("path", "before", "after"), fault.key, strict=True))
        found[fault.name] = {"name": fault.name, **keys, "outcome": outcome}
        found[fault.name] |= {"test": test} if test else {}
        keep(found)
    print(summary(faults, found))
    outcomes = [found.get(fault.name, {}).get("outcome") for fault in faults]
    return int("unnoticed" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
