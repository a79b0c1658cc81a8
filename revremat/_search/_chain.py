"""Chain: the segments of a program without equal layers, as a schedule sees them."""

from collections.abc import Sequence
from dataclasses import replace

from revremat import policies
from revremat._action import RECOMPUTE, SAVE, Action
from revremat._graph import Graph, Unit
from revremat._primitives import MATMULS
from revremat.policies import Candidate, Chain, Group, Pool, Segment, Way
from revremat.xla import Target

_MOST_WAYS = 5
"""Of one segment or group, beside leaving it as it is."""
_LEAST_GAIN = 0.05
"""Of what recomputing a unit takes, by a way that keeps more than another."""
_NO_GAIN = 0.1
"""Of time that is said to be gained by not storing values: most are never stored, since
they are computed within what uses them, so that it is no gain. It takes a little."""


def rates_of(target: Target) -> policies.Rates:
    """What a target does in the time in which it moves one byte."""
    card = target.card
    products = card.matmul_efficiency * max(card.peak_flops.values())
    sent = card.link_efficiency * card.link_bandwidth
    rates = (products, card.peak_flops["float32"], sent)
    return policies.Rates(*(rate / card.stream_bandwidth for rate in rates))


def keeping_products(unit: Unit) -> Action:
    """Recomputes all but products and convolutions, as `dots_saveable` of JAX does."""
    products = (op for op in unit.operations if op.kind.startswith(MATMULS))
    names = (unit.values[k].name for op in products for k in op.outputs)
    return RECOMPUTE(save=filter(None, names))


def segments_of(graph: Graph) -> tuple[Unit, ...]:
    """The segments of a graph that have no others inside."""
    outer = {unit.enclosing for unit in graph.units}
    return tuple(u for u in graph.units if u.is_segment and u.name not in outer)


def chain_of(graph: Graph, target: Target) -> Chain | None:
    """What a program's segments may do; None if it has none."""
    segments = segments_of(graph)
    if not segments:
        return None
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    sizes: dict[int, float] = {}
    for k, unit in enumerate(segments):
        for position, number in zip(unit.crossing, unit.crossing_ids, strict=True):
            sizes[number] = unit.values[position].num_bytes
            first.setdefault(number, k)
            last[number] = k
    waiting = [
        sum(sizes[v] for v in sizes if first[v] <= k < last[v])
        for k in range(len(segments))
    ]
    groups: list[Group] = []
    found: dict[str, list[tuple[Unit, float]]] = {}
    for unit, size in zip(segments, waiting, strict=True):
        found.setdefault(unit.enclosing or unit.name, []).append((unit, size))
    for name, members in found.items():
        parts = tuple(_segment(unit, target, size) for unit, size in members)
        if members[0][0].enclosing:
            around = graph[name]
            ways = _as_parts(_ways(around, target)[1:], parts)
            given = next(w.kept for w in ways if w.action == RECOMPUTE)
            groups.append(Group(parts, name, ways, given))
        else:
            groups.append(Group(parts))
    return Chain(tuple(groups), sizes)


def _segment(unit: Unit, target: Target, waiting: float) -> Segment:
    plain, *others = _ways(unit, target)
    ways = (plain, *map(_without_gain, others))
    again = next(w.time_us for w in ways if w.action == RECOMPUTE)
    return Segment(unit.name, ways, again, waiting)


def _without_gain(way: Way) -> Way:
    return replace(way, time_us=max(way.time_us, -_NO_GAIN * way.time_us))


def _as_parts(ways: Sequence[Way], parts: Sequence[Segment]) -> tuple[Way, ...]:
    """A group's ways, of which none gains what its parts do not."""
    all_us = next(way.time_us for way in ways if way.action == RECOMPUTE)
    gained_us = sum(part.again_us for part in parts) - all_us
    right = lambda way: replace(way, time_us=way.time_us + max(0.0, gained_us))
    return tuple(_without_gain(right(way)) for way in ways)


def _ways(unit: Unit, target: Target) -> tuple[Way, ...]:
    """As it is, then what candidates make of it."""
    pool = Pool(unit, rates_of(target))
    plain = Candidate("save all", SAVE)
    few: Sequence[Candidate] = pool.worth_compiling(most=_MOST_WAYS)
    recompute = policies.preset(unit, "recompute all")
    few = [c for c in few if c.action.kind == "recompute" and c.action != RECOMPUTE]
    us = 1e6 / target.card.stream_bandwidth
    least = pool.cost(plain).traffic
    cost = lambda c: us * (pool.cost(c).traffic - least)
    others = sorted(few, key=lambda c: (pool.kept(c).device_bytes, c.name))
    chosen, most_us = [recompute], cost(recompute)
    for one in others:
        if cost(one) < cost(chosen[-1]) - _LEAST_GAIN * abs(most_us):
            chosen.append(one)
    products = keeping_products(unit)
    if products not in {c.action for c in chosen}:
        chosen.append(Candidate("products", products))
    return tuple(_way(unit, pool, c, cost(c)) for c in (plain, *chosen))


def _way(unit: Unit, pool: Pool, candidate: Candidate, time_us: float) -> Way:
    number = dict(zip(unit.crossing, unit.crossing_ids, strict=True))
    saved = [unit.position[name] for name in pool.kept(candidate).saved]
    own = [k for k in saved if k not in number]
    size = lambda few: sum(unit.values[k].num_bytes for k in few)
    residuals = {k for k in unit.residuals_of if unit.values[k].is_decided}
    largest = max((v.num_bytes for v in unit.values if v.is_decided), default=0)
    return Way(
        action=None if candidate.action == SAVE else candidate.action,
        kept=frozenset(number[k] for k in saved if k in number),
        kept_bytes=size(own),
        working_bytes=size(residuals.difference(saved)) + largest,
        time_us=time_us,
    )
