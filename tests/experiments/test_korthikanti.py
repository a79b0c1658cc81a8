"""The paper on tensor and sequence parallelism: formulas, the layer, and claims."""

import dataclasses
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from experiments.papers.korthikanti import claims as paper_claims
from experiments.papers.korthikanti import flax_models
from experiments.papers.korthikanti.__main__ import HERE, RESULTS, Paper, main, rows
from experiments.papers.korthikanti.model import CORE, OUTSIDE, SCHEMES, problem, step
from experiments.papers.korthikanti.published import (
    LENGTH,
    SIZES,
    Size,
    hardware_flops,
    layer_bytes,
    model_flops,
    size_of,
    utilization,
)
from experiments.papers.rows import complete, stored
from revremat import sharding

SMALL = Size(8, 32, 2, 1, 1, 2, 2, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("size", "scheme", "megabytes"),
    [
        ("22B", "tp", 1325.4),
        ("22B", "tp+sp", 885.0),
        ("22B", "tp+selective", 654.3),
        ("22B", "tp+sp+selective", 213.9),
        ("22B", "full", 100.7),
        ("175B", "tp+sp+selective", 107.0),
        ("530B", "tp+sp+selective", 178.3),
        ("1T", "tp+sp+selective", 222.8),
    ],
)
def test_formulas_give_the_papers_bytes(size, scheme, megabytes):
    assert layer_bytes(SIZES[size], scheme) / 1e6 == pytest.approx(megabytes, abs=0.06)


@pytest.mark.parametrize("name", SIZES)
def test_utilization_follows_from_the_printed_seconds(name):
    size = SIZES[name]
    for flops, published in ((model_flops, size.mfu), (hardware_flops, size.hfu)):
        found = utilization(flops(size), size.present_s, size.devices)
        assert found == pytest.approx(published, abs=0.2)


def test_what_the_layer_names_is_what_the_paper_counts():
    """34 sbh bytes outside of attention's core, and 5 as^2b within."""
    size = Size(2, 64, 2, 1, 1, 1, 2, 1, 1, 1, 1)
    target = rr.target("cpu:1")
    stack = step(size, SCHEMES["none"], 2, target.mesh({"data": 1, "model": 1}))
    unit = rr.trace(problem(stack))["stack"]
    named = {one.name: one.num_bytes for one in unit.residuals}
    sbh, pairs = size.sbh, size.heads * LENGTH**2 * size.micro_batch
    assert sum(named[name] for name in OUTSIDE) == 34 * sbh
    assert sum(named[name] for name in CORE) == 5 * pairs


def gradients(scheme, mesh, dtype):
    stack = step(SMALL, SCHEMES[scheme], 2, mesh, length=16, dtype=dtype)
    random = np.random.default_rng(0)
    *floats, key = jax.tree.leaves(stack.specs)
    made = [jnp.asarray(random.normal(size=s.shape) / 4, s.dtype) for s in floats]
    made.append(jnp.arange(2, dtype=key.dtype))
    args = jax.tree.unflatten(jax.tree.structure(stack.specs), made)
    args = jax.tree.map(
        lambda x, spec: jax.device_put(x, spec.sharding), args, stack.specs
    )
    run = jax.jit(lambda *args: stack.function(*args))
    return jax.tree.map(np.asarray, run(*args))


@pytest.fixture(scope="module")
def of_one_device():
    with jax.enable_x64(True):
        one = sharding.make_mesh({"data": 1, "model": 1}, jax.devices()[:1])
        return gradients("none", one, jnp.float64)


