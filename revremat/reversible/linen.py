"""Flax Linen modules: F and G are ordinary ones, with a reversible network's memory.

The counterparts of the NNX modules, under the same names. A module's `params` are
differentiated; other collections, such as `batch_stats`, and RNG keys are inputs of the
forward pass that the backward pass sees again, so that dropout is replayed and
statistics move once. What maps `sow` is dropped.

Variables lie below the module that has the maps, wherever those are made: `params/f`,
`params/blocks_0/g`. A `RevScan` has those of all its layers stacked, `params/layers/f`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import linen as nn

from revremat._action import INVERT, Action
from revremat._errors import UserError
from revremat.program._api import stack
from revremat.reversible._chain import Repeat, Sequential, chain, check_nested
from revremat.reversible._coupling import Coupling, Map, Parallel
from revremat.reversible._exact import STEP, exact
from revremat.reversible._fields import check_kind, check_maps, pair_of, silo_of
from revremat.reversible._linen_fields import take_over
from revremat.reversible._replay import Replayed, replayed

Variables = Mapping[str, Any]
Keys = Mapping[str, Any]

_LAYERS = {nn.PARTITION_NAME: None}
"""What partition metadata call the axis of layers: it is not split."""


class RevModule(nn.Module):
    """What reversible modules have in common: they run, and they run backwards.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> block = linen.RevBlock(nn.Dense(2), nn.Dense(2))
      >>> variables = block.init(jax.random.key(0), x := jnp.ones((3, 4)))
      >>> y = block.apply(variables, x)
      >>> bool(jnp.allclose(block.apply(variables, y, method="inverse"), x, atol=1e-5))
      True
    """

    def __post_init__(self):
        take_over(self, RevModule)
        super().__post_init__()

    def coupling(self, kwargs: Mapping[str, Any], moving: Sequence[str]) -> Coupling:
        """The module as a coupling.

        Args:
          kwargs: What maps are called with, beside a stream.
          moving: The collections that maps may change.
        """
        raise NotImplementedError

    def divide(self, variables: Variables, keys: Keys) -> tuple[Any, Any]:
        """Variables by collection, as the coupling's parameters and its rest."""
        raise NotImplementedError

    def gather(self, rest: Any) -> dict[str, Any]:
        """The rest after a forward pass, as variables by collection."""
        raise NotImplementedError

    def create(self, x: Any, kwargs: Mapping[str, Any]) -> Any:
        """Make the variables; the output as well."""
        raise NotImplementedError

    def __call__(self, x: Any, **kwargs: Any) -> Any:
        """The output; nothing is kept for the backward pass but that.

        Args:
          x: What a coupling of this kind takes.
          **kwargs: Given to every map, as in `train=True`; no arrays.
        """
        _check_kwargs(type(self).__name__, kwargs)
        if self.is_initializing():
            return self.create(x, kwargs)
        moving = _moving(self)
        params, rest = self.divide(self.variables, _keys(self))
        y, rest = self.pass_on(self.coupling(kwargs, moving), params, x, rest)
        state = self.gather(rest)
        for collection in moving:
            for name, value in state.get(collection, {}).items():
                self.put_variable(collection, name, value)
        return y

    @nn.nowrap
    def pass_on(self, coupling: Coupling, params: Any, x: Any, rest: Any) -> Any:
        """Run the coupling: the output, and the rest after it."""
        y, (rest,) = chain([coupling], [params], x, [rest])
        return y, rest

    def inverse(self, y: Any, **kwargs: Any) -> Any:
        """The input that gives `y`, under the same variables, RNG keys and arguments.

        As in `model.apply(variables, y, rngs=..., method="inverse")`.
        """
        params, rest = self.divide(self.variables, _keys(self))
        return self.coupling(kwargs, _moving(self)).inverse(params, y, rest)


