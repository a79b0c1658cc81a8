"""Who takes part in a collective and how long it takes."""

import dataclasses

import jax
import numpy as np
import pytest

import revremat as rr
from revremat.xla import Module, Target, estimate
from revremat.xla.step_time._collectives import groups_of
from tests.xla.modules import CARD, Program, machine
from tests.xla.programs import spec


def time_of(program, devices=1, hosts=1, card=CARD):
    return estimate(program.module(), machine(devices, hosts, card))


# ---- Groups of devices ---------------------------------------------------------------


def collective(kind="all-reduce", size=1000, operand=None, **fields):
    program = Program()
    argument = program.entry.add("parameter", operand or (size,))
    i = program.entry.add(kind, (size,), argument, **fields)
    return program, i


def groups(num_devices=8, **fields):
    return groups_of(collective(**fields)[1], num_devices)


def test_listed_groups():
    listed = [{"replica_ids": [0, 2]}, {"replica_ids": [1, 3]}]
    assert groups(replica_groups=listed) == [[0, 2], [1, 3]]
    assert groups(device_list={"groups": listed}) == [[0, 2], [1, 3]]


def test_no_groups_are_everybody():
    assert groups(4) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "iota", "expected"),
    [
        ("[2,4]<=[8]", (2, 4, [8], []), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (
            "[4,2]<=[2,4]T(1,0)",
            (4, 2, [2, 4], [1, 0]),
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        (
            "[4,2]<=[2,2,2]T(0,2,1)",
            (4, 2, [2, 2, 2], [0, 2, 1]),
            [[0, 2], [1, 3], [4, 6], [5, 7]],
        ),
        ("[1,8]<=[8]", (1, 8, [8], []), [list(range(8))]),
    ],
)
@pytest.mark.parametrize("where", ["device_list", "iota_groups"])
def test_groups_written_as_an_iota(text, iota, expected, where):
    names = ("num_groups", "group_size", "reshape_dims", "transpose_perm")
    found = dict(zip(names, iota, strict=True))
    fields = {where: {"iota": found} if where == "device_list" else found}
    assert groups(**fields) == expected, text


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([0], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([1], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([0, 1], [list(range(8))]),
    ],
)
def test_groups_written_as_mesh_axes(axes, expected):
    mesh = {"axes": [{"name": "a", "size": 2}, {"name": "b", "size": 4}]}
    refs = [{"index": axis} for axis in axes]
    assert groups(mesh_groups={"mesh": mesh, "axes": refs}) == expected


def test_groups_written_as_a_part_of_a_mesh_axis():
    mesh = {"axes": [{"name": "a", "size": 8}]}
    outer = {"index": 0, "sub_axis": {"pre_size": 1, "size": 2}}
    inner = {"index": 0, "sub_axis": {"pre_size": 2, "size": 4}}
    found = [groups(mesh_groups={"mesh": mesh, "axes": [r]}) for r in (outer, inner)]
    assert found == [
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ]


@pytest.mark.parametrize("target", ["h100:8", "cpu:8"])
@pytest.mark.parametrize("axis", ["data", "model"])
def test_groups_of_compiled_programs_are_those_of_the_mesh(target, axis):
    """Whatever form the compiler writes them in."""
    target = rr.target(target)
    mesh = target.mesh({"data": 2, "model": 4})
    expected = np.arange(8).reshape(2, 4)
    expected = (expected.T if axis == "data" else expected).tolist()
    whole = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
    cut = jax.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))
    gather = jax.jit(lambda x: x * 2, out_shardings=whole)
    from revremat.xla import compile_step

    artifact = compile_step(gather, (spec(8, 128, sharding=cut),), target)
    module = Module.from_bytes(artifact.hlo)
    found = [
        groups_of(i, 8)
        for i in module.instructions.values()
        if i.opcode.removesuffix("-start") in ("all-gather", "all-reduce")
    ]
    assert found == [expected] * len(found)
    assert found


# ---- Collectives ---------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all-reduce", lambda n: 2 * (n - 1) / n),
        ("all-gather", lambda n: n - 1),  # its operand is one part of n
        ("reduce-scatter", lambda n: (n - 1) / n),
        ("all-to-all", lambda n: (n - 1) / n),
        ("collective-permute", lambda n: 1),
    ],
)
def test_a_ring_passes_every_byte_so_often(kind, share, devices):
    fields = {}
    if kind == "collective-permute":
        pairs = zip(range(devices), [*range(1, devices), 0], strict=True)
        fields["source_target_pairs"] = [{"source": s, "target": t} for s, t in pairs]
    program, _ = collective(kind, 10**6, **fields)
    us = 4e6 * share(devices) / 1e5
    found = time_of(program, devices)
    assert found.collective_us == pytest.approx(us)
    assert found.exposed_collective_us == found.step_us == pytest.approx(us)


