"""What an H100's kernels added to a roofline: one table for each mechanism.

The card is one of round numbers: 1 MB of memory, or 1 GFLOP in bfloat16, takes a
microsecond.
"""

import dataclasses

import pytest

from revremat.xla import Module, estimate, instruction_times
from revremat.xla.step_time._gpu_kernels import lower_clock_us
from revremat.xla.step_time._gpu_traffic import far_pieces, moved_bytes
from tests.xla.modules import CARD, machine

HEAD = "HloModule by_hand, is_scheduled=true\n"
SUM = "%add (a: f32[], b: f32[]) -> f32[] {\n %a = f32[] parameter(0)\n %b = f32[] parameter(1)\n ROOT %r = f32[] add(%a, %b)\n}\n"  # noqa: E501


def card_with(**facts):
    return dataclasses.replace(CARD, description={"clock_rate_ghz": 1.0, **facts})


def fusion(inside, result, operands=(), kind="kLoop", config="{}"):
    """A module of one fusion, and the fusion."""
    names = [f"%p{n}" for n in range(len(operands))]
    parameters = "".join(
        f" {name} = {shape} parameter({n})\n"
        for n, (name, shape) in enumerate(zip(names, operands, strict=True))
    )
    signature = ", ".join(
        f"{name[1:]}: {shape.split('{')[0]}"
        for name, shape in zip(names, operands, strict=True)
    )
    plain = result.split("{")[0]
    module = Module.from_text(
        f"{HEAD}{SUM}%fused ({signature}) -> {plain} {{\n{parameters}{inside}}}\n"
        f"ENTRY %main ({signature}) -> {plain} {{\n{parameters}"
        f" ROOT %it = {result} fusion({', '.join(names)}), kind={kind}, calls=%fused, "
        f"backend_config={config}\n}}\n"
    )
    return module, module.entry.root


def us_of(module, **facts):
    (found,) = instruction_times(module, machine(card=card_with(**facts)))
    return found.us


MB = "f32[1000,250]{1,0}"  # of 1e6 bytes
HALF = "bf16[1000,250]{1,0}"


@pytest.mark.parametrize(
    ("inside", "result", "operands", "megabytes"),
    [
        # A cast alone reads what it casts.
        (f" ROOT %c = {HALF} convert(%p0)\n", HALF, [MB], 1.5),
        # Of what is sliced behind a cast, the slice.
        (
            f" %c = {HALF} convert(%p0)\n"
            " ROOT %s = bf16[100,250]{1,0} slice(%c), slice={[0:100], [0:250]}\n",
            "bf16[100,250]{1,0}",
            [MB],
            0.1 + 0.05,
        ),
        # A value that is read and written in place counts by its update.
        (
            f" %z = s32[] constant(0)\n ROOT %u = {MB}"
            " dynamic-update-slice(%p0, %p1, %z, %z)\n",
            MB,
            [MB, "f32[1,250]{1,0}"],
            0.001 + 0.001,
        ),
        # A scatter reads and writes what it adds to, not the whole array.
        (
            f" ROOT %s = {MB} scatter(%p0, %p1, %p2), update_window_dims={{1}},"
            " inserted_window_dims={0}, scatter_dims_to_operand_dims={0},"
            " index_vector_dim=1, to_apply=%add\n",
            MB,
            [MB, "s32[10,1]{1,0}", "f32[10,250]{1,0}"],
            0.00004 + 0.01 + 0.02,
        ),
        # Used as a whole beside a slice of it: the whole.
        (
            " %s = f32[1,250]{1,0} slice(%p0), slice={[0:1], [0:250]}\n"
            f" %n = {MB} negate(%p0)\n"
            f" ROOT %t = (f32[1,250]{{1,0}}, {MB}) tuple(%s, %n)\n",
            f"(f32[1,250], {MB.split('{')[0]})",
            [MB],
            1 + 0.001 + 1,
        ),
    ],
)
def test_a_fusion_moves(inside, result, operands, megabytes):
    module, it = fusion(inside, result, operands)
    assert moved_bytes(it, module) == pytest.approx(megabytes * 1e6)


