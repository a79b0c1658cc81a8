"""Put faults into the code, one at a time, and see whether its tests notice.

    .venv/bin/python tools/mutants.py --to 10       # the first ten of sixty
    .venv/bin/python tools/mutants.py --drawer xla  # those of one drawer
    .venv/bin/python tools/mutants.py --named       # faults that once went unnoticed

Places are drawn by a fixed seed, in turn from all drawers of `revremat/`. A fault
changes one line: an operator, a comparison, a sign, a number off by one, a dropped
term, `min` for `max`, two arguments or two branches swapped. Each is put into a copy of
the tree, and its drawer's tests run there, those nearest to the file first, until one
fails. `mutants.toml` says which tests those are, and which faults change nothing.
"""

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEED, COUNT = 20_251, 60
TIMEOUT_S = 600.0
"""For one call of pytest; a fault that makes it hang is noticed."""

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
      test: The one that is known to notice it, "" if none is.
    """

    path: str
    line: int
    before: str
    after: str
    test: str = ""

    @property
    def drawer(self) -> str:
        parts = Path(self.path).parts
        return parts[1] if len(parts) > 2 else "."

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by, wherever the line stands."""
        return self.path, self.before.strip(), self.after.strip()


def faults_in(path: Path) -> list[Fault]:
    """All faults that can be put into a file."""
    lines = path.read_bytes().split(b"\n")
    found = {}
    for node in _statements(ast.parse(path.read_text())):
        for first, last, new in _changes(node):
            if first[0] != last[0]:
                continue
            old = lines[first[0] - 1]
            start, stop = first[1], last[1]
            if (text := new(old[start:stop].decode())) is None:
                continue
            changed = (old[:start] + text.encode() + old[stop:]).decode()
            fault = Fault(str(path.relative_to(ROOT)), first[0], old.decode(), changed)
            if changed != old.decode() and _parses(lines, fault):
                found[fault.line, fault.after] = fault
    return [found[key] for key in sorted(found)]


def _parses(lines: Sequence[bytes], fault: Fault) -> bool:
    changed = [*lines]
    changed[fault.line - 1] = fault.after.encode()
    try:
        compile(b"\n".join(changed), fault.path, "exec")
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
    """So many faults, from every drawer in turn."""
    drawers: dict[str, list[Fault]] = {}
    for path in sorted((ROOT / "revremat").rglob("*.py")):
        for fault in faults_in(path):
            drawers.setdefault(fault.drawer, []).append(fault)
    shuffled = random.Random(seed)
    for faults in drawers.values():
        shuffled.shuffle(faults)
    found: list[Fault] = []
    while len(found) < count:
        for name in sorted(drawers):
            if drawers[name]:
                found.append(drawers[name].pop())
    return found[:count]


def named(about: dict[str, Any]) -> list[Fault]:
    """The faults that are written down, where their lines still stand."""
    found = []
    for one in about["named"]:
        lines = (ROOT / one["path"]).read_text().split("\n")
        for number, line in enumerate(lines, start=1):
            if one["before"] in line:
                changed = line.replace(one["before"], one["after"])
                found.append(Fault(one["path"], number, line, changed, one["test"]))
                break
        else:
            print(f"{one['path']}: no line has {one['before']!r} any more")
    return found


def tests_of(fault: Fault, about: dict[str, Any]) -> list[list[str]]:
    """Which tests run, one call of pytest after another."""
    if fault.test:
        return [[fault.test]]
    stem = Path(fault.path).stem.lstrip("_")
    of_drawer = [
        str(path.relative_to(ROOT))
        for pattern in about["tests"][fault.drawer]
        for path in sorted(ROOT.glob(pattern), key=lambda path: path.stat().st_size)
    ]
    of_drawer = list(dict.fromkeys(of_drawer))
    module = fault.path.removesuffix(".py").replace("/", ".")
    is_near = lambda path: (
        Path(path).stem == f"test_{stem}" or f"{module} " in (ROOT / path).read_text()
    )
    near = [*about["near"].get(fault.path, ()), *filter(is_near, of_drawer)]
    near = [path for path in dict.fromkeys(near) if (ROOT / path).is_file()]
    rest = [path for path in of_drawer if path not in near]
    return [calls for calls in (near, rest) if calls]


def notices(fault: Fault, tree: Path, calls: Sequence[Sequence[str]]) -> str:
    """The test that fails, "" if none does."""
    file = tree / fault.path
    whole = file.read_text()
    lines = whole.split("\n")
    assert lines[fault.line - 1] == fault.before, fault
    lines[fault.line - 1] = fault.after
    for tests in calls:
        try:
            file.write_text("\n".join(lines))
            found = _first_failure(tree, tests)
        finally:
            file.write_text(whole)
        if found == "too long" and _first_failure(tree, tests) == "too long":
            continue  # without the fault as well
        if found:
            return found
    return ""


def _first_failure(tree: Path, tests: Sequence[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0"]
    command += ["-p", "no:cacheprovider", *tests]
    try:
        ran = subprocess.run(
            command, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "too long"
    if ran.returncode == 0:
        return ""
    lines = [li for li in ran.stdout.splitlines() if li.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0] if lines else f"pytest ended with {ran.returncode}"


def copied(folder: Path) -> Path:
    """The tree as git knows it, elsewhere."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    options.add_argument("--to", dest="last", type=int, default=COUNT, metavar="N")
    options.add_argument("--drawer", help="only faults of one drawer")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--named", action="store_true", help="those written down")
    options.add_argument("--list", action="store_true", help="show them, run nothing")
    given = options.parse_args()
    about = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    same = {(e["path"], e["before"], e["after"]): e["why"] for e in about["same"]}
    faults = named(about) if given.named else drawn(COUNT, given.seed)
    chosen = [
        (number, fault)
        for number, fault in enumerate(faults)
        if given.first <= number < given.last and given.drawer in (None, fault.drawer)
    ]
    noticed, tried = 0, 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder))
        for number, fault in chosen:
            print(f"{number:2} {fault.path}:{fault.line}")
            print(f"   - {fault.before.strip()}\n   + {fault.after.strip()}")
            if given.list:
                continue
            if why := same.get(fault.key):
                print(f"   = changes nothing: {why}", flush=True)
                continue
            start = time.monotonic()
            found = notices(fault, tree, tests_of(fault, about))
            tried, noticed = tried + 1, noticed + bool(found)
            took = f"{time.monotonic() - start:.0f} s"
            print(f"   {found or 'NOT NOTICED'} ({took})", flush=True)
    if tried:
        print(f"{noticed} of {tried} noticed, {100 * noticed / tried:.0f} %")
    return int(tried > noticed)


if __name__ == "__main__":
    sys.exit(main())
