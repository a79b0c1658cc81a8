"""Authors' checkpoints: a proposal for where layers begin and end, like others.

A region of `jax.checkpoint` is one layer where that is as good as what is found in the
program without it. It is dissolved where loops or blocks are inside, which then are
units, where layers that are found are other parts of the program, and where it is all
there is.
"""

from collections.abc import Callable, Collection, Iterable

from jax.extend.core import JaxprEqn

from revremat._primitives import CHECKPOINTS
from revremat.program.ir._costs import every_op
from revremat.program.ir._ops import Op, Program
from revremat.program.units._alive import alive
from revremat.program.units._sites import REPEATED, Site, Survey
from revremat.program.units._stretch import made_by

_BETTER = 0.99
"""Of what one survey leaves alive, by another one that is to be preferred."""
_MOST = 0.5
"""Of what a program makes, by one checkpoint."""

Dissolving = Callable[[Callable[[JaxprEqn], bool]], Survey]
"""A program's survey, those checkpoints dissolved of which it is said."""


def has_checkpoint(op: Op) -> bool:
    """Whether it is a region of `jax.checkpoint`, or holds one."""
    inside = every_op(Program((), (op,), ()), keep_checkpoints=True)
    return any(one.kind in CHECKPOINTS for one in inside)


def best_survey(
    dissolving: Dissolving, segmented: Callable[[Survey], Survey] = lambda found: found
) -> Survey:
    """The survey with those checkpoints dissolved that are better no layers.

    Args:
      dissolving: Surveys the program.
      segmented: The survey with segments, if the program has few other layers.
    """
    whole = dissolving(lambda eqn: False)
    layers = [site for site in whole.sites if site.kind == "checkpoint"]
    if not layers:
        return whole
    differentiated = {id(site.ops[0].eqn) for site in layers}
    idle = {
        id(op.eqn)
        for op in whole.program.ops
        if op.kind in CHECKPOINTS and id(op.eqn) not in differentiated
    }
    bare = dissolving(lambda eqn: id(eqn) not in idle)
    if not bare.sites and not bare.inner and _is_most(layers, bare.program):
        return bare  # whatever else is done with a program that has no layers
    loops = {site.ops[0] for site in bare.sites if site.kind not in REPEATED}
    found = {op for site in bare.sites if site.kind in REPEATED for op in site.ops}
    with_loops = _regions_with(bare, loops | bare.inner.keys())
    with_layers = _regions_with(bare, found)
    as_layers = whole
    if with_loops:
        as_layers = dissolving(lambda eqn: id(eqn) in with_loops)
    best = as_layers
    if not with_layers <= with_loops:
        parts = dissolving(lambda eqn: id(eqn) in with_loops | with_layers)
        best = parts if alive(parts) < _BETTER * alive(best) else best
    in_segments = segmented(bare)
    return in_segments if alive(in_segments) < _BETTER * alive(best) else best


def _regions_with(found: Survey, ops: Collection[Op]) -> set[int]:
    """Dissolved checkpoints with some of the operations inside, by their equations."""
    return {
        id(region.op.eqn)
        for region in found.program.regions
        if any(op in ops for op in region.ops)
    }


def _is_most(layers: Iterable[Site], program: Program) -> bool:
    """Whether one layer makes most of what a program makes."""
    largest = max(sum(map(made_by, site.body.ops)) for site in layers)
    return largest > _MOST * sum(map(made_by, program.ops))
