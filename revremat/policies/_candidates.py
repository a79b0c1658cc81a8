"""Candidates: the ways back worth pricing for a unit, out of very many.

Presets by the names people know them under, then subsets of what is dear to rebuild or
tagged: all of them are weighed by bytes against FLOPs, and the best at each size stay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from revremat._graph import Unit
from revremat._plan import INVERT, RECOMPUTE, SAVE, Action

PRESETS = ("none", "full", "dots", "dots_no_batch")
_MOST_NAMES = 10
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Candidate:
    """One way back for every layer of a unit.

    Attributes:
      name: A preset's name, or what is kept (`ctx+qkv`, `offload ctx`).
      action: What to do.
    """

    name: str
    action: Action


def preset(unit: Unit, name: str) -> Candidate:
    """A preset for a unit.

    `none` keeps what plain autodiff keeps, `full` the layer's input alone, `dots` the
    results of matrix products as well, `dots_no_batch` only of those without batch
    dimensions (products with weights).

    Raises:
      KeyError: No preset of that name.
    """
    match name:
        case "none":
            return Candidate(name, SAVE)
        case "full":
            return Candidate(name, RECOMPUTE)
        case "dots":
            return Candidate(name, RECOMPUTE(save=_dots(unit, with_batch=True)))
        case "dots_no_batch":
            return Candidate(name, RECOMPUTE(save=_dots(unit, with_batch=False)))
    raise KeyError(name)


def candidates(
    unit: Unit, *, offload: bool = False, ahead: bool = False, most_subsets: int = 5
) -> tuple[Candidate, ...]:
    """What is worth compiling for a unit; no two keep the same.

    Args:
      unit: From a graph.
      offload: Whether the target has host memory to offload to.
      ahead: Whether to propose rebuilding a layer early (it hides under collectives).
      most_subsets: How many subsets of residuals beside the presets.

    Returns:
      `full` first, then the other presets, subsets by bytes kept, and the others.
    """
    others = [name for name in PRESETS if name != "full"]
    found = [preset(unit, name) for name in ("full", *others)]
    names = dear_names(unit)
    found += _best_subsets(unit, names, most_subsets)
    if unit.invertible:
        found.append(Candidate("invert", INVERT))
    weights_products = _dots(unit, with_batch=False)
    if ahead and unit.num_layers > 1 and weights_products:
        found.append(Candidate("full, ahead", RECOMPUTE(ahead=weights_products)))
    if offload and unit.num_layers > 1:
        found += _offloads(unit, names)
    most_flops = unit.kept(RECOMPUTE).rebuild_flops
    seen, distinct = set(), []
    for candidate in found:
        kept = unit.kept(candidate.action)
        # Two names of one value keep the same, too.
        flops = round(kept.rebuild_flops / max(1.0, _LEAST_GAIN * most_flops))
        key = (kept.device_bytes, kept.host_bytes, flops, kept.ahead)
        if key not in seen:
            seen.add(key)
            distinct.append(candidate)
    return tuple(distinct)


def dear_names(unit: Unit) -> tuple[str, ...]:
    """Names of values that are tagged or cost a matrix product to rebuild.

    Those that save most FLOPs per byte come first; at most ten. Untagged values whose
    rebuilding is less than a hundredth of all are not worth a name.
    """
    dear = {
        unit.values[k].name
        for op in unit.operations
        if op.dear or op.kind == "dot_general"
        for k in op.outputs
    }
    bare = unit.kept(RECOMPUTE).rebuild_flops
    gains = []
    for r in unit.residuals:
        if not (r.given or r.name in dear) or r.pinned:
            continue
        kept = unit.kept(RECOMPUTE(save=[r.name]))
        if r.name in kept.saved:
            saved = bare - kept.rebuild_flops
            if saved < _LEAST_GAIN * bare:
                continue
            gains.append((-saved / max(1, r.num_bytes), r.name))
    return tuple(name for _, name in sorted(gains)[:_MOST_NAMES])


def _dots(unit: Unit, *, with_batch: bool) -> list[str]:
    names = (
        unit.values[k].name
        for op in unit.operations
        if op.kind == "dot_general" and (with_batch or not op.batch_dims)
        for k in op.outputs
    )
    return [name for name in names if name]


def _best_subsets(unit: Unit, names: Sequence[str], most: int) -> list[Candidate]:
    """Subsets that no other beats in both bytes and FLOPs, spread over the sizes."""
    priced = []
    for subset in _subsets(names):
        kept = unit.kept(RECOMPUTE(save=subset))
        if not set(subset) & set(kept.unused):
            priced.append((kept.device_bytes, kept.rebuild_flops, sorted(subset)))
    front: list[tuple[int, int, list[str]]] = []
    for size, flops, subset in sorted(priced):
        if not front or flops < front[-1][1]:
            front.append((size, flops, subset))
    chosen = _spread([p for p in front if p[2]], most)
    return [
        Candidate("+".join(subset), RECOMPUTE(save=subset)) for _, _, subset in chosen
    ]


def _subsets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from combinations(names, size)


def _spread(
    front: Sequence[tuple[int, int, list[str]]], most: int
) -> list[tuple[int, int, list[str]]]:
    """At most so many, the ones that lower the FLOPs most against their neighbours."""
    left = list(front)
    while len(left) > most:

        def loss(k: int) -> float:
            before = left[k - 1][1] if k else left[k][1] * 1.25
            return float(before - left[k][1])

        # The largest set of all stays: it is what `dots` would need at least.
        left.pop(min(range(len(left) - 1), key=loss))
    return left


def _offloads(unit: Unit, names: Sequence[str]) -> list[Candidate]:
    products = _dots(unit, with_batch=False)
    found = []
    if products:
        found.append(
            Candidate(
                "offload " + "+".join(sorted(products)), RECOMPUTE(offload=products)
            )
        )
    for name in names[:2]:
        others = [n for n in names if n != name and n in products]
        found.append(Candidate(f"offload {name}", RECOMPUTE(offload=[name])))
        if others:
            action = RECOMPUTE(save=others, offload=[name])
            found.append(
                Candidate(f"{'+'.join(sorted(others))}, offload {name}", action)
            )
    return found
