"""Totals are XLA's own, and the buffers listed at the peak add up to them."""

import jax
import pytest

import revremat as rr
from revremat.xla.target._specs import place
from tests.xla.programs import PROGRAMS

TARGETS = ("cpu:1", "cpu:8", "h100:1", "h100:8")
LARGE = {"vit": None, "gpt_unrolled": "cpu:8", "gpt_scanned": None}
"""Programs that take long to compile, and the target that each is always seen on."""


CASES = [
    pytest.param(name, spec, marks=[pytest.mark.slow] * (LARGE.get(name, spec) != spec))
    for name in PROGRAMS
    for spec in TARGETS
]


@pytest.mark.every_commit(
    "mlp-cpu:1",
    "mlp-h100:8",
    "mlp_donated-cpu:8",
    "mlp_donated-h100:1",
    "conv_net-cpu:8",
    "conv_net-h100:1",
    "accumulated-cpu:1",
    "accumulated-h100:8",
    "sharded-cpu:8",
    "sharded-h100:8",
)
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_total_is_argument_plus_output_minus_alias_plus_temp(name, spec):
    target = rr.target(spec)
    problem = PROGRAMS[name](target)
    step, specs = problem.make_step()
    m = rr.measure(step, *specs, target=target, donate=problem.donate)
    memory = m.memory
    assert memory.total_bytes == (
        memory.argument_bytes
        + memory.output_bytes
        - memory.alias_bytes
        + memory.temp_bytes
    )
    # Buffers and fragmentation account for every byte, up to constants and alignment.
    listed = memory.where().bytes + memory.fragmentation_bytes
    assert listed == pytest.approx(memory.total_bytes, rel=0.01)
    assert (memory.alias_bytes > 0) == bool(problem.donate)


@pytest.mark.every_commit("mlp_donated-cpu:1", "sharded-h100:1", "accumulated-cpu:1")
@pytest.mark.parametrize("spec", ["cpu:1", "h100:1"])
@pytest.mark.parametrize("name", ["mlp_donated", "sharded", "accumulated"])
def test_totals_equal_a_plain_jax_compile(name, spec):
    target = rr.target(spec)
    problem = PROGRAMS[name](target)
    step, specs = problem.make_step()
    found = rr.measure(step, *specs, target=target, donate=problem.donate)
    options = {"xla_gpu_autotune_level": 0} if target.platform == "cuda" else {}
    jax.config.update("jax_compiler_enable_remat_pass", False)
    try:
        stated = (
            jax.jit(step, donate_argnums=problem.donate)
            .trace(*place(specs, target))
            .lower(lowering_platforms=(target.platform,))
            .compile(compiler_options=options)
            .memory_analysis()
        )
    finally:
        jax.config.update("jax_compiler_enable_remat_pass", True)
    assert found.memory.argument_bytes == stated.argument_size_in_bytes
    assert found.memory.output_bytes == stated.output_size_in_bytes
    assert found.memory.alias_bytes == stated.alias_size_in_bytes
    assert found.memory.temp_bytes == stated.temp_size_in_bytes
    if target.platform == "cuda":  # on CPU XLA's peak leaves out all temporaries
        peak = found.memory.total_bytes - found.memory.fragmentation_bytes
        assert peak == pytest.approx(stated.peak_memory_in_bytes, abs=4096)


def test_bytes_are_per_device():
    one, eight = (
        rr.measure(*_args(PROGRAMS["sharded"](t)), target=t, donate=(0,))
        for t in (rr.target("h100:1"), rr.target("h100:8"))
    )
    # Weights are split four ways, activations two ways.
    assert one.memory.where(phase="argument", scope="params*").bytes == 4 * (
        eight.memory.where(phase="argument", scope="params*").bytes
    )
    assert one.memory.where(phase="argument", scope="batch*").bytes == 2 * (
        eight.memory.where(phase="argument", scope="batch*").bytes
    )


def test_an_already_compiled_step_gives_totals_without_buffers():
    problem = PROGRAMS["mlp"](rr.target("cpu:1"))
    step, specs = problem.make_step()
    compiled = jax.jit(step).lower(*specs).compile()
    m = rr.measure(compiled, target="cpu:1")
    asked = rr.measure(step, *specs, target="cpu:1")
    assert m.memory.total_bytes == asked.memory.total_bytes
    assert m.memory.buffers == ()
    assert m.time.flops == asked.time.flops


def test_a_lowered_step_gives_everything():
    problem = PROGRAMS["mlp"](rr.target("cpu:1"))
    step, specs = problem.make_step()
    m = rr.measure(jax.jit(step).lower(*specs), target="cpu:1")
    assert m.memory == rr.measure(step, *specs, target="cpu:1").memory


def test_json_says_all_of_it():
    problem = PROGRAMS["mlp"](rr.target("cpu:1"))
    m = rr.measure(*_args(problem), target="cpu:1")
    assert rr.Measurement.from_json(m.to_json()) == m


def _args(problem):
    step, specs = problem.make_step()
    return step, *specs
