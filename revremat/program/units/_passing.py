"""Values that pass over layers: made before one, and used after it, as skips are.

Whatever uses such a value gives it a part of its gradient. A compiler may add the parts
up at the end, and hold until then what each of them is a slice of: of a dense network,
whose layers read all that is before them, that is more than all it keeps.
"""

from collections.abc import Iterator, Mapping

from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._ops import Op, Value
from revremat.program.units._sites import Site, Survey


def passing(found: Survey) -> Mapping[Op, tuple[Value, ...]]:
    """What is used after layers and made before them, and what they take beside it.

    Args:
      found: Of a program, or of one inside an operation.

    Returns:
      For each layer over which anything passes, by its first operation: the values that
      have gradients and are there when it is run.
    """
    ops = found.program.ops
    place = {op: k for k, op in enumerate(ops)}
    made: dict[Value, int] = {}
    last_use: dict[Value, int] = {}
    for k, op in enumerate(ops):
        made |= {
            out: k
            for out in op.outputs
            if out in found.live
            and out not in found.weights
            and is_differentiable(out.aval)
        }
        last_use |= {v: k for v in op.inputs if isinstance(v, Value) and v in made}
    last_use |= {v: len(ops) for v in found.program.outputs if v in made}
    values: dict[Op, tuple[Value, ...]] = {}
    for site in _sites(found):
        first, last = place[site.ops[0]], place[site.ops[-1]]
        there = [v for v, k in made.items() if k < first <= last_use.get(v, k)]
        if any(last_use[v] > last for v in there):
            values[site.ops[0]] = tuple(there)
    return values


def _sites(found: Survey) -> Iterator[Site]:
    """Every site, and those of groups, the outer ones last."""
    for site in found.sites:
        yield from site.parts
        yield site