@pytest.mark.every_commit("tp+sp+selective")
@pytest.mark.parametrize(
    "scheme",
    [name for name, one in SCHEMES.items() if name != "none" and not one.cudnn],
)
def test_gradients_are_those_of_one_device(scheme, of_one_device):
    """Dropout included: its masks are the same, however it is spread."""
    with jax.enable_x64(True):
        eight = sharding.make_mesh({"data": 1, "model": 8})
        found = gradients(scheme, eight, jnp.float64)
    for a, b in zip(*map(jax.tree.leaves, (found, of_one_device)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * np.abs(b).max())


def row(scheme, layers, temp_bytes, target="h100:8"):
    return {
        **{"size": "22B", "scheme": scheme, "layers": layers, "batch": 4},
        **{"target": target, "temp_bytes": temp_bytes, "step_us": 0.0},
        **{"recompute_us": 1.0 * layers, "seconds": 1.0},
    }


def test_a_claim_is_a_slope_beside_a_formula():
    formula = layer_bytes(SIZES["22B"], "tp+sp")
    near = [row("tp+sp", n, int(7e9 + n * 1.01 * formula)) for n in (12, 24)]
    far = [row("tp+sp", n, int(7e9 + n * 1.03 * formula)) for n in (12, 24)]
    by_figure = lambda found: {c.figure: c for c in paper_claims.claims(found)}
    figure = "table 2, 22B: tp+sp, a layer"
    assert by_figure(near)[figure].holds
    assert not by_figure(far)[figure].holds
    assert "not within tolerance" in paper_claims.table(far)
    assert figure not in by_figure(near[:1])


@pytest.mark.parametrize(
    ("name", "tensor", "scheme", "megabytes"),
    [
        # By hand: sbh is 50.33 and 16.78 million; 5 as / h is 106.7 and 80.
        ("22B", 2, "tp", 1107.3 + 2684.4),
        ("22B", 4, "tp+sp+selective", 427.8),
        ("4096x32x2", 2, "tp+sp", 285.2 + 671.1),
    ],
)
def test_other_sizes_and_degrees_are_claims_as_well(name, tensor, scheme, megabytes):
    target = f"{paper_claims.card_of(name)}:{tensor}"
    batch = size_of(name).micro_batch
    made = [
        row(scheme, n, int(n * megabytes * 1e6), target) | {"size": name}
        for n in (24, 36)
    ]
    for one in made:
        one["batch"] = batch
    (claim,) = [c for c in paper_claims.claims(made) if "for t" in c.figure]
    assert claim.figure == f"table 2 for t = {tensor}, {name}: {scheme}, a layer"
    assert claim.published == pytest.approx(megabytes, rel=1e-3)
    assert claim.holds


def test_a_reader_chooses_sizes_and_degrees():
    found = [*rows(Paper(sizes=("4096x32x2",), tensor=(2, 4)))]
    assert len(found) == len({*found})
    assert {row[4] for row in found} == {"a100:1", "a100:2", "a100:4"}
    assert {row[3] for row in found} == {2}
    for wrong in ("23B", "4096x32", "4096x33x2", "0x1x1"):
        with pytest.raises(ValueError, match=r"write \w+|do not divide"):
            size_of(wrong)


def test_results_elsewhere_leave_the_stored_claims_alone(tmp_path, monkeypatch, capsys):
    before = (HERE / "claims.toml").read_text()
    line = f"korthikanti --sizes 4096x32x2 --most 0 --out {tmp_path / 'mine'}"
    monkeypatch.setattr("sys.argv", line.split())
    assert main() == 0
    assert (tmp_path / "mine" / "claims.toml").exists()
    assert (HERE / "claims.toml").read_text() == before
    monkeypatch.setattr("sys.argv", ["korthikanti", "--sizes", "23B"])
    assert main() == 2
    assert "'23B' is no size: write 22B" in capsys.readouterr().err


def test_rows_are_written_one_by_one_and_only_once(tmp_path):
    path = tmp_path / "rows.json"
    made = []

    def make(wanted):
        made.append(wanted[1])
        return "no" if wanted[1] == "tp" else row(wanted[1], wanted[2], 1)

    wanted = [row for row in rows(Paper()) if row[0] == "22B" and row[4] == "h100:8"]
    key = ("size", "scheme", "layers", "batch", "target")
    reported = []
    one = lambda: complete(path, wanted[:6], key, make, reported.append, most=4)
    found, failed = one()
    assert (len(found), failed) == (2, 2)
    assert stored(path) == found
    assert len(reported) == 3
    found, failed = one()
    assert (len(found), failed) == (4, 2)
    assert made.count("tp+sp+selective") == 2


def test_a_row_that_is_wanted_twice_is_made_once(tmp_path):
    key, made = ("size", "scheme", "layers", "batch", "target"), []

    def make(wanted):
        made.append(wanted)
        return dict(zip(key, wanted, strict=True), seconds=1)

    wanted = [*rows(Paper())]
    assert len(wanted) > len({*wanted})  # one device serves every degree
    complete(tmp_path / "rows.json", wanted, key, make, lambda found: None)
    assert len(made) == len({*made}) == len({*wanted})


def test_stored_claims_are_those_of_the_stored_rows():
    found = stored(RESULTS / "korthikanti.json")
    text = (HERE / "claims.toml").read_text()
    assert text == paper_claims.as_toml([*paper_claims.claims(found)])
    assert (RESULTS / "korthikanti.txt").read_text() == paper_claims.table(found)
    held = {one["figure"]: one["holds"] for one in tomllib.loads(text)["claim"]}
    # Told on the page: a loop copies what it keeps, and products fuse with no softmax.
    missed = "table 4", "selective over full, computed", "with sums over full, computed"
    assert all(
        ok for figure, ok in held.items() if not any(m in figure for m in missed)
    )


def a_few(model, num_layers):
    size = dataclasses.replace(SIZES["22B"], heads=16, width=1024)
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 1, "model": 8})
    scheme = SCHEMES[flax_models.SCHEME]
    stack = flax_models.step(model, size, scheme, num_layers, mesh, length=1024)
    return size.width * 1024 * size.micro_batch, rr.measure(stack, target=target)