def test_between_hosts_each_device_carries_its_share():
    program, _ = collective("all-reduce", 10**6)
    # 16 devices on 2 hosts: each device's eighth crosses the network, there and back.
    between = 2 * 4e6 / 8 * (1 / 2) / 1e4
    within = 2 * 4e6 * (7 / 8) / 1e5
    found = time_of(program, 16, hosts=2)
    assert found.collective_us == pytest.approx(max(between, within))
    # Groups that stay on their hosts do not use the network.
    iota = {"num_groups": 2, "group_size": 8, "reshape_dims": [16]}
    program, _ = collective("all-reduce", 10**6, device_list={"iota": iota})
    assert time_of(program, 16, hosts=2).collective_us == pytest.approx(within)


def test_alone_there_is_nothing_to_wait_for():
    program, _ = collective("all-reduce", 10**6)
    assert time_of(program, 1).collective_us == 0
    singles = [{"replica_ids": [n]} for n in range(8)]
    program, _ = collective("all-reduce", 10**6, replica_groups=singles)
    assert time_of(program, 8).collective_us == 0


def test_latency_and_efficiency_of_links():
    card = dataclasses.replace(CARD, collective_latency_us=7.0, link_efficiency=0.5)
    program, _ = collective("reduce-scatter", 10**6)
    assert time_of(program, 2, card=card).collective_us == pytest.approx(7 + 2 * 20)


HOPS = dataclasses.replace(CARD, hop_us=1.0, network_hop_us=10.0)


@pytest.mark.parametrize(
    ("kind", "devices", "hosts", "us"),
    [
        ("all-gather", 8, 1, 7),  # a ring: seven messages, one after another
        ("reduce-scatter", 16, 2, 7 + 10),
        ("all-reduce", 2, 1, 2),  # there and back
        ("all-reduce", 8, 1, 2 * 3),  # a tree is sooner done than the ring's 14
        ("all-reduce", 64, 8, 2 * (3 + 3 * 10)),
        ("all-to-all", 8, 1, 1),  # all at once
    ],
)
def test_small_messages_wait_for_one_another(kind, devices, hosts, us):
    program, _ = collective(kind, 1)
    found = time_of(program, devices, hosts, HOPS)
    assert found.collective_us == pytest.approx(us, rel=0.01)


def torus_us(topology, groups):
    listed = [{"replica_ids": g} for g in groups]
    program, _ = collective("all-gather", 10**6, replica_groups=listed)
    card = dataclasses.replace(CARD, platform="tpu")
    num = int(np.prod(topology))
    target = Target("torus", card, num // 4, 4, topology)
    return estimate(program.module(), target).collective_us


def test_a_slice_is_one_network_and_groups_use_the_links_of_their_axes():
    ids = np.arange(16).reshape(4, 4)
    whole = torus_us((4, 4), [list(range(16))])
    assert whole == pytest.approx(15 * 4e6 / 1e5)  # no hosts in between
    for groups in (ids.tolist(), ids.T.tolist()):
        # A quarter of the devices, over one of the two axes' links.
        assert torus_us((4, 4), groups) == pytest.approx(3 * 4e6 / (1e5 / 2))
    cube = np.arange(8).reshape(2, 2, 2)
    assert torus_us((2, 2, 2), cube.reshape(2, 4).tolist()) == pytest.approx(
        3 * 4e6 / (1e5 * 2 / 3)
    )


@pytest.mark.parametrize(
    ("topology", "axes"),
    [((4, 8), [0]), ((4, 8), [1]), ((8, 4), [0]), ((8, 4), [1]), ((2, 8), [1])]
    + [((2, 4, 8), axes) for axes in ([0], [1], [2], [0, 1], [1, 2], [0, 2])]
    + [((1, 4, 8), [1]), ((1, 4, 8), [2])],
)
def test_on_a_rectangular_slice_ids_count_along_the_first_axis_first(topology, axes):
    # The first axis is the last one of the array, whose numbers follow one another.
    ids = np.arange(np.prod(topology)).reshape(topology[::-1])
    last = [len(topology) - 1 - axis for axis in axes]
    groups = np.moveaxis(ids, last, range(-len(last), 0))
    size = int(np.prod([topology[axis] for axis in axes]))
    share = len(axes) / sum(n > 1 for n in topology)
    assert torus_us(topology, groups.reshape(-1, size).tolist()) == pytest.approx(
        (size - 1) * 4e6 / (1e5 * share)
    )
