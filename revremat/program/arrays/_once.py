"""Arrays of a gradient that has no gradient in reverse itself, and the sentence why."""

from typing import Any, NoReturn

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from revremat._errors import UserError


def once(x: Any, why: str) -> Any:
    """The array itself; whoever differentiates it in reverse is told why that fails.

    A tangent passes, so `jax.jvp` of a gradient works.

    Args:
      x: An array of a backward pass.
      why: What cannot be done, up to what to write instead.
    """
    return _once.bind(x, why=why)


def _itself(x: Any, *, why: str) -> Any:
    del why
    return x


def _mapped(args: Any, dims: Any, *, why: str) -> Any:
    (x,), (dim,) = args, dims
    return once(x, why), dim


def _refuse(cotangent: Any, x: Any, *, why: str) -> NoReturn:
    del cotangent, x
    raise UserError(f"{why}, or take `jax.jvp` of the gradient")


_once = Primitive("differentiated_once")
_once.def_impl(_itself)
_once.def_abstract_eval(_itself)
ad.deflinear2(_once, _refuse)
batching.primitive_batchers[_once] = _mapped
mlir.register_lowering(_once, lambda ctx, x, *, why: [x])
