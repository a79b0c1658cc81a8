"""What a function writes into lists and dicts that are none of its arguments.

While a function is traced its values are placeholders. What it puts of them elsewhere
(a list in a closure, an attribute of its object) would be of no use afterwards.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from revremat._arguments import _flax
from revremat._compat import is_tracer
from revremat._errors import UserError

_KINDS = (list, dict, set)
_DEEPEST = 3


@contextlib.contextmanager
def watched(
    label: str, function: Callable[..., Any], more: Iterable[Any] = ()
) -> Iterator[None]:
    """While a function is traced: looks at what it could write into.

    Args:
      label: What messages call it.
      function: The function.
      more: Other objects that it may share with its caller.

    Raises:
      UserError: It has written traced values into one of them, which is as before then;
        or it has changed a Flax module that is no argument.
    """
    before = [(name, x, x.copy()) for name, x in _reached(function, more)]
    try:
        with modules_are_arguments(label):
            yield
    finally:
        written = [
            (name, x, old) for name, x, old in before if _has_new_tracers(x, old)
        ]
        for _, x, old in written:
            x.clear()
            x.extend(old) if isinstance(x, list) else x.update(old)
    if written:
        name, x, _ = written[0]
        raise UserError(
            f"{label}: it writes traced values into the {type(x).__name__} {name}, "
            "which is none of its arguments; hand it over as one, or return what "
            "belongs there beside the value: (loss, auxiliary)"
        )


@contextlib.contextmanager
def modules_are_arguments(label: str) -> Iterator[None]:
    """While a function is traced: a Flax module of somewhere else is not changed.

    Args:
      label: What messages call the function.

    Raises:
      UserError: It has changed one, as what `nnx.cached_partial` binds is.
    """
    try:
        yield
    except _flax.trace_errors() as error:
        raise UserError(
            f"{label}: it changes a Flax module that is none of its arguments, or that "
            "it hands to a transformation of jax's in place of nnx's "
            f"({_flax.first_line(error)}); hand the module over as an argument"
        ) from None


def _has_new_tracers(x: Any, old: Any) -> bool:
    values = lambda x: list(x.values()) if isinstance(x, dict) else list(x)
    if len(x) == len(old) and all(
        a is b for a, b in zip(values(x), values(old), strict=True)
    ):
        return False
    known = {id(value) for value in values(old)}
    return any(is_tracer(v) for v in values(x) if id(v) not in known)


def _reached(
    function: Callable[..., Any], more: Iterable[Any]
) -> Iterator[tuple[str, Any]]:
    """Lists, dicts and sets by the names that the function knows them by."""
    seen: set[int] = set()

    def walk(name: str, x: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if not isinstance(x, _KINDS) or id(x) in seen or depth > _DEEPEST:
            return
        seen.add(id(x))
        yield name, x
        items = x.items() if isinstance(x, dict) else enumerate(x)
        for key, value in items:
            if isinstance(value, _KINDS):
                yield from walk(f"{name}[{key!r}]", value, depth + 1)

    for name, x in _named(function):
        yield from walk(name, x, 0)
    for x in more:
        yield from walk("in an attribute of a module", x, 0)


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    while isinstance(function, functools.partial):
        yield from (
            (f"bound by functools.partial as {k}", v)
            for k, v in (*enumerate(function.args), *function.keywords.items())
        )
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and hasattr(owner, "__dict__"):
        yield from ((f"self.{name}", x) for name, x in vars(owner).items())
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not filled yet
            yield repr(name), cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__:
            yield repr(name), function.__globals__[name]
