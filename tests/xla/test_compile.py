"""The compile cache: the same compile is done once, and another one never served."""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import revremat as rr
from revremat.xla.compile import _disk, _lowered, _scratch
from revremat.xla.memory._totals import totals
from revremat.xla.target import _cards
from tests.xla.programs import spec

SOURCE = """
import jax.numpy as jnp

def step(x):
    return jnp.sin(x) @ x
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test: the folder in which entries lie."""
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "compiles"))
    return tmp_path / "compiles" / "revremat-compiles"


def step(x):
    return jnp.sin(x) @ x


def other(x):
    return jnp.cos(x) @ x


def ask(function=step, x=None, target="cpu:1", **options):
    """One compile."""
    x = spec(64, 64) if x is None else x
    return rr.measure(function, x, target=target, **options)


def jit(**arguments):
    return jax.jit(step, **arguments)


@pytest.mark.parametrize("target", ["cpu:1", "cpu:8", "h100:1", "h100:8"])
def test_the_second_time_is_read_from_disk_and_says_the_same(target):
    first, second = ask(target=target), ask(target=target)
    assert not first.cached
    assert second.cached
    assert second.memory == first.memory
    assert second.time == first.time
    assert second.compile_seconds == first.compile_seconds > 0


def test_nothing_is_read_or_written_when_asked_not_to(cache):
    assert not ask(cache=False).cached
    assert not cache.parent.exists()
    ask()
    assert not ask(cache=False).cached


