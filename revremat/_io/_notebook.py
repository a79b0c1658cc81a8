"""How results show themselves in a notebook: as in a terminal, in a box of HTML."""

import html
import importlib

_MOST_LINES = 60
_STYLE = "line-height: 1.25; overflow-x: auto; white-space: pre"


class InNotebooks:
    """A result that notebooks show as `rr.render` prints it."""

    def _repr_html_(self) -> str:
        # What prints results knows all of them, so they cannot import it.
        render = importlib.import_module("revremat._report._text").render
        lines = render(self).rstrip("\n").split("\n")
        if len(lines) > _MOST_LINES:
            rest = len(lines) - _MOST_LINES
            lines[_MOST_LINES:] = [f"... {rest} more lines: print(rr.render(...))"]
        return f'<pre style="{_STYLE}">{html.escape(chr(10).join(lines))}</pre>'
