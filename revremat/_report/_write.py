"""write: a result as a page, as JSON or as text in a file."""

from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat._io._files import write_text
from revremat._report._text import render
from revremat._report.page import page


def write(result: Any, path: str | Path) -> Path:
    """Writes a result to `*.html`, `*.json` or `*.txt`, whole or not at all.

    Args:
      result: A `Measurement`, a list of them, or a `Frontier`; as text or JSON, any
        other of our results, too.
      path: Where; the suffix says how.

    Returns:
      The path.

    Raises:
      UserError: Another suffix, what has no such form, or a place that cannot be
        written.

    Example:
      >>> import os, tempfile, jax.numpy as jnp, revremat as rr
      >>> m = rr.measure(jnp.sin, jnp.ones(256), target="cpu:1", name="sine")
      >>> folder = tempfile.mkdtemp()
      >>> path = rr.write(m, os.path.join(folder, "sine.json"))
      >>> rr.load(path).program
      'sine'
    """
    path = Path(path)
    match path.suffix:
        case ".json" if isinstance(result, list | tuple):
            text = "[\n" + ",\n".join(map(_json, result)) + "\n]\n"
        case ".json":
            text = _json(result) + "\n"
        case ".html":
            text = page(result)
        case ".txt":
            text = render(result)
        case _:
            raise UserError(
                f"cannot write {str(path)!r}: write *.html, *.json or *.txt"
            )
    return write_text(path, text)


def _json(result: Any) -> str:
    if not hasattr(result, "to_json"):
        raise UserError(f"a {type(result).__name__} cannot be written as JSON")
    return result.to_json()