OTHERS = {
    "program": lambda: ask(other),
    "shape": lambda: ask(x=spec(32, 32)),
    "dtype": lambda: ask(x=spec(64, 64, dtype=jnp.bfloat16)),
    "weak type": lambda: ask(lambda x: x + 1),
    "donation": lambda: ask(donate=(0,)),
    "target": lambda: ask(target="cpu:2"),
    "platform": lambda: ask(target="h100:1"),
    "option": lambda: ask(options={"xla_cpu_enable_fast_math": True}),
    "option of jit": lambda: ask(
        jit(compiler_options={"xla_cpu_enable_fast_math": True})
    ),
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_compile_is_never_served(change):
    ask()
    assert not OTHERS[change]().cached
    assert OTHERS[change]().cached
    assert ask().cached


def test_options_are_told_apart_by_value():
    options = "xla_cpu_enable_fast_math"
    assert not ask(options={options: True}).cached
    assert not ask(options={options: False}).cached
    assert ask(options={options: True}).cached


def test_options_of_jit_are_told_apart_by_value():
    options = "xla_cpu_enable_fast_math"
    fast, exact = (jit(compiler_options={options: on}) for on in (True, False))
    assert not ask(fast).cached
    assert not ask(exact).cached
    assert ask(fast).cached


def test_sharding_and_order_of_devices_are_told_apart():
    target = rr.target("cpu:4")
    by_row, by_column = PartitionSpec("d"), PartitionSpec(None, "d")
    mesh = target.mesh({"d": 4})
    turned = jax.sharding.Mesh(mesh.devices[::-1], "d", axis_types=mesh.axis_types)
    layouts = [
        NamedSharding(mesh, by_row),
        NamedSharding(mesh, by_column),
        NamedSharding(turned, by_row),
    ]
    for cached in (False, True):
        found = [ask(x=spec(64, 64, sharding=s), target=target) for s in layouts]
        assert [m.cached for m in found] == [cached] * 3


@pytest.mark.parametrize("name", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_flags_are_part_of_a_compile(monkeypatch, name):
    ask()
    # Not read by XLA any more in this process, but it would be in the next one.
    monkeypatch.setenv(name, "--xla_cpu_enable_fast_min_max=true")
    assert not ask().cached
    monkeypatch.delenv(name)
    assert ask().cached


@pytest.mark.parametrize(
    ("setting", "value"),
    [("jax_optimization_level", "O1"), ("jax_memory_fitting_level", "O0")],
)
def test_settings_of_jax_are_part_of_a_compile(setting, value):
    ask()
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        assert not ask().cached
    finally:
        jax.config.update(setting, before)
    assert ask().cached


def test_precision_is_part_of_a_compile():
    ask()
    with jax.default_matmul_precision("highest"):
        assert not ask().cached


def test_versions_are_part_of_a_compile(monkeypatch):
    ask()
    monkeypatch.setattr(_disk, "versions", lambda: "jax 99.0")
    assert not ask().cached


def test_another_instruction_set_is_another_compile(monkeypatch):
    ask()
    monkeypatch.setattr(_disk, "_instruction_set", lambda: "an older machine")
    assert not ask().cached


def test_another_description_of_a_card_is_another_compile(monkeypatch):
    ask(target="h100:1")
    tables = {name: dict(facts) for name, facts in _cards._tables().items()}
    tables["h100"]["l2_cache_size"] //= 2
    monkeypatch.setattr(_cards, "_tables", lambda: tables)
    assert not ask(target="h100:1").cached


def test_cards_alike_in_all_but_their_links_are_still_two():
    ask(target="h100:1")
    assert not ask(target="h800:1").cached


def test_a_program_one_line_further_down_is_another(tmp_path, monkeypatch):
    """Reports name lines, so a report from before the edit would name wrong ones."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "moved_program.py"
    for text, cached in ((SOURCE, False), (SOURCE, True), ("\n" + SOURCE, False)):
        file.write_text(text)
        os.utime(file, (len(text), len(text)))
        importlib.invalidate_caches()
        module = importlib.reload(importlib.import_module("moved_program"))
        m = ask(module.step)
        assert m.cached == cached
        line = 1 + text.splitlines().index("    return jnp.sin(x) @ x")
        made = [b.source for b in m.memory.where(phase="output")]
        assert f"{file}:{line}" in made


def test_who_asks_is_no_part_of_a_program():
    """A function anew, and from another line."""
    first = rr.measure(jax.grad(norm), spec(64), target="cpu:1")
    second = rr.measure(jax.grad(norm), spec(64), target="cpu:1")
    jax.clear_caches()
    third = measured_deeper(3)
    assert [m.cached for m in (first, second, third)] == [False, True, True]
    assert first.memory == third.memory


def norm(x):
    return (jnp.tanh(x) * jnp.arange(64)).sum()


def measured_deeper(calls):
    if calls:
        return measured_deeper(calls - 1)
    return rr.measure(jax.grad(norm), spec(64), target="cpu:1")


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_large_constants_are_told_apart_by_their_numbers_and_cost_no_room(
    cache, target
):
    numbers = np.random.default_rng(0).normal(size=(2, 2**19)).astype(np.float32)

    def ask_with(constant):
        # The length of the loop is a constant, too, and stays.
        loop = lambda x: jax.lax.fori_loop(0, 7, lambda _, x: jnp.sin(x + constant), x)
        return rr.measure(loop, spec(2**19), target=target)

    first, other = ask_with(numbers[0]), ask_with(numbers[1])
    again = [ask_with(numbers[0].copy()), ask_with(numbers[1] + 0)]
    assert [m.cached for m in (first, other, *again)] == [False, False, True, True]
    assert first.memory == other.memory == again[0].memory
    assert first.memory.temp_bytes + first.memory.output_bytes >= numbers[0].nbytes
    assert again[0].time == first.time
    assert first.time.step_us > 6 * numbers[0].nbytes / 4e6
    written = sum(path.stat().st_size for path in cache.glob("*.zip"))
    assert written < 0.1 * numbers[0].nbytes


def entry(cache: Path) -> Path:
    (file,) = cache.glob("*.zip")
    return file


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:200] + b"\0" * 40 + data[240:],
        lambda data: b"not a zip" * 100,
    ],
)
def test_a_damaged_entry_is_compiled_again_and_replaced(cache, damage):
    first = ask()
    file = entry(cache)
    file.write_bytes(damage(file.read_bytes()))
    again = ask()
    assert not again.cached
    assert again.memory == first.memory
    assert ask().cached


def test_a_flipped_bit_anywhere_is_noticed_or_harmless(cache):
    ask()
    file = entry(cache)
    data = file.read_bytes()
    whole = _disk.read(file.stem)
    spread = range(0, 8 * len(data), max(1, 8 * len(data) // 60))
    where_it_is_listed = range(8 * (len(data) - 22), 8 * len(data))
    for bit in (*spread, *where_it_is_listed):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(bad)
        found = _disk.read(file.stem)
        assert found is not None or not file.exists()
        assert found is None or (found.hlo, found.stats) == (whole.hlo, whole.stats)


def test_an_entry_under_another_name_is_not_believed(cache):
    ask()
    taken = entry(cache).read_bytes()
    entry(cache).unlink()
    ask(other)
    entry(cache).write_bytes(taken)
    assert not ask(other).cached


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "file" / "compiles"))
    for target in ("cpu:1", "h100:1"):
        first, second = ask(target=target), ask(target=target)
        assert not first.cached
        assert not second.cached
        assert first.memory == second.memory


def test_a_full_disk_leaves_nothing_half_written(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_disk.os, "replace", full)
    assert not ask().cached
    assert list(cache.parent.iterdir()) == []
    cache.mkdir()
    assert not ask().cached
    assert list(cache.parent.iterdir()) == [cache]


def test_the_oldest_entries_go_when_the_folder_is_full(cache, monkeypatch):
    ask()
    oldest = entry(cache)
    os.utime(oldest, (1, 1))
    monkeypatch.setattr(_disk, "_CACHE_LIMIT_BYTES", oldest.stat().st_size * 3 // 2)
    ask(other)
    assert oldest not in list(cache.glob("*.zip"))
    assert ask(other).cached


def test_what_killed_processes_left_behind_goes_after_a_day(
    cache, tmp_path, monkeypatch
):
    ask()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _scratch._sweep.cache_clear()
    names = (
        "revremat-dump-old_____",
        "revremat-dump-new_____",
        "revremat-dump-not_ours",
    )
    dumps = [tmp_path / name for name in (*names, "revremat-experiments")]
    for folder in dumps:
        folder.mkdir()
        (folder / "dump.pb").write_bytes(b"abc")
        if folder != dumps[2]:
            (folder / _scratch._MARKER).write_bytes(_scratch._SIGNATURE)
    half = entry(cache).read_bytes()[:300]
    entries = [cache / f".new-{name}" for name in ("old_____", "new_____", "not_ours")]
    for path, data in zip(entries, (half, half, b"abc"), strict=True):
        path.write_bytes(data)
    long_ago = time.time() - 2 * _scratch.ABANDONED_S
    for path in (*dumps[:1], *dumps[2:], entries[0], entries[2]):
        os.utime(path, (long_ago, long_ago))
    ask(other)
    assert [folder.exists() for folder in dumps] == [False, True, True, True]
    assert [path.exists() for path in entries] == [False, True, True]


@pytest.mark.every_commit("h100:1")
@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_flags_about_dumps_change_nothing(target):
    program = (
        "import jax, jax.numpy as jnp, revremat as rr\n"
        "x = jax.ShapeDtypeStruct((256, 256), jnp.float32)\n"
        "step = lambda x: jnp.sin(x) @ x\n"
        f"found = rr.measure(step, x, target={target!r}, cache=False)\n"
        "print(found.memory.total_bytes)\n"
    )
    flags = "--xla_dump_hlo_module_re=nothing --xla_dump_compress_protos=true"
    taken = []
    for given in ("", flags):
        env = {**os.environ, "XLA_FLAGS": given}
        args = [sys.executable, "-c", program]
        ran = subprocess.run(args, env=env, capture_output=True, text=True, check=True)
        taken.append(int(ran.stdout))
    assert taken[0] == taken[1] > 2 * 4 * 256 * 256


def test_jax_settings_are_left_as_they_were():
    names = ("jax_compiler_enable_remat_pass", "jax_enable_compilation_cache")
    before = [getattr(jax.config, name) for name in names]
    ask()
    with pytest.raises(Exception, match="no_such_option"):
        ask(options={"no_such_option": 1})
    assert [getattr(jax.config, name) for name in names] == before


def test_a_compile_for_a_gpu_that_is_elsewhere_makes_no_kernels(monkeypatch):
    """And says of memory and schedule what one to its end says."""
    ended, stats = [], _lowered._stats
    monkeypatch.setattr(_lowered, "_stats", lambda c: ended.append(c) or stats(c))
    early = ask(target="h100:1", cache=False)
    assert not ended
    monkeypatch.setattr(_lowered, "no_kernels", lambda folder: {})
    whole = ask(target="h100:1", cache=False)
    assert len(ended) == 1
    assert early.memory == whole.memory
    assert early.time == whole.time


def test_a_compile_for_a_cpu_hurries_where_it_makes_kernels():
    slowly = {
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
    }
    quick, slow = (
        ask(cache=False, options=options).memory for options in (None, slowly)
    )
    assert quick == slow


def test_what_the_compiler_refuses_before_that_is_still_an_error():
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_backend"):
        ask(
            target="h100:1",
            options={"xla_gpu_experimental_autotune_backends": "no_such_backend"},
        )


def test_a_dump_without_buffers_has_no_totals():
    with pytest.raises(RuntimeError, match="no buffers"):
        totals(b"")
