"""Every public name says what it does, what it takes and raises, and shows it."""

import ast
import doctest
import importlib
import inspect
import re
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import revremat

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "_extensions"))

from public_names import public_names  # noqa: E402

MODULES = (
    *("", ".reversible", ".reversible.linen", ".sharding", ".policies"),
    *(".allocation", ".layers", ".xla"),
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public():
    """All functions and classes that users are given, by their full names."""
    found = {}
    for module in MODULES:
        for name in public_names(f"revremat{module}"):
            value = getattr(importlib.import_module(f"revremat{module}"), name)
            if inspect.isroutine(value) or inspect.isclass(value):
                found[f"revremat{module}.{name}"] = value
    return found


PUBLIC = public()


def sections(text):
    """The indented blocks of a docstring in Google style, by their heading."""
    return dict(re.findall(r"^(\w+):\n((?:  .*\n|\n)+)", f"{text}\n", re.MULTILINE))


def described(text):
    """The names that Args or Attributes describe."""
    blocks = "".join(sections(text).get(key, "") for key in ("Args", "Attributes"))
    heads = re.findall(r"^  ([\w*, ]+):", blocks, re.MULTILINE)
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def parameters(value):
    """What a caller may give, without what frameworks add."""
    if inspect.isclass(value):
        if getattr(value, "_is_protocol", False):
            return set()
        if value.__init__ is object.__init__:
            return set()
        added = (
            {"parent", "name"}
            if "parent" in vars(value).get("__dataclass_fields__", {})
            else set()
        )
        value = value.__init__
    else:
        added = set()
    every = inspect.signature(value).parameters.values()
    given = {p.name for p in every} - {"self"} - added
    kinds = {p.kind for p in every}
    return set() if kinds == {inspect.Parameter.VAR_KEYWORD} else given


def raises_user_error(function):
    """Whether the function's own lines raise a `UserError`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(
        isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and ast.unparse(node.exc.func).endswith("UserError")
        for node in ast.walk(tree)
    )


def missing(name, value):
    """What a docstring lacks."""
    text = inspect.getdoc(value) or ""
    found = [] if text else ["text"]
    if not sections(text).get("Example"):
        found.append("Example")
    inherited = inspect.isclass(value) and "__init__" not in vars(value)
    if not inherited or "__dataclass_fields__" in vars(value):
        found += sorted(parameters(value) - described(text))
    if inspect.isfunction(value) and raises_user_error(value):
        found += [] if "Raises" in sections(text) else ["Raises"]
    return found


def test_every_public_name_says_what_it_takes_and_shows_it():
    told = {name: missing(name, value) for name, value in PUBLIC.items()}
    assert {name: lacks for name, lacks in told.items() if lacks} == {}


def undescribed(first, second=1, *rest):
    """Does something.

    Args:
      first: Of two.
    """
    if first:
        raise revremat.UserError("no")


def test_what_a_docstring_lacks_is_found():
    assert missing("", undescribed) == ["Example", "rest", "second", "Raises"]


def modules():
    """Those of the package and of the experiments whose docstrings have examples."""
    files = [
        p for top in ("revremat", "experiments") for p in (ROOT / top).rglob("*.py")
    ]
    shown = [p for p in files if ">>> " in p.read_text() and p.stem != "__main__"]
    names = (".".join(p.relative_to(ROOT).with_suffix("").parts) for p in shown)
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed, tried = doctest.testmod(module, optionflags=OPTIONS)
    assert failed == 0 < tried
