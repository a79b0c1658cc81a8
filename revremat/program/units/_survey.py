"""Survey: the sites of a program, and of the programs inside its operations."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jax.extend.core import JaxprEqn

from revremat import _compat
from revremat._primitives import CALLS, CHECKPOINTS
from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._ops import Constant, Op, Value, as_closed, flatten
from revremat.program.ir._passes import has_derivative
from revremat.program.units._checkpoints import best_survey, has_checkpoint
from revremat.program.units._segment_sites import with_segments
from revremat.program.units._sites import (
    Survey,
    call_site,
    repeat_sites,
    scan_site,
    sink_into,
    weights_first,
)

Mask = Sequence[bool]
Inner = tuple[tuple[str, int | None, Survey], ...]


def survey(
    closed: Any,
    in_mask: Mask,
    *,
    keep_checkpoints: bool = False,
    segments: bool = False,
) -> Survey:
    """Find the sites of a closed jaxpr.

    Args:
      closed: The jaxpr.
      in_mask: Which of its inputs are differentiated.
      keep_checkpoints: Whether regions of `jax.checkpoint` stay as they are, and loops
        with one inside; else each is a layer, or is dissolved, as is better.
      segments: Whether a program without equal layers is cut into segments.
    """
    cut = with_segments if segments else lambda found: found
    return cut(_Surveyor(keep_checkpoints).program(closed, in_mask, segmented=cut))


@dataclass(frozen=True, eq=False)
class _Surveyor:
    keep_checkpoints: bool

    def program(
        self,
        closed: Any,
        in_mask: Mask,
        of: Op | None = None,
        segmented: Callable[[Survey], Survey] = lambda found: found,
    ) -> Survey:
        """A program that runs once wherever it stands: in an operation, or alone."""
        known: dict[Any, Inner] = {}  # whichever checkpoints are dissolved
        dissolving = partial(self._dissolving, closed, in_mask, of, known=known)
        if self.keep_checkpoints:
            return dissolving(lambda eqn: False)
        return best_survey(dissolving, segmented)

    def _iteration(self, closed: Any, in_mask: Mask, of: Op) -> Survey:
        """A scan's body, of which loops alone are units, wherever they stand.

        A block in it is part of the layer, as are its checkpoints.
        """
        dissolves = lambda eqn: not self.keep_checkpoints
        return _looped(
            self._dissolving(closed, in_mask, of, dissolves, known={}, in_loop=True)
        )

    def _dissolving(
        self,
        closed: Any,
        in_mask: Mask,
        of: Op | None,
        dissolves: Callable[[JaxprEqn], bool],
        *,
        known: dict[Any, Inner],
        in_loop: bool = False,
    ) -> Survey:
        """The survey with some checkpoints dissolved, and all others left whole."""
        seen = Counter[Any]()
        program = flatten(
            closed,
            keep_names=True,
            keep_checkpoints=lambda eqn: not dissolves(eqn),
            keep_blocks=True,
            of=of,
        )
        live = {v for v, on in zip(program.inputs, in_mask, strict=True) if on}
        program, weights = weights_first(program, live)
        sites, inner, own_derivatives, loops = [], {}, [], set[Op]()
        kept = {
            op for op in program.ops if self.keep_checkpoints and has_checkpoint(op)
        }
        for op in program.ops:
            mask = [atom in live for atom in op.inputs]
            if not has_derivative(op) or not any(mask):
                continue
            live.update(out for out in op.outputs if is_differentiable(out.aval))
            held = [isinstance(atom, Constant) or atom in weights for atom in op.inputs]
            is_kept, within = op in kept, mask
            if op.kind == "scan":
                if op.eqn.params["length"] == 0:
                    continue
                if not is_kept:
                    site = scan_site(op, mask)
                    sites.append(site)
                    lifted = len(site.inputs) - len(op.inputs)
                    within = (site.in_mask or ())[lifted:]
                if not _takes_weights(op, live & weights):
                    loops.add(op)
            elif (
                (op.is_block or op.kind in CHECKPOINTS) and not in_loop and not is_kept
            ):
                sites.append(call_site(op, mask, held))
            elif op.has_own_derivative:
                own_derivatives.append((op, tuple(mask)))
            # One equation may stand at several places, each with sites of its own.
            place = (id(op.eqn), tuple(mask))
            key = (*place, seen[place])
            seen[place] += 1
            if key not in known:
                known[key] = self._inner(op, within, is_kept)
            if known[key]:
                inner[op] = known[key]
        if not in_loop:
            apart = {*inner, *kept, *(s.ops[0] for s in sites)}
            loops -= kept
            find = lambda apart: repeat_sites(program, apart, live, weights)
            repeats = find(apart - loops) if loops else []
            # Unless loops are parts of layers, layers are found between them.
            if not any(op in loops for site in repeats for op in site.ops):
                repeats = find(apart)
            calls = [site for site in sites if site.kind == "checkpoint"]
            others = [site for site in sites if site.kind != "checkpoint"]
            sites = [*others, *sink_into(calls, program, live, weights), *repeats]
        order = {op: k for k, op in enumerate(program.ops)}
        return Survey(
            program,
            tuple(sorted(sites, key=lambda site: order[site.ops[0]])),
            inner,
            tuple(own_derivatives),
            keeps_checkpoints=bool(kept),
            live=frozenset(live),
            weights=frozenset(weights),
        )

    def _inner(self, op: Op, mask: Mask, is_kept: bool) -> Inner:
        """Surveys of the programs inside an operation, where any has a site.

        Args:
          op: The operation.
          mask: Which of its inputs are differentiated; of a scan, in any iteration.
          is_kept: Whether it stays as it is.
        """
        return tuple(
            item
            for item in self._programs_in(op, mask, is_kept)
            if item[2].sites or item[2].inner or item[2].own_derivatives
        )

    def _programs_in(self, op: Op, mask: Mask, is_kept: bool) -> Inner:
        params = op.eqn.params
        if op.kind in CALLS and not op.is_block:
            key = "jaxpr" if "jaxpr" in params else "call_jaxpr"
            return ((key, None, self.program(as_closed(params[key]), mask, op)),)
        if op.kind == "cond":
            branches = map(as_closed, params["branches"])
            surveys = (self.program(branch, mask[1:], op) for branch in branches)
            return tuple(("branches", k, found) for k, found in enumerate(surveys))
        if op.kind == "scan" and not is_kept:
            closed = as_closed(params["jaxpr"])
            return (("jaxpr", None, self._iteration(closed, mask, op)),)
        if op.kind == "shard_map":
            inside = self.program(as_closed(params["jaxpr"]), mask, op)
            return (("jaxpr", None, _placed(inside, _compat.mapped_like(op.eqn))),)
        return ()


def _takes_weights(op: Op, weights: set[Value]) -> bool:
    """Whether a scan's iterations are layers with own weights; else time or chunks.

    Such a loop can be a part of a layer.
    """
    return any(
        atom in weights for atom in op.inputs[sum(_compat.scan_counts(op.eqn)) :]
    )


def _placed(found: Survey, within: Callable[[Callable[[], Any]], Any]) -> Survey:
    """The survey of a program that runs inside of `shard_map`."""
    sites = tuple(
        replace(site, within=lambda f, site=site: within(lambda: site.within(f)))
        for site in found.sites
    )
    inner = {
        op: tuple((key, k, _placed(inside, within)) for key, k, inside in places)
        for op, places in found.inner.items()
    }
    return replace(found, sites=sites, inner=inner)


def _looped(found: Survey) -> Survey:
    """The survey of a program that is a scan's body."""
    inner = {
        op: tuple((key, k, _looped(inside)) for key, k, inside in places)
        for op, places in found.inner.items()
    }
    sites = tuple(replace(s, num_scans=s.num_scans + 1) for s in found.sites)
    return replace(found, sites=sites, inner=inner)
