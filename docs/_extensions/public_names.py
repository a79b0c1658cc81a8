"""`{public-names} MODULE`: autodoc of a module's public names.

What is public is what the module's `__init__` imports as itself
(`from ... import fit as fit`). `:names:` takes some of them; `:except-names:` leaves
some out, which another block on the page has.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

_CODE = re.compile(r"(?<!`)`[^`]+`(?!`)(?=(\w)?)")


def public_names(module: str) -> list[str]:
    """Names that a module gives to its users, in the order of its source."""
    path = importlib.import_module(module).__file__
    assert path is not None
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    if Path(path).name != "__init__.py":
        defined = (ast.ClassDef, ast.FunctionDef)
        names = [one.name for one in tree.body if isinstance(one, defined)]
        return [name for name in names if not name.startswith("_")]
    names = [
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    return [name for name in names if not name.startswith("_")]


def _directive(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


class PublicNames(SphinxDirective):
    """The directive."""

    required_arguments = 1
    option_spec = {  # noqa: RUF012
        "names": directives.unchanged,
        "except-names": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        names = public_names(module)
        if chosen := self.options.get("names"):
            names = chosen.split()
        left_out = set(self.options.get("except-names", "").split())
        lines: list[str] = []
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if name in left_out or inspect.ismodule(value):
                continue
            kind = _directive(module, name)
            lines += [f".. {kind}:: {module}.{name}"]
            if kind == "autoclass":
                lines += ["   :members:"]
            if kind == "autodata":
                lines += ["   :no-value:"]
            lines += [""]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def as_rst(app, what, name, value, options, lines):
    """Docstrings quote code in single backticks, as Markdown does."""
    if what == "data" and value.__doc__ == type(value).__doc__:
        lines.clear()  # its type's
        return
    text = _CODE.sub(lambda found: found[0] + "\\ " * bool(found[1]), "\n".join(lines))
    lines[:] = text.replace("|det dy/dx|", "`|det dy/dx|`").split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", as_rst)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