@pytest.mark.parametrize(
    ("dtype", "us"),
    # 512e6 elements in blocks of 512, a thousand of them a microsecond.
    [("pred", 1000), ("bf16", 1024), ("f32", 2048)],
)
def test_narrow_fills_wait_for_blocks(dtype, us):
    shape = f"{dtype}[1000,512000]{{1,0}}"
    zero = "false" if dtype == "pred" else "0"
    inside = (
        f" %z = {dtype}[] constant({zero})\n"
        f" ROOT %b = {shape} broadcast(%z), dimensions={{}}\n"
    )
    module, _ = fusion(inside, shape)
    assert us_of(module, blocks_per_clock=1.0) == pytest.approx(us)
    without = us_of(module)  # a card that says no such thing: its memory alone
    assert without == pytest.approx({"pred": 512}.get(dtype, us))


def by_blocks(tile):
    sizes = ",".join(f'"{size}"' for size in tile)
    return (
        '{"fusion_backend_config":{"kind":"__triton","block_level_fusion_config":'
        f'{{"output_tiles":[{{"sizes":[{sizes}]}}]}}}}}}'
    )


CUBE = "f32[32,16,512,512]{3,2,1,0}"
SOFTMAX = (
    " %m = f32[] constant(0)\n"
    " %x = f32[32,16,512]{2,1,0} reduce(%p0, %m), dimensions={3}, to_apply=%add\n"
    f" %y = {CUBE} broadcast(%x), dimensions={{0,1,2}}\n"
    f" ROOT %d = {CUBE} divide(%p0, %y)\n"
)


@pytest.mark.parametrize(
    ("tile", "pieces"),
    [
        ((1, 1, 32, 512), 1),  # neighbours in memory
        ((1, 4, 512, 512), 1),
        ((16, 1, 2, 512), 16),
        ((32, 1, 1, 512), 32),
        ((2, 4, 1, 512), 8),
        ((1, 1, 32, 32), 1),  # apart, but near
    ],
)
def test_a_tile_lies_in_pieces(tile, pieces):
    module, it = fusion(SOFTMAX, CUBE, [CUBE], "kCustom", by_blocks(tile))
    assert far_pieces(it, module) == pieces


@pytest.mark.parametrize(
    ("dimension", "result", "tile", "pieces"),
    [
        (3, "f32[32,16,512]{2,1,0}", (16, 1, 2), 16),
        (0, "f32[16,512,512]{2,1,0}", (1, 1, 512), 32),  # all that is summed
        (2, "f32[32,16,512]{2,1,0}", (1, 1, 512), 1),
    ],
)
def test_the_tile_of_a_sum_is_that_of_what_it_sums(dimension, result, tile, pieces):
    inside = (
        " %m = f32[] constant(0)\n"
        f" ROOT %x = {result} reduce(%p0, %m), dimensions={{{dimension}}},"
        " to_apply=%add\n"
    )
    module, it = fusion(inside, result, [CUBE], "kCustom", by_blocks(tile))
    assert far_pieces(it, module) == pieces


@pytest.mark.parametrize(
    ("tile", "facts", "times"),
    [
        ((1, 1, 32, 512), {"far_pieces": 31}, 1),
        ((32, 1, 1, 512), {"far_pieces": 31}, 2),
        ((32, 1, 1, 512), {"far_pieces": 31, "block_fusion_share": 0.5}, 4),
        ((32, 1, 1, 512), {}, 1),
    ],
)
def test_a_reduced_tile_in_pieces_takes_longer(tile, facts, times):
    module, _ = fusion(SOFTMAX, CUBE, [CUBE], "kCustom", by_blocks(tile))
    plain = 2 * 4 * 32 * 16 * 512 * 512 / 1e6
    assert us_of(module, **facts) == pytest.approx(times * plain, rel=1e-3)