@pytest.mark.slow
@pytest.mark.parametrize("model", flax_models.MODELS)
def test_a_model_with_logical_axes_keeps_and_exchanges_what_the_paper_does(model):
    """34 sbh / t bytes a layer; gathers 2 + 2 + 2, four reduce-scatters, no other."""
    (sbh, few), (_, many) = (a_few(model, number) for number in (6, 12))
    kept = (many.memory.temp_bytes - few.memory.temp_bytes) / 6
    assert kept == pytest.approx(34 * sbh / 8, rel=0.005)
    counts = {}
    for one in many.collectives:
        if one.iterations == 12 and one.bytes >= 2 * sbh:
            whole = one.count * one.bytes / (2 * sbh)
            counts[one.kind] = counts.get(one.kind, 0) + whole
    assert counts == {"all-gather": 6, "reduce-scatter": 4}


@pytest.mark.parametrize("model", flax_models.MODELS)
def test_the_models_name_what_the_layer_by_hand_names(model):
    mesh = rr.target("cpu:8").mesh({"data": 1, "model": 8})
    made = SMALL, SCHEMES["tp+sp"], 2, mesh
    by_hand = rr.trace(problem(step(*made, length=16))).units[0]
    unit = rr.trace(flax_models.problem(model, *made, length=16)).units[0]
    sizes = lambda unit: {v.name: v.num_bytes for v in unit.values if v.given}
    assert sizes(unit) == sizes(by_hand)


@pytest.mark.every_commit("1")
@pytest.mark.parametrize("batch", [4, 1])
def test_a_layer_has_the_collectives_of_the_paper(batch):
    """Gathers forward, again for weights' gradients, and of cotangents: 2 + 2 + 2."""
    size = dataclasses.replace(SIZES["22B"], heads=8, width=512, micro_batch=batch)
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 1, "model": 8})
    stack = step(size, SCHEMES["tp+sp+selective"], 4, mesh, length=1024)
    found = rr.measure(stack, target=target).collectives
    stream, counts = 2 * size.width * 1024 * batch, {}
    for one in found:  # XLA may gather several at a time
        if one.iterations == 4 and one.bytes >= stream:
            whole = one.count * one.bytes / stream
            counts[one.kind] = counts.get(one.kind, 0) + whole
    assert counts == {"all-gather": 6, "reduce-scatter": 4}