class _Maps(RevModule):
    """A coupling of maps, each a module of its own."""

    @nn.nowrap
    def maps(self) -> dict[str, nn.Module]:
        raise NotImplementedError

    @nn.nowrap
    def couple(self, maps: Mapping[str, Map], has_aux: bool) -> Coupling:
        raise NotImplementedError

    @nn.nowrap
    def coupling(self, kwargs: Mapping[str, Any], moving: Sequence[str]) -> Coupling:
        made = {
            name: _as_map(module.clone(parent=None), kwargs, moving)
            for name, module in self.maps().items()
        }
        return self.couple(made, has_aux=True)

    @nn.nowrap
    def divide(self, variables: Variables, keys: Keys) -> tuple[Any, Any]:
        params, rest = {}, {}
        for number, name in enumerate(self.maps()):
            own = _below(variables, name)
            params[name] = own.pop("params", {})
            # A map's own: the keys of the module it is in, and its number there.
            rest[name] = {"state": own, "keys": _fold(keys, number)}
            if "batch_stats" in own:
                rest[name] = Replayed(rest[name])
        return params, rest

    @nn.nowrap
    def gather(self, rest: Any) -> dict[str, Any]:
        own = lambda one: (one.rest if isinstance(one, Replayed) else one)["state"]
        return _above({name: own(one) for name, one in rest.items()})

    @nn.nowrap
    def create(self, x: Any, kwargs: Mapping[str, Any]) -> Any:
        maps = {
            name: lambda _, x, module=module: module(x, **kwargs)
            for name, module in self.maps().items()
        }
        return self.couple(maps, has_aux=False).forward(dict.fromkeys(maps), x)

    @nn.nowrap
    def check(self) -> None:
        is_map = lambda one: isinstance(one, nn.Module)
        wrong = "is no Linen module; give a flax.linen.Module that takes a stream"
        check_maps(f"linen.{type(self).__name__}", self.maps(), is_map, wrong)


class RevBlock(_Maps):
    """Two halves of the channels that change one another: `y0 = x0 + f(x1)`, then
    `y1 = x1 + g(y0)`.

    Attributes:
      f: A module from one half to values for the other; for `"affine"`, to a pair.
      g: The same, the other way round.
      kind: `"additive"` or `"affine"`.
      first: The half that is changed first, 0 or 1.
      halves: Whether it takes one array, halved along its last axis, or a pair.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> block, x = linen.RevBlock(nn.Dense(2), nn.Dense(2)), jnp.ones((1, 4))
      >>> variables = block.init(jax.random.key(0), x)
      >>> y = block.apply(variables, x)
      >>> block.apply(variables, y, method="inverse").round(5)
      Array([[1., 1., 1., 1.]], dtype=float32)
    """

    f: nn.Module
    g: nn.Module
    kind: str = "additive"
    first: int = 0
    halves: bool = True

    def __post_init__(self):
        check_kind("linen.RevBlock", self.kind)
        self.check()
        super().__post_init__()

    @nn.nowrap
    def maps(self) -> dict[str, nn.Module]:
        return {"f": self.f, "g": self.g}

    @nn.nowrap
    def couple(self, maps: Mapping[str, Map], has_aux: bool) -> Coupling:
        return pair_of(
            maps, self.kind, first=self.first, halves=self.halves, has_aux=has_aux
        )


class RevSilo(_Maps):
    """N streams that read one another, down and then up (Chiley et al. 2023).

    Attributes:
      down: Modules from finer to coarser streams, by `(from, to)`.
      up: Modules from coarser to finer ones, by `(from, to)`.
      num_inputs: N, or N - 1 where the last stream is new.
      kind: `"additive"` or `"affine"`, whose modules return pairs.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> silo = linen.RevSilo({(0, 1): nn.Dense(4)}, {(1, 0): nn.Dense(8)})
      >>> x = (jnp.ones((2, 8)), jnp.ones((2, 4)))
      >>> y, _ = silo.init_with_output(jax.random.key(0), x)
      >>> [one.shape for one in y]
      [(2, 8), (2, 4)]
    """

    down: Mapping[Any, nn.Module]
    up: Mapping[Any, nn.Module]
    num_inputs: int | None = None
    kind: str = "additive"

    def __post_init__(self):
        check_kind("linen.RevSilo", self.kind)
        # Linen names the modules of a mapping by its keys.
        for field in ("down", "up"):
            given = getattr(self, field)
            named = {
                k if isinstance(k, str) else f"{k[0]}_{k[1]}": given[k] for k in given
            }
            object.__setattr__(self, field, named)
        self.check()
        self.couple(self.maps(), has_aux=True)
        super().__post_init__()

    @nn.nowrap
    def maps(self) -> dict[str, nn.Module]:
        down = {f"down_{name}": module for name, module in self.down.items()}
        return down | {f"up_{name}": module for name, module in self.up.items()}

    @nn.nowrap
    def couple(self, maps: Mapping[str, Any], has_aux: bool) -> Coupling:
        ends: Any = lambda name: tuple(map(int, name.split("_")))
        down, up = map(ends, self.down), map(ends, self.up)
        number = self.num_inputs
        return silo_of(maps, down, up, self.kind, num_inputs=number, has_aux=has_aux)


