"""Problem: what is trained, before any decision about memory."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from revremat._arguments import has_modules
from revremat._errors import UserError

Loss = Callable[..., Any]
"""`loss(*specs) -> scalar`, differentiable in its first argument."""

Step = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """A loss, the arguments it takes, and how it becomes the step that is run.

    Attributes:
      loss: `loss(*specs) -> scalar`, differentiable in its first argument.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s, with shardings
        where the target has more than one device.
      step: Turns a loss (this one, or a rewritten one with the same signature) into
        `(step_fn, step_specs)`: the function that is compiled and run, and its
        arguments. By default `jax.value_and_grad(loss)` on `specs`, or
        `nnx.value_and_grad` where Flax modules are among them; with auxiliary values
        where the loss returns any, and nothing for integers among the parameters. A
        step may change the modules that it is given, as one under `nnx.jit` does.
      donate: Positions among the step's arguments whose buffers it may reuse.
      name: What reports call it.
      layout: The `sharding.Layout` of its activations, where there is one: reports name
        the collectives that its rules do not explain.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: jnp.tanh(x @ w).sum()
      >>> def make_step(loss):
      ...     step = lambda w, x: w - 0.1 * jax.grad(loss)(w, x)
      ...     return step, (w, x)
      >>> problem = rr.Problem(loss, (w, x), make_step, donate=(0,), name="tanh")
      >>> rr.measure(problem, target="cpu:1").memory.alias_bytes  # w is donated
      256
    """

    loss: Loss
    specs: tuple[Any, ...]
    step: Callable[[Loss], tuple[Step, tuple[Any, ...]]] | None = None
    donate: tuple[int, ...] = ()
    name: str = field(default="", kw_only=True)
    layout: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        if not isinstance(self.specs, tuple | list):
            raise UserError(
                "a Problem's specs are the arguments of its loss, as in specs=(w, x); "
                f"this is one {type(self.specs).__name__}: put it in a tuple"
            )
        object.__setattr__(self, "donate", positions(self.donate))

    def make_step(self, loss: Loss | None = None) -> tuple[Step, tuple[Any, ...]]:
        """The step function and its arguments, for this loss or a rewritten one.

        Args:
          loss: A function with the signature of `self.loss`; by default that one.

        Returns:
          `(step_fn, step_specs)`, ready for `jax.jit(step_fn, donate_argnums=donate)`.
        """
        loss = self.loss if loss is None else loss
        if self.step is not None:
            return _checked(self.step(loss))
        return _value_and_grad(loss), self.specs


def _checked(made: Any) -> tuple[Step, tuple[Any, ...]]:
    """What `Problem.step` returned, if it is what it says."""
    match made:
        case (step, (*specs,)) if callable(step):
            return step, tuple(specs)
    told = f"{type(made).__name__}"
    if isinstance(made, tuple | list):
        told = f"({', '.join(type(one).__name__ for one in made)})"
    raise UserError(
        "Problem.step takes a loss and returns `(step, specs)`, a function and the "
        f"tuple of its arguments; this one returned {told}"
    )


def positions(donate: Any) -> tuple[int, ...]:
    """Donated arguments, by their positions.

    Raises:
      UserError: They are no whole numbers.
    """
    try:
        return tuple(map(operator.index, donate if np.iterable(donate) else (donate,)))
    except TypeError:
        raise UserError(
            f"arguments are donated by positions, as in donate=(0,), not by {donate!r}"
        ) from None


def check_sizes(where: str, shape: Any) -> None:
    """Refuses an array whose size is not known.

    Args:
      where: What messages call the array.
      shape: Its sizes, if it has a shape at all.

    Raises:
      UserError: One is negative, or no whole number, as a symbol of `jax.export` is.
    """
    sizes = shape if isinstance(shape, tuple | list) else ()
    unknown = [size for size in sizes if not isinstance(size, int | np.integer)]
    if unknown:
        raise UserError(
            f"{where} has the shape {tuple(sizes)}; sizes are whole numbers: write one "
            f"for {unknown[0]!r}, since bytes depend on it"
        )
    if sizes and min(sizes) < 0:
        raise UserError(
            f"{where} has the shape {tuple(sizes)}; sizes are zero or more: write one "
            f"for {min(sizes)}"
        )


def check_value(label: str, out: Any) -> None:
    """Refuses what a loss returns if there is no number to differentiate.

    Args:
      label: What messages call the loss.
      out: Arrays, or their shapes and dtypes.

    Raises:
      UserError: It is neither one floating-point number nor a pair that begins with it.
    """
    import jax

    value: Any = out[0] if isinstance(out, tuple) and len(out) == 2 else out
    got, instead = "a tree of arrays", "the mean or the sum"
    if isinstance(value, bool | int | float | complex):
        value = np.asarray(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = functools.partial(jax.numpy.issubdtype, value.dtype)
        if value.shape == () and kind(jax.numpy.floating):
            return
        got = f"{value.dtype}{list(value.shape)}"
        if kind(jax.numpy.complexfloating):
            instead = "its real part or size"
    raise UserError(
        f"{label}: a loss returns one floating-point number (or that and auxiliary "
        f"values), not {got}; take {instead}."
    )


def _value_and_grad(loss: Loss) -> Step:
    import jax

    label = getattr(loss, "__name__", type(loss).__name__)

    def with_aux(*args: Any) -> tuple[Any, Any]:
        out = loss(*args)
        check_value(label, out)
        return out if isinstance(out, tuple) else (out, None)

    def step(*args: Any) -> Any:
        transform: Any = jax.value_and_grad
        if has_modules(args):
            from flax import nnx

            graph = {"graph": True, "graph_updates": True}  # whatever Flax is set to
            transform = functools.partial(nnx.value_and_grad, **graph)
        differentiate = transform(with_aux, has_aux=True, allow_int=True)
        (value, aux), gradients = differentiate(*args)
        is_number = lambda g: g.dtype != jax.dtypes.float0
        gradients = jax.tree.map(lambda g: g if is_number(g) else None, gradients)
        return (value if aux is None else (value, aux)), gradients

    return step
