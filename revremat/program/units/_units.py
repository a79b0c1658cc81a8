"""Units: the sites of a program about which plans speak, equal ones together.

A scan is a unit by itself. Equal blocks, equal repeats and equal checkpointed regions
are one unit, whose layers they are in program order.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from revremat import _compat
from revremat._action import Facts
from revremat._primitives import CALLS
from revremat.program.engine._keep import Layer
from revremat.program.ir._fingerprint import ALIKE, describe, fingerprint, input_order
from revremat.program.ir._ops import Op, Program, Value
from revremat.program.units._sites import REPEATED, SEGMENT, Site, Survey, whole


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A unit with the sites that are its layers.

    Attributes:
      name: What plans call it.
      kind: As in `revremat._graph.Unit.kind`.
      fingerprint: Of its layer.
      sites: One for each layer; for a scan, one for all.
      chain: For several sites of which each one's outputs are the next one's inputs,
        and go nowhere else: the positions of those inputs, in order of the outputs.
        Empty otherwise.
      enclosing: The unit whose layers it is a part of, "" if none.
      in_branch: Whether it only runs where a `lax.cond` or `lax.switch` takes it.
    """

    name: str
    kind: str
    fingerprint: str
    sites: tuple[Site, ...]
    chain: tuple[int, ...] = ()
    enclosing: str = ""
    in_branch: bool = False

    @property
    def num_layers(self) -> int:
        return sum(site.length for site in self.sites)

    def renamed(self, name: str) -> "FoundUnit":
        """The same under another name."""
        return replace(self, name=name)

    @property
    def is_loop(self) -> bool:
        """Whether its layers are iterations of a `jax.lax.scan`."""
        return self.kind == "scan"

    @property
    def is_stack(self) -> bool:
        """Whether layers hand their results from one to the next, and nowhere else."""
        return self.is_loop or bool(self.chain)

    @property
    def facts(self) -> Facts:
        """What decides which actions its layers may take."""
        first = self.sites[0]
        layer = first.linearized(f"unit {self.name!r}")
        names = tuple(layer.called.values())
        return replace(
            first.facts,
            num_layers=self.num_layers,
            is_stack=self.is_stack,
            has_inverse=all(site.inverse is not None for site in self.sites),
            names=frozenset(names),
            listed=names,
            unrepeatable=layer.unrepeatable,
            in_branch=self.in_branch,
        )


def units_of(found: Survey, in_mask: Sequence[bool]) -> tuple[FoundUnit, ...]:
    """The units of a program, in order of their first sites."""
    sites = list(_walk(found, "", None))
    if not sites and found.program.ops and not found.keeps_checkpoints:
        sites = [("", found.program, whole(found.program, in_mask), None, False)]
    groups: dict[Any, list[tuple[Program, Site]]] = {}
    around: dict[Site, Site | None] = {site: outer for *_, site, outer, _ in sites}
    in_branch = {site: flag for _, _, site, _, flag in sites}
    owners: dict[Site | None, str] = {None: ""}
    for number, (path, program, site, outer, _) in enumerate(sites):
        # Loops of equal layers are alike; other ones are units by themselves.
        alone: Any = number if site.kind in ("scan", "whole", SEGMENT) else -1
        if outer is not None and outer.kind in REPEATED:
            alone = (id(outer.body), site.length, site.reverse)
        same: Any = None
        if alone != number:  # to read all of it takes long
            same = (describe(site.body, how=ALIKE), input_order(site.body))
        key = (path, site.kind, site.label, same, alone)
        groups.setdefault(key, []).append((program, site))
    taken: set[str] = set()
    units = []
    for (path, kind, label, _, _), members in groups.items():
        name = _unused(path + (label or kind), bool(label), taken)
        owners.update(dict.fromkeys((site for _, site in members), name))
        alike = _alike([site for _, site in members])
        first = alike[0]
        about = f"{first.held} {first.length} {first.reverse}"
        units.append(
            FoundUnit(
                name=name,
                kind=kind,
                fingerprint=fingerprint(first.body, first.in_mask or (), about),
                sites=alike,
                chain=_chain(members[0][0], alike),
                enclosing=owners[around[members[0][1]]],
                in_branch=in_branch[members[0][1]],
            )
        )
    return tuple(units)


