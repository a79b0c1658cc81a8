"""What a lowered program is known by: what it computes, and which lines it is told by.

Whoever asks for a compile is no part of it. JAX writes the whole stack of calls beside
each operation; of that only the innermost line of the user's counts, as in reports.
"""

import hashlib
import io
import re
from typing import Any

from revremat._compat import without_lines
from revremat._sources import begins_program, is_users

_DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_CALLSITE = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_FILE = re.compile(r'"([^"]*)":(\d+):.*')
_REFERENCE = re.compile(r"#loc\d*")
_MOST_ELEMENTS = 16


def module_digest(lowered: Any) -> str:
    """A hash of a `jax.stages.Lowered`'s module, arrays as bytes, and of its lines."""
    operation = lowered.compiler_ir().operation
    text = operation.get_asm(
        enable_debug_info=True, large_elements_limit=_MOST_ELEMENTS
    )
    digest = hashlib.sha256(_told_by(text).encode())
    module = io.BytesIO()
    without_lines(operation).write_bytecode(module)
    digest.update(module.getbuffer())
    return digest.hexdigest()


def _told_by(text: str) -> str:
    """A module's text, with one line of the user's for each operation."""
    lines = text.split("\n")
    defined: dict[str, str] = {m[1]: m[2] for m in map(_DEFINED.match, lines) if m}
    # What is said, and whether that has a line, is where a program begins, or neither.
    known: dict[str, tuple[str, str]] = {}

    def tell(name: str) -> tuple[str, str]:
        waiting = [name]
        while waiting:
            one = waiting[-1]
            parts = [p for p in _REFERENCE.findall(defined.get(one, "")) if p != one]
            unknown = [part for part in parts if part not in known]
            if one not in known and unknown:
                waiting += unknown
                continue
            waiting.pop()
            known[one] = known.get(one) or _said(defined.get(one, ""), known)
        return known[name]

    kept = [line for line in lines if not _DEFINED.match(line)]
    return _REFERENCE.sub(lambda m: tell(m[0])[0], "\n".join(kept))


def _said(definition: str, known: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if found := _CALLSITE.fullmatch(definition):
        callee, caller = (known[part] for part in found.groups())
        return callee if callee[1] else caller
    if found := _FILE.fullmatch(definition):
        file, line = found.groups()
        if begins_program(file):
            return "", "end"
        return (f"{file}:{line}", "line") if is_users(file) else ("", "")
    said = _REFERENCE.sub(lambda m: known[m[0]][0], definition)
    kinds = [known[part][1] for part in _REFERENCE.findall(definition)]
    kind = next(filter(None, kinds), "")
    return said, kind
