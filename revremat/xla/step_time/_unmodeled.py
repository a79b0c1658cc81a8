"""Calls whose time their shapes do not tell: LAPACK, cuSOLVER, Python callbacks."""

from collections import Counter
from typing import Any

from revremat.xla.hlo._hlo import Computation, Module
from revremat.xla.hlo._kernel_key import kernel_key
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._opcodes import CALLS
from revremat.xla.step_time._cost import has_model
from revremat.xla.target._cards import Card

# Markers of the compiler's own: nothing runs.
_MARKERS = (
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "LayoutConstraint", "Sharding"),
    *("SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"),
    *("MoveToHost", "MoveToDevice", "PinToDevice", "xla.sdy.", "Eigen", "SliceToDyn"),
)
# What people know a routine by; the first that is part of its name counts.
_KNOWN_AS = {
    "syev": "eigh",
    "heev": "eigh",
    "eigh": "eigh",
    "gesvd": "svd",
    "gesdd": "svd",
    "geqrf": "qr",
    "gqr_": "qr",
    "qrdecomposition": "qr",
    "compactwy": "qr",
    "potrf": "cholesky",
    "getrf": "lu",
    "lu_pivots": "lu",
    "lurealdecomposition": "lu",
    "trsm": "triangular solve",
    "triangularsolve": "triangular solve",
    "invertdiagblocks": "triangular solve",
    "geev": "eig",
    "callback": "Python callback",
}


def unmodeled_calls(module: Module, card: Card) -> dict[str, int]:
    """How often a step runs what has no time model, by name; the most frequent first.

    Args:
      module: The scheduled program.
      card: Kernels that were measured on it are known.

    Returns:
      Runs in one step, those of loops included, of each such call or operation.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.unmodeled_calls(module, target.card)
      {}
    """
    done: dict[int, Counter[str]] = {}

    def runs_of(computation: Computation) -> Counter[str]:
        if computation.id in done:
            return done[computation.id]
        done[computation.id] = Counter()  # a cycle would be damage: cut it
        found: Counter[str] = Counter()
        for i in computation.instructions:
            if card.kernels and kernel_key(i, module) in card.kernels:
                continue
            if not has_model(i, module) and not is_marker(i):
                found[_label(i)] += 1
            elif i.opcode in CALLS or i.opcode == "async-start":
                times = trip_count(i, module) if i.opcode == "while" else 1
                for inner in module.called(i):
                    for name, count in runs_of(inner).items():
                        found[name] += round(times * count)
        done[computation.id] = found
        return found

    return dict(runs_of(module.entry).most_common())


def is_marker(i: Any) -> bool:
    """Whether a call only tells the compiler something, and nothing runs."""
    return i.opcode == "custom-call" and i.custom_call_target.startswith(_MARKERS)


def _label(i: Any) -> str:
    name = i.custom_call_target or i.opcode
    lower = name.lower()
    known = next((word for part, word in _KNOWN_AS.items() if part in lower), "")
    return f"{known} ({name})" if known else name
