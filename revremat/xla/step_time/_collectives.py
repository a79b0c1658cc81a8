"""Collectives: who takes part, over which links, and how long it takes."""

import math
from typing import Any

import numpy as np

from revremat.xla.hlo._hlo import Module, size_of
from revremat.xla.hlo._opcodes import COLLECTIVES
from revremat.xla.target._cards import Card
from revremat.xla.target._targets import Target


def kind_of(i: Any, module: Module) -> str:
    """Which collective an instruction is or starts, `""` if none."""
    name = i.opcode.removesuffix("-start")
    if name in COLLECTIVES:
        return name
    if i.opcode == "async-start":
        for computation in module.called(i):
            for inner in computation.instructions:
                if inner.opcode in COLLECTIVES:
                    return inner.opcode
    return ""


def collective(i: Any, module: Module) -> Any:
    """The collective itself, where `i` is the start of an asynchronous one."""
    if i.opcode == "async-start":
        for computation in module.called(i):
            for inner in computation.instructions:
                if inner.opcode in COLLECTIVES:
                    return inner
    return i


def groups_of(i: Any, num_devices: int) -> list[list[int]]:
    """The groups of devices that exchange data."""
    if i.source_target_pairs:
        return [[p.source, p.target] for p in i.source_target_pairs]
    listed = i.replica_groups or i.device_list.groups
    if listed:
        return [list(g.replica_ids) for g in listed]
    iota = i.iota_groups if i.iota_groups.num_groups else i.device_list.iota
    if iota.num_groups:
        dims = list(iota.reshape_dims) or [iota.num_groups * iota.group_size]
        order = np.arange(math.prod(dims)).reshape(dims)
        if iota.transpose_perm:
            order = order.transpose(list(iota.transpose_perm))
        return order.reshape(iota.num_groups, iota.group_size).tolist()
    if i.mesh_groups.axes:
        return _mesh_groups(i.mesh_groups)
    return [list(range(num_devices))]


def _mesh_groups(found: Any) -> list[list[int]]:
    sizes = [axis.size for axis in found.mesh.axes]
    ids = np.array(found.mesh.device_ids or range(math.prod(sizes))).reshape(sizes)
    # A reference may mean a part of an axis: split every axis at those parts first.
    shape: list[int] = []
    chosen: list[int] = []
    for number, size in enumerate(sizes):
        parts = [r for r in found.axes if r.index == number]
        whole = any(not r.sub_axis.size for r in parts)
        if not parts or whole:
            chosen += [len(shape)] if whole else []
            shape.append(size)
            continue
        part = parts[0].sub_axis
        before = part.pre_size or 1
        chosen.append(len(shape) + 1)
        shape += [before, part.size, size // (before * part.size)]
    ids = ids.reshape(shape)
    others = [d for d in range(len(shape)) if d not in chosen]
    width = math.prod(shape[d] for d in chosen)
    return ids.transpose([*others, *chosen]).reshape(-1, width).tolist()


def collective_us(i: Any, module: Module, target: Target) -> float:
    """Time of one collective over the links it crosses.

    Within a host a ring runs over the card's links; between hosts each device sends
    its share of the data over the network at the same time, so the slower of the two
    parts counts. Small ones are bound by the steps that follow one another: those of
    the ring, or for an all-reduce those of a tree, whichever is sooner done
    (Thakur, Rabenseifner, Gropp 2005; as NCCL chooses). A TPU slice is a torus: all of
    it is one fast network, and a group that lies along some of its axes uses the links
    of those.

    Args:
      i: The collective, or the start of an asynchronous one.
      module: Its module.
      target: Bandwidths and latencies of its card; devices, hosts, torus.

    Returns:
      Microseconds.
    """
    card = target.card
    inner = collective(i, module)
    kind = inner.opcode.removesuffix("-start")
    groups = groups_of(inner, target.num_devices)
    size = max((len(g) for g in groups), default=1)
    if size < 2:
        return 0.0
    operand_bytes = sum(size_of(o.shape) for o in module.operands(inner))
    moved = operand_bytes * size if kind == "all-gather" else operand_bytes
    rounds = 2 if kind == "all-reduce" else 1
    hosts, link = 1, card.link_bandwidth
    if card.platform == "tpu":
        link *= _share_of_axes(groups, target.topology)
    else:
        per_host = target.devices_per_host
        hosts = max(len({d // per_host for d in g}) for g in groups)
    local = math.ceil(size / hosts)
    if kind == "collective-permute":
        bandwidth = card.network_bandwidth if hosts > 1 else link
        seconds = operand_bytes / bandwidth
        steps_us = card.network_hop_us if hosts > 1 else card.hop_us
    else:
        within = rounds * moved * (local - 1) / local / link
        between = rounds * moved / local * (hosts - 1) / hosts / card.network_bandwidth
        seconds = max(within, between)
        steps_us = _steps_us(kind, local, hosts, card)
    return card.collective_latency_us + steps_us + seconds * 1e6 / card.link_efficiency


def _steps_us(kind: str, local: int, hosts: int, card: Card) -> float:
    """Messages that follow one another, the smallest ones."""
    if kind in ("all-to-all", "ragged-all-to-all"):  # all at once
        return card.hop_us + card.network_hop_us * (hosts > 1)
    rounds = 2 if kind == "all-reduce" else 1
    ring = rounds * ((local - 1) * card.hop_us + (hosts - 1) * card.network_hop_us)
    if kind != "all-reduce":
        return ring
    depth = [math.ceil(math.log2(n)) for n in (local, hosts)]
    tree = rounds * (depth[0] * card.hop_us + depth[1] * card.network_hop_us)
    return min(ring, tree)


def _share_of_axes(groups: list[list[int]], topology: tuple[int, ...]) -> float:
    """The share of a torus's axes along which a group's members differ."""
    wide = [n for n in topology if n > 1]
    if not wide or math.prod(topology) < max(max(g) for g in groups) + 1:
        return 1.0
    # Device ids count along the first axis first.
    places = np.array(np.unravel_index(groups[0], topology[::-1]))[::-1]
    used = sum(len(set(along)) > 1 for along in places.tolist())
    return max(1, used) / len(wide)
