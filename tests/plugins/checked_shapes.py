"""What checks the shapes in signatures, and nothing else of them, where tests run."""

import typing

from beartype import beartype
from jaxtyping import AbstractArray


def checked(function):
    """The function; checked at every call if its signature says a shape."""
    hints = getattr(function, "__annotations__", {})
    shapes = {name: hint for name, hint in hints.items() if _says_a_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return beartype(function)


def _says_a_shape(hint):
    is_shape = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return is_shape or any(map(_says_a_shape, typing.get_args(hint)))
