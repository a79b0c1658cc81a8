"""A program's loops as a person writes them in plain JAX, without any plan.

While a loss runs, `jax.lax.scan` is another function: it writes the loop as the scan it
is, as one with several layers to an iteration (`lax.scan(..., unroll=4)`), as one
without a loop (`unroll=True`) or as a Python loop over the layers, each layer under
`jax.checkpoint` with one of JAX's policies or under none. Where a program has its
layers in a Python loop, it calls each by `layer_of`, which does the same. Nothing of
revremat is in what comes out.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
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
    "everything": _JAX.everything_saveable,
    "recompute all": _JAX.nothing_saveable,
    "dots": _JAX.dots_saveable,
    "dots_no_batch": _JAX.dots_with_no_batch_dims_saveable,
}
"""JAX's presets by the names they have here; the first is no checkpoint.

The second may save as much, and still makes each layer a function of its own.
"""


@dataclass(frozen=True)
class Loops:
    """How loops are written.

    Attributes:
      form: As a scan, as one unrolled in part or whole, or in Python.
      policy: One of `POLICIES`.
      number: Of how many layers, the first that run; by default of all.
      rest: The policy of the others.
    """

    form: Form = "scan"
    policy: str = "save all"
    number: int | None = None
    rest: str = "save all"

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.policy}, {self.form}"
        return f"{self.number} x {self.policy}, then {self.rest}, {self.form}"

    def policy_of(self, layer: int) -> str:
        """That of a layer, the one that runs first is 0."""
        is_first = self.number is None or layer < self.number
        return self.policy if is_first else self.rest


@dataclass
class _Found:
    """What was rewritten while a loss ran.

    Attributes:
      loops: How it was.
      scans: The number of scans.
      layers: The number of layers, in scans and in Python loops.
    """

    loops: Loops
    scans: int = 0
    layers: int = 0

    def next(self, layer: Callable[..., Any], apart: bool = True) -> Callable[..., Any]:
        """A layer under the policy of the next one, and from then on of the one after.

        Args:
          layer: A function of pytrees of arrays.
          apart: Whether XLA could merge what is recomputed with the forward pass; it
            cannot within a loop.
        """
        policy = POLICIES[self.loops.policy_of(self.layers)]
        self.layers += 1
        if policy is None:
            return layer
        return jax.checkpoint(layer, policy=policy, prevent_cse=apart)


_now: ContextVar[_Found | None] = ContextVar("how loops are written", default=None)


def written(loss: Callable[..., Any], loops: Loops) -> Callable[..., Any]:
    """The same loss with its loops written like that.

    Loops inside of a loop's layers stay as they are.

    Args:
      loss: A function of pytrees of arrays; it is not jitted itself, since what is
        jitted is traced once.
      loops: How.
    """

    def plain(*args: Any) -> Any:
        with _rewriting(loops):
            return loss(*args)

    return plain


def ways(loss: Callable[..., Any], specs: Sequence[Any]) -> list[Loops]:
    """All in which a loss's loops may be written, but for the one in which they are."""
    found = _found(loss, specs)
    if found.scans:
        every = [Loops(form, policy) for form in FORMS for policy in POLICIES]
        return [way for way in every if way != Loops()]
    if found.layers:
        every = [Loops("Python loop", policy) for policy in POLICIES]
        return [way for way in every if POLICIES[way.policy] is not None]
    return []


def num_layers(loss: Callable[..., Any], specs: Sequence[Any]) -> int:
    """How many layers a loss's loops have together."""
    return _found(loss, specs).layers


def _found(loss: Callable[..., Any], specs: Sequence[Any]) -> _Found:
    with _rewriting(Loops()) as found:
        jax.eval_shape(lambda *args: loss(*args), *specs)
    return found


def layer_of(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A layer for a Python loop to call, under the policy of `written` if it is that.

    Args:
      layer: A function of pytrees of arrays.
    """
    found = _now.get()
    return layer if found is None else found.next(layer)


@contextlib.contextmanager
def _rewriting(loops: Loops) -> Iterator[_Found]:
    """Within it `jax.lax.scan` and `layer_of` write loops so."""
    scan, found, depth = jax.lax.scan, _Found(loops), [0]

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
        found.scans += 1
        depth[0] += 1
        try:
            if loops.form == "Python loop":
                layers = [found.next(f) for _ in range(number)]
                return _in_python(layers, init, xs, reverse)
            carry, results = init, []
            for layer, start, end in _runs(found, f, number):
                at_a_time = FORMS[loops.form]
                if loops.form != "scan":
                    unroll = True if at_a_time is True else min(at_a_time, end - start)
                if reverse:
                    start, end = number - end, number - start
                part = xs
                if end - start < number:
                    part = jax.tree.map(lambda x, a=start, b=end: x[a:b], xs)
                carry, ys = scan(
                    layer, carry, part, end - start, reverse, unroll, **more
                )
                results.append(ys)
            results = results[::-1] if reverse else results
            if len(results) == 1:
                return carry, results[0]
            return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys), *results)
        finally:
            depth[0] -= 1

    token = _now.set(found)
    jax.lax.scan = rewritten
    try:
        yield found
    finally:
        jax.lax.scan = scan
        _now.reset(token)


def _runs(
    found: _Found, layer: Callable[..., Any], number: int
) -> Iterator[tuple[Callable[..., Any], int, int]]:
    """The layers of a scan by their policies: a function, the first, the one behind."""
    start = 0
    while start < number:
        policy, first = found.loops.policy_of(found.layers), found.layers
        run, end = found.next(layer, FORMS[found.loops.form] is True), start + 1
        while end < number and found.loops.policy_of(found.layers) == policy:
            found.layers += 1
            end += 1
        assert found.layers - first == end - start
        yield run, start, end
        start = end


def _in_python(
    layers: Sequence[Callable[..., Any]], carry: Any, xs: Any, reverse: bool
) -> tuple[Any, Any]:
    """What a scan gives, from a Python loop over its iterations."""
    results, number = [], len(layers)
    for layer, k in zip(
        layers, reversed(range(number)) if reverse else range(number), strict=True
    ):
        carry, y = layer(carry, jax.tree.map(lambda x, k=k: x[k], xs))
        results.append(y)
    if reverse:
        results.reverse()
    return carry, jax.tree.map(lambda *ys: jnp.stack(ys), *results)
