"""Experiments use what users have: private names of revremat are few, with reasons."""

import ast
import re
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
EXCEPTIONS = {
    "bench/gradients.py": {"revremat._compat"},
    "bench/passes.py": {"revremat._search"},
    "bench/programs/revbifpn.py": {"revremat.reversible._revbifpn"},
    "bench/searching.py": {"revremat._search"},
    "processes.py": {"revremat._compat"},
}
MOST = 5


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def private_names(text):
    """What a file takes of revremat's private names: the line of each, and its module.

    Imports anywhere in the file, attributes of what was imported, and module names in
    text, which `importlib` takes.
    """
    tree, bound, found = ast.parse(text), set(), []

    def note(line, dotted):
        """Up to the first private part, if there is one."""
        parts = dotted.split(".")
        if parts[0] == "revremat":
            for number, part in enumerate(parts, 1):
                if is_private(part):
                    found.append((line, ".".join(parts[:number])))
                    return

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                note(node.lineno, alias.name)
                if alias.name.split(".")[0] == "revremat":
                    bound.add(alias.asname or "revremat")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                note(node.lineno, f"{node.module}.{alias.name}")
                if node.module.split(".")[0] == "revremat":
                    bound.add(alias.asname or alias.name)
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"[\w.]+", str(node.value)
        ):
            note(node.lineno, str(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root, path = node.value, []
            while isinstance(root, ast.Attribute):
                path.append(root.attr)
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                inner = [root.id] * (root.id not in ("rr", "revremat"))
                parts = ["revremat", *inner, *reversed(path), node.attr]
                found.append((node.lineno, ".".join(parts)))
    return sorted(set(found))


def reason_above(text, line):
    """The comment that ends on the line before, in one line."""
    lines, said = text.splitlines()[: line - 1], []
    while lines and lines[-1].startswith("# "):
        said.append(lines.pop()[2:])
    return " ".join(reversed(said))


FILES = sorted(p.relative_to(EXPERIMENTS).as_posix() for p in EXPERIMENTS.rglob("*.py"))


def test_few_experiments_take_private_names_and_which_is_written_down():
    texts = {name: (EXPERIMENTS / name).read_text() for name in FILES}
    found = {name: {m for _, m in private_names(text)} for name, text in texts.items()}
    assert {name: modules for name, modules in found.items() if modules} == EXCEPTIONS
    assert sum(map(len, EXCEPTIONS.values())) <= MOST


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_each_exception_has_its_reason_above_it(name):
    text = (EXPERIMENTS / name).read_text()
    for line, _ in private_names(text):
        reason = reason_above(text, line)
        assert re.fullmatch(r"Private: .{20,}\.", reason), (name, line, reason)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import revremat as rr\nrr.fit(rr.Problem)", []),
        ("from revremat import xla\nxla.cost_of", []),
        ("import revremat\nrevremat.__version__", []),
        ("from flax import _nothing_of_ours", []),
        ("self._own = 1\nmodule._private()", []),
        ("'see `revremat._search`, which is private'", []),
        ("import revremat._fit", [(1, "revremat._fit")]),
        ("import revremat._fit as fit", [(1, "revremat._fit")]),
        ("from revremat import _search", [(1, "revremat._search")]),
        ("from revremat._search.passes import _ask", [(1, "revremat._search")]),
        ("from revremat.xla import Card, _cards", [(1, "revremat.xla._cards")]),
        ("def f():\n  from revremat._plan import Plan", [(2, "revremat._plan")]),
        (
            "from revremat.reversible._revbifpn import (\n  Head,\n  _round,\n)",
            [(1, "revremat.reversible._revbifpn")],
        ),
        ("import revremat as rr\n\nrr._measure.page", [(3, "revremat._measure")]),
        ("import revremat\nrevremat.xla._cards", [(2, "revremat.xla._cards")]),
        ("from revremat import xla\nxla._cards.CARDS", [(2, "revremat.xla._cards")]),
        ("importlib.import_module('revremat._fit')", [(1, "revremat._fit")]),
    ],
)
def test_private_names_are_found_however_they_are_taken(text, found):
    assert private_names(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a\n# Private: because.\nimport b", "Private: because."),
        ("# Private: it is\n# so.\nimport b", "Private: it is so."),
        ("# Private: of a.\nimport a\nimport b", ""),
        ("x = 1  # Private: beside it.\nimport b", ""),
    ],
)
def test_a_reason_is_the_comment_right_above(text, reason):
    assert reason_above(text, len(text.splitlines())) == reason
