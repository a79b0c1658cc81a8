"""Proposals, one by one: of units that are made up, exactly."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat import INVERT, RECOMPUTE, SAVE
from revremat._graph import Operation, Unit, Value
from revremat.policies import Joint, _proposals, front, sent_to_host
from revremat.policies._candidate import Candidate


def unit_of(values, operations, residuals, **more):
    """A unit of values by name: (role, bytes) or (role, bytes, True) for a tag."""
    position = {name: k for k, name in enumerate(values)}
    at = lambda names: tuple(position[name] for name in names)
    options = {"num_layers": 4, "weight_bytes": 0, "outputs": (), **more}
    return Unit(
        name="u",
        kind="scan",
        fingerprint="",
        values=tuple(
            Value(
                name="" if role == "held" else name,
                given=bool(given),
                shape=(),
                dtype="float32",
                num_bytes=size,
                role=role,
            )
            for name, (role, size, *given) in values.items()
        ),
        operations=tuple(
            Operation(kind, at(ins), at(outs), flops, False, effectful, "")
            for kind, ins, outs, flops, *rest in operations
            for effectful in [rest[0] if rest else ""]
        ),
        residuals_of=at(residuals),
        forward_flops=0,
        backward_flops=0,
        **options,
    )


def made(sizes, **more):
    """A unit that makes so many bytes of each, from one input."""
    values = {"x": ("input", 8), **{n: ("made", size) for n, size in sizes.items()}}
    return unit_of(values, [("exp", "x", n, 10) for n in sizes], [*sizes], **more)


@pytest.mark.parametrize(
    ("sizes", "kept", "found"),
    [
        ({"a": 9}, "x", "nothing"),
        ({"a": 9}, "xa", "a"),
        ({"b": 9, "a": 9}, "ba", "a+b"),
        ({"a": 100, "b": 5}, "ab", "a+b"),  # more than a 21st of the largest
        ({"a": 100, "b": 4}, "ab", "a and 1 more"),
        ({"a": 100, "b": 4, "c": 1}, "abc", "a and 2 more"),
        ({"a": 21, "b": 1}, "ab", "a and 1 more"),
        (dict.fromkeys("abcdef", 7), "abcdef", "a+b+c+d+e+f"),
        ({**dict.fromkeys("abcdef", 70), "g": 1}, "abcdefg", "a+b+c+d+e+f and 1 more"),
        (dict.fromkeys("abcdefg", 7), "abcdefg", "7 values of 49 B"),
        ({**dict.fromkeys("abcdefg", 70), "h": 1}, "abcdefgh", "8 values of 491 B"),
    ],
)
def test_a_set_is_called_by_its_large_values(sizes, kept, found):
    unit = made(sizes)
    assert _proposals.title(unit, [unit.position[name] for name in kept]) == found


def cut_of(unit, names, size):
    kept = frozenset(unit.position[name] for name in names)
    return SimpleNamespace(kept=kept, cost=SimpleNamespace(bytes=size))


@pytest.mark.parametrize(
    ("sizes", "found"),
    [((300, 105, 100), "b"), ((300, 106, 100), "c"), ((104, 103, 100), "a")],
)
def test_the_largest_corner_within_a_twentieth_of_the_smallest_is_cheap(sizes, found):
    unit = made(dict.fromkeys("abc", 1))
    corners: Any = [
        cut_of(unit, name, size) for name, size in zip("abc", sizes, strict=True)
    ]
    assert _proposals.cheap_names(unit, corners) == [found]


# Of 1000 FLOPs: a product of 10, one of 9, one dear by the byte, one that is drawn.
PRODUCTS = {
    "x": ("input", 8),
    "p": ("made", 100),
    "q": ("made", 100),
    "dear": ("made", 100),
    "cheap": ("made", 400),
    "drawn": ("made", 1),
    "sum": ("made", 100),
    "tag": ("made", 100, True),
}
MAKERS = [
    ("dot_general", "x", ["p"], 10),
    ("dot_general", "x", ["q"], 9),
    ("dot_general", "x", ["dear"], 300),
    ("dot_general", "x", ["cheap"], 600),
    ("dot_general", "x", ["drawn"], 5000, "draws"),
    ("exp", "x", ["sum"], 61),
    ("exp", "x", ["tag"], 20),
]


def test_products_and_tags_worth_a_hundredth_have_names_the_dearest_first():
    unit = unit_of(PRODUCTS, MAKERS, [*PRODUCTS])
    assert _proposals.compute_intensive_names(unit) == ("dear", "cheap", "tag", "p")
    every = ("dear", "cheap", "sum", "tag", "p")
    assert _proposals._worth_keeping(unit, [*PRODUCTS][1:]) == every
    assert _proposals._worth_keeping(unit, []) == ()


@pytest.mark.parametrize(
    ("sizes", "flops", "found"),
    [
        ((10, 10), (40, 60), ("b", "a")),
        ((10, 40), (40, 60), ("a", "b")),  # 4 FLOPs for a byte, and 1.5
        ((10, 20), (40, 80), ("b", "a")),  # of equals the larger one first
        ((10, 10), (40, 40), ("a", "b")),  # and then by name
        ((0, 1), (40, 41), ("b", "a")),  # no bytes are counted as one
        ((0, 1), (41, 40), ("a", "b")),
    ],
)
def test_what_saves_most_flops_for_each_byte_comes_first(sizes, flops, found):
    makers = [("dot_general", "x", n, f) for n, f in zip("ab", flops, strict=True)]
    values = {"x": ("input", 8)}
    values |= {n: ("made", size) for n, size in zip("ab", sizes, strict=True)}
    unit = unit_of(values, makers, "ab")
    assert _proposals.compute_intensive_names(unit) == found
    assert _proposals._cheap_names(unit) == found


def test_ten_names_and_no_more():
    names = [f"v{k:02}" for k in range(12)]
    values = {"x": ("input", 8), **{n: ("made", 10) for n in names}}
    makers = [("dot_general", "x", [n], 100 - k) for k, n in enumerate(names)]
    unit = unit_of(values, makers, names)
    assert _proposals.compute_intensive_names(unit) == tuple(names[:10])


# An operation of two results that the backward pass reads, and one that it does not.
PAIR = {
    "x": ("input", 8),
    "out": ("made", 100),
    "sums": ("made", 4),
    "spare": ("made", 4),
    "next": ("made", 100),
}
PAIR_MAKERS = [
    ("flash", "x", ["out", "sums", "spare"], 900),
    ("dot_general", ["out"], ["next"], 100),
]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["out"], ["sums"]),
        (["sums"], ["out"]),
        (["spare"], ["out", "sums"]),
        (["out", "sums"], []),
        (["next"], []),  # the only result of what makes it
        (["x"], []),
        ([], []),
    ],
)
def test_results_of_one_operation_are_kept_together(names, found):
    unit = unit_of(PAIR, PAIR_MAKERS, ["x", "out", "sums", "next"])
    assert _proposals.companions(unit, names) == found


def test_of_results_of_one_operation_one_has_a_name():
    unit = unit_of(PAIR, PAIR_MAKERS, ["x", "out", "sums", "next"])
    assert _proposals._cheap_names(unit) == ("out", "next")
    assert _proposals._best_subsets(unit, ["out", "next"]) == [
        ["next"],
        ["out", "sums"],
        ["next", "out", "sums"],
    ]


@pytest.mark.parametrize(
    ("flops", "found"),
    [((990, 10), True), ((989, 11), False), ((1000, 0), True), ((0, 1000), False)],
)
def test_a_hundredth_of_all_flops_is_next_to_nothing(flops, found):
    values = {"x": ("input", 8), "a": ("made", 9), "b": ("made", 9)}
    makers = [("dot_general", "x", "a", flops[0]), ("exp", "a", "b", flops[1])]
    unit = unit_of(values, makers, "xab")
    assert _proposals._is_made_of(unit, "b", "a") is found


@pytest.mark.parametrize(
    ("bytes_and_flops", "found"),
    [
        # Both are worth it; the larger for what it saves more.
        ({"a": (10, 5), "b": (20, 9)}, [["a"], ["b"], ["a", "b"]]),
        ({"a": (10, 9), "b": (20, 5)}, [["a"], ["a", "b"]]),
        ({"a": (10, 5), "b": (10, 9)}, [["b"], ["a", "b"]]),
        ({"a": (10, 5), "b": (20, 5)}, [["a"], ["a", "b"]]),
    ],
)
def test_no_subset_is_beaten_by_another(bytes_and_flops, found):
    values = {n: ("made", size) for n, (size, _) in bytes_and_flops.items()}
    makers = [("exp", "x", n, flops) for n, (_, flops) in bytes_and_flops.items()]
    unit = unit_of({"x": ("input", 8), **values}, makers, "xab")
    assert _proposals._best_subsets(unit, "ab") == found


@pytest.mark.parametrize(
    ("splits", "found"),
    [
        ((), []),
        ((2,), [2]),
        ((2, 4, 8, 16, 32, 64, 128), [2, 8, 32]),
        ((32, 8, 2), [2, 8, 32]),
        ((3, 11, 12, 47, 49), [3, 12, 49]),
        ((5, 10, 15), [5]),
    ],
)
def test_chunks_are_a_factor_of_four_apart(splits, found):
    proposed = _proposals._chunkings(made({"a": 9}, splits=splits))
    assert [c.action.chunks for c in proposed] == found
    assert [c.name for c in proposed] == [f"{n} chunks" for n in found]


@pytest.mark.parametrize(
    ("num_layers", "input_bytes", "made_bytes", "found"),
    [
        (15, 100, 100, []),  # too short
        (16, 100, 200, [4, 2]),  # sqrt(16), and sqrt(16 / 3) or 2.3
        (64, 100, 300, [8, 4]),
        (63, 100, 300, [8, 4]),
        (31, 100, 0, [4, 4]),  # four segments of 8 would be too few
        (36, 100, 300, [8, 4]),
        (100, 1, 10_000, [8, 2]),  # at least two layers
        (100, 300, 100, [8, 8]),
        (255, 100, 0, [16, 16]),
        (256, 100, 0, [16, 32, 16]),  # very long ones: twice that, too
        (1000, 100, 0, [32, 64, 32]),
    ],
)
def test_segments_are_as_long_as_their_bytes_say(
    num_layers, input_bytes, made_bytes, found
):
    values = {"x": ("input", input_bytes), "a": ("made", made_bytes)}
    unit = unit_of(values, [("exp", "x", "a", 9)], "xa", num_layers=num_layers)
    proposed = _proposals._in_segments(unit, [])
    assert [c.action.segment_length for c in proposed] == found
    names = {RECOMPUTE: "recompute all", SAVE: "save all"}
    alone = [c.action(segment_length=1) for c in proposed]
    assert alone == [RECOMPUTE] * (len(found) - 1) + [SAVE] * bool(found)
    assert [c.name for c in proposed] == [
        f"{names[action]}, segments of {every}"
        for action, every in zip(alone, found, strict=True)
    ]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [((97, 3), "x"), ((96, 4), "xz"), ((0, 0), ""), ((50, 50), "xz")],
)
def test_small_inputs_are_not_worth_a_transfer(sizes, found):
    values = {n: ("input", size) for n, size in zip("xz", sizes, strict=True)}
    values |= {"y": ("input", 1000), "a": ("made", 1000)}  # nothing needs y
    unit = unit_of(values, [("mul", "xz", "a", 9)], "xza")
    assert _proposals._inputs(unit) == [*found]


def names_of(candidates):
    return [c.name for c in candidates]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"a": 97, "b": 3}, "ab"),
        ({"a": 98, "b": 2}, "a"),
        ({"b": 50, "a": 50}, "ab"),
        (dict(zip("abcdefg", range(10, 17), strict=True)), "gfedcb"),
    ],
)
def test_the_largest_values_of_a_set_are_sent_first(sizes, found):
    unit = made(sizes)
    kept = RECOMPUTE(save=[*sizes], offload=["x"])
    sent = sent_to_host(unit, Candidate("set", kept))
    assert names_of(sent) == [f"set, offload {name}" for name in found]
    for name, candidate in zip(found, sent, strict=True):
        assert set(candidate.action.offload) == {"x", name}
        assert set(candidate.action.save) == {*sizes} - {name}


LAYER = {"x": ("input", 100), "h": ("made", 400), "t": ("made", 400)}
LAYER |= {"p": ("made", 100), "q": ("made", 100)}
LAYER_MAKERS = [
    ("dot_general", ["x"], ["h"], 500),
    ("tanh", ["h"], ["t"], 1),
    ("dot_general", ["t"], ["p"], 300),
    ("dot_general", ["x"], ["q"], 200),
]


def layer(**more):
    return unit_of(LAYER, LAYER_MAKERS, [*LAYER], **more)


def test_what_is_offloaded_and_what_stays_beside_it():
    found = _proposals._offloads(layer(), ["h", "q", "p"])
    assert {c.name: c.action for c in found} == {
        "recompute all, offload x": RECOMPUTE(offload=["x"]),
        "p+q, offload h": RECOMPUTE(save=["q", "p"], offload=["h"]),
        "offload h+p+q": RECOMPUTE(offload=["h", "p", "q"]),
        "h+p, offload q": RECOMPUTE(save=["h", "p"], offload=["q"]),
        "offload h": RECOMPUTE(offload=["h"]),
        "offload q": RECOMPUTE(offload=["q"]),
    }
    assert names_of(found) == [
        "recompute all, offload x",
        "p+q, offload h",
        "offload h+p+q",
        "h+p, offload q",
        "offload h",
        "offload q",
    ]
    assert names_of(_proposals._offloads(layer(), ["h"])) == [
        "recompute all, offload x",
        "offload h+p+q",
        "offload h",
    ]


ALL = {"chained": True, "invertible": True, "splits": (2, 4, 8), "num_layers": 16}


@pytest.mark.parametrize(
    ("unit", "offload", "ahead", "found"),
    [
        ({"num_layers": 4}, False, True, []),  # nothing hands a result on
        ({"num_layers": 4, "chained": True}, False, True, ["full, ahead"]),
        ({"num_layers": 1, "chained": True}, True, True, []),
        (
            {"num_layers": 2},
            True,
            False,
            ["recompute all, offload x", "offload h+p+q", "offload h"],
        ),
        ({"invertible": True, "chained": True}, False, False, ["invert"]),
        (
            {"invertible": True, "chained": True},
            False,
            True,
            ["full, ahead", "invert", "invert, ahead"],
        ),
        (
            ALL,
            True,
            True,
            [
                "recompute all, offload x",
                "full, ahead",
                "recompute all, segments of 4",
                "invert",
                "2 chunks",
                "offload h+p+q",
                "invert, ahead",
                "8 chunks",
                "offload h",
            ],
        ),
    ],
)
def test_the_first_of_every_kind_comes_before_the_second(unit, offload, ahead, found):
    proposed = _proposals.others_of(layer(**unit), ["h"], [], offload, ahead)
    assert [name for name in names_of(proposed) if "save all" not in name] == found
    early = {c.action.kind: c.action for c in proposed if c.action.ahead}
    for kind in early:
        action = INVERT if kind == "invert" else RECOMPUTE
        assert early[kind] == action(ahead=["h", "p", "q"])


@pytest.mark.parametrize(
    ("made_bytes", "found"),
    [(99, [99]), (100, [100]), (101, [101, 100]), (300, [300, 100])],
)
def test_a_front_has_two_ends_as_soon_as_they_differ_by_a_byte(made_bytes, found):
    values = {"x": ("input", 100), "h": ("made", made_bytes)}
    unit = unit_of(values, [("dot_general", "x", "h", 10**6)], "h")
    assert [c.cost.bytes for c in front(Joint(unit))] == found
