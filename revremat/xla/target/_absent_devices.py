"""What a program asks JAX about its devices, answered for devices that are not there.

A program may ask while it is traced which platform it is for, and how many devices
there are, and be another program on each. It is traced here for a machine elsewhere,
and so it is answered as it would be there.
"""

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
from jax.extend import backend

from revremat import _compat
from revremat.xla.target._targets import Target

_answers: ContextVar[Mapping[str, Any] | None] = ContextVar("answers", default=None)
_traced_for = jax.make_user_context(None)


@contextlib.contextmanager
def traced_for(target: Target) -> Iterator[None]:
    """Within it, what a program asks JAX about its devices is answered for a target.

    Functions that were traced for other devices are traced anew.

    Args:
      target: What answers.

    Example:
      >>> import jax, revremat as rr
      >>> from revremat import xla
      >>> user = {"jax": jax, "__name__": "a_program"}  # revremat's own code is exempt
      >>> with xla.traced_for(rr.target("h100:1")):
      ...     print(eval("jax.default_backend()", user))
      gpu
    """
    devices = target.devices
    if devices == jax.devices():
        yield
        return
    _own()
    token = _answers.set(
        {
            "default_backend": devices[0].platform,
            "devices": devices,
            "local_devices": devices[: target.devices_per_host],
            "device_count": target.num_devices,
            "local_device_count": target.devices_per_host,
            "process_count": target.num_hosts,
            "get_backend": devices[0].client,
        }
    )
    try:
        with _traced_for(target.spec):
            yield
    finally:
        _answers.reset(token)


_QUESTIONS = (
    "default_backend",
    "devices",
    "local_devices",
    "device_count",
    "local_device_count",
    "process_count",
)


@functools.cache
def _own() -> dict[str, Callable[..., Any]]:
    """JAX's own answers; its functions ask `_query` from now on.

    They are changed in place, for many modules hold them under a name of their own.
    """
    own = {}
    for name in _QUESTIONS:
        asked = getattr(jax, name)
        if not isinstance(asked, types.FunctionType):  # it remembers its answers
            own[name] = asked
            setattr(jax, name, _instead_of(asked, name))
            continue
        code, defaults = asked.__code__, asked.__defaults__
        own[name] = types.FunctionType(code, asked.__globals__, name, defaults)
        own[name].__kwdefaults__ = asked.__kwdefaults__
        asked.__signature__ = inspect.signature(asked)
        asked.__code__ = _asking.__code__.replace(co_name=name, co_qualname=name)
        asked.__defaults__ = asked.__kwdefaults__ = None
    backend.get_backend = _instead_of(backend.get_backend, "get_backend")
    return own


def _instead_of(asked: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(asked)
    def instead(*args: Any, **kwargs: Any) -> Any:
        answers = _answers.get()
        if answers is None or args or kwargs:
            return asked(*args, **kwargs)
        return answers[name]

    return instead


def _asking(*args: Any, **kwargs: Any) -> Any:
    """What stands in JAX's functions, which know nothing of this module."""
    from revremat.xla.target._absent_devices import _query

    return _query(args, kwargs)


_OURS = (_compat.INTERNALS, "revremat.")


def _query(args: Any, kwargs: Any) -> Any:
    name = sys._getframe(1).f_code.co_name
    asker = sys._getframe(2).f_globals.get("__name__", "")
    # What JAX and we do with the devices of this machine is about this machine.
    ours = asker.startswith(_OURS) and asker not in _compat.ASK_FOR_PROGRAMS
    answers = _answers.get()
    if answers is None or args or kwargs or ours:
        return _own()[name](*args, **kwargs)
    found = answers[name]
    return list(found) if isinstance(found, list) else found
