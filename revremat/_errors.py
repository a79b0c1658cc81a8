"""The one exception class for mistakes a user can mend."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax


class UserError(ValueError):
    """What was written, what is wrong with it, and what to write instead.

    The command line prints its message as one sentence and no traceback.
    """


@contextlib.contextmanager
def python_values(label: str, args: Sequence[Any]) -> Iterator[None]:
    """While a function is traced: says which of its arguments should be bound.

    Args:
      label: What messages call the function.
      args: What it is traced with.

    Raises:
      UserError: It decides by a value in Python, or counts by it, and some of its
        arguments are Python's.
    """
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerIntegerConversionError,
    ):
        for number, arg in enumerate(args):
            for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
                if isinstance(leaf, bool | int | float):
                    where = f"argument {number}{jax.tree_util.keystr(path)}"
                    raise UserError(
                        f"{label}: Python code depends on a value that is traced like "
                        f"an array, and {where} is {leaf!r}; if it is that one, bind "
                        "it beforehand with `functools.partial` or a lambda."
                    ) from None
        raise
