"""Which collectives the rules of a layout explain, and which they do not."""

import math
from collections.abc import Iterable

import numpy as np

from revremat._format import format_bytes
from revremat._measurement import Collective
from revremat.sharding._layout import Layout

_SMALL_BYTES = 1_000_000
"""An all-reduce of sums, norms and biases is no larger."""


def unexpected(
    collectives: Iterable[Collective], layout: Layout
) -> tuple[tuple[Collective, str], ...]:
    """Collectives that a layout should not make, and why.

    A name on a wrong dimension costs no error: XLA moves data to where it was asked
    for. What it then adds is found here:

    - an all-to-all along axes that the rules do not exchange;
    - an all-reduce of more than 1 MB along an axis that cuts the sequence, where
      reduce-scatters belong;
    - weights gathered along axes over which the rules do not cut weights (ZeRO). Under
      sequence parallelism an argument may be the input of the first layer: there it is
      found only if the backward pass alone gathers it.

    Args:
      collectives: Of a `Measurement`.
      layout: The mesh and the rules that the program was laid out by.

    Example:
      >>> import revremat as rr
      >>> from revremat import sharding
      >>> mesh = rr.target("h100:8").mesh({"data": 1, "model": 8})
      >>> layout = sharding.Layout(mesh, sharding.megatron(sequence=True))
      >>> one = rr.Collective("all-to-all", "forward", "attn", 2**20, group=(0, 1))
      >>> [why for _, why in sharding.unexpected([one], layout)]
      ['the rules exchange nothing along model']
    """
    rules = layout.rules
    of = lambda names: {a for name in names for a in rules.activations.get(name, ())}
    sequence = of(rules.gathered) - of(rules.gathered.values())
    collectives = tuple(collectives)
    forward = {one.argument for one in collectives if one.phase == "forward"}
    stored = {axis for axes in rules.weights.values() for axis in axes}
    found = []
    for one in collectives:
        axes = _axes(one.group, layout)
        along = " and ".join(sorted(axes))
        if one.kind in ("all-to-all", "ragged-all-to-all") and not axes <= {
            *rules.exchanged
        }:
            found.append((one, f"the rules exchange nothing along {along}"))
        elif one.kind == "all-reduce" and axes & sequence and one.bytes > _SMALL_BYTES:
            size = format_bytes(one.bytes)
            why = f"{size} are reduced along {along}, where the sequence is cut"
            found.append((one, why))
        elif one.kind == "all-gather" and one.argument and not axes <= stored:
            if axes <= sequence and one.argument in forward:
                continue
            why = f"{one.argument} is gathered along {along}, and stays whole for it"
            found.append((one, why))
    return tuple(found)


def _axes(group: tuple[int, ...], layout: Layout) -> frozenset[str]:
    """The mesh axes along which a group's devices differ."""
    shape = tuple(layout.mesh.shape.values())
    if not group or max(group) >= math.prod(shape):
        return frozenset()
    places = np.array(np.unravel_index(group, shape))
    differ = (places != places[:, :1]).any(axis=1)
    return frozenset(
        axis for axis, on in zip(layout.mesh.axis_names, differ, strict=True) if on
    )
