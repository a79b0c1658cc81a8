"""Flax NNX modules: F and G are ordinary ones, memory is that of a reversible network.

A module's variables are differentiated, of whatever type, if they are real numbers and
no running statistics; what is not an `nnx.Param` is also an input of the forward pass
whose old value the backward pass sees again, so that dropout is replayed and statistics
move once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from revremat._action import INVERT, Action
from revremat._errors import UserError
from revremat.program._api import stack
from revremat.reversible._chain import Repeat, Sequential, chain, check_nested
from revremat.reversible._coupling import Coupling, Map, Parallel
from revremat.reversible._couplings import silo
from revremat.reversible._exact import STEP, exact
from revremat.reversible._fields import check_kind, check_maps, pair_of, silo_of
from revremat.reversible._replay import Replayed, replayed

Kind = Literal["additive", "affine"]


class RevModule(nnx.Module):
    """What reversible modules have in common: they run, and they run backwards.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevBlock, RevModule
      >>> linear = lambda k: nnx.Linear(2, 2, rngs=nnx.Rngs(k))
      >>> block = RevBlock(linear(0), linear(1))
      >>> isinstance(block, RevModule)
      True
      >>> x = jnp.ones((3, 4))
      >>> bool(jnp.allclose(block.inverse(block(x)), x, atol=1e-5))
      True
    """

    def parts(self) -> tuple[Coupling, Any, Any]:
        """A coupling, its parameters, and what has no gradient."""
        raise NotImplementedError

    def put(self, rest: Any) -> None:
        """Take over the state after a forward pass, shaped as `parts` gives it."""
        raise NotImplementedError

    def __call__(self, x: Any) -> Any:
        """The output; nothing is kept for the backward pass but that."""
        coupling, params, rest = self.parts()
        y, (state,) = chain([coupling], [params], x, [rest])
        self.put(state)
        return y

    def inverse(self, y: Any) -> Any:
        """The input that gives `y`, with the randomness and statistics of now."""
        coupling, params, rest = self.parts()
        return coupling.inverse(params, y, rest)


class RevBlock(RevModule):
    """Two halves of the channels that change one another: `y0 = x0 + f(x1)`, then
    `y1 = x1 + g(y0)`.

    Args:
      f: A module from one half to values for the other; for `"affine"`, to a pair.
      g: The same, the other way round.
      kind: `"additive"` or `"affine"`.
      first: The half that is changed first, 0 or 1.
      halves: Whether it takes one array, halved along its last axis, or a pair.

    Example:
      >>> from flax import nnx
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import RevBlock
      >>> rngs = nnx.Rngs(0)
      >>> block = RevBlock(nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs))
      >>> block.inverse(block(jnp.ones((1, 4)))).round(5)
      Array([[1., 1., 1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        f: nnx.Module,
        g: nnx.Module,
        *,
        kind: Kind = "additive",
        first: int = 0,
        halves: bool = True,
    ):
        check_kind("RevBlock", kind)
        self.maps = nnx.Dict({"f": f, "g": g})
        check_maps("RevBlock", self.maps, callable, _NO_MAP)
        check_apart("RevBlock", self.maps)
        self.kind, self.first, self.halves = kind, first, halves

    def parts(self) -> tuple[Coupling, Any, Any]:
        maps, params, rest = split_maps(self.maps)
        coupling = pair_of(
            maps, self.kind, first=self.first, halves=self.halves, has_aux=True
        )
        return coupling, params, rest

    def put(self, rest: Any) -> None:
        put_maps(self.maps, rest)


class RevSilo(RevModule):
    """N streams that read one another, down and then up (Chiley et al. 2023).

    Args:
      down: Modules from finer to coarser streams, by `(from, to)`.
      up: Modules from coarser to finer ones, by `(from, to)`.
      num_inputs: N, or N - 1 where the last stream is new.
      kind: `"additive"` or `"affine"`, whose modules return pairs.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevSilo
      >>> linear = lambda a, b: nnx.Linear(a, b, rngs=nnx.Rngs(0))
      >>> silo = RevSilo({(0, 1): linear(8, 4)}, {(1, 0): linear(4, 8)})
      >>> [y.shape for y in silo((jnp.ones((2, 8)), jnp.ones((2, 4))))]
      [(2, 8), (2, 4)]
    """

    def __init__(
        self,
        down: Mapping[tuple[int, int], nnx.Module],
        up: Mapping[tuple[int, int], nnx.Module],
        *,
        num_inputs: int | None = None,
        kind: Kind = "additive",
    ):
        check_kind("RevSilo", kind)
        # Only to see whether the pairs make a silo.
        silo(dict(down.items()), dict(up.items()), num_inputs=num_inputs)
        named = {f"down_{i}_{j}": f for (i, j), f in down.items()}
        named |= {f"up_{j}_{i}": f for (j, i), f in up.items()}
        self.maps = nnx.Dict(named)
        check_maps("RevSilo", self.maps, callable, _NO_MAP)
        check_apart("RevSilo", self.maps)
        self.down, self.up = tuple(down), tuple(up)
        self.num_inputs, self.kind = num_inputs, kind

    def parts(self) -> tuple[Coupling, Any, Any]:
        maps, params, rest = split_maps(self.maps)
        ends, number = (self.down, self.up), self.num_inputs
        coupling = silo_of(maps, *ends, self.kind, num_inputs=number, has_aux=True)
        return coupling, params, rest

    def put(self, rest: Any) -> None:
        put_maps(self.maps, rest)


class RevParallel(RevModule):
    """One reversible module for each stream, side by side.

    Args:
      blocks: One for each stream.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevBlock, RevParallel
      >>> linear = lambda k: nnx.Linear(2, 2, rngs=nnx.Rngs(k))
      >>> two = RevParallel([RevBlock(linear(k), linear(k + 1)) for k in (0, 2)])
      >>> [y.shape for y in two((jnp.ones((3, 4)), jnp.ones((5, 4))))]
      [(3, 4), (5, 4)]
    """

    def __init__(self, blocks: Sequence[RevModule]):
        for number, block in enumerate(blocks):
            check_nested(f"RevParallel: block {number}", block)
        check_apart("RevParallel", by_number("block", blocks))
        self.blocks = nnx.List(blocks)

    def parts(self) -> tuple[Coupling, Any, Any]:
        couplings, params, rest = _parts_of_all(self.blocks)
        return Parallel(couplings), params, rest

    def put(self, rest: Any) -> None:
        for block, own in zip(self.blocks, rest, strict=True):
            block.put(own)


class RevSequence(RevModule):
    """Reversible modules one after the other; only the last one's output is kept.

    Args:
      blocks: Reversible modules; streams may change in number and shape on the way.
      save_every: Keep every so many outputs too, so that rounding errors of the inverse
        do not build up further than that.
      actions: INVERT, RECOMPUTE or SAVE, for all blocks or for each; see `chain`.
      exact: Put streams on a fixed-point grid, to be undone bit for bit; see
        `revremat.reversible.exact`.
      step: Of that grid.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevBlock, RevSequence
      >>> linear = lambda k: nnx.Linear(2, 2, rngs=nnx.Rngs(k))
      >>> model = RevSequence([RevBlock(linear(k), linear(k + 1)) for k in (0, 2)])
      >>> model(jnp.ones((3, 4))).shape
      (3, 4)
    """

    def __init__(
        self,
        blocks: Sequence[RevModule],
        *,
        save_every: int | None = None,
        actions: Action | Sequence[Action] = INVERT,
        exact: bool = False,
        step: float = STEP,
    ):
        for number, block in enumerate(blocks):
            if not isinstance(block, RevModule):
                raise UserError(
                    f"RevSequence: block {number} is a {type(block).__name__}, which "
                    "has no inverse; wrap two of them in RevBlock, or leave it outside."
                )
            check_nested(f"RevSequence: block {number}", block)
        check_apart("RevSequence", by_number("block", blocks))
        self.blocks = nnx.List(blocks)
        self.save_every, self.exact, self.step = save_every, exact, step
        self.actions = actions if isinstance(actions, Action) else tuple(actions)

    def parts(self) -> tuple[Coupling, Any, Any]:
        couplings, params, rest = _parts_of_all(self.blocks)
        whole: Coupling = Sequential(couplings)
        return (exact(whole, self.step) if self.exact else whole), params, rest

    def put(self, rest: Any) -> None:
        for block, own in zip(self.blocks, rest, strict=True):
            block.put(own)

    def __call__(self, x: Any) -> Any:
        """The last block's output."""
        whole, params, rest = self.parts()
        assert isinstance(whole, Sequential)
        if not whole.couplings:
            return x
        y, state = chain(
            whole.couplings,
            params,
            x,
            rest,
            save_every=self.save_every,
            actions=self.actions,
        )
        self.put(state)
        return y


class RevScan(RevModule):
    """Equal reversible modules one after the other, with stacked parameters.

    Args:
      make_block: `make_block(rngs) -> RevModule`, which returns what it takes.
      num_layers: How many.
      rngs: Split for the layers.
      actions: As in `rr.stack`: how each layer's residuals are restored, INVERT or
        another way; None leaves it to `rr.apply`, and without that to plain autodiff.
      name: What plans call it.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevBlock, RevScan
      >>> linear = lambda rngs: nnx.Linear(2, 2, rngs=rngs)
      >>> make_block = lambda rngs: RevBlock(linear(rngs), linear(rngs))
      >>> model = RevScan(make_block, 8, rngs=nnx.Rngs(0))
      >>> model(jnp.ones((3, 4))).shape
      (3, 4)
    """

    def __init__(
        self,
        make_block: Callable[[nnx.Rngs], RevModule],
        num_layers: int,
        *,
        rngs: nnx.Rngs,
        actions: Action | Sequence[Action] | None = INVERT,
        name: str = "stack",
    ):
        make = nnx.vmap(
            lambda rngs: make_block(rngs),
            in_axes=0,
            out_axes=0,
            transform_metadata={nnx.PARTITION_NAME: None},  # the axis of layers
        )
        self.block = nnx.split_rngs(splits=num_layers)(make)(rngs)
        if not isinstance(self.block, RevModule):
            raise UserError(
                f"RevScan: make_block makes a {type(self.block).__name__}, which has "
                "no inverse; make a RevBlock or another reversible module."
            )
        check_nested("RevScan: what make_block makes", self.block)
        self.num_layers, self.name = num_layers, name
        self.actions = actions if isinstance(actions, Action | None) else tuple(actions)

    def parts(self) -> tuple[Coupling, Any, Any]:
        coupling, params, rest = self.block.parts()
        return Repeat(coupling, self.num_layers), params, rest

    def put(self, rest: Any) -> None:
        self.block.put(rest)

    def __call__(self, x: Any) -> Any:
        """The last layer's output."""
        if self.actions == INVERT:
            return super().__call__(x)
        layer, params, rest = self.block.parts()
        y, state = stack(
            layer.forward,
            params,
            x,
            rest,
            has_ys=True,
            actions=self.actions,
            inverse=layer.inverse,
            name=self.name,
        )
        self.put(state)
        return y


_NO_MAP = "cannot be called; give a module that takes a stream"


def check_apart(who: str, modules: Mapping[str, Any]) -> None:
    """Two modules that share statistics or random numbers would each move them."""
    owner: dict[int, str] = {}
    for name, module in modules.items():
        for path, variable in nnx.iter_graph(module):
            if not isinstance(variable, nnx.Variable) or isinstance(
                variable, nnx.Param
            ):
                continue
            first = owner.setdefault(id(variable), name)
            if first != name:
                raise UserError(
                    f"{who}: {first} and {name} share {'/'.join(map(str, path))!r} "
                    f"(of type {type(variable).__name__}); give each its own, such as "
                    "rngs.fork(), as weights alone (nnx.Param) can be shared."
                )


def by_number(what: str, modules: Sequence[Any]) -> dict[str, Any]:
    return {f"{what} {number}": module for number, module in enumerate(modules)}


def _parts_of_all(blocks: Sequence[RevModule]) -> tuple[Any, Any, Any]:
    each = [block.parts() for block in blocks]
    couplings, params, rest = ([part[k] for part in each] for k in range(3))
    return tuple(couplings), tuple(params), tuple(rest)


def split_maps(modules: Mapping[str, Any]) -> tuple[dict[str, Map], Any, Any]:
    """Modules by name as pure maps, with their parameters and the rest of them."""
    maps: dict[str, Map] = {}
    params: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, module in modules.items():
        graph, weights, rest[name] = nnx.split(module, nnx.Param, ...)
        # Twice, as such a variable may have a gradient and move as well.
        others = nnx.filter_state(rest[name], _is_differentiable)
        params[name] = nnx.merge_state(weights, others)
        maps[name] = _as_map(graph)
        if any(isinstance(v, nnx.BatchStat) for _, v in nnx.to_flat_state(rest[name])):
            maps[name], rest[name] = replayed(maps[name]), Replayed(rest[name])
    return maps, params, rest


def _is_differentiable(path: Any, variable: Any) -> bool:
    del path
    if isinstance(variable, nnx.BatchStat | nnx.RngState):
        return False
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(variable)]
    return all(jnp.issubdtype(kind, jnp.inexact) for kind in kinds)


def _as_map(graph: Any) -> Map:
    def run(params: Any, x: Any, state: Any) -> tuple[Any, Any]:
        module = nnx.merge(graph, nnx.merge_state(state, params), copy=True)
        value = module(x)
        after = nnx.split(module, nnx.Param, ...)[2]
        _check_state(type(module).__name__, state, after)
        return value, after

    return run


def _check_state(name: str, before: Any, after: Any) -> None:
    """What a call adds could not be replayed: the backward pass starts without it."""
    known = {path for path, _ in nnx.to_flat_state(before)}
    for path, leaf in nnx.to_flat_state(after):
        if path not in known:
            raise UserError(
                f"{name} makes {'/'.join(map(str, path))!r} (of type "
                f"{type(leaf).__name__}) when it is called, state that a reversible "
                "module does not know of; make it in __init__."
            )


def put_maps(modules: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
    for name, module in modules.items():
        own = rest[name]
        nnx.update(module, own.rest if isinstance(own, Replayed) else own)
