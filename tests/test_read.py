"""Dumps from elsewhere: read as our own compiles are, or refused in one sentence."""

import functools
import gzip
import random

import jax
import pytest

import revremat as rr
from revremat import xla
from revremat._cli import main
from revremat.xla.hlo._schema import HloProto
from tests.xla.steps import STEPS

NAMES = ("scan", "conditional", "donation", "called", "offload")
FILE = "module_0001.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb"


@functools.cache
def compiled(name, spec="h100:1"):
    target = rr.target(spec)
    step = STEPS[name](target)
    return xla.compile_step(step.function, step.specs, target, donate=step.donate)


def measured(name, spec="h100:1"):
    step = STEPS[name](rr.target(spec))
    return rr.measure(step.function, *step.specs, target=spec, donate=step.donate)


@pytest.mark.parametrize("spec", ["cpu:1", "h100:1"])
@pytest.mark.parametrize("name", NAMES)
def test_a_dump_says_what_the_compile_says(tmp_path, name, spec):
    (tmp_path / FILE).write_bytes(compiled(name, spec).hlo)
    found, own = rr.read(tmp_path, target=spec), measured(name, spec)
    assert found.memory == own.memory
    assert found.time == own.time


def test_a_real_folder_of_dumps_is_read(tmp_path, capsys):
    @jax.jit
    def small(x):
        return x + 1

    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True}
    spec = jax.ShapeDtypeStruct((64, 64), "float32")
    loss = jax.jit(jax.grad(lambda x: ((x @ x) ** 2).sum()))
    for function in (small, loss):
        function.lower(spec).compile(compiler_options=options)
    m = rr.read(tmp_path, target="cpu:1")
    assert (
        m.memory.total_bytes
        == rr.measure(loss, spec, target="cpu:1").memory.total_bytes
    )
    assert any("of 2 modules in the folder this is the largest" in n for n in m.notes)
    small_one = rr.read(tmp_path, target="cpu:1", module="jit_small")
    assert small_one.memory.total_bytes == 2 * 64 * 64 * 4
    assert main(["report", str(tmp_path), "--target", "h100:1"]) == 0
    assert "the largest" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["scan", "donation", "offload"])
def test_a_compressed_dump_says_what_the_plain_one_says(tmp_path, capsys, name):
    hlo = compiled(name).hlo
    (tmp_path / FILE).write_bytes(hlo)
    plain = rr.read(tmp_path, target="h100:1")
    (tmp_path / FILE).unlink()
    file = tmp_path / f"{FILE}.gz"
    file.write_bytes(gzip.compress(hlo))
    for place in (tmp_path, file):
        assert rr.read(place, target="h100:1").memory == plain.memory
    assert main(["report", str(file), "--target", "h100:1"]) == 0
    assert "on each device" in capsys.readouterr().out


def test_of_compressed_dumps_the_largest_is_read_as_well(tmp_path):
    large, small = (compiled(name).hlo for name in ("scan", "called"))
    large, small = sorted((large, small), key=len, reverse=True)
    (tmp_path / f"large.{FILE}.gz").write_bytes(gzip.compress(large))
    (tmp_path / f"small.{FILE}").write_bytes(small)
    (tmp_path / f"broken.{FILE}.gz").write_bytes(b"\x1f\x8b")
    m = rr.read(tmp_path, target="h100:1")
    assert m.memory == rr.read(tmp_path / f"large.{FILE}.gz", target="h100:1").memory
    assert any("of 3 modules in the folder" in note for note in m.notes)


def test_out_of_memory_comes_with_a_reason_and_a_way_out(tmp_path):
    def loss(w, x):
        y, _ = jax.lax.scan(lambda x, w: (jax.numpy.sin(x @ w), None), x, w)
        return (y**2).sum()

    def step(w, x):
        return w - jax.grad(loss)(w, x)

    specs = [
        jax.ShapeDtypeStruct(s, "float32") for s in ((96, 4096, 4096), (65536, 4096))
    ]
    target = rr.target("h100:1")
    (tmp_path / FILE).write_bytes(xla.compile_step(step, specs, target).hlo)
    found = rr.read(tmp_path, target=target)
    assert not found.fits
    notes = " ".join(found.notes)
    assert "out of memory by" in notes
    assert "donating arguments (donate_argnums) can save up to 6.00 GiB" in notes
    assert "what the forward pass keeps can save up to" in notes
    assert "out of memory" not in " ".join(rr.read(tmp_path, target="b200:1").notes[3:])