class _Blocks(RevModule):
    """Several reversible modules in one."""

    @nn.nowrap
    def couple(self, couplings: tuple[Coupling, ...]) -> Coupling:
        raise NotImplementedError

    @nn.nowrap
    def coupling(self, kwargs: Mapping[str, Any], moving: Sequence[str]) -> Coupling:
        return self.couple(tuple(b.coupling(kwargs, moving) for b in self.all_blocks()))

    @nn.nowrap
    def divide(self, variables: Variables, keys: Keys) -> tuple[Any, Any]:
        each = [
            block.divide(_below(variables, f"blocks_{k}"), _fold(keys, k))
            for k, block in enumerate(self.all_blocks())
        ]
        return tuple(params for params, _ in each), tuple(rest for _, rest in each)

    @nn.nowrap
    def gather(self, rest: Any) -> dict[str, Any]:
        pairs = enumerate(zip(self.all_blocks(), rest, strict=True))
        return _above({f"blocks_{k}": block.gather(own) for k, (block, own) in pairs})

    @nn.nowrap
    def all_blocks(self) -> Sequence[Any]:
        return getattr(self, "blocks")  # noqa: B009

    @nn.nowrap
    def check(self) -> None:
        for number, block in enumerate(self.all_blocks()):
            if not isinstance(block, RevModule):
                raise UserError(
                    f"linen.{type(self).__name__}: block {number} is a "
                    f"{type(block).__name__}, which has no inverse; wrap two of them "
                    "in linen.RevBlock, or leave it outside."
                )
            check_nested(f"linen.{type(self).__name__}: block {number}", block)


class RevParallel(_Blocks):
    """One reversible module for each stream, side by side.

    Attributes:
      blocks: One for each stream.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> two = linen.RevParallel([linen.RevBlock(nn.Dense(2), nn.Dense(2))] * 1)
      >>> y, _ = two.init_with_output(jax.random.key(0), (jnp.ones((3, 4)),))
      >>> y[0].shape
      (3, 4)
    """

    blocks: Sequence[RevModule]

    def __post_init__(self):
        self.check()
        super().__post_init__()

    @nn.nowrap
    def couple(self, couplings: tuple[Coupling, ...]) -> Coupling:
        return Parallel(couplings)

    @nn.nowrap
    def create(self, x: Any, kwargs: Mapping[str, Any]) -> Any:
        pairs = zip(self.blocks, x, strict=True)
        return tuple(block.create(stream, kwargs) for block, stream in pairs)


class RevSequence(_Blocks):
    """Reversible modules one after the other; only the last one's output is kept.

    Attributes:
      blocks: Reversible modules; streams may change in number and shape on the way.
      save_every: Keep every so many outputs too.
      actions: INVERT, RECOMPUTE or SAVE, for all blocks or for each; see `chain`.
      exact: Put streams on a fixed-point grid, to be undone bit for bit; see
        `revremat.reversible.exact`.
      step: Of that grid.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> blocks = [linen.RevBlock(nn.Dense(2), nn.Dense(2)) for _ in range(2)]
      >>> model = linen.RevSequence(blocks)
      >>> y, _ = model.init_with_output(jax.random.key(0), jnp.ones((3, 4)))
      >>> y.shape
      (3, 4)
    """

    blocks: Sequence[RevModule]
    save_every: int | None = None
    actions: Action | Sequence[Action] = INVERT
    exact: bool = False
    step: float = STEP

    def __post_init__(self):
        self.check()
        super().__post_init__()

    @nn.nowrap
    def couple(self, couplings: tuple[Coupling, ...]) -> Coupling:
        whole: Coupling = Sequential(couplings)
        return exact(whole, self.step) if self.exact else whole

    @nn.nowrap
    def pass_on(self, coupling: Coupling, params: Any, x: Any, rest: Any) -> Any:
        assert isinstance(coupling, Sequential)
        return chain(
            coupling.couplings,
            params,
            x,
            rest,
            save_every=self.save_every,
            actions=self.actions,
        )

    @nn.nowrap
    def create(self, x: Any, kwargs: Mapping[str, Any]) -> Any:
        for block in self.blocks:
            x = block.create(x, kwargs)
        return x