def test_a_second_reduction_goes_over_the_tile_again():
    twice = SOFTMAX.replace("ROOT %d", "%d") + (
        " %x2 = f32[32,16,512]{2,1,0} reduce(%d, %m), dimensions={3}, to_apply=%add\n"
        f" %y2 = {CUBE} broadcast(%x2), dimensions={{0,1,2}}\n"
        f" ROOT %d2 = {CUBE} divide(%d, %y2)\n"
    )
    times = []
    for inside in (SOFTMAX, twice):
        module, _ = fusion(inside, CUBE, [CUBE], "kCustom", by_blocks((32, 1, 1, 512)))
        times.append(us_of(module, far_pieces=31))
    assert times[1] / times[0] == pytest.approx(3 / 2)


def product(left, right, result, before=""):
    """A product in a fusion, 2 * 4096^3 FLOPs; `before` makes %l of %p0."""
    inside = (
        f"{before or f' %l = {left} bitcast(%p0)' + chr(10)}"
        f" ROOT %dot = {result} dot(%l, %p1), lhs_contracting_dims={{1}},"
        " rhs_contracting_dims={0}\n"
    )
    config = '{"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'
    return fusion(inside, result, [left, right], "kCustom", config)


EVEN, ODD = "bf16[4096,4096]{1,0}", "bf16[4096,4099]{1,0}"


@pytest.mark.parametrize(
    ("left", "right", "before", "share"),
    [
        (EVEN, EVEN, "", 1.0),
        (EVEN, EVEN, f" %l = {EVEN} negate(%p0)\n", 0.5),
        (EVEN, EVEN, f" %l = {EVEN} transpose(%p0), dimensions={{1,0}}\n", 0.5),
        (ODD, "bf16[4099,4096]{1,0}", "", 0.25),  # rows of 8198 bytes
        (ODD, "bf16[4099,4096]{1,0}", f" %l = {ODD} negate(%p0)\n", 0.25),
        # By columns these are rows of 8192 bytes.
        ("bf16[4096,4099]{0,1}", "bf16[4099,4096]{1,0}", "", 1.0),
    ],
)
def test_a_product_takes_its_operands_as_they_lie_or_is_slower(
    left, right, before, share
):
    module, _ = product(left, right, EVEN, before)
    facts = {"computed_operand_share": 0.5, "uneven_rows_share": 0.25}
    fast = us_of(module)
    assert us_of(module, **facts) == pytest.approx(fast / share, rel=1e-3)


def test_a_scatter_adds_so_many_in_a_clock():
    inside = (
        f" ROOT %s = {MB} scatter(%p0, %p1, %p2), update_window_dims={{1}},"
        " inserted_window_dims={0}, scatter_dims_to_operand_dims={0},"
        " index_vector_dim=1, to_apply=%add\n"
    )
    shapes = [MB, "s32[4000,1]{1,0}", "f32[4000,250]{1,0}"]
    module, _ = fusion(inside, MB, shapes, "kInput")
    assert us_of(module, atomics_per_clock=10) == pytest.approx(1e6 / 10 / 1e3)
    assert us_of(module) == pytest.approx(12.016)


def test_what_only_tells_the_compiler_something_takes_no_time():
    module = Module.from_text(
        f"{HEAD}ENTRY %main () -> f32[1000,1000] {{\n ROOT %it = f32[1000,1000]{{1,0}} "
        'custom-call(), custom_call_target="AllocateBuffer"\n}\n'
    )
    assert us_of(module) == 0


@pytest.mark.parametrize(
    ("products_us", "slower_us"),
    [(0, 0), (500, 0), (750, 750 * 0.4 * 0.25), (1000, 1000 * 0.4 * 0.5)],
)
def test_the_clock_falls_where_products_fill_the_step(products_us, slower_us):
    card = card_with(full_clock_share=0.5, lower_clock=0.4)
    assert lower_clock_us(products_us, 1000, card) == pytest.approx(slower_us)
    assert lower_clock_us(products_us, 1000, CARD) == 0


