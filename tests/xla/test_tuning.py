"""A compile where the card is not takes what the card's autotuning chose."""

import hashlib

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat.xla.compile import _tuning
from revremat.xla.compile._lowered import _compile_in
from revremat.xla.compile._tuning import hand_to_xla, not_tuned, tuning_of

H100 = rr.target("h100:1")


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Where measured cards lie; XLA has read no tuning yet."""
    monkeypatch.setenv("REVREMAT_CARDS", str(tmp_path / "cards"))
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "compiles"))
    monkeypatch.setattr(_tuning, "_kept_by_xla", {})
    return tmp_path / "cards"


def put(cards, key="h100", **files):
    """A tuning with such kernels."""
    folder = cards / f"{key}.tuning" / "699b92c0fb30cb16"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.pb").write_text(text)


def product(x, w):
    return jnp.tanh(x @ w).sum()


def specs(rows):
    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    return of(rows, 256), of(256, 256)


@pytest.mark.parametrize("spec", ["h100:1", "h100:8", "h100:2x8"])
def test_a_tuning_lies_beside_the_cards_figures(cards, spec):
    assert tuning_of(rr.target(spec), {}) is None
    put(cards, a="1")
    assert tuning_of(rr.target(spec), {}).folder == cards / "h100.tuning"


@pytest.mark.parametrize("spec", ["a100:1", "h200:1", "cpu:1", "local"])
def test_it_is_of_one_kind_of_card(cards, spec):
    put(cards, a="1")
    assert tuning_of(rr.target(spec), {}) is None


@pytest.mark.parametrize(
    "options",
    [
        {"xla_gpu_enable_triton_gemm": False},
        {"xla_gpu_require_complete_aot_autotune_results": True},
        {"xla_gpu_per_fusion_autotune_cache_dir": "/tmp/tuning"},
    ],
)
def test_who_says_how_products_are_made_is_not_overruled(cards, options):
    put(cards, a="1")
    assert tuning_of(H100, options) is None


@pytest.mark.parametrize(
    "change", [{"b": "2"}, {"a": "3"}, {"a": "1 "}], ids=["more", "other", "longer"]
)
def test_another_tuning_asks_for_another_process(cards, change):
    put(cards, a="1")
    first = tuning_of(H100, {})
    hand_to_xla(first, H100)
    assert tuning_of(H100, {}) == first
    hand_to_xla(first, H100)
    put(cards, **change)
    with pytest.raises(rr.UserError, match=r"h100 with another tuning.*start a new"):
        hand_to_xla(tuning_of(H100, {}), H100)


def test_without_a_tuning_one_that_was_read_would_still_count(cards, monkeypatch):
    put(cards, a="1")
    hand_to_xla(tuning_of(H100, {}), H100)
    monkeypatch.setenv("REVREMAT_CARDS", str(cards / "none"))
    with pytest.raises(rr.UserError, match="new process for compiles without it"):
        hand_to_xla(tuning_of(H100, {}), H100)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Failed to get configs for: 29 out of 30 instructions. See", "29 of 30 kern"),
        ("NOT_FOUND: No cached config found for HLO instr: %f", "some kernels"),
        ("RESOURCE_EXHAUSTED: no room", ""),
    ],
)
def test_kernels_that_are_missing_are_counted(said, told):
    assert not_tuned(RuntimeError(said), H100)[: len(told)] == told
    assert bool(not_tuned(RuntimeError(said), H100)) == bool(told)


@pytest.mark.parametrize("rows", [256, 384, 1024])
def test_a_program_that_is_not_in_it_is_told_and_compiled_all_the_same(
    cards, rows, monkeypatch
):
    plain = rr.measure(jax.grad(product), *specs(rows), target=H100)
    put(cards, unknown="of another program")
    found = rr.measure(jax.grad(product), *specs(rows), target=H100)
    assert not found.cached
    assert found.memory.total_bytes == plain.memory.total_bytes
    assert "without autotuning" in plain.notes[0]
    assert "what autotuning chose" in found.notes[0]
    assert "kernels that XLA tunes are not in the tuning of h100" in found.notes[-1]
    again = rr.measure(jax.grad(product), *specs(rows), target=H100)
    assert again.cached
    assert again.notes == found.notes


def test_xla_is_asked_once_where_all_is_there(cards, monkeypatch):
    put(cards, a="1")
    asked = []

    def compiled(folder, lowered, options, to_run):
        asked.append(options)
        untuned = {"xla_gpu_autotune_level": 0}
        return _compile_in(folder, lowered, untuned, to_run)

    monkeypatch.setattr("revremat.xla.compile._lowered._compile_in", compiled)
    found = rr.measure(jax.grad(product), *specs(512), target=H100)
    (options,) = asked
    assert options["xla_gpu_require_complete_aot_autotune_results"] is True
    folder = options["xla_gpu_per_fusion_autotune_cache_dir"]
    assert folder == str(cards / "h100.tuning")
    assert len(found.notes) == 2


def test_its_digest_is_of_names_and_contents(cards):
    put(cards, a="1", b="2")
    of = hashlib.sha256
    parts = [
        f"699b92c0fb30cb16/{name}.pb".encode() + b"\0" + of(text).digest()
        for name, text in (("a", b"1"), ("b", b"2"))
    ]
    assert tuning_of(H100, {}).digest == of(b"".join(parts)).hexdigest()
