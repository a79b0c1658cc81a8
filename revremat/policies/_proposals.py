"""Proposals: sets to save and other actions, before anything judges them.

Minimum cuts, subsets of what is expensive to recompute or tagged, and what a model of
bytes against time cannot judge: offloading, inversion, segments and chunks.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest

from revremat._action import INVERT, RECOMPUTE, SAVE, Action
from revremat._format import format_bytes
from revremat._graph import Unit
from revremat.policies._bans import bans
from revremat.policies._candidate import Candidate, dots
from revremat.policies._joint import Joint, Rates, work, work_again
from revremat.policies._mincut import Cut, Weights, cut, front
from revremat.policies._tagged import with_tags

_MOST_NAMES = 10
_MOST_STEPS = 200_000
_LEAST_GAIN = 0.01
_MOST_LISTED = 6
_NEARLY_SMALLEST = 1.05
_CHEAP = 0.01
"""Of what recomputing everything costs."""
_NUM_CHUNKINGS = 3
_LONG = 16
_VERY_LONG = 256
_MOST_SENT = 6
_WORTH_SENDING = 0.03
"""Of what a layer keeps."""
_RATES = Rates()


def cheap_names(unit: Unit, corners: Sequence[Cut]) -> list[str]:
    """What is small enough to be kept beside anything."""
    smallest = corners[-1].cost.bytes
    cheap = (c for c in corners if c.cost.bytes <= _NEARLY_SMALLEST * smallest)
    return [unit.values[k].name for k in max(cheap, key=lambda c: c.cost.bytes).kept]


def cuts(
    joint: Joint, names: Sequence[str], corners: Sequence[Cut], beside: Sequence[str]
) -> list[Candidate]:
    """Minimum cuts, then subsets of compute-intensive names and what is cheap.

    Where nothing is compute-intensive, single values: what fusion makes of them no
    model foresees, and some take the place of an input, for no bytes at all.
    """
    unit = joint.unit
    partitioner = cut(joint, Weights(recomputing=0.0), bans(joint))
    found = [Candidate("min-cut", _keep(joint, partitioner.kept))]
    tagged = [with_tags(joint, corner.kept) for corner in corners]
    found += [Candidate(title(unit, kept), _keep(joint, kept)) for kept in tagged]
    rates = joint.rates
    subsets = _best_subsets(unit, names, rates)
    subsets = subsets or [[name] for name in _cheap_names(unit, rates)]
    for subset in subsets:
        for more in (beside, []):
            kept = {unit.position[name] for name in (*subset, *more)}
            action = _keep(joint, kept)
            kept = {unit.position[name] for name in action.save}
            found.append(Candidate(title(unit, kept), action))
    return found


def cuts_by_rules(joint: Joint) -> list[Candidate]:
    """Minimum cuts with fewer and fewer rules against recomputing.

    Recomputing whatever no rule is against costs nothing there.
    """
    return [
        Candidate(
            f"min-cut, {' and '.join(rules)} kept",
            _keep(joint, cut(joint, Weights(recomputing=0.0), bans(joint, rules)).kept),
        )
        for rules in (
            ("compute-intensive", "reduction", "whole"),
            ("compute-intensive", "reduction"),
            ("compute-intensive",),
        )
    ]


def cuts_without_stack(joint: Joint) -> list[Candidate]:
    """Minimum cuts of layers that have no stack, the values as they are cut.

    What is tagged is copied into a stack like what it is made of. Without one, the sum
    after a tagged value may be in memory already, and the tagged value not.
    """
    cut_sets = dict.fromkeys(corner.kept for corner in front(joint))
    actions = [RECOMPUTE(save=_names(joint.unit, kept)) for kept in cut_sets]
    actions = [_without_unused(joint.unit, action) for action in actions]
    places = lambda action: [joint.unit.position[name] for name in action.save]
    return [Candidate(title(joint.unit, places(one)), one) for one in actions]


def _names(unit: Unit, kept: Iterable[int]) -> list[str]:
    return [unit.values[k].name for k in kept]


def _keep(joint: Joint, kept: Collection[int]) -> Action:
    """Keeps values, or their tagged equivalents."""
    save = _names(joint.unit, with_tags(joint, kept))
    return _without_unused(joint.unit, RECOMPUTE(save=save))


def _without_unused(unit: Unit, action: Action) -> Action:
    """The action without names that make no difference: inputs and unused ones."""
    inputs = {v.name for v in unit.values if v.role == "input"}
    unused = inputs | set(unit.kept(action).unused)
    return RECOMPUTE(save=[name for name in action.save if name not in unused])


def title(unit: Unit, kept: Iterable[int]) -> str:
    """What people can call a set: its large values, and how many small ones more.

    With more than six large ones, their number and size.

    >>> import jax, jax.numpy as jnp, revremat as rr
    >>> w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    >>> x = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    >>> layer = lambda w, x: rr.name(jnp.tanh(x @ w), "hidden")
    >>> unit = rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x)["stack"]
    >>> title(unit, [unit.position["hidden"]])
    'hidden'
    """
    values = [unit.values[k] for k in kept if unit.values[k].role != "input"]
    if not values:
        return "nothing"
    least = max(v.num_bytes for v in values) * (1 - 1 / _NEARLY_SMALLEST)
    large = [v for v in values if v.num_bytes > least]
    more = len(values) - len(large)
    if len(large) > _MOST_LISTED:
        size = format_bytes(sum(v.num_bytes for v in values))
        return f"{len(values)} values of {size}"
    text = "+".join(sorted(v.name for v in large))
    return f"{text} and {more} more" if more else text


def compute_intensive_names(unit: Unit, rates: Rates = _RATES) -> tuple[str, ...]:
    """Names of values that are tagged or cost a product or an exchange to recompute.

    Those that save most work per byte come first; at most ten. Untagged values whose
    recomputing is less than a hundredth of all are not worth a name.
    """
    listed = []
    for k, value in enumerate(unit.values):
        maker = unit.maker.get(k)
        compute_intensive = maker is not None and (
            maker.compute_intensive or maker.kind == "dot_general"
        )
        if (
            value.name
            and (value.given or compute_intensive)
            and not (maker and maker.effectful)
        ):
            made_by = (maker.num_flops, maker.sent_bytes) if maker else (0, 0)
            per_byte = work(unit, *made_by, rates) / max(1, value.num_bytes)
            listed.append((not value.given, -per_byte, value.name))
    first = [n for *_, n in sorted(listed)[: 4 * _MOST_NAMES]]
    return _worth_keeping(unit, first, rates)


def _cheap_names(unit: Unit, rates: Rates = _RATES) -> tuple[str, ...]:
    """Names of whatever a layer makes; those that save most work per byte first."""
    made = [v.name for v in unit.values if v.name and v.role == "made"]
    return _worth_keeping(unit, made, rates)


def _worth_keeping(
    unit: Unit, names: Iterable[str], rates: Rates = _RATES
) -> tuple[str, ...]:
    """Those that save a hundredth of all work, most of it per byte first."""
    bare = work_again(unit, unit.kept(RECOMPUTE), rates)
    gains = []
    for name in names:
        together = [name, *companions(unit, [name])]
        kept = unit.kept(RECOMPUTE(save=together))
        saved = bare - work_again(unit, kept, rates)
        if name in kept.saved and saved >= _LEAST_GAIN * bare:
            sizes = [unit.values[unit.position[n]].num_bytes for n in together]
            rank = (-saved / max(1, sum(sizes)), -sizes[0], name)
            gains.append((rank, name))
    chosen: list[str] = []
    for _, name in sorted(gains, key=lambda gain: gain[0]):
        if not set(companions(unit, [name])) & set(chosen):
            chosen.append(name)
    return tuple(chosen[:_MOST_NAMES])


def companions(unit: Unit, names: Iterable[str]) -> list[str]:
    """What has to be kept beside values for the operations that make them not to run.

    Those are their other results that the backward pass takes: beside what attention
    gives back, the sums that it divided by.
    """
    wanted, needed = set(names), set(unit.residuals_of)
    found = []
    for op in unit.operations:
        made = [unit.values[k] for k in op.outputs]
        if len(made) > 1 and wanted & {v.name for v in made}:
            taken = [unit.values[k] for k in op.outputs if k in needed]
            found += [v.name for v in taken if v.role == "made" and v.name]
    return [name for name in found if name and name not in wanted]


def _best_subsets(
    unit: Unit, names: Sequence[str], rates: Rates = _RATES
) -> list[list[str]]:
    """Subsets that no other beats in both bytes and work."""
    most = int(math.log2(max(2, _MOST_STEPS // max(1, len(unit.operations)))))
    costed: list[tuple[int, float, list[str]]] = []
    names = names[:most]
    for alone in _subsets(names):
        subset = (*alone, *companions(unit, alone))
        kept = unit.kept(RECOMPUTE(save=subset))
        if not set(subset) & set(kept.unused):
            again = work_again(unit, kept, rates)
            costed.append((kept.device_bytes, again, sorted(subset)))
    front: list[tuple[int, float, list[str]]] = []
    for size, again, subset in sorted(costed):
        if not front or again < front[-1][1]:
            front.append((size, again, subset))
    return [subset for *_, subset in front if subset]


def _subsets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from combinations(names, size)


def others_of(
    unit: Unit,
    names: Sequence[str],
    beside: Sequence[str],
    offload: bool,
    ahead: bool,
) -> list[Candidate]:
    """What the cheap model cannot judge: the first of every kind, then the second."""
    products = dots(unit, with_batch=False)
    inverts = [Candidate("invert", INVERT)]
    early = []
    if ahead and unit.num_layers > 1 and products:
        early.append(Candidate("full, ahead", RECOMPUTE(ahead=products)))
        inverts.append(Candidate("invert, ahead", INVERT(ahead=products)))
    kinds = [
        _offloads(unit, names) if offload and unit.num_layers > 1 else [],
        early,
        _in_segments(unit, beside),
        inverts,
        _chunkings(unit),
    ]
    taken = [[c for c in kind if not c.action.refused_by(unit.facts)] for kind in kinds]
    return [c for turn in zip_longest(*taken) for c in turn if c is not None]


def _chunkings(unit: Unit) -> list[Candidate]:
    """A few numbers of chunks, a factor of four apart where there are that many."""
    chosen: list[int] = []
    for number in sorted(unit.splits):
        if not chosen or number >= 4 * chosen[-1]:
            chosen.append(number)
    return [
        Candidate(f"{number} chunks", RECOMPUTE(chunks=number))
        for number in chosen[:_NUM_CHUNKINGS]
    ]


def _in_segments(unit: Unit, beside: Sequence[str]) -> list[Candidate]:
    """Segments of long stacks, each as long as it should be by the bytes alone.

    Of N layers in segments of k, N / k inputs are kept, and what k layers keep once
    theirs is run again: least at k = sqrt(N * input / kept) (Chen et al., 2016). Very
    long ones may have twice that: it leaves more room for layers that run only once.
    """
    if unit.num_layers < _LONG:
        return []
    found = []
    handed = sum(v.num_bytes for v in unit.values if v.role == "input")
    cheap = _without_unused(unit, RECOMPUTE(save=beside))
    for name, action in (
        ("cheap" if cheap.save else "recompute all", cheap),
        ("save all", SAVE),
    ):
        kept = max(1, unit.kept(action).device_bytes)
        best = math.sqrt(unit.num_layers * handed / kept)
        least = 2 ** max(1, round(math.log2(max(best, 1))))
        is_long = unit.num_layers >= _VERY_LONG and action.kind == "recompute"
        for every in (least, 2 * least) if is_long else (least,):
            if 4 * every <= unit.num_layers:
                label = f"{name}, segments of {every}"
                found.append(Candidate(label, replace(action, segment_length=every)))
    return found


def _is_made_of(unit: Unit, name: str, other: str) -> bool:
    """Whether a value costs next to nothing once there is another."""
    others = [other, *companions(unit, [other])]
    all_of_it = [*others, name, *companions(unit, [name])]
    with_it = unit.kept(RECOMPUTE(save=all_of_it)).recompute_flops
    without = unit.kept(RECOMPUTE(save=others)).recompute_flops
    return without - with_it <= _CHEAP * unit.kept(RECOMPUTE).recompute_flops


def _offloads(unit: Unit, names: Sequence[str]) -> list[Candidate]:
    """The inputs; the costliest value, other products saved; all products; and so on.

    With a layer's inputs on the host nothing of it is left on the device, and they have
    all of the forward pass to get there and all of the backward pass to be fetched.
    """
    inputs, products = sorted(_inputs(unit)), sorted(dots(unit, with_batch=False))
    first, found, alone = [], [], []
    if inputs:
        name = f"recompute all, offload {'+'.join(inputs)}"
        first.append(Candidate(name, RECOMPUTE(offload=inputs)))
    for name in names[:2]:
        others = [n for n in names if n in products and not _is_made_of(unit, name, n)]
        beside = companions(unit, [name])
        alone.append(
            Candidate(f"offload {name}", RECOMPUTE(save=beside, offload=[name]))
        )
        if others:
            action = RECOMPUTE(save=[*others, *beside], offload=[name])
            found.append(
                Candidate(f"{'+'.join(sorted(others))}, offload {name}", action)
            )
    every = [Candidate(f"offload {'+'.join(products)}", RECOMPUTE(offload=products))]
    return [*first, *found[:1], *(every if products else []), *found[1:], *alone]


def _inputs(unit: Unit) -> list[str]:
    """Names of the inputs that a layer keeps, but for small ones."""
    inputs = [
        unit.values[unit.position[name]]
        for name in unit.kept(RECOMPUTE).saved
        if unit.values[unit.position[name]].role == "input"
    ]
    least = _WORTH_SENDING * sum(v.num_bytes for v in inputs)
    return [v.name for v in inputs if v.num_bytes > least]


def sent_to_host(unit: Unit, candidate: Candidate) -> list[Candidate]:
    """A set once more for each of its inputs and large values, with that on the host.

    Inputs come first, then the largest. What is little of it is not worth a transfer.

    Args:
      unit: From a graph.
      candidate: The set.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import preset, sent_to_host
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> unit = rr.trace(loss, w, x)["stack"]
      >>> all(c.action.offload for c in sent_to_host(unit, preset(unit, "dots")))
      True
    """
    action, kept = candidate.action, unit.kept(candidate.action)
    sizes = {name: unit.values[unit.position[name]].num_bytes for name in kept.saved}
    large = [n for n in sizes if sizes[n] >= _WORTH_SENDING * kept.device_bytes]
    large.sort(key=lambda name: (-sizes[name], name))
    inputs = [name for name in _inputs(unit) if name in sizes]
    found = []
    for name in dict.fromkeys([*inputs, *large[:_MOST_SENT]]):
        save = tuple(n for n in action.save if n != name)
        sends = replace(action, save=save)(offload=[name])
        if not sends.refused_by(unit.facts):
            found.append(Candidate(f"{candidate.name}, offload {name}", sends))
    return found
