"""`{command-help} report`: what `revremat report --help` prints."""

import contextlib
import io
import os
import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def help_of(command: str) -> str:
    """The help of a command of revremat; of the program itself for ""."""
    from revremat._cli import main

    os.environ["COLUMNS"] = "88"
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.suppress(SystemExit),
    ):
        main([*command.split(), "--help"])
    return _COLORS.sub("", out.getvalue())


class CommandHelp(SphinxDirective):
    """The directive."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = help_of(self.arguments[0] if self.arguments else "")
        return [nodes.literal_block(text, text, language="text")]


def setup(app):
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
