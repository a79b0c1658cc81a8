"""Imports run one way: down the layers, and never in a circle."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "revremat"


def modules(root, package=PACKAGE):
    """The file of each module of a package, by its dotted name."""
    names = {}
    for path in sorted((root / package).rglob("*.py")):
        *folders, stem = path.relative_to(root).with_suffix("").parts
        parts = folders if stem == "__init__" else [*folders, stem]
        names[".".join(parts)] = path
    return names


def at_module_level(statements):
    """Statements outside functions; what is imported only for types is among them."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody", "handlers"):
            yield from at_module_level(getattr(statement, field, ()))


def imported(name, path, known):
    """The modules of the package that one of its files imports."""
    is_package = path.stem == "__init__"
    here = name if is_package else name.rpartition(".")[0]
    for statement in at_module_level(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in known)
        elif isinstance(statement, ast.ImportFrom):
            relative = "." * statement.level + (statement.module or "")
            source = importlib.util.resolve_name(relative, here)
            if source in known:
                whole = [f"{source}.{alias.name}" for alias in statement.names]
                yield from (one if one in known else source for one in whole)


def circles(root, package=PACKAGE):
    """Sets of files that import one another, a file that imports itself among them."""
    known = modules(root, package)
    graph = nx.DiGraph(
        (name, other)
        for name, path in known.items()
        for other in imported(name, path, known)
    )
    return {
        frozenset(part)
        for part in nx.strongly_connected_components(graph)
        if len(part) > 1 or any(graph.has_edge(name, name) for name in part)
    }


def test_layers_are_kept():
    command = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_root_has_few_files():
    """Verbs and nouns that people use, and what all drawers share."""
    assert 1 < len([*(ROOT / "revremat").glob("*.py")]) <= 22


def test_no_files_import_one_another():
    assert circles(ROOT) == set()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a": "import p.b", "b": "import p.c", "c": ""}, []),
        ({"a": "import p.b", "b": "from p import a"}, ["a b"]),
        ({"a": "from p.b import x", "b": "from .a import y"}, ["a b"]),
        (
            {"a": "from . import b", "b": "from . import c", "c": "import p.a"},
            ["a b c"],
        ),
        ({"a": "import p.b", "b": "def f():\n  import p.a"}, []),
        ({"a": "import p.b", "b": "class C:\n  import p.a"}, ["a b"]),
        ({"a": "import p.b", "b": "try:\n  import p.a\nfinally: pass"}, ["a b"]),
        ({"a": "import p.b", "b": "if TYPE_CHECKING:\n  import p.a"}, ["a b"]),
        ({"a": "import p.b", "b": "if x:\n  pass\nelse:\n  import p.a"}, ["a b"]),
        ({"a": "import p.d", "d/__init__": "from .e import x", "d/e": ""}, []),
        (
            {"a": "import p.d", "d/__init__": "from .e import x", "d/e": "import p.a"},
            ["a d d.e"],
        ),
        (
            {"d/__init__": "from p.d._e import x", "d/_e": "from p.d import y"},
            ["d d._e"],
        ),
        (
            {
                "a": "import p.b",
                "b": "import p.a",
                "c": "import p.d",
                "d": "import p.c",
            },
            ["a b", "c d"],
        ),
    ],
)
def test_circles_are_found(tmp_path, files, found):
    for name, text in {"__init__": "", **files}.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    want = {frozenset(f"p.{name}" for name in one.split()) for one in found}
    assert circles(tmp_path, "p") == want
