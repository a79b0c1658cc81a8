"""Residual networks that were trained as such, made reversible with their weights.

A residual network adds one branch after the other to one stream. Its reversible form
has two streams, both of which start as that one, and each branch adds to one of them
what it says of the other (Kitaev et al. 2020, Reformer; Liao et al. 2023, MEFT).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from revremat._action import INVERT, Action
from revremat._errors import UserError
from revremat._primitives import SAME
from revremat.program.ir._ops import Value, flatten
from revremat.reversible._chain import Sequential
from revremat.reversible._coupling import Coupling, Step, Steps, described
from revremat.reversible._couplings import Rearrange
from revremat.reversible._joins import Add
from revremat.reversible.nnx import (
    RevBlock,
    RevModule,
    RevScan,
    RevSequence,
    by_number,
    check_apart,
    put_maps,
    split_maps,
)

Blocks = type | tuple[type, ...] | Callable[[Any], Any]


class RevResidual(nnx.Module):
    """Residual blocks on two streams: takes and gives one array, as the blocks did.

    With a and b what the two streams `(x, x)` have become, it gives `a + b - x`, which
    has every branch's share once, as the plain network's stream has.

    Attributes:
      blocks: The reversible blocks, whose `inverse` takes `(a, b)`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from revremat.reversible import RevBlock, RevResidual, RevSequence
      >>> linear = lambda k: nnx.Linear(4, 4, rngs=nnx.Rngs(k))
      >>> block = RevBlock(linear(0), linear(1), halves=False)
      >>> RevResidual(RevSequence([block]))(jnp.ones((2, 4))).shape
      (2, 4)
    """

    def __init__(self, blocks: RevModule):
        self.blocks = blocks

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """What the blocks give one after the other, to first order in each.

        Raises:
          UserError: A block that does not add to what it is given, or more arguments.
        """
        if args or kwargs:
            raise UserError(
                "RevResidual: blocks that were made reversible take a stream alone; "
                "let them hold what else they need, such as masks, as attributes."
            )
        for block in _whole_blocks(self.blocks):
            _check_adds(block, x)
        a, b = self.blocks((x, x))
        return a + (b - x)


class Increment(nnx.Module):
    """What a residual block adds to its input."""

    def __init__(self, block: nnx.Module):
        self.block = block

    def __call__(self, x: jax.Array) -> jax.Array:
        block: Any = self.block
        return block(x) - x


class Passed(nnx.Module):
    """Where a block was whose work `RevResidual` has done: gives what it takes."""

    def __call__(self, x: Any) -> Any:
        return x


def from_plain(
    module: Any,
    blocks: Blocks | None = None,
    *,
    num_layers: int | None = None,
    save_every: int | None = None,
    actions: Action | Sequence[Action] | None = INVERT,
) -> Any:
    """The reversible form of a residual network, with the same weights.

    `blocks` says which modules are residual blocks, each of which is taken as
    `x + f(x)` with `f(x) = block(x) - x`. It is a class, or a function of a module that
    gives True or False, or the branches of a block of several: a list with a module for
    each, or a tuple of modules and functions that are called one after the other. By
    default it is the modules of one class, not Flax's own, that follow one another in a
    list.

    Blocks are looked for in lists (`nnx.List`, `nnx.Sequential`). Every run of them
    becomes one `RevResidual` in the place of the first, and the others' places pass on
    what they are given, so that `for block in self.blocks: x = block(x)` goes on
    working. All else of the network stays as it is.

    A run of two blocks at most computes what it did. A longer one agrees with the plain
    network to first order in what the blocks add, so it is to be fine-tuned.

    Args:
      module: The network, or a list of blocks, or one block. It is not changed; the
        result has modules of its own, with the very same arrays in them.
      blocks: Which modules are residual blocks.
      num_layers: For one block with stacked parameters `[num_layers, ...]`, made by
        `nnx.vmap`: how many it stands for.
      save_every: As in `RevSequence`.
      actions: As in `RevScan`, with `num_layers`.

    Returns:
      A network of the same class; for a list or a block, a `RevResidual`.

    Raises:
      UserError: No blocks, branches that are no modules, or blocks that share state;
        when it is called, a block that does not add to what it is given.

    Example:
      >>> from flax import nnx
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import from_plain
      >>> class Block(nnx.Module):
      ...     def __init__(self, rngs):
      ...         self.norm = nnx.LayerNorm(4, rngs=rngs)
      ...         self.dense = nnx.Linear(4, 4, rngs=rngs)
      ...     def __call__(self, x):
      ...         return x + self.dense(self.norm(x))
      >>> rngs = nnx.Rngs(0)
      >>> plain = nnx.Sequential(*(Block(rngs) for _ in range(6)))
      >>> from_plain(plain, Block)(jnp.ones((2, 4))).shape
      (2, 4)
    """
    is_list = not isinstance(module, nnx.Module) or isinstance(module, nnx.List)
    module = module if isinstance(module, nnx.Module) else nnx.List(module)
    module = nnx.merge(*nnx.split(module), copy=True)
    find = _Finder(blocks)
    if num_layers is not None:
        return _stacked(module, find, num_layers, actions)
    if not is_list and blocks is not None and (found := find.branches(module)):
        return _residual([found], save_every)
    if not _replace_runs(module, find, save_every, set()):
        raise UserError(
            f"from_plain: {type(module).__name__} has no list with {find.described}; "
            "put its residual blocks in an nnx.List, and name their class, as in "
            "from_plain(model, Block)."
        )
    if is_list and all(isinstance(one, Passed) for one in module[1:]):
        return module[0]
    return module


class _Finder:
    """Which modules are residual blocks, and the branches of each."""

    def __init__(self, blocks: Blocks | None):
        self.blocks = blocks
        if isinstance(blocks, type | tuple):
            classes = blocks if isinstance(blocks, tuple) else (blocks,)
            for one in classes:
                if not isinstance(one, type):
                    raise _no_blocks(one)
            names = ", ".join(one.__name__ for one in classes)
            self.described = f"a module of class {names}"
        elif blocks is None:
            self.described = "two modules of one class after one another"
        elif not callable(blocks):
            raise _no_blocks(blocks)
        else:
            self.described = "a module of which `blocks` says that it is one"

    def runs(self, modules: Sequence[Any]) -> Iterator[tuple[int, list[Any]]]:
        """Where runs of blocks begin in a list, and the branches of each block."""
        start, run = 0, []
        for k, one in enumerate([*modules, None]):
            found = None if one is None else self._in_list(modules, k)
            if found:
                start = start if run else k
                run.append(found)
            elif run:
                yield start, run
                run = []

    def _in_list(self, modules: Sequence[Any], k: int) -> list[nnx.Module] | None:
        if self.blocks is not None:
            return self.branches(modules[k])
        beside = [modules[j] for j in (k - 1, k + 1) if 0 <= j < len(modules)]
        own = type(modules[k])
        is_one = any(type(one) is own for one in beside)
        is_own = isinstance(modules[k], nnx.Module) and not _is_of_flax(own)
        return [Increment(modules[k])] if is_one and is_own else None

    def branches(self, module: Any) -> list[nnx.Module] | None:
        """The branches of a block; None where a module is none."""
        blocks = self.blocks
        if not isinstance(module, nnx.Module):
            return None
        if blocks is None or isinstance(blocks, type | tuple):
            said: Any = blocks is None or isinstance(module, blocks)
        else:
            said = blocks(module)
        if said is None or isinstance(said, bool):
            return [Increment(module)] if said else None
        name = type(module).__name__
        if not isinstance(said, Sequence) or not said:
            raise UserError(
                f"from_plain: `blocks` gives a {type(said).__name__} for {name}; let "
                "it give True or False, or a list with a module, or a tuple of "
                "modules, for each branch."
            )
        return [_branch(name, number, one) for number, one in enumerate(said)]


def _no_blocks(given: Any) -> UserError:
    return UserError(
        f"from_plain: `blocks` is or has a {type(given).__name__}, which is no class; "
        "give a class, a tuple of classes, or a function of a module."
    )


def _is_of_flax(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "flax"


def _branch(name: str, number: int, given: Any) -> nnx.Module:
    parts = given if isinstance(given, tuple) else (given,)
    for part in parts:
        # What a method or a closure reads would be a constant: without gradients.
        is_plain = callable(part) and not _holds_arrays(part)
        if not isinstance(part, nnx.Module) and not is_plain:
            raise UserError(
                f"from_plain: branch {number} of {name} has a {type(part).__name__} "
                "whose parameters cannot be found; give a module, or a tuple of "
                "modules and functions without any, to be called one after the other."
            )
    return parts[0] if len(parts) == 1 else nnx.Sequential(*parts)


def _holds_arrays(function: Any) -> bool:
    cells = getattr(function, "__closure__", None) or ()
    held = [getattr(function, "__self__", None), *(c.cell_contents for c in cells)]
    return any(isinstance(one, nnx.Module | nnx.Variable | jax.Array) for one in held)


def _replace_runs(
    node: Any, find: _Finder, save_every: int | None, seen: set[int]
) -> bool:
    """Put `RevResidual` in the place of every run of blocks below a module."""
    if id(node) in seen:
        return False
    seen.add(id(node))
    runs: list[tuple[int, list[Any]]] = []
    if isinstance(node, nnx.List):
        runs = list(find.runs(list(node)))
    for start, run in runs:
        node[start] = _residual(run, save_every)
        for place in range(start + 1, start + len(run)):
            node[place] = Passed()
    done = bool(runs)
    for one in list(vars(node).values()):
        if isinstance(one, nnx.Module) and not isinstance(one, RevResidual):
            done |= _replace_runs(one, find, save_every, seen)
    return done


def _residual(run: Sequence[list[nnx.Module]], save_every: int | None) -> RevResidual:
    branches = [branch for found in run for branch in found]
    check_apart("from_plain", by_number("branch", branches))
    return RevResidual(RevSequence(_pairs(branches), save_every=save_every))


def _pairs(branches: Sequence[nnx.Module]) -> list[RevModule]:
    """Reversible blocks of two branches; the last may be one of one."""
    pairs = [branches[k : k + 2] for k in range(0, len(branches), 2)]
    return [
        RevBlock(*pair, halves=False) if len(pair) == 2 else _Half(*pair)
        for pair in pairs
    ]


class _Half(RevModule):
    """One branch alone, the first of two: `y0 = x0 + f(x1)`."""

    def __init__(self, f: nnx.Module):
        self.maps = nnx.Dict({"f": f})

    def parts(self) -> tuple[Coupling, Any, Any]:
        maps, params, rest = split_maps(self.maps)
        step = Step(target=0, terms=(("f", 1),), join=Add())
        return Steps(maps, (step,), num_inputs=2, has_aux=True), params, rest

    def put(self, rest: Any) -> None:
        put_maps(self.maps, rest)


class _Swapped(RevModule):
    """A module on two streams, which change places after it."""

    def __init__(self, inner: RevModule):
        self.inner = inner

    def parts(self) -> tuple[Coupling, Any, Any]:
        coupling, params, rest = self.inner.parts()
        swap = Rearrange(_swap, _swap)
        return Sequential((coupling, swap)), (params, None), (rest, None)

    def put(self, rest: Any) -> None:
        self.inner.put(rest[0])


def _swap(streams: Any) -> Any:
    a, b = streams
    return b, a


class _Stacked(RevScan):
    """Blocks whose parameters are stacked already."""

    def __init__(self, block: RevModule, num_layers: int, actions: Any):
        self.block, self.num_layers, self.name = block, num_layers, "stack"
        self.actions = actions if isinstance(actions, Action | None) else tuple(actions)


def _stacked(module: Any, find: _Finder, num_layers: int, actions: Any) -> RevResidual:
    name, found = type(module).__name__, find.branches(module)
    if found is None:
        raise UserError(
            f"from_plain: {name} is not {find.described}; name its class, or leave "
            "num_layers out."
        )
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(nnx.state(module))}
    if lengths != {(num_layers,)}:
        raise UserError(
            f"from_plain: the arrays of {name} are not stacked to num_layers="
            f"{num_layers} along their first axis; make it by nnx.vmap, or leave "
            "num_layers out."
        )
    check_apart("from_plain", by_number("branch", found))
    pairs = _pairs(found)
    layer = pairs[0] if len(pairs) == 1 else RevSequence(pairs)
    layer = _Swapped(layer) if len(found) % 2 else layer
    return RevResidual(_Stacked(layer, num_layers, actions))


def _whole_blocks(blocks: RevModule) -> Iterator[Any]:
    """The plain blocks in reversible ones, one layer of those that are stacked."""
    for _, node in nnx.iter_graph(blocks):
        if isinstance(node, Increment):
            graph, state = nnx.split(node.block)
            if isinstance(blocks, _Stacked):
                state = jax.tree.map(lambda leaf: leaf[0], state)
            yield nnx.merge(graph, state, copy=True)


def _check_adds(block: Any, x: jax.Array) -> None:
    """See that a block gives a sum, one term of which is what it takes."""
    graph, state = nnx.split(block)
    run = lambda state, x: nnx.merge(graph, state, copy=True)(x)
    closed, y = jax.make_jaxpr(run, return_shape=True)(state, x)
    name = type(block).__name__
    if jax.tree.map(jnp.shape, y) != jnp.shape(x):
        raise UserError(
            f"from_plain: {name} takes {described(x)} and gives {described(y)}, so it "
            "cannot add to what it takes; leave it out by a function, as in "
            f"from_plain(model, lambda m: isinstance(m, {name}) and ...)."
        )
    program = flatten(closed)
    made = {out: op for op in program.ops for out in op.outputs}
    terms, wanted = [program.outputs[0]], program.inputs[-1]
    while terms:
        term = terms.pop()
        if term is wanted:
            return
        op = made.get(term) if isinstance(term, Value) else None
        if op is not None and (op.kind in SAME or op.kind in ("add", "add_any")):
            terms += op.inputs
    raise UserError(
        f"from_plain: {name} is no residual block, as what it gives is not a sum of "
        "what it takes and something else; leave it out by a function, as in "
        f"from_plain(model, lambda m: isinstance(m, {name}) and ...), or write it as "
        "x + f(x)."
    )
