"""Products of matrices are not tiled at every compile, and nothing can tell."""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat._compat import DISABLED_PASSES
from revremat.xla.compile import _lowered
from revremat.xla.compile._tiling import untiled
from tests.xla.programs import NO_TILING, PROGRAMS, enlarged, spec


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "compiles"))


@dataclass
class Compiles:
    """What was compiled, in order; of each whether XLA tiled, and its dump.

    Attributes:
      programs: Those that were asked for.
      kernels: Programs of kernels alone.
    """

    programs: list[tuple[bool, bytes]] = field(default_factory=list)
    kernels: list[tuple[bool, bytes]] = field(default_factory=list)

    @property
    def how(self):
        return [tiled for tiled, _ in self.programs]

    @property
    def how_alone(self):
        return [tiled for tiled, _ in self.kernels]


@pytest.fixture
def compiles(monkeypatch):
    made, compile_ = Compiles(), _lowered._compile_in

    def watched(folder, lowered, options, to_run):
        artifact, compiled = compile_(folder, lowered, options, to_run)
        tiled = "config-assigner" not in options.get(DISABLED_PASSES, "")
        name = lowered.program.as_text().partition("{")[0]
        where = made.kernels if "@jit_kernels" in name else made.programs
        where.append((tiled, artifact.hlo))
        return artifact, compiled

    monkeypatch.setattr(_lowered, "_compile_in", watched)
    return made


def gated(x, w, v):
    """Two products of the same rows, of which XLA makes one."""
    return (jnp.tanh(x @ w) * (x @ v)).sum()


def gated_specs(rows=512, dtype=jnp.bfloat16):
    array = lambda *shape: spec(*shape, dtype=dtype)
    return array(rows, 256), array(256, 256), array(256, 256)


def stacked(x, ws, first=0, num=2):
    """Products with matrices of a stack: slices are part of their kernels."""
    for w in ws[first : first + num]:
        x = jnp.tanh(x @ w)
    return x.sum()


def ask(step, specs, **options):
    return rr.measure(jax.grad(step), *specs, target="h100:1", **options)


QUICKLY = ("mlp_donated", "conv_net", "sharded")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICKLY else pytest.mark.slow)
        for name in PROGRAMS
    ],
)
def test_without_tiles_a_program_takes_the_same_memory_and_time(name, compiles):
    target = rr.target("h100:8")
    problem = PROGRAMS[name](target)
    without = rr.measure(problem, target=target)
    tiled = rr.measure(problem, target=target, cache=False)
    assert compiles.how[-1]
    assert not compiles.how[0]
    assert without.memory == tiled.memory
    assert without.time == tiled.time


def test_a_kernel_that_may_have_no_tiling_is_tiled_once_and_alone(compiles):
    ask(gated, gated_specs())
    assert sum(compiles.how_alone) == 1
    ask(lambda *args: 2.0 * gated(*args), gated_specs())  # the same kernels
    assert sum(compiles.how_alone) == 1
    ask(gated, gated_specs(rows=1024))  # others
    assert sum(compiles.how_alone) == 2
    assert compiles.how == [False] * 3


def test_of_equal_kernels_one_is_tiled(compiles):
    ask(partial(stacked, num=6), (spec(512, 256), spec(8, 256, 256)))
    ((tiled, program),) = compiles.programs
    alone = [untiled(hlo) or {} for tiled, hlo in compiles.kernels if not tiled]
    assert set.union(*map(set, alone)) >= {*(untiled(program) or ())} != set()
    assert not tiled
    most = max(products(hlo) for tiled, hlo in compiles.kernels if tiled)
    assert products(program) > 3 * most


def products(hlo):
    """Kernels that multiply matrices."""
    return hlo.count(b"__triton_gemm")


def test_kernels_know_nothing_of_a_mesh_that_the_caller_has_set(compiles):
    target = rr.target("h100:8")
    with jax.set_mesh(target.mesh({"data": 8})):
        rr.measure(jax.grad(gated), *gated_specs(), target=target)
    assert compiles.how == [False]
    assert sum(compiles.how_alone) == 1


def test_a_kernel_that_cannot_be_written_anew_is_tiled_where_it_is(
    compiles, monkeypatch
):
    monkeypatch.setattr(_lowered, "can_stand_alone", lambda body: False)
    ask(gated, gated_specs())
    assert compiles.how == [False, True]
    ask(lambda *args: 2.0 * gated(*args), gated_specs())
    assert compiles.how == [False, True, False]
    assert not compiles.kernels


def test_a_kernel_that_xla_fuses_otherwise_when_it_is_alone_is_tiled_where_it_is(
    compiles, monkeypatch
):
    monkeypatch.setattr(_lowered, "WAYS", (("triton-gemm-rewriter",),))
    ask(gated, gated_specs())
    assert compiles.how == [False, True]
    assert compiles.how_alone == [False]