def test_a_step_takes_longer_for_it_and_its_spans_add_up():
    module, _ = product(EVEN, EVEN, EVEN)
    plain, slower = (
        estimate(module, machine(card=card_with(**facts)))
        for facts in ({}, {"full_clock_share": 0.5, "lower_clock": 0.4})
    )
    assert slower.step_us == pytest.approx(plain.step_us * 1.2)
    assert slower.compute_us == slower.step_us
    assert slower.critical_path_us == slower.step_us
    assert sum(s.duration_us for s in slower.spans) == pytest.approx(slower.step_us)


# 2e6 bytes between host and device take 100 us; the fill beside it takes 60.
FETCH = """
%fetched (a: f32[8,500000]{1,0:S(5)}, n: s32[]) -> f32[1,500000] {
 %a = f32[8,500000]{1,0:S(5)} parameter(0)
 %n = s32[] parameter(1)
 %z = s32[] constant(0)
 ROOT %s = f32[1,500000]{1,0} dynamic-slice(%a, %n, %z), dynamic_slice_sizes={1,500000}
}
"""
FETCHED = """ %start = ((f32[8,500000]{1,0:S(5)}, s32[]), f32[1,500000]{1,0}, u32[]) fusion-start(%a, %n), kind=kLoop, calls=%fetched
 %zero = f32[] constant(0)
 %fill = f32[15000000]{0} broadcast(%zero), dimensions={}
 %done = f32[1,500000]{1,0} fusion-done(%start)
"""  # noqa: E501
STORED = """ %zero = f32[] constant(0)
 %x = f32[1,500000]{1,0} constant({...})
 %start = (f32[1,500000]{1,0:S(5)}, f32[1,500000]{1,0}, u32[]) copy-start(%x)
 %fill = f32[15000000]{0} broadcast(%zero), dimensions={}
 %done = f32[1,500000]{1,0:S(5)} copy-done(%start)
"""


def in_a_loop(body):
    state = "(s32[], f32[8,500000]{1,0:S(5)})"
    return (
        f"{HEAD}{FETCH}%body (s: (s32[], f32[8,500000])) -> (s32[], f32[8,500000]) {{\n"
        f" %s = {state} parameter(0)\n"
        " %n = s32[] get-tuple-element(%s), index=0\n"
        " %a = f32[8,500000]{1,0:S(5)} get-tuple-element(%s), index=1\n"
        f"{body} ROOT %t = {state} tuple(%n, %a)\n}}\n"
        "%condition (state_1: (s32[], f32[8,500000])) -> pred[] {\n"
        f" %state_1 = {state} parameter(0)\n ROOT %c = pred[] constant(true)\n}}\n"
        "ENTRY %main (state_2: (s32[], f32[8,500000])) -> (s32[], f32[8,500000]) {\n"
        f" %state_2 = {state} parameter(0)\n ROOT %w = {state} while(%state_2), "
        "condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"3"}}\n}\n'
    )


def in_the_open(body):
    return (
        f"{HEAD}{FETCH}ENTRY %main (a: f32[8,500000]{{1,0:S(5)}}, n: s32[]) -> s32[] {{"
        "\n %a = f32[8,500000]{1,0:S(5)} parameter(0)\n %n = s32[] parameter(1)\n"
        f"{body} ROOT %r = s32[] copy(%n)\n}}\n"
    )


@pytest.mark.parametrize(
    ("place", "body", "step_us"),
    [
        (in_the_open, STORED, 100),  # a copy goes on beside kernels
        (in_a_loop, STORED, 3 * 160),  # but not within a loop's command buffer
        (in_the_open, FETCHED, 160),  # a slice is fetched by a kernel
        (in_a_loop, FETCHED, 3 * 160),
    ],
)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_copies_hide_under_kernels_or_are_awaited(place, body, step_us, platform):
    card = dataclasses.replace(CARD, platform=platform)
    found = estimate(Module.from_text(place(body)), machine(card=card))
    if platform == "tpu":
        step_us = 300 if place is in_a_loop else 100
    assert found.step_us == pytest.approx(step_us, rel=1e-3)
    moved = 300 if place is in_a_loop else 100
    assert found.transfer_us == pytest.approx(moved, rel=1e-3)
