"""What attends to one piece of keys in a ring: the protocol, and cuDNN's attention."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax

from revremat import _compat
from revremat._compat import Scope
from revremat._errors import UserError
from revremat._primitives import ATTENTION


@runtime_checkable
class RingKernel(Protocol):
    """Attention to one piece of keys, and its derivative when there are others.

    It runs on one device, within `jax.shard_map`. `causal` is only asked of pieces of
    equal length, in which a query sees the keys up to its own place.

    Example:
      >>> from revremat import sharding
      >>> isinstance(sharding.CudnnKernel(), sharding.RingKernel)
      True
    """

    def forward(
        self, q: Any, k: Any, v: Any, *, causal: bool, scale: float
    ) -> tuple[Any, Any]:
        """What queries attend to in this piece, and the log of each softmax's sum.

        Args:
          q: Queries, `[B, N, H, K]`.
          k: Keys, `[B, M, H, K]`.
          v: Values, as `k`.
          causal: Whether a query sees only the keys up to its own place.
          scale: Of the scores.

        Returns:
          `[B, N, H, K]`; and `log(sum(exp(scale * scores)))`, `[B, H, N]`, in float32
          at least.
        """
        ...

    def backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        y: Any,
        log_sums: Any,
        g: Any,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Any, Any, Any]:
        """Gradients of queries, keys and values that this piece contributes.

        A weight is `exp(scale * score - log_sums)`, and the gradient of a scaled score
        is `weight * (g @ v - sum(g * y))`, as in FlashAttention's own derivative.

        Args:
          q: Queries.
          k: Keys of this piece.
          v: Values of this piece.
          y: What queries attend to in all pieces.
          log_sums: Of all pieces.
          g: The cotangent of `y`.
          causal: As for `forward`.
          scale: Of the scores.
        """
        ...


@dataclass(frozen=True)
class CudnnKernel:
    """cuDNN's attention, in float16 or bfloat16, on NVIDIA GPUs from Ampere on.

    `jax.nn.dot_product_attention` gives the log sums, and ignores their cotangent: what
    joins its pieces by hand has wrong gradients. Here its backward kernel is handed the
    result and the log sums of all pieces.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import sharding
      >>> target = rr.target("h100:8")
      >>> mesh = target.mesh({"data": 1, "context": 8})
      >>> layout = sharding.Layout(mesh, sharding.context_parallel("context"))
      >>> kernel = sharding.CudnnKernel()
      >>> attend = lambda x: sharding.ring_attention(layout, x, x, x, kernel=kernel)
      >>> where = jax.NamedSharding(mesh, jax.P(None, "context"))
      >>> x = jax.ShapeDtypeStruct((1, 8192, 8, 64), jnp.bfloat16, sharding=where)
      >>> found = rr.measure(attend, x, target=target)
      >>> sorted({one.kind for one in found.collectives})
      ['collective-permute']
    """

    def forward(self, q, k, v, *, causal, scale):
        """As `RingKernel.forward`."""
        calls = _calls(_specs(q, k, v), causal, scale)
        known = {**calls.constants, **_each(calls.inputs[:3], q, k, v)}
        return _run(calls.before, known, calls.made)

    def backward(self, q, k, v, y, log_sums, g, *, causal, scale):
        """As `RingKernel.backward`."""
        calls = _calls(_specs(q, k, v), causal, scale)
        variables = *calls.inputs, *calls.made
        known = {**calls.constants, **_each(variables, q, k, v, g, y, log_sums)}
        return _run(calls.after, known, calls.gradients)


@dataclass(frozen=True)
class _Calls:
    """cuDNN's two calls, as JAX makes them to differentiate attention.

    Attributes:
      constants: Variables that have values, with those.
      inputs: Variables of queries, keys, values and the cotangent.
      before: Equations up to the forward call.
      made: Variables of its result and of the log sums.
      after: The other equations, the backward call among them.
      gradients: Variables of what that gives.
    """

    constants: Mapping[Any, Any]
    inputs: Sequence[Any]
    before: Sequence[Any]
    made: Sequence[Any]
    after: Sequence[Any]
    gradients: Sequence[Any]


def _each(variables: Sequence[Any], *values: Any) -> dict[Any, Any]:
    return dict(zip(variables, values, strict=True))


def _specs(*arrays: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)


def _calls(specs: tuple[jax.ShapeDtypeStruct, ...], causal: bool, scale: float) -> Any:
    attend = functools.partial(
        jax.nn.dot_product_attention,
        is_causal=causal,
        scale=scale,
        implementation="cudnn",
    )
    both = lambda q, k, v, g: jax.vjp(attend, q, k, v)[1](g)
    try:
        closed = jax.make_jaxpr(both)(*specs, specs[0])
    except (NotImplementedError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        what = f"{specs[0].dtype.name}{list(specs[0].shape)}"
        raise UserError(
            f"sharding.CudnnKernel: cuDNN cannot attend to {what}: {reason}; write "
            "bfloat16 and a target with cuDNN, or leave kernel= away"
        ) from error
    jaxpr, constants = closed.jaxpr, dict(_compat.constants_of(closed))
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    (at,) = (i for i, n in enumerate(names) if n.startswith(ATTENTION) and "fwd" in n)
    before, forward, after = jaxpr.eqns[:at], jaxpr.eqns[at], jaxpr.eqns[at + 1 :]
    parts = [*before, forward], forward.outvars, [*before, *after], jaxpr.outvars
    return _Calls(constants, jaxpr.invars, *parts)


def _run(
    eqns: Sequence[Any], known: dict[Any, Any], wanted: Sequence[Any]
) -> tuple[Any, ...]:
    """Some equations of a program, on values of some of its variables."""
    read = lambda atom: atom.val if hasattr(atom, "val") else known[atom]
    for eqn in eqns:
        found = _compat.bind(eqn, [read(atom) for atom in eqn.invars], Scope())
        known.update(zip(eqn.outvars, found, strict=True))
    return tuple(known[variable] for variable in wanted)
