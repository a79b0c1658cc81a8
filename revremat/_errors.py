"""The one exception class for mistakes a user can mend."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from revremat._printable import sentence


class UserError(ValueError):
    """What was written, what is wrong with it, and what to write instead.

    The command line prints its message as one sentence and no traceback. Whatever it is
    made of, the message is one line of at most 400 printable characters.

    Args:
      message: The sentence.

    Example:
      >>> import revremat as rr
      >>> try:
      ...     rr.target("h100:0")
      ... except rr.UserError as error:
      ...     print(type(error).__name__)
      UserError
    """

    def __init__(self, message: str = ""):
        super().__init__(sentence(message))


class DoesNotFit(UserError, AssertionError):
    """A program takes more than its budget, or than its compiler has room for.

    One class for a search with `strict`, for `rr.assert_fits`, whose tests it fails as
    assertions do, and for compilers that refuse a program themselves.

    Args:
      message: What takes more than what, by how much.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> try:
      ...     rr.assert_fits(jnp.sin, jnp.ones(512), target="cpu:1", budget="1KiB")
      ... except rr.DoesNotFit as error:
      ...     print("takes more" in str(error) or "more" in str(error))
      True
    """


@contextlib.contextmanager
def arguments_told(
    label: str, function: Callable[..., Any], args: Sequence[Any]
) -> Iterator[None]:
    """While a function is traced: says what is wrong with its arguments.

    Args:
      label: What messages call the function.
      function: Of the user.
      args: What it is traced with.

    Raises:
      UserError: They are too many or too few, or the function decides by a value in
        Python, or counts by it, and some of its arguments are Python's.
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
    except TypeError:
        if (signature := _refusing(function, args)) is None:
            raise
        given = "1 argument" if len(args) == 1 else f"{len(args)} arguments"
        raise UserError(f"{label} takes {signature}, and is given {given}") from None


def _refusing(function: Callable[..., Any], args: Sequence[Any]) -> str | None:
    """What a function takes, if that is not these."""
    if hasattr(function, "lower"):  # jitted
        function = getattr(function, "__wrapped__", function)
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # Some callables do not tell.
        return None
    try:
        signature.bind(*args)
    except TypeError:
        return str(signature)
    return None