class RevScan(RevModule):
    """Equal reversible modules one after the other, with stacked variables.

    Attributes:
      block: One of them, which returns what it takes.
      num_layers: How many.
      actions: As in `rr.stack`: how each layer's residuals are restored, INVERT or
        another way; None leaves it to `rr.apply`, and without that to plain autodiff.
      label: What plans call it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from revremat.reversible import linen
      >>> model = linen.RevScan(linen.RevBlock(nn.Dense(2), nn.Dense(2)), num_layers=8)
      >>> y, variables = model.init_with_output(jax.random.key(0), jnp.ones((3, 4)))
      >>> y.shape
      (3, 4)
    """

    block: RevModule
    num_layers: int
    actions: Action | Sequence[Action] | None = INVERT
    label: str = "stack"

    def __post_init__(self):
        if not isinstance(self.block, RevModule):
            raise UserError(
                f"linen.RevScan: block is a {type(self.block).__name__}, which has no "
                "inverse; make it a linen.RevBlock or another reversible module."
            )
        check_nested("linen.RevScan: block", self.block)
        super().__post_init__()

    @nn.nowrap
    def coupling(self, kwargs: Mapping[str, Any], moving: Sequence[str]) -> Coupling:
        layer = self.block.clone(parent=None).coupling(kwargs, moving)
        return Repeat(layer, self.num_layers)

    @nn.nowrap
    def divide(self, variables: Variables, keys: Keys) -> tuple[Any, Any]:
        block = self.block.clone(parent=None)
        layers = nn.meta.remove_axis(_below(variables, "layers"), 0, _LAYERS)
        return jax.vmap(block.divide)(layers, self._split(keys))

    @nn.nowrap
    def gather(self, rest: Any) -> dict[str, Any]:
        layers = nn.meta.add_axis(self.block.gather(rest), 0, _LAYERS)
        return _above({"layers": layers})

    @nn.nowrap
    def create(self, x: Any, kwargs: Mapping[str, Any]) -> Any:
        block = self.block.clone(parent=None)
        keys = self._split({"params": self.make_rng("params"), **_keys(self)})
        one = lambda x, keys: block.init_with_output(keys, x, **kwargs)
        y, made = jax.lax.scan(one, x, keys)
        made = nn.meta.add_axis(made, 0, _LAYERS)
        for collection, tree in made.items():
            self.put_variable(collection, "layers", tree)
        return y

    @nn.nowrap
    def pass_on(self, coupling: Coupling, params: Any, x: Any, rest: Any) -> Any:
        if self.actions == INVERT:
            return super().pass_on(coupling, params, x, rest)
        assert isinstance(coupling, Repeat)
        layer = coupling.layer
        return stack(
            layer.forward,
            params,
            x,
            rest,
            has_ys=True,
            actions=self.actions,
            inverse=layer.inverse,
            name=self.label,
        )

    def _split(self, keys: Keys) -> Keys:
        count = self.num_layers
        return {name: jax.random.split(key, count) for name, key in keys.items()}


def _as_map(
    module: nn.Module, kwargs: Mapping[str, Any], moving: Sequence[str]
) -> Callable[..., Any]:
    def run(params: Any, x: Any, rest: Any) -> tuple[Any, Any]:
        state = rest["state"]
        own = [name for name in state if name in moving]
        value, moved = module.apply(
            {"params": params, **state}, x, rngs=rest["keys"], mutable=own, **kwargs
        )
        after = {**state, **moved}
        if jax.tree.structure(after) != jax.tree.structure(state):
            raise UserError(
                f"{type(module).__name__} makes variables in {', '.join(own)} when it "
                "is called, state that a reversible module does not know of; make "
                "them in init."
            )
        return value, {"state": after, "keys": rest["keys"]}

    def chosen(params: Any, x: Any, rest: Any) -> tuple[Any, Any]:
        return (again if isinstance(rest, Replayed) else run)(params, x, rest)

    again = replayed(run)
    return chosen


def _moving(module: nn.Module) -> tuple[str, ...]:
    """The collections beside `params` that may change now."""
    others = [name for name in module.variables if name != "params"]
    return tuple(name for name in others if module.is_mutable_collection(name))


def _keys(module: nn.Module) -> dict[str, Any]:
    assert module.scope is not None
    names = [name for name in module.scope.rngs if name != "params"]
    return {name: module.make_rng(name) for name in sorted(names)}


def _fold(keys: Keys, number: int) -> dict[str, Any]:
    return {name: jax.random.fold_in(key, number) for name, key in keys.items()}


def _below(variables: Variables, name: str) -> dict[str, Any]:
    """By collection, what a module has under a name."""
    return {key: tree[name] for key, tree in variables.items() if name in tree}


def _above(inside: Mapping[str, Variables]) -> dict[str, Any]:
    """By collection, what modules have by their names."""
    found: dict[str, Any] = {}
    for name, variables in inside.items():
        for collection, tree in variables.items():
            found.setdefault(collection, {})[name] = tree
    return found


def _check_kwargs(name: str, kwargs: Mapping[str, Any]) -> None:
    for key, value in kwargs.items():
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
            raise UserError(
                f"linen.{name}: {key}= is an array, for which maps have no gradient; "
                "give switches such as train=True, and arrays as part of the stream "
                "or as a variable."
            )