MISTAKES = {
    "empty folder": ({}, "holds no dump of XLA's"),
    "text only": ({"m.after_optimizations.txt": b"HloModule"}, "as text only"),
    "not compiled": ({"m.before_optimizations.hlo.pb": b"x"}, "did not end"),
    "empty file": ({FILE: b""}, "is empty"),
    "something else": ({FILE: b"\x89PNG nothing of the kind"}, "no HLO module"),
    "no buffers": (
        {FILE: lambda: _without(compiled("scan").hlo, "buffer_assignment")},
        "no buffer assignment",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(tmp_path, capsys, case):
    files, sentence = MISTAKES[case]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data() if callable(data) else data)
    assert main(["report", str(tmp_path), "--target", "h100:1"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "write --target"),
        (["--target", "h100:1", "--set", "a=1"], "compiled already"),
        (["--target", "h100:1", "--module", "other"], "no module 'other'"),
        (["--target", "h1000:1"], "h1000"),
    ],
)
def test_options_that_do_not_suit_a_dump(tmp_path, capsys, words, sentence):
    (tmp_path / FILE).write_bytes(compiled("scan").hlo)
    assert main(["report", str(tmp_path), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert main(["report", "nowhere.hlo.pb", "--target", "h100:1"]) == 2
    assert "there is no file" in capsys.readouterr().err


def _without(hlo, field):
    proto = HloProto.FromString(hlo)
    proto.ClearField(field)
    return proto.SerializeToString()


def _survives(path, data):
    """Reads it, or says in one sentence why not."""
    path.write_bytes(data)
    try:
        m = rr.read(path, target="h100:1")
    except rr.UserError as error:
        sentence = str(error)
    else:
        rr.render(m)
        m.to_json()
        return True
    assert "\n" not in sentence
    return False


@pytest.mark.parametrize("name", ["scan", "conditional", "donation"])
def test_bytes_flipped_or_cut_off_never_crash(tmp_path, name):
    data, rng = compiled(name).hlo, random.Random(name)
    path = tmp_path / FILE
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 3, 30))):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        _survives(path, bytes(changed))
        _survives(path, data[: rng.randrange(len(data))])


@pytest.mark.parametrize("name", ["scan", "switch_in_scan"])
def test_fields_removed_or_rewired_never_crash(tmp_path, name):
    """Mutations that parse: ids that lead elsewhere, cycles, missing parts."""
    rng, path, refused = random.Random(name), tmp_path / FILE, 0
    for _ in range(60):
        proto = HloProto.FromString(compiled(name).hlo)
        for _ in range(rng.choice((1, 2, 5))):
            _mutate(proto, rng)
        refused += not _survives(path, proto.SerializePartialToString())
    assert refused > 10  # the mutations do harm


def _mutate(proto, rng):
    """Changes one field of one message, somewhere below."""
    message = proto
    while True:
        fields = [
            (f, v) for f, v in message.ListFields() if f.name != "stack_frame_index"
        ]
        if not fields:
            return
        field, value = rng.choice(fields)
        if field.message_type is None or rng.random() < 0.05:
            break
        message = rng.choice(value) if field.is_repeated else value
    action = rng.choice(("clear", "other"))
    if action == "clear" or field.message_type is not None:
        message.ClearField(field.name)
    elif field.is_repeated:
        value[rng.randrange(len(value))] = _other(value[0], rng)
    else:
        setattr(message, field.name, _other(value, rng))


def _other(value, rng):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((0, 1, 2, value + 1, max(0, value - 1), 2**31 - 1))
    if isinstance(value, str):
        return rng.choice(("", "while", "fusion", "tuple", "get-tuple-element", "x"))
    return b"" if rng.random() < 0.5 else b'{"known_trip_count":{"n":"-7"}}'


def test_computations_that_call_themselves_are_refused(tmp_path):
    proto = HloProto.FromString(compiled("scan").hlo)
    module = proto.hlo_module
    loop = next(
        i for c in module.computations for i in c.instructions if i.opcode == "while"
    )
    body = next(
        c for c in module.computations if c.id == loop.called_computation_ids[0]
    )
    body.instructions[-1].called_computation_ids[:] = [module.entry_computation_id]
    path = tmp_path / FILE
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(rr.UserError, match="computations call themselves"):
        rr.read(path, target="h100:1")
