"""Small random losses without equal layers, and random plans for their segments.

Blocks of different kinds follow one another at changing widths. Values of early ones
are joined to late ones, as in a U-Net, or read by several. They are tiny: what is
tested is structure, not size.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr
from experiments.bench.random_programs import BATCH, LENGTH, PARTS, random_action

_LOOPS = ("_recur", "_inner_checkpoint", "_dropout")
"""Units by themselves, and one that has a width of its own."""
BLOCKS = tuple(part for part in PARTS if part.__name__ not in _LOOPS)
WIDTHS = range(3, 13)
"""All different in one program, or some of its layers would be equal."""


def make_net(seed: int) -> tuple[Callable[..., Any], Any, Any]:
    """A loss with its parameters and batch: `(loss, params, batch)`.

    Args:
      seed: Of the random numbers; the program is another one for each.
    """
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(5, 9))
    blocks = [BLOCKS[k] for k in rng.permutation(len(BLOCKS))[:depth]]
    widths = [int(n) for n in rng.permutation(WIDTHS)[: depth + 1]]
    # To each block, the one whose value is joined to its own; itself for none.
    joined = [int(rng.integers(0, k + 1)) for k in range(depth)]
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.4)
    params = [
        {
            "own": (normal(a, a), normal(a, a)),
            "join": normal(widths[j], a),
            "out": normal(a, b),
        }
        for a, b, j in zip(widths, widths[1:], joined, strict=False)
    ]
    batch = {"x": normal(BATCH, LENGTH, widths[0]), "key": jax.random.key(seed)}
    in_place = bool(rng.integers(0, 2))

    def loss(params, batch):
        x, seen = batch["x"], []
        for k, (block, w) in enumerate(zip(blocks, params, strict=True)):
            seen.append(x)
            x = block(w["own"], x, batch["key"])
            if joined[k] != k:
                x = x + seen[joined[k]] @ w["join"]
            x = jnp.tanh(x @ w["out"])
        extra = seen[depth // 2].mean() if in_place else 0.0
        return (x**2).mean() + extra

    return loss, params, batch


def make_schedule(graph: rr.Graph, rng: np.random.Generator) -> rr.Plan:
    """A plan with random actions for segments, for groups of them, or for both."""
    actions = {}
    units = {unit.name: unit for unit in graph.units}
    for name, unit in units.items():
        outer = unit.enclosing
        if outer in actions and actions[outer] != rr.RECOMPUTE:
            continue
        kind = rng.random()
        if kind < 0.3:
            continue
        actions[name] = rr.RECOMPUTE if kind < 0.6 else random_action(unit, rng)
    return graph.plan(actions, gradient_barrier=bool(rng.integers(0, 2)))
