"""Stopwatch: what compiled steps take on the devices of this machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_WARM_UPS = 2
"""Runs of a program alone that do not count."""
_FEWEST_RUNS, _MOST_RUNS = 4, 40
_IN_A_ROW = 2
"""Runs of a program before it is the next one's turn. The first of them finds another's
data in the caches, as no training step does: it is not among the fastest."""
_SECONDS = 0.06
"""Of each program: no longer than the compile of a small one takes."""
_SHARE = 4
"""Of the runs that are the fastest: whatever else a machine does only adds."""
_RANDOM = 65_537
"""Random numbers that are made; a larger array repeats them, at no round distance."""


@dataclass(frozen=True)
class Runnable:
    """A compiled step whose arguments are made when it is run.

    Attributes:
      compiled: The `jax.stages.Compiled`.
      given: Leaves of its arguments, as far as they are arrays already.
    """

    compiled: Any
    given: tuple[Any, ...] = ()

    def start(self) -> Callable[[], float]:
        """Places the arguments.

        Returns:
          What runs the step once, on its own results where it donates, and says the
          microseconds that it took.
        """
        infos, tree = jax.tree.flatten(self.compiled.args_info)
        # An argument that nothing uses has None, and may lie anywhere.
        shardings = tree.flatten_up_to(self.compiled.input_shardings)
        given = self.given if len(self.given) == len(infos) else (None,) * len(infos)
        leaves = [
            jax.device_put(_value(info, one), sharding)
            for info, one, sharding in zip(infos, given, shardings, strict=True)
        ]
        donated = [k for k, info in enumerate(infos) if info.donated]

        def run() -> float:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            wall, own = time.perf_counter(), time.process_time()
            results = jax.block_until_ready(self.compiled(*args, **kwargs))
            took = time.perf_counter() - wall
            if jax.default_backend() == "cpu":
                # While others use its core, a single thread has no time of its own.
                took = min(took, time.process_time() - own)
            _hand_over(leaves, donated, jax.tree.leaves(results))
            return 1e6 * took

        return run


def step_us(steps: Sequence[Runnable], seconds: float = _SECONDS) -> list[float]:
    """What steps take, in microseconds: each one's fastest runs, run in turn.

    Args:
      steps: Compiled for devices of this machine.
      seconds: Of each, beyond a few runs that are always made.
    """
    runs = [step.start() for step in steps]
    if len(runs) == 1:  # of several, the first run of each turn is as good as none
        for _ in range(_WARM_UPS):
            runs[0]()
    found: list[list[float]] = [[] for _ in runs]
    while any(map(lambda took: _goes_on(took, seconds), found)):
        for run, took in zip(runs, found, strict=True):
            if _goes_on(took, seconds):
                took += [run() for _ in range(_IN_A_ROW)]
    return [_mean_of_fastest(took) for took in found]


def _goes_on(took: Sequence[float], seconds: float) -> bool:
    if len(took) < _FEWEST_RUNS:
        return True
    return len(took) < _MOST_RUNS and sum(took) < 1e6 * seconds


def _mean_of_fastest(took: Sequence[float]) -> float:
    few = sorted(took)[: max(1, len(took) // _SHARE)]
    return sum(few) / len(few)


def _hand_over(leaves: list[Any], donated: Sequence[int], results: list[Any]) -> None:
    """Puts results where arguments were donated, as a training loop does.

    An argument that no result is like is copied anew.
    """
    for k in donated:
        if not leaves[k].is_deleted():
            continue
        like = [n for n, one in enumerate(results) if _form(one) == _form(leaves[k])]
        if like:
            leaves[k] = results.pop(like[0])
        else:
            leaves[k] = jax.device_put(_value(leaves[k], None), leaves[k].sharding)


def _form(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.sharding


def _value(info: Any, given: Any) -> Any:
    """What is there already, or numbers as a network may have them.

    Positive ones of about one over a matrix's inputs: no moment is negative and no
    activation grows from layer to layer.
    """
    same = (info.shape, info.dtype) == (
        getattr(given, "shape", None),
        getattr(given, "dtype", None),
    )
    if same and not isinstance(given, jax.ShapeDtypeStruct):
        return jnp.array(given, copy=True)
    if jnp.issubdtype(info.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0, impl=_key_impl(info)), info.shape)
    if jnp.issubdtype(info.dtype, jnp.inexact):
        inputs = info.shape[-2] if len(info.shape) > 1 else 1
        few = np.abs(np.random.default_rng(0).standard_normal(_RANDOM)) / inputs
    else:
        few = np.random.default_rng(0).integers(0, 2, _RANDOM)
    return np.resize(few.astype(info.dtype), info.shape)


def _key_impl(info: Any) -> Any:
    """Which random numbers keys are for, as `jax.random.key` takes it."""
    found: list[Any] = []
    note = lambda key: found.append(jax.random.key_impl(key))
    jax.eval_shape(note, jax.ShapeDtypeStruct(info.shape, info.dtype))
    return found[0]
