"""What kernels take on a CPU, by curves of round numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat.xla.step_time._cpu_kernels import cpu_kernel_us
from revremat.xla.target._cards import load_card
from tests.xla.programs import spec

SHEET = dataclasses.replace(load_card("cpu"), launch_us=0.0, memory_bandwidth=1e15)


def compiled(function, *specs):
    return xla.Module.from_bytes(
        xla.compile_step(function, specs, rr.target("cpu:1")).hlo
    )


def kernels(module, kind):
    return [i for i in module.instructions.values() if i.fusion_kind == kind]


def time_of(i, module, **curves):
    card = dataclasses.replace(SHEET, curves={"stream": ((1.0, 1e15),), **curves})
    return cpu_kernel_us(i, module, card)[0]


# ---- Convolutions --------------------------------------------------------------------

DIMS = ("NHWC", "HWIO", "NHWC")


def gradients(side, batch, features, groups=1, *, scanned):
    """By the images and the kernels of one convolution, or of two in a loop."""

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=DIMS,
            feature_group_count=groups,
        )

    def one(x, kernel):
        out, back = jax.vjp(convolve, x, kernel)
        return back(out)

    def loop(x, kernels):
        def body(x, kernel):
            by_images, by_kernel = one(x, kernel)
            return by_images, by_kernel

        return jax.lax.scan(body, x, kernels)

    images = spec(batch, side, side, features)
    kernel = (3, 3, features // groups, features)
    if scanned:
        return compiled(loop, images, spec(2, *kernel))
    return compiled(one, images, spec(*kernel))


def found(module):
    """Kinds and extents of what runs by itself."""
    calls = (i for i in module.instructions.values() if i.opcode == "fusion")
    fused = {c.id for i in calls for c in module.called(i)}
    return {
        (m.kind, m.extent)
        for c in module.computations.values()
        if c.id not in fused
        for i in c.instructions
        if i.opcode in ("fusion", "convolution")
        for m in xla.cost_of(i, module).matmuls
    }


CONVOLUTIONS = {
    # side, batch, features, groups: kinds and extents of gradients in a loop's body
    # Images of 16 KiB: 8 lines of each operand on one set, which has ways for 8.
    (16, 8, 16, 1): {("loop_convolution", 16.0), ("loop_convolution_rows", 2.0)},
    # 225 lines apart: on all 64 sets.
    (15, 8, 16, 1): {("loop_convolution", 16.0), ("loop_convolution_rows", 1 / 32)},
    # 4 KiB apart.
    (8, 32, 16, 1): {("loop_convolution", 16.0), ("loop_convolution_rows", 8.0)},
}


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_gradients_in_a_loops_body_are_plain_loops(shape):
    kinds = found(gradients(*shape, scanned=True))
    assert kinds - {("convolution", 0.0)} == CONVOLUTIONS[shape]


def test_gradients_at_the_programs_own_level_are_a_librarys():
    kinds = {kind for kind, _ in found(gradients(16, 8, 16, scanned=False))}
    assert kinds <= {"convolution", "filter_gradient"}
    assert "filter_gradient" in kinds


def test_a_library_does_one_group_after_the_other():
    def run(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=DIMS, feature_group_count=4
        )

    module = compiled(run, spec(2, 8, 8, 16), spec(3, 3, 4, 16))
    assert found(module) == {("grouped_convolution", 4.0)}


@pytest.mark.parametrize(
    ("kind", "gflops"),
    [
        ("loop_convolution", 3.0),
        ("loop_convolution_rows", 1.4),
        ("grouped_convolution", 1.0),
    ],
)
def test_a_cpu_that_nobody_measured_knows_how_slow_those_are(kind, gflops):
    from revremat.xla.step_time._roofline import matmul_rate
    from revremat.xla.target._cards import num_cores

    one = xla.Matmul(kind, "float32", flops=1e9, extent=4.0)
    assert matmul_rate(one, SHEET) == pytest.approx(gflops * 1e9 * num_cores())
    curves = {f"{kind}.float32": ((4.0, 5e9),), "matmul.float32": ((1.0, 7e9),)}
    measured = dataclasses.replace(SHEET, curves=curves)
    assert matmul_rate(one, measured) == 5e9


# ---- Loops and rows ------------------------------------------------------------------


def test_a_loop_takes_as_long_as_what_it_evaluates():
    module = compiled(lambda x: x[1:] * x[:-1], spec(9, 4))
    (i,) = kernels(module, "kLoop")
    # 64 loads, 32 products; the innermost loop has four iterations.
    curve = ((4.0, 96e6), (8.0, 1e12))
    assert time_of(i, module, loop=curve) == pytest.approx(1.0)
    assert time_of(i, module, loop=curve, **{"loop.large": ((4.0, 1.0),)}) < 2.0


def test_a_loop_with_much_to_do_has_rates_of_its_own():
    def run(x):
        return sum(x[k : k + 8] * (k + 2.0) for k in range(9))

    module = compiled(run, spec(16, 4))
    (i,) = kernels(module, "kLoop")
    work = xla.evaluations_of(i, module).work
    assert work == 32 * (9 + 9 + 8)
    large = {"loop.large": ((4.0, work * 1e6),)}
    assert time_of(i, module, loop=((4.0, 1.0),), **large) == pytest.approx(1.0)


def test_rows_that_crowd_a_cache_cost_beyond_that():
    def run(x):
        return sum(x[:, k : k + 1] * 2.0 for k in range(5))

    module = compiled(run, spec(2, 128, 512, 8))
    (i,) = kernels(module, "kLoop")
    crowded = {"loop.crowded": ((5.0, 5 * 2 * 512 * 8 * 1e6),)}
    assert time_of(i, module, **crowded) == pytest.approx(1.0, rel=0.01)


def test_loops_that_read_starts_anew_have_rates_of_their_own():
    def run(number, stack):
        one = jax.lax.dynamic_index_in_dim(stack, number, 0, keepdims=False)
        return one + one[::-1]

    module = compiled(run, spec(dtype=jnp.int32), spec(3, 8, 4))
    (i,) = kernels(module, "kLoop")
    work = 32 * (2 + 1 + 4)
    assert time_of(i, module, loop=((4.0, work * 1e6),)) == pytest.approx(1.0)
    anew = {"loop.by_number": ((7.0, work * 1e5), (8.0, 1e15))}
    assert time_of(i, module, loop=((4.0, 1.0),), **anew) == pytest.approx(10.0)


def test_functions_of_a_loop_cost_as_often_as_they_are_computed():
    def run(x):
        y = jnp.tanh(x)
        return y[1:] * y[:-1]

    module = compiled(run, spec(9, 4))
    loops = [i for i in kernels(module, "kLoop") if i.fusion_kind == "kLoop"]
    curves = {"function.tanh": ((1.0, 1e6),), "loop": ((4.0, 1e15),)}
    us = sum(time_of(i, module, **curves) for i in loops)
    tanhs = sum(sum(xla.evaluations_of(i, module).functions.values()) for i in loops)
    assert us == pytest.approx(tanhs, rel=0.01)


def test_a_library_goes_over_rows_with_one_operation_after_the_other():
    module = compiled(lambda x, y: (x * y).sum(-1), *[spec(4096, 8)] * 2)
    (i,) = kernels(module, "kCustom")
    curve = ((8.0, 2 * 4096 * 8 * 1e6), (16.0, 1e15))
    assert time_of(i, module, row_operations=curve) == pytest.approx(1.0, rel=0.01)


def test_other_cards_know_nothing_of_it():
    module = compiled(lambda x: x[1:] * x[:-1], spec(9, 4))
    (i,) = kernels(module, "kLoop")
    assert time_of(i, module) < 0.01