def _walk(
    found: Survey, path: str, around: Site | None, in_branch: bool = False
) -> Iterator[tuple[str, Program, Site, Site | None, bool]]:
    """Every site: where it stands, its program, the site around it, if in a branch."""
    repeats = [site for site in found.sites if site.kind in REPEATED]
    covering = {op: site for site in repeats for op in site.ops}
    first = {site.ops[0]: site for site in repeats}
    sites = {site.ops[0]: site for site in found.sites if site.kind not in REPEATED}
    counts: dict[str, int] = {}
    num_groups = 0
    for op in found.program.ops:
        number = counts[op.kind] = counts.get(op.kind, -1) + 1
        outer = covering.get(op, around)
        if op in first:
            yield path, found.program, first[op], around, in_branch
        if op in sites:
            yield path, found.program, sites[op], outer, in_branch
            within = f"{path}{SEGMENT}_{num_groups}/"
            num_groups += sites[op].kind == SEGMENT
            for part in sites[op].parts:
                yield within, found.program, part, sites[op], in_branch
        for _, place, inside in found.inner.get(op, ()):
            branch = "" if place is None else f"branch_{place}/"
            deeper = "" if op.kind in CALLS else f"{op.kind}_{number}/{branch}"
            within = in_branch or place is not None
            yield from _walk(inside, path + deeper, sites.get(op, outer), within)


def _unused(base: str, is_label: bool, taken: set[str]) -> str:
    number, name = 0, base if is_label else f"{base}_0"
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _alike(sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites with the same masks: the first layer's input may be the batch."""
    columns = lambda rows: list(zip(*rows, strict=True))
    in_mask = tuple(map(any, columns(site.in_mask for site in sites)))
    held = tuple(map(all, columns(site.held for site in sites)))
    layers: dict[tuple[bool, ...], Layer] = {}  # Equal bodies: one serves for all.
    return tuple(
        replace(site, body=sites[0].body, in_mask=in_mask, held=held, layers=layers)
        for site in sites
    )


def _chain(program: Program, sites: Sequence[Site]) -> tuple[int, ...]:
    if len(sites) == 1 and not sites[0].is_loop:
        return sites[0].carried
    links = {_link(before, after) for before, after in pairwise(sites)}
    if len(links) != 1:
        return ()
    (positions,) = links
    if positions and sites[0].carried not in ((), positions):
        return ()
    inside = {v for site in sites[:-1] for v in site.outputs}
    covered = {op for site in sites for op in site.ops}
    if _would_reorder(program, covered):
        return ()
    elsewhere = {
        atom for op in program.ops if op not in covered for atom in op.inputs
    } | set(program.outputs)
    counts: dict[Value, int] = {}
    for site in sites:
        for atom in site.inputs:
            if atom in inside:
                counts[atom] = counts.get(atom, 0) + 1
    once = all(n == 1 for n in counts.values())
    return positions if once and elsewhere.isdisjoint(inside) else ()


def _would_reorder(program: Program, covered: Collection[Op]) -> bool:
    """Whether layers with side effects stand around others: a chain runs at its end."""
    effectful = [op for op in program.ops if _compat.side_effects(op.eqn)]
    places = [k for k, op in enumerate(effectful) if op in covered]
    return bool(places) and places[-1] - places[0] >= len(places)


def _link(before: Site, after: Site) -> tuple[int, ...]:
    """At which of the later site's inputs the earlier one's outputs stand, in order."""
    try:
        return tuple(after.inputs.index(out) for out in before.outputs)
    except ValueError:
        return ()
