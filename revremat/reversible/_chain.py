"""Couplings one after the other, of which only the last output is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from revremat._action import INVERT, RECOMPUTE, SAVE, Action, for_each
from revremat._errors import UserError
from revremat.program._api import mark_block
from revremat.program.arrays._avals import instantiate, is_differentiable
from revremat.program.ir._actions_mark import write_actions
from revremat.reversible._coupling import (
    Coupling,
    chosen,
    only_after,
    together,
    vjp_of_run,
)
from revremat.reversible._replay import recall


def chain(
    couplings: Sequence[Coupling],
    params: Sequence[Any],
    x: Any,
    rest: Sequence[Any] | None = None,
    *,
    save_every: int | None = None,
    actions: Action | Sequence[Action] = INVERT,
) -> Any:
    """Apply couplings one after the other, keeping no activation of any.

    The values and gradients of `for c, p in zip(couplings, params): x = c.forward(p,
    x)`; streams may change in number and shape on the way. The backward pass starts
    from the last output and evaluates every map once, for its value and its gradient.
    For equal layers, `Repeat` compiles once, and `rr.stack` leaves actions to a plan.

    Args:
      couplings: They must not close over arrays that are being differentiated, nor over
        those of a `vmap` or `scan` around them: such belong in `rest`.
      params: One pytree for each.
      x: What the first is given.
      rest: What has no gradient, one pytree for each: RNG keys, running statistics.
      save_every: Keep the output of every so many couplings too, and start again from
        there: rounding errors of the inverse do not build up further than that.
      actions: `INVERT`, `RECOMPUTE` (keep the input) or `SAVE` (keep what plain
        autodiff would), for all couplings or for each.

    Returns:
      The last output, or `(output, aux of each)` if any coupling has one.

    Raises:
      UserError: Not one set of parameters or one action for each coupling, or an action
        that makes exceptions.

    Source: Gomez et al. 2017, algorithm 1, for any coupling.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import reversible
      >>> block = reversible.additive(lambda w, x: jnp.sin(w * x), lambda w, x: w * x)
      >>> f = lambda p: reversible.chain([block], [p], (jnp.ones(1), jnp.ones(1)))[1][0]
      >>> jax.grad(f)({"f": 0.0, "g": 1.0})["g"]
      Array(1., dtype=float32, weak_type=True)
    """
    couplings = tuple(couplings)
    count = len(couplings)
    if save_every is not None and save_every < 1:
        raise UserError(
            f"save_every={save_every} keeps nothing that can be started from; write 1 "
            "or more, or leave it out."
        )
    rest = (None,) * count if rest is None else tuple(rest)
    if len(params) != count or len(rest) != count:
        raise UserError(
            f"a chain of {count} couplings was given {len(params)} sets of parameters "
            f"and {len(rest)} of the rest; give one of each for every coupling."
        )

    kinds = _kinds(actions, count)
    # Where an inverse starts from: the end, what is saved, and layers not inverted.
    ends = [
        kind == "invert"
        and (
            kinds[k + 1 : k + 2] != ("invert",)
            or (save_every is not None and (k + 1) % save_every == 0)
        )
        for k, kind in enumerate(kinds)
    ]

    @jax.custom_vjp
    def call(params: Any, x: Any, rest: Any) -> tuple[Any, Any]:
        write_actions("chain", [Action(kind) for kind in kinds])
        auxes = []
        for k, coupling in enumerate(couplings):
            with jax.named_scope(f"coupling{k}"):
                x, aux = mark_block(coupling.run, "coupling")(params[k], x, rest[k])
            auxes.append(aux)
        return x, tuple(auxes)

    def forward(params: Any, x: Any, rest: Any):
        params, x, rest = jax.tree.map(lambda leaf: leaf.value, (params, x, rest))
        auxes, kept, dtypes = [], [], []
        for k, coupling in enumerate(couplings):
            before, pull = x, None
            dtypes.append(_Dtypes.of(x))
            with jax.named_scope(f"coupling{k}"):
                if kinds[k] == "save":
                    x, pull, aux = vjp_of_run(coupling, params[k], x, rest[k], _real)
                else:
                    x, aux = coupling.run(params[k], x, rest[k])
            auxes.append(aux)
            kept.append(
                {"save": pull, "recompute": before}.get(
                    kinds[k], x if ends[k] else None
                )
            )
        again = tuple(map(recall, rest, auxes))
        return (x, tuple(auxes)), (params, again, kept, dtypes)

    def backward(residuals: Any, cotangents: Any):
        params, rest, kept, dtypes = residuals
        ct, y = jax.tree.map(instantiate, cotangents[0]), None
        auxes = jax.tree.map(_unless_zero, cotangents[1])
        grads: list[Any] = [None] * count
        for k in reversed(range(count)):
            with jax.named_scope(f"coupling{k}"):
                left = only_after(rest[k], ct)
                if kinds[k] == "save":
                    aux = _real(jax.tree.map(instantiate, cotangents[1][k]))
                    grads[k], ct = kept[k]((ct, aux))
                    y = None
                elif kinds[k] == "recompute":
                    y, ct = together(kept[k], ct)
                    with jax.named_scope("rematted_computation"):
                        choose = partial(chosen, cotangents=auxes[k])
                        _, pull, _ = vjp_of_run(
                            couplings[k], params[k], y, left, choose
                        )
                    grads[k], ct = pull((ct, auxes[k]))
                else:
                    y, ct = together(kept[k] if ends[k] else y, ct)
                    y, grads[k], ct = couplings[k].pull_back(
                        params[k], y, ct, left, auxes[k]
                    )
                    y, ct = dtypes[k].cast(y), dtypes[k].cast(ct)
            y, grads[k], ct = together(y, grads[k], ct)
        return tuple(grads), ct, None

    # Most aux is not differentiated, which costs nothing where that is known.
    call.defvjp(forward, backward, symbolic_zeros=True)
    y, aux = call(tuple(params), x, rest)
    return (y, aux) if any(c.has_aux for c in couplings) else y


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Dtypes:
    """Those of streams, which a coupling in exact mode does not give back."""

    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, streams: Any) -> "_Dtypes":
        return cls(tuple(map(jnp.result_type, jax.tree.leaves(streams))))

    def cast(self, streams: Any) -> Any:
        leaves, treedef = jax.tree.flatten(streams)
        return treedef.unflatten(map(_as, leaves, self.leaves))


def _as(leaf: Any, dtype: Any) -> Any:
    return leaf if leaf.dtype == jax.dtypes.float0 else leaf.astype(dtype)


def check_nested(who: str, block: Any) -> None:
    """Refuses settings that say nothing: only the outermost decides."""
    actions = getattr(block, "actions", INVERT)
    given = actions if isinstance(actions, Sequence) else (actions,)
    every = getattr(block, "save_every", None)
    for name, value, is_set in (
        ("actions", actions, any(action != INVERT for action in given)),
        ("save_every", every, every is not None),
    ):
        if is_set:
            raise UserError(
                f"{who} is a {type(block).__name__} with {name}={value!r}, which says "
                "nothing inside of another reversible module; set it on the outermost "
                "one, or leave this one outside."
            )


def _kinds(actions: Action | Sequence[Action], count: int) -> tuple[str, ...]:
    given = for_each(actions, count)
    if len(given) != count:
        raise UserError(
            f"a chain of {count} couplings was given {len(given)} actions; give one "
            "action for each coupling, or one for all."
        )
    for action in given:
        if action not in (SAVE, RECOMPUTE, INVERT):
            raise UserError(
                f"a chain of couplings cannot take {action!r}, as what they compute "
                "differs; write SAVE, RECOMPUTE or INVERT as they are, or use rr.stack."
            )
    return tuple(action.kind for action in given)


def _real(aux: Any) -> Any:
    has_any = lambda leaf: is_differentiable(jax.typeof(leaf))
    return jax.tree.map(lambda leaf: leaf if has_any(leaf) else None, aux)


def _unless_zero(ct: Any) -> Any:
    is_zero = isinstance(ct, SymbolicZero) or ct.dtype == jax.dtypes.float0
    return None if is_zero else ct


@dataclass(frozen=True, eq=False)
class Repeat(Coupling):
    """Equal layers of one coupling, as one coupling that compiles once.

    Parameters, `rest` and aux are stacked: `[num_layers, ...]`.

    Attributes:
      layer: It returns what it takes, shape and dtype.
      num_layers: How many.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Repeat, additive
      >>> layer = additive(lambda w, x: jnp.sin(w * x), lambda w, x: w * x)
      >>> params = {"f": jnp.ones(8), "g": jnp.ones(8)}  # one entry for each layer
      >>> stacked = Repeat(layer, num_layers=8)
      >>> x = (jnp.ones(4), jnp.zeros(4))
      >>> y = stacked.forward(params, x)
      >>> bool(jnp.allclose(stacked.inverse(params, y)[0], x[0], atol=1e-3))
      True
    """

    layer: Coupling
    num_layers: int

    @property
    def has_aux(self) -> bool:
        return self.layer.has_aux

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        return lax.scan(
            lambda x, own: self.layer.run(own[0], x, own[1]),
            x,
            (params, rest),
            length=self.num_layers,
        )

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        return lax.scan(
            lambda y, own: (self.layer.inverse(own[0], y, own[1]), None),
            y,
            (params, rest),
            length=self.num_layers,
            reverse=True,
        )[0]

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        def undo(state, own):
            (y, ct), (params, rest, aux) = state, own
            x, grads, ct = self.layer.pull_back(params, y, ct, rest, aux)
            return (x, ct), grads

        (x, ct), grads = lax.scan(
            undo,
            (y, cotangent),
            (params, rest, aux),
            length=self.num_layers,
            reverse=True,
        )
        return x, grads, ct

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        def add(x, own):
            found = self.layer.log_det(own[0], x, own[1])
            return self.layer.run(own[0], x, own[1])[0], found

        return lax.scan(add, x, (params, rest), length=self.num_layers)[1].sum(axis=0)


@dataclass(frozen=True, eq=False)
class Sequential(Coupling):
    """Couplings one after the other, as one coupling; parameters are a tuple.

    Attributes:
      couplings: In the order in which they run.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Sequential, additive
      >>> layer = additive(lambda w, x: jnp.sin(w * x), lambda w, x: w * x)
      >>> two = Sequential((layer, layer))
      >>> params = ({"f": 1.0, "g": 1.0}, {"f": 2.0, "g": 0.5})
      >>> y = two.forward(params, (jnp.ones(4), jnp.zeros(4)))
      >>> len(y), y[0].shape
      (2, (4,))
    """

    couplings: tuple[Coupling, ...]

    @property
    def has_aux(self) -> bool:
        return any(one.has_aux for one in self.couplings)

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        auxes = []
        for coupling, own, left in self._zip(params, rest):
            x, aux = coupling.run(own, x, left)
            auxes.append(aux)
        return x, tuple(auxes)

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        for coupling, own, left in reversed(self._zip(params, rest)):
            y = coupling.inverse(own, y, left)
        return y

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        grads, ct = [], cotangent
        aux = (None,) * len(self.couplings) if aux is None else aux
        each = zip(self._zip(params, rest), aux, strict=True)
        for (coupling, own, left), beside in reversed(list(each)):
            y, ct = together(y, ct)
            y, grad, ct = coupling.pull_back(own, y, ct, left, beside)
            y, grad, ct = together(y, grad, ct)
            grads.insert(0, grad)
        return y, tuple(grads), ct

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        total: Any = 0.0
        for coupling, own, left in self._zip(params, rest):
            total = total + coupling.log_det(own, x, left)
            x, _ = coupling.run(own, x, left)
        return total

    def _zip(self, params: Any, rest: Any):
        count = len(self.couplings)
        rest = (None,) * count if rest is None else rest
        return list(zip(self.couplings, params, rest, strict=True))
