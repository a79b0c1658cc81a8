"""What may be left out where a public name or a command is called, and what holds.

The list is in `signatures.txt`. Where a change is meant, write it anew and read what
changed: `PYTHONPATH=. python tests/test_signatures.py > tests/signatures.txt`.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType

from revremat import RECOMPUTE

LISTED = Path(__file__).with_name("signatures.txt")
MODULES = (
    "revremat",
    "revremat._cli._diff",
    "revremat._cli._export",
    "revremat._cli._report",
    "revremat._cli._search",
    "revremat._export._places",
    "revremat._graph",
    "revremat._io._files",
    "revremat._measurement._what_if",
    "revremat._printable",
    "revremat._report._lock",
    "revremat._report._text",
    "revremat._search._begin",
    "revremat._search._heuristics",
    "revremat._search._keys",
    "revremat._search._layer_costs",
    "revremat._search._asking",
    "revremat._search._oracle",
    "revremat._search._probe_programs",
    "revremat._search._result",
    "revremat._search._space",
    "revremat._search._start",
    "revremat._search._state",
    "revremat.allocation",
    "revremat.policies",
    "revremat.reversible",
    "revremat.reversible.linen",
    "revremat.reversible.nnx",
    "revremat.sharding",
    "revremat.xla",
)
_SCHEMAS = {
    "revremat._frontier.SCHEMA_VERSION": 2,
    "revremat._graph.SCHEMA_VERSION": 2,
    "revremat._measurement._measurement.SCHEMA_VERSION": 5,
    "revremat._plan.SCHEMA_VERSION": 8,
    "revremat._report._diff.DIFF_SCHEMA": 1,
    "revremat._report._diff_plans.PLANS_SCHEMA": 2,
    "revremat._report._lock._SCHEMA": 1,
    "revremat._saved.FIT_SCHEMA": 2,
}
"""What files say that are written; with the next one, older ones are still read."""
_PACKAGES = {name for name in MODULES if not re.search("[.]_|linen|nnx", name)}
"""Names that these import are theirs; all others are told where they are defined."""
_PLAIN = (int, float, str, bool, tuple, type(RECOMPUTE))


def text_of(value):
    return repr(value) if isinstance(value, _PLAIN) else "..."


def defaults_of(function):
    """Its parameters that have a default, but for those that are None."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    return ", ".join(
        f"{one.name}={text_of(one.default)}"
        for one in parameters
        if one.default not in (inspect.Parameter.empty, None)
        and one.name not in ("message", "parent")
    )


def callables_of(module):
    """Public functions, classes and their public methods, by name; each once."""
    for name, found in sorted(vars(module).items()):
        if name.startswith("_") or not isinstance(found, type | FunctionType):
            continue
        defined = found.__module__
        is_named_here = defined not in MODULES and module.__name__ in _PACKAGES
        if defined == module.__name__ or (
            is_named_here and defined.startswith("revremat")
        ):
            yield name, found
            methods = vars(found) if inspect.isclass(found) else {}
            for method, function in sorted(methods.items()):
                function = getattr(function, "__func__", function)
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


def lines():
    for module in MODULES:
        for name, found in callables_of(importlib.import_module(module)):
            if told := defaults_of(found):
                yield f"{module}.{name}: {told}"


def test_what_is_left_out_is_as_it_is_listed():
    assert list(lines()) == LISTED.read_text().splitlines()


def test_files_are_of_the_schema_that_they_were():
    """What another program reads; a new number needs the old one read as well."""
    for name, number in _SCHEMAS.items():
        module, constant = name.rsplit(".", 1)
        assert getattr(importlib.import_module(module), constant) == number, name


def test_values_are_told_and_there_are_many():
    listed = LISTED.read_text()
    assert " at 0x" not in listed
    assert "revremat.measure: " in listed


if __name__ == "__main__":
    print("\n".join(lines()))
