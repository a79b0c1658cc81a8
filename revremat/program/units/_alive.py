"""What is alive of a program whose layers are recomputed one at a time."""

from collections.abc import Sequence

from revremat.program.ir._costs import num_bytes
from revremat.program.units._sites import REPEATED, SEGMENT, Site, Survey
from revremat.program.units._stretch import made_by


def alive(found: Survey) -> int:
    """Bytes alive if layers are recomputed one at a time, beside loops and blocks.

    Those are what layers give out, what the largest one makes, and what is made outside
    of layers.
    """
    kinds = (*REPEATED, SEGMENT, "checkpoint")
    layers = [site for site in found.sites if site.kind in kinds]
    covered = {op for site in layers for op in site.ops}
    rest = sum(made_by(op) for op in found.program.ops if op not in covered)
    return rest + _alive_in(layers)


def _alive_in(layers: Sequence[Site]) -> int:
    """Bytes that layers give out, and those that the largest one makes."""
    given = sum(num_bytes(out.aval) for site in layers for out in site.outputs)
    made = (
        _alive_in(site.parts) if site.parts else sum(map(made_by, site.body.ops))
        for site in layers
    )
    return given + max(made, default=0)
