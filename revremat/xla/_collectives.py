"""Collectives: who takes part, over which links, and how long it takes."""

import math
from typing import Any

import numpy as np

from revremat.xla._cards import Card
from revremat.xla._hlo import Module, size_of

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def kind_of(i: Any, module: Module) -> str:
    """Which collective an instruction is or starts, `""` if none."""
    name = i.opcode.removesuffix("-start")
    if name in KINDS:
        return name
    if i.opcode == "async-start":
        for computation in module.called(i):
            for inner in computation.instructions:
                if inner.opcode in KINDS:
                    return inner.opcode
    return ""


def collective(i: Any, module: Module) -> Any:
    """The collective itself, where `i` is the start of an asynchronous one."""
    if i.opcode == "async-start":
        for computation in module.called(i):
            for inner in computation.instructions:
                if inner.opcode in KINDS:
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


def collective_us(
    i: Any, module: Module, card: Card, num_devices: int, devices_per_host: int
) -> float:
    """Time of one collective: ring formulas over the slowest links it crosses.

    Within a host the ring runs over the card's links; between hosts each device sends
    its share of the data over the network at the same time, so the slower of the two
    parts counts.

    Args:
      i: The collective, or the start of an asynchronous one.
      module: Its module.
      card: Bandwidths and latency.
      num_devices: Devices in all.
      devices_per_host: How many share a host's links.

    Returns:
      Microseconds.
    """
    inner = collective(i, module)
    kind = inner.opcode.removesuffix("-start")
    groups = groups_of(inner, num_devices)
    size = max((len(g) for g in groups), default=1)
    if size < 2:
        return 0.0
    operand_bytes = sum(size_of(o.shape) for o in module.operands(inner))
    moved = operand_bytes * size if kind == "all-gather" else operand_bytes
    rounds = 2 if kind == "all-reduce" else 1
    hosts = max(len({d // devices_per_host for d in g}) for g in groups)
    local = math.ceil(size / hosts)
    if kind == "collective-permute":
        bandwidth = card.network_bandwidth if hosts > 1 else card.link_bandwidth
        seconds = operand_bytes / bandwidth
    else:
        within = rounds * moved * (local - 1) / local / card.link_bandwidth
        between = rounds * moved / local * (hosts - 1) / hosts / card.network_bandwidth
        seconds = max(within, between)
    return card.collective_latency_us + seconds * 1e6 / card.link_efficiency
