"""A program's loops as a person writes them in plain JAX, without any plan.

While a loss runs, `jax.lax.scan` is another function: it writes the loop as the scan it
is, as one with several layers to an iteration (`lax.scan(..., unroll=4)`), as one
without a loop (`unroll=True`) or as a Python loop over the layers, each layer under
`jax.checkpoint` with one of JAX's policies or under none. Nothing of revremat is in
what comes out.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

Form = Literal["scan", "unrolled by 4", "unrolled by 16", "unrolled", "Python loop"]
FORMS: dict[Form, bool | int] = {
    "scan": 1,
    "unrolled by 4": 4,
    "unrolled by 16": 16,
    "unrolled": True,
    "Python loop": True,
}
"""How loops are written, and how far they are unrolled then."""

_JAX = jax.checkpoint_policies
POLICIES: dict[str, Callable[..., Any] | None] = {
    "save all": None,
    "recompute all": _JAX.nothing_saveable,
    "dots": _JAX.dots_saveable,
    "dots_no_batch": _JAX.dots_with_no_batch_dims_saveable,
}
"""JAX's presets by the names they have here; the first is no checkpoint."""


@dataclass(frozen=True)
class Loops:
    """How loops are written.

    Attributes:
      form: As a scan, as one unrolled in part or whole, or in Python.
      policy: One of `POLICIES`.
    """

    form: Form = "scan"
    policy: str = "save all"

    def __str__(self) -> str:
        return f"{self.policy}, {self.form}"


def written(loss: Callable[..., Any], loops: Loops) -> Callable[..., Any]:
    """The same loss with its loops written like that.

    Loops inside of a loop's layers stay as they are.

    Args:
      loss: A function of pytrees of arrays; it is not jitted itself, since what is
        jitted is traced once.
      loops: How.
    """

    def plain(*args: Any) -> Any:
        with _scans(loops):
            return loss(*args)

    return plain


def has_loops(loss: Callable[..., Any], specs: Sequence[Any]) -> bool:
    """Whether there is a loop to write in another way."""
    with _scans(Loops()) as found:
        jax.eval_shape(lambda *args: loss(*args), *specs)
    return bool(found)


@contextlib.contextmanager
def _scans(loops: Loops) -> Iterator[list[int]]:
    """Within it `jax.lax.scan` writes loops so; gives the lengths of those it wrote."""
    scan, lengths, depth = jax.lax.scan, [], [0]
    policy = POLICIES[loops.policy]

    def rewritten(
        f: Callable[..., Any],
        init: Any,
        xs: Any = None,
        length: int | None = None,
        reverse: bool = False,
        unroll: int | bool = 1,
        **more: Any,
    ) -> Any:
        if depth[0]:
            return scan(f, init, xs, length, reverse, unroll, **more)
        number = length if length is not None else len(jax.tree.leaves(xs)[0])
        lengths.append(number)
        depth[0] += 1
        try:
            layer = f
            if policy is not None:
                # Within a loop nothing can be merged with the forward pass.
                apart = FORMS[loops.form] is True
                layer = jax.checkpoint(f, policy=policy, prevent_cse=apart)
            if loops.form == "Python loop":
                return _in_python(layer, init, xs, number, reverse)
            if loops.form != "scan":
                at_a_time = FORMS[loops.form]
                unroll = at_a_time if at_a_time is True else min(at_a_time, number)
            return scan(layer, init, xs, length, reverse, unroll, **more)
        finally:
            depth[0] -= 1

    jax.lax.scan = rewritten
    try:
        yield lengths
    finally:
        jax.lax.scan = scan


def _in_python(
    layer: Callable[..., Any], carry: Any, xs: Any, number: int, reverse: bool
) -> tuple[Any, Any]:
    """What a scan gives, from a Python loop over its iterations."""
    results = []
    for k in reversed(range(number)) if reverse else range(number):
        carry, y = layer(carry, jax.tree.map(lambda x, k=k: x[k], xs))
        results.append(y)
    if reverse:
        results.reverse()
    return carry, jax.tree.map(lambda *ys: jnp.stack(ys), *results)
