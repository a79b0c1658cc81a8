"""A coupling: a pure function with its inverse, and the gradient that comes with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from revremat._errors import UserError
from revremat.program.arrays._avals import add, zero_cotangent
from revremat.program.arrays._buffers import barrier
from revremat.reversible._joins import Join

Map = Callable[..., Any]
"""`map(params, x)`, or `map(params, x, rest)`; may return `(value, aux)`."""


class Coupling:
    """A function that can be undone: what all couplings have in common.

    Parameters, streams and the rest are pytrees. `rest` holds what has no gradient: RNG
    keys, running statistics, masks. Functions are pure: the same `rest` draws the same
    numbers when a function is evaluated again.

    Attributes:
      has_aux: Whether `forward` returns `(y, aux)`, aux being what the maps return
        beside their values, such as new running statistics.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Coupling, additive
      >>> block = additive(lambda w, x: jnp.sin(w * x), lambda w, x: w * x)
      >>> isinstance(block, Coupling)
      True
      >>> params, x = {"f": 2.0, "g": 3.0}, (jnp.ones(3), jnp.zeros(3))
      >>> y = block.forward(params, x)
      >>> bool(jnp.allclose(block.inverse(params, y)[0], x[0]))
      True
    """

    has_aux: bool = False

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        """The output, and what the maps return beside their values."""
        raise NotImplementedError

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        """The input that gives `y`."""
        raise NotImplementedError

    def forward(self, params: Any, x: Any, rest: Any = None) -> Any:
        """The output, or `(output, aux)` where `has_aux`."""
        y, aux = self.run(params, x, rest)
        return (y, aux) if self.has_aux else y

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        """What plain autodiff would give, from the output alone.

        Args:
          params: Of the coupling.
          y: Its output.
          cotangent: Of the output, shaped like it.
          rest: As it was given to `run`.
          aux: The cotangent of what `run` returns beside the output, None in the place
            of every leaf that has none.

        Returns:
          The input, the parameters' cotangents, and the input's.
        """
        x = self.inverse(params, y, rest)
        pull = vjp_of_run(self, params, x, rest, partial(chosen, cotangents=aux))[1]
        return x, *pull((cotangent, aux))

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        """log |det dy/dx| for each example `[batch]`."""
        raise UserError(
            f"{type(self).__name__} does not know its determinant; use an affine or "
            "additive coupling, or take jax.numpy.linalg.slogdet of its Jacobian."
        )


@dataclass(frozen=True, eq=False)
class Custom(Coupling):
    """Any function with its inverse; in the backward pass both are evaluated.

    Attributes:
      function: `function(params, x, rest) -> y`.
      undo: `undo(params, y, rest) -> x`.

    Example:
      >>> import jax.numpy as jnp
      >>> twice = Custom(lambda p, x, rest: p * x, lambda p, y, rest: y / p)
      >>> twice.inverse(2.0, twice.forward(2.0, jnp.ones(2)))
      Array([1., 1.], dtype=float32)
    """

    function: Callable[[Any, Any, Any], Any]
    undo: Callable[[Any, Any, Any], Any]

    def __post_init__(self):
        if not callable(self.undo):
            raise UserError(
                f"a coupling has no inverse ({self.undo!r} is given for it); give a "
                "function from (params, y, rest) to x."
            )

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        return self.function(params, x, rest), None

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        return self.undo(params, y, rest)


@dataclass(frozen=True)
class Step:
    """One stream changed by what maps say of others, which stay as they are.

    Attributes:
      target: The stream's number.
      terms: `(name of the map, number of the stream it reads)`; a name of None reads
        the stream itself.
      join: How; None makes the target, a stream that was not there.

    Example:
      >>> from revremat.reversible import Add, Step
      >>> Step(target=0, terms=(("f", 1),), join=Add())  # x0 = x0 + f(x1)
      Step(target=0, terms=(('f', 1),), join=Add(separate=True))
    """

    target: int
    terms: tuple[tuple[str | None, int], ...]
    join: Join | None

    def __post_init__(self):
        if any(source == self.target for _, source in self.terms):
            raise UserError(
                f"a step that changes stream {self.target} reads it too, so nothing "
                "could undo it; let it read other streams only."
            )


@dataclass(frozen=True, eq=False)
class Steps(Coupling):
    """Steps on a tuple of streams, one after the other.

    Every map is evaluated once forward and once backward: undoing a step needs its
    maps' values, and their gradients need them evaluated at the very same inputs.
    Where these are separate, both passes compile the value alike: nothing else reads
    what the map computes on the way, so nothing else is fused with it.

    Attributes:
      maps: By name: `map(params[name], stream)`, with a third argument `rest[name]`
        where `rest` is given. A map may change shape and dtype; its value joins the
        target, so it has the target's shapes.
      steps: In the order of the forward pass.
      num_inputs: How many streams come in.
      has_aux: Whether maps return `(value, aux)`; then aux is a dict by name.
      is_separate: Whether the backward pass evaluates a map by itself to undo a step,
        and again for its gradient; `exact` asks for it.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Add, Step, Steps
      >>> maps = {"f": lambda w, x: w * x}
      >>> one = Steps(maps, (Step(0, (("f", 1),), Add()),), num_inputs=2)
      >>> y = one.forward({"f": 3.0}, (jnp.ones(1), jnp.ones(1)))
      >>> y[0].tolist(), one.inverse({"f": 3.0}, y)[0].tolist()
      ([4.0], [1.0])
    """

    maps: Mapping[str, Map]
    steps: tuple[Step, ...]
    num_inputs: int
    has_aux: bool = field(default=False, kw_only=True)
    is_separate: bool = field(default=False, kw_only=True)

    @property
    def num_outputs(self) -> int:
        """How many streams come out."""
        return self.num_inputs + sum(step.join is None for step in self.steps)

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        streams = self._streams(x, self.num_inputs, "takes")
        self._check_names(params, rest)
        aux: dict[str, Any] = {}
        for step in self.steps:
            values = []
            for name, source in step.terms:
                value, beside = self._evaluate(name, params, streams[source], rest)
                values.append(value)
                if name is not None:
                    aux[name] = beside
            self._join(step, streams, values)
        return tuple(streams), aux if self.has_aux else None

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        streams = self._streams(y, self.num_outputs, "gives")
        for step in reversed(self.steps):
            if step.join is None:
                streams.pop()
                continue
            values = self._values(step.terms, streams, params, rest)
            for value in _together(step.join, values):
                streams[step.target] = step.join.undo(streams[step.target], value)
        return tuple(streams)

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        streams = self._streams(y, self.num_outputs, "gives")
        cts = list(cotangent)
        grads: dict[str, Any] = {}
        left = dict(aux or {})
        for step in reversed(self.steps):
            groups = [step.terms]
            if step.join is None or step.join.separate:
                groups = [(term,) for term in reversed(step.terms)]
            for group in groups:
                self._undo(step, group, streams, cts, grads, params, rest, left)
                streams, cts, grads = together(streams, cts, grads)
            if step.join is None:
                streams.pop()
                cts.pop()
        unused = [name for name in params if name not in grads]
        zero = lambda leaf: zero_cotangent(jax.typeof(leaf))
        grads |= {name: jax.tree.map(zero, params[name]) for name in unused}
        return tuple(streams), grads, tuple(cts)

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        streams = self._streams(x, self.num_inputs, "takes")
        total: Any = 0.0
        for step in self.steps:
            if step.join is None:
                raise UserError(
                    "a coupling that adds a stream has no determinant; leave it out "
                    "of the density."
                )
            values = [
                self._evaluate(name, params, streams[source], rest)[0]
                for name, source in step.terms
            ]
            for value in _together(step.join, values):
                total = total + step.join.log_det(streams[step.target], value)
                streams[step.target] = step.join.join(streams[step.target], value)
        batch = jax.tree.leaves(streams)[0].shape[0]
        return jnp.broadcast_to(total, (batch,))

    def _undo(self, step, terms, streams, cts, grads, params, rest, aux) -> None:
        """Undo the share of `terms` in a step, and pull cotangents back through it."""
        undone = None
        if self.is_separate and step.join is not None:
            undone = self._values(terms, streams, params, rest)
            # First undone, then differentiated, by other operations than these.
            streams[:], undone = together(streams, undone)
        values, pulls = [], []
        for name, source in reversed(terms):
            # A map's aux is that of its last evaluation, the first to be undone.
            value, pull = self._vjp(
                name, params, streams[source], rest, aux.pop(name, None)
            )
            values.insert(0, value)
            pulls.insert(0, pull)
        values = values if undone is None else undone
        total = _sum(values)
        if step.join is None:
            ct_total = jax.tree.map(
                lambda ct, v: ct.astype(v.dtype), cts[step.target], total
            )
        else:
            before = step.join.undo(streams[step.target], total)
            _, pull = jax.vjp(step.join.join, before, total)
            cts[step.target], ct_total = pull(cts[step.target])
            streams[step.target] = before
        for (name, source), pull in zip(terms, pulls, strict=True):
            ct_params, ct_source = pull(ct_total)
            cts[source] = jax.tree.map(_plus, cts[source], ct_source)
            if name is not None:
                if name in grads:
                    ct_params = jax.tree.map(_plus, grads[name], ct_params)
                grads[name] = ct_params

    def _values(self, terms, streams, params, rest) -> list[Any]:
        """What maps say of the streams as they are, to undo their share of a step."""
        if self.is_separate:
            # Compilers, and plans that invert, share what they find computed twice.
            streams = together(streams)[0]
        return [
            self._evaluate(name, params, streams[source], rest)[0]
            for name, source in terms
        ]

    def _vjp(self, name: str | None, params: Any, stream: Any, rest: Any, aux: Any):
        if name is None:
            return stream, lambda ct: (None, ct)

        def evaluate(own: Any, stream: Any) -> tuple[Any, Any]:
            value, beside = self._evaluate(name, {name: own}, stream, rest)
            return value, chosen(beside, aux)

        (value, _), pull = jax.vjp(evaluate, params[name], stream)
        return value, lambda ct: pull((ct, aux))

    def _evaluate(
        self, name: str | None, params: Any, stream: Any, rest: Any
    ) -> tuple[Any, Any]:
        if name is None:
            return stream, None
        extra = () if rest is None or name not in rest else (rest[name],)
        with jax.named_scope(name):
            out = self.maps[name](params[name], stream, *extra)
        return out if self.has_aux else (out, None)

    def _join(self, step: Step, streams: list[Any], values: list[Any]) -> None:
        if step.join is None:
            streams.append(_sum(values))
            return
        before = streams[step.target]
        _check_dtypes(step.target, before)
        for (name, _), value in zip(step.terms, values, strict=True):
            # A value that broadcasts would join, but not as what it was meant to be.
            wanted = [leaf.shape for leaf in jax.tree.leaves(before)]
            found = [leaf.shape for leaf in jax.tree.leaves(value)]
            parts = step.join.parts(value)
            if found != wanted * parts or not parts:
                raise UserError(
                    f"{name} returns {described(value)} for stream {step.target}, "
                    f"which is {described(before)}; let it return that shape"
                    + (", twice." if parts > 1 else ".")
                )
        for value in _together(step.join, values):
            before = step.join.join(before, value)
        streams[step.target] = before

    def _check_names(self, params: Any, rest: Any) -> None:
        maps = ", ".join(self.maps)
        missing = [name for name in self.maps if name not in (params or {})]
        if missing:
            raise UserError(
                f"a coupling of maps {maps} was given no parameters for {missing[0]}; "
                "give a pytree for each, None for a map that has none."
            )
        for what, tree in (("parameters", params), ("state", rest)):
            names = tree if isinstance(tree, Mapping) else ()
            unknown = [repr(name) for name in names if name not in self.maps]
            if unknown:
                raise UserError(
                    f"a coupling of maps {maps} was given {what} for "
                    f"{', '.join(unknown)}, which it does not have; leave that away."
                )

    def _streams(self, x: Any, count: int, verb: str) -> list[Any]:
        if not isinstance(x, tuple | list) or len(x) != count:
            found = f"{len(x)}" if isinstance(x, tuple | list) else "one array"
            raise UserError(
                f"a coupling that {verb} a tuple of {count} streams was given {found}; "
                f"give it {count}."
            )
        return list(x)


@dataclass(frozen=True, eq=False)
class Parallel(Coupling):
    """One coupling for each stream, side by side; parameters are a tuple as well.

    Attributes:
      couplings: One for each stream.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Parallel, space_to_depth
      >>> pair = Parallel((space_to_depth(2), space_to_depth(4)))
      >>> images = jnp.ones((1, 8, 8, 3))
      >>> [y.shape for y in pair.forward(((), ()), (images, images))]
      [(1, 4, 4, 12), (1, 2, 2, 48)]
    """

    couplings: tuple[Coupling, ...]

    @property
    def has_aux(self) -> bool:
        return any(one.has_aux for one in self.couplings)

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        each = [c.run(p, s, r) for c, p, s, r in self._zip(params, x, rest)]
        return tuple(y for y, _ in each), tuple(aux for _, aux in each)

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        return tuple(c.inverse(p, s, r) for c, p, s, r in self._zip(params, y, rest))

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        done: list[Any] = []
        aux = (None,) * len(self.couplings) if aux is None else aux
        each = zip(self._zip(params, y, rest), cotangent, aux, strict=True)
        for (c, p, s, r), ct, own in each:
            if done:
                (s, ct), done[-1] = together((s, ct), done[-1])
            done.append(c.pull_back(p, s, ct, r, own))
        xs, grads, cts = zip(*done, strict=True)
        return xs, grads, cts

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        each = [c.log_det(p, s, r) for c, p, s, r in self._zip(params, x, rest)]
        return jnp.sum(jnp.stack(each), axis=0)

    def _zip(self, params: Any, streams: Any, rest: Any):
        count = len(self.couplings)
        if len(streams) != count:
            raise UserError(
                f"{count} couplings side by side were given {len(streams)} streams; "
                "give each one stream."
            )
        rest = (None,) * count if rest is None else rest
        return list(zip(self.couplings, params, streams, rest, strict=True))


@dataclass(frozen=True, eq=False)
class Halves(Coupling):
    """A coupling of two streams, on the two halves of one array's last axis.

    Attributes:
      inner: The coupling of two streams.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import Halves, additive
      >>> block = Halves(additive(lambda w, x: w * x, lambda w, x: w * x))
      >>> block.forward({"f": 1.0, "g": 1.0}, jnp.arange(4.0)).tolist()
      [2.0, 4.0, 4.0, 7.0]
    """

    inner: Coupling

    @property
    def has_aux(self) -> bool:
        return self.inner.has_aux

    def run(self, params: Any, x: Any, rest: Any = None) -> tuple[Any, Any]:
        y, aux = self.inner.run(params, _split(x), rest)
        return jnp.concatenate(y, axis=-1), aux

    def inverse(self, params: Any, y: Any, rest: Any = None) -> Any:
        return jnp.concatenate(self.inner.inverse(params, _split(y), rest), axis=-1)

    def pull_back(
        self, params: Any, y: Any, cotangent: Any, rest: Any = None, aux: Any = None
    ) -> tuple[Any, Any, Any]:
        # All halves at once, or the whole stays for the half that is needed last.
        y, cotangent = together(_split(y), _split(cotangent))
        x, grads, ct = self.inner.pull_back(params, y, cotangent, rest, aux)
        return jnp.concatenate(x, axis=-1), grads, jnp.concatenate(ct, axis=-1)

    def log_det(self, params: Any, x: Any, rest: Any = None) -> jax.Array:
        return self.inner.log_det(params, _split(x), rest)


def _split(
    x: Shaped[Array, "*rest channels"],
) -> tuple[Shaped[Array, "*rest channels//2"], Shaped[Array, "*rest channels//2"]]:
    if x.shape[-1] % 2:
        raise UserError(
            f"an array of {x.shape[-1]} channels {list(x.shape)} has no two equal "
            f"halves; give it an even number, such as {x.shape[-1] + 1}."
        )
    first, second = jnp.split(x, 2, axis=-1)
    return first, second


def vjp_of_run(
    coupling: Coupling, params: Any, x: Any, rest: Any, choose: Callable[[Any], Any]
) -> tuple[Any, Callable[[Any], Any], Any]:
    """The output, what pulls back `(output, choose(aux))`, and aux."""

    def run(params: Any, x: Any) -> tuple[Any, Any]:
        y, aux = coupling.run(params, x, rest)
        return (y, choose(aux)), aux

    (y, _), pull, aux = jax.vjp(run, params, x, has_aux=True)
    return y, pull, aux


def chosen(aux: Any, cotangents: Any) -> Any:
    """The leaves of aux that have a cotangent, None in the place of others."""
    if cotangents is None:
        return None
    return jax.tree.map(lambda leaf, ct: None if ct is None else leaf, aux, cotangents)


def _together(join: Join, values: list[Any]) -> list[Any]:
    return values if join.separate else [_sum(values)]


def _check_dtypes(number: int, stream: Any) -> None:
    # A map's value would be rounded to whole numbers, and have no gradient.
    if not all(jnp.issubdtype(a.dtype, jnp.inexact) for a in jax.tree.leaves(stream)):
        raise UserError(
            f"stream {number} is {described(stream)}, which holds no fractions of "
            "what maps return; give x.astype(jnp.float32)."
        )


def _sum(values: list[Any]) -> Any:
    total, *others = values
    for other in others:
        total = jax.tree.map(jnp.add, total, other)
    return total


def _plus(a: Any, b: Any) -> Any:
    if a.dtype == jax.dtypes.float0:
        return a
    return add(a, b if b.dtype == a.dtype else b.astype(a.dtype))


def together(*trees: Any) -> Any:
    """The same values, none of which is there before all of them are.

    It keeps a compiler from recomputing many steps before it differentiates one, which
    would hold all of their values at once, and from putting weights' gradients off.
    """
    leaves, treedef = jax.tree.flatten(trees)
    chosen = [k for k, leaf in enumerate(leaves) if _is_plain(leaf)]
    if chosen:
        tied = barrier([leaves[k] for k in chosen])
        for k, value in zip(chosen, tied, strict=True):
            leaves[k] = value
    return jax.tree.unflatten(treedef, leaves)


def only_after(tree: Any, other: Any) -> Any:
    """The same values, none of which is there before the other ones are.

    What a map draws from the same random numbers both times, such as dropout's mask,
    would else be seen to be the same, and kept.
    """
    leaves, treedef = jax.tree.flatten(tree)
    places = [k for k, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]
    waited_for = [leaf for leaf in jax.tree.leaves(other) if _is_plain(leaf)]
    tied, _ = barrier(([leaves[k] for k in places], waited_for))
    for k, value in zip(places, tied, strict=True):
        leaves[k] = value
    return jax.tree.unflatten(treedef, leaves)


def _is_plain(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def described(tree: Any) -> str:
    """The shapes and dtypes of a pytree, as messages write them."""
    text = jax.tree.map(
        lambda leaf: f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}", tree
    )
    return str(text).replace("'", "")
