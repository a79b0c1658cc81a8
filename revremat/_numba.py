"""Functions that Numba compiles: it is imported where the first of them is called."""

import functools
from collections.abc import Callable
from typing import Any

from revremat._errors import UserError


class njit[**P, R]:
    """Numba's `njit` without its import, which is slow; to apply a plan needs none.

    The compiled code is cached on disk and runs without the interpreter's lock.
    Such functions may call one another.

    Args:
      function: Plain Python, as Numba takes it.
      inline: When it is inlined, as `numba.njit` takes it.
    """

    def __init__(self, function: Callable[P, R], inline: str = "never"):
        self._function, self._inline = function, inline
        functools.update_wrapper(self, function)

    @functools.cached_property
    def compiled(self) -> Any:
        """Numba's own function.

        Raises:
          UserError: Numba cannot be imported.
        """
        try:
            import numba
        except ImportError as error:
            where = f"{self._function.__module__}.{self._function.__name__}"
            raise UserError(
                f"Numba cannot be imported ({error}), and {where} is compiled by it: "
                "run 'pip install numba'; only applying and measuring plans do without"
            ) from None
        options = {"cache": True, "nogil": True, "inline": self._inline}
        return numba.njit(**options)(self._function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.compiled(*args, **kwargs)

    @property
    def _numba_type_(self) -> Any:
        """What it is to a compiled function that calls it."""
        return self.compiled._numba_type_