def test_what_need_not_be_exact_is_not_tiled_and_exact_later_not_compiled_again(
    compiles,
):
    lowered = xla.lower_step(jax.grad(gated), gated_specs(), rr.target("h100:1"))
    rough = lowered.compile(exact=False)
    assert compiles.how == [False]
    again = lowered.compile(exact=False)  # from the disk
    assert not compiles.kernels
    assert again.hlo == rough.hlo
    exact = lowered.compile()
    assert sum(compiles.how_alone) == 1
    assert dict(exact.stats) == dict(rough.stats)
    assert lowered.compile().hlo == lowered.compile(exact=False).hlo == exact.hlo
    assert compiles.how == [False]


@pytest.mark.parametrize("find", ["fit", "search"])
def test_of_a_search_only_what_is_chosen_is_tiled(find, compiles):
    def loss(ws, x):
        return rr.stack(lambda w, x: gated(x, w, w) + x * jnp.tanh(x @ w), ws, x).sum()

    specs = spec(4, 256, 256), spec(512, 256)
    about = {"budget": "3MiB", "target": "h100:1", "effort": "quick"}
    found = getattr(rr, find)(loss, *specs, **about)
    assert sum(compiles.how_alone) <= 1
    plan = found.plan if find == "fit" else found
    step = jax.value_and_grad(rr.apply(loss, plan))
    exact = rr.measure(step, *specs, target="h100:1")
    assert exact.memory.total_bytes == plan.total_bytes
    assert sum(compiles.how_alone) <= 1
    assert not any(compiles.how)


def test_where_slices_begin_makes_no_other_kernel(compiles):
    ask(stacked, specs := (spec(512, 256), spec(8, 256, 256)))
    before = len(compiles.kernels)
    ask(partial(stacked, first=3), specs)
    assert compiles.how == [False, False]
    assert len(compiles.kernels) == before > 0
    first, second = (untiled(hlo) or {} for _, hlo in compiles.programs)
    assert {*first} == {*second} != set()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("plain", [(512, 256), (256, 128)]),
        ("odd", [(77, 1003), (1003, 50257)]),
        ("thin", [(4096, 1), (1, 64)]),
        ("batched", [(6, 64, 40), (6, 40, 24)]),
    ],
)
def test_kernels_that_have_a_way_for_certain_are_tiled(kind, shapes, dtype, compiles):
    """Scaled rows in, a bias and an activation out, and what gradients make of that."""

    def step(x, w, bias):
        x = x * jax.lax.rsqrt(jnp.square(x.astype(jnp.float32)).sum(-1, keepdims=True))
        y = jnp.matmul(x.astype(w.dtype), jnp.where(w > 0, w, jnp.exp(w))) + bias
        return jax.nn.gelu(y).sum()

    specs = [spec(*shape, dtype=dtype) for shape in (*shapes, shapes[1][-1:])]
    found = rr.measure(jax.grad(step, (0, 1)), *specs, target="h100:1", cache=False)
    assert not found.notes or "tile" not in found.notes[-1]
    assert compiles.how == [True]


def test_a_product_that_xla_tiles_in_no_way_is_the_librarys_and_the_report_says_so():
    step = jax.grad(enlarged, (0, 1, 2))
    first, second = (rr.measure(step, *NO_TILING, target="h100:1") for _ in range(2))
    assert second.cached
    assert first.notes == second.notes
    assert "xla_gpu_enable_triton_gemm=false" in first.notes[-1]
    by_hand = {"xla_gpu_enable_triton_gemm": False}
    other = rr.measure(step, *NO_TILING, target="h100:1", options=by_hand)
    assert other.memory.total_bytes == first.memory.total_bytes
    assert "tile" not in other.notes[-1]


def test_options_that_were_asked_for_are_not_changed():
    asked = {"xla_gpu_enable_triton_gemm": True}
    with pytest.raises(jax.errors.JaxRuntimeError, match="No supported config"):
        rr.measure(
            jax.grad(enlarged, (0, 1, 2)), *NO_TILING, target="h100:1", options=asked
        )


@pytest.mark.parametrize(
    "option",
    [{"xla_gpu_autotune_level": 1}, {"xla_gpu_triton_gemm_any": True}],
    ids=str,
)
def test_who_says_how_products_are_tiled_has_it_so(option, compiles):
    ask(gated, gated_specs(), options=option)
    assert compiles.how == [True]


@pytest.mark.slow
def test_who_leaves_passes_out_does_not_bring_xlas_rematerialization_back(compiles):
    def too_large(x, w):
        for _ in range(30):  # 4 GiB each
            x = jnp.sin(jnp.tanh(x @ w))
        return x.sum()

    specs = spec(2**16, 2**14), spec(2**14, 2**14)
    for options in ({}, {DISABLED_PASSES: "no-such-pass"}):
        ask(too_large, specs, cache=False, options=options)
    assert not any(b".remat" in hlo for _, hlo in compiles.programs)
