"""The command line: what it prints, what it writes, and what it says when it cannot."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import revremat as rr
from revremat import xla
from revremat._cli import _report, main
from revremat._cli._program import load

PROGRAM = """
import jax, jax.numpy as jnp
import revremat as rr
from jax.sharding import PartitionSpec as P

def problem(target, width=64, depth=3):
    ws = jax.ShapeDtypeStruct((depth, width, width), jnp.float32)
    x = jax.ShapeDtypeStruct((256, width), jnp.float32)

    def loss(ws, x):
        layer = lambda x, w: (jnp.tanh(x @ w), None)
        return jnp.sum(jax.lax.scan(layer, x, ws)[0])

    return rr.Problem(loss=loss, specs=(ws, x), name="small")

def does_not_trace(target):
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    return rr.Problem(loss=lambda x: jnp.sum(x @ jnp.ones(3)), specs=(x,))

def wide_on_one_device(target):
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    width = 3 if target.num_devices > 1 else 4
    return rr.Problem(loss=lambda x: jnp.sum(x @ jnp.ones(width)), specs=(x,))

def for_one_device(target):
    if target.num_devices > 1:
        raise ValueError("not for several devices")
    return wide_on_one_device(target)

def stacked(target):
    ws = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)

    def layer(w, x):
        return jnp.tanh(rr.name(jnp.sin(x @ w), "qkv") @ w)

    return rr.Problem(loss=lambda ws, x: rr.stack(layer, ws, x).sum(), specs=(ws, x))

def decided(target):
    ws = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    layer = lambda w, x: jnp.tanh(x @ w)
    stacked = lambda ws, x: rr.stack(layer, ws, x, actions=rr.RECOMPUTE).sum()
    return rr.Problem(loss=stacked, specs=(ws, x))

def for_gpus(target):
    ws = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)

    def loss(ws, x):
        if jax.default_backend() != "gpu":
            raise NotImplementedError("these layers are for GPUs")
        return rr.stack(lambda w, x: jnp.tanh(x @ w), ws, x).sum()

    return rr.Problem(loss=loss, specs=(ws, x))

def returns_a_loss(target):
    return lambda x: x

def wrong_mesh(target):
    target.mesh({"data": 3})

def another_mesh(target):
    mesh = rr.target("cpu:2").mesh({"data": 2})
    sharding = jax.sharding.NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=sharding)
    return rr.Problem(loss=jnp.sum, specs=(x,))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a program in it, to stand in."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("program", None)


def files(folder):
    return {p.name for p in folder.iterdir()} - {"program.py", "__pycache__"}


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        code = main(arguments)
    except SystemExit as stop:  # the parser's own
        code = stop.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("target", ["local", "cpu:1", "h100:1", "h100:8"])
def test_report_says_what_a_step_takes(folder, capsys, target):
    code, out, err = run(capsys, "report", "program.py:problem", "--target", target)
    assert (code, err) == (0, "")
    assert out.startswith(f"small on {target}  (")
    for part in ("on each device", "to spare", "reserve", "alive at the peak", "step"):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100
    assert files(folder) == set()


@pytest.mark.parametrize(("target", "is_split"), [("cpu:1", False), ("cpu:2", True)])
def test_report_says_where_a_stacks_activations_are(folder, capsys, target, is_split):
    _, out, _ = run(capsys, "report", "program.py:decided", "--target", target)
    words = " ".join(out.split())
    assert "RECOMPUTE keeps" in words
    kept = words.partition("plain autodiff would have kept")[2]
    assert ("on each device" in kept[:40]) == is_split


def test_an_interrupted_command_says_so_as_shells_expect(folder, capsys, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(_report.Report, "run", interrupted)
    assert run(capsys, "report", "program.py:problem") == (
        128 + signal.SIGINT,
        "",
        "revremat: interrupted\n",
    )


def test_report_of_several_targets_is_one_row_each(folder, capsys):
    targets = ("h100:8", "a100:8", "cpu:1")
    flags = [word for target in targets for word in ("--target", target)]
    code, out, err = run(capsys, "report", "program.py:problem", *flags)
    assert (code, err) == (0, "")
    rows = [line.split()[0] for line in out.splitlines() if " yes " in line]
    assert rows == list(targets)


def test_arguments_of_the_problem_are_set_by_name(folder, capsys):
    sizes = []
    for width in (64, 128):
        arguments = ["--set", f"width={width}", "--set", "depth=2", "--json", "m.json"]
        assert run(capsys, "report", "program.py:problem", *arguments)[0] == 0
        sizes.append(json.loads((folder / "m.json").read_text()))
    for width, found in zip((64, 128), sizes, strict=True):
        assert found["memory"]["argument_bytes"] == 4 * (2 * width**2 + 256 * width)


def test_report_is_written_as_json_and_as_a_page(folder, capsys):
    arguments = ["--json", "m.json", "--html", "m.html", "--target", "h100:1"]
    code, _, err = run(capsys, "report", "program.py:problem", *arguments)
    assert (code, err) == (0, "")
    m = rr.Measurement.from_json((folder / "m.json").read_text())
    assert (
        f'data-total-bytes="{m.memory.total_bytes}"' in (folder / "m.html").read_text()
    )
    assert files(folder) == {"m.json", "m.html"}


def test_report_says_what_would_fall(folder, capsys):
    arguments = ["--what-if", "--target", "cpu:1", "--json", "m.json"]
    code, out, err = run(capsys, "report", "program.py:problem", *arguments)
    assert (code, err) == (0, "")
    for part in ("if one residual were dropped", "falls by", "donat", "checkpointed"):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100
    found = rr.Measurement.from_json((folder / "m.json").read_text()).memory.what_if
    assert found.residuals[0].saves_bytes > 0


def test_report_adds_up_by_rules(folder, capsys):
    rules = [
        "--rule",
        r"batch=argument/(x|args\[1)",
        "--rule",
        r"weights=argument/(ws|args)",
    ]
    files = ["--json", "m.json", "--html", "m.html", "--target", "cpu:1"]
    code, out, err = run(capsys, "report", "program.py:problem", *rules, *files)
    assert (code, err) == (0, "")
    memory = rr.Measurement.from_json((folder / "m.json").read_text()).memory
    sums = memory.by_rule(dict(memory.rules))
    assert sums["batch"] == 256 * 64 * 4
    assert sums["weights"] == 3 * 64 * 64 * 4
    at_peak = {name: c[memory.curve.peak] for name, c in memory.curve.bytes}
    assert at_peak == sums
    for line in ("batch      64.0 KiB", "weights    48.0 KiB", "other "):
        assert line in out
    assert 'data-tone="batch"' in (folder / "m.html").read_text()


def plan_file(folder, action):
    """A plan of three layers, as `search --out` writes it."""
    loss, specs = (lambda p: (p.loss, p.specs))(
        load("program.py:stacked", rr.target("h100:1"), {})
    )
    graph = rr.trace(loss, *specs)
    graph.plan({"stack": action}).save(folder / "plan.json")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "--target", "h100:1"], "for_gpus on h100:1"),
        (["search", "--target", "h100:1", "--budget", "9GiB", "--out", "p"], "fits"),
        (["export", "plan.json"], "policies.nothing_saveable"),
    ],
)
def test_a_program_is_told_that_it_is_on_the_target(folder, capsys, words, told):
    target, name = rr.target("h100:1"), "program.py:for_gpus"
    problem = load(name, target, {})
    with xla.traced_for(target):
        graph = rr.trace(problem.loss, *problem.specs)
    plan = graph.plan({"stack": rr.RECOMPUTE})
    dataclasses.replace(plan, target="h100:1").save(folder / "plan.json")
    code, out, err = run(capsys, words[0], name, *words[1:])
    assert (code, err) == (0, "")
    assert told in out


def test_report_of_a_plan_is_that_of_the_planned_loss(folder, capsys):
    plan_file(folder, rr.RECOMPUTE)
    sizes = []
    for flags in ([], ["--plan", "plan.json"]):
        arguments = ["--target", "cpu:1", "--json", "m.json", *flags]
        code, _, err = run(capsys, "report", "program.py:stacked", *arguments)
        assert (code, err) == (0, "")
        sizes.append(rr.Measurement.from_json((folder / "m.json").read_text()).memory)
    plain, planned = sizes
    assert planned.where(phase="recompute").bytes > 0
    assert plain.where(phase="recompute").bytes == 0
    assert planned.temp_bytes < plain.temp_bytes


def test_a_plan_that_offloads_is_refused_where_there_is_no_host_apart(folder, capsys):
    plan_file(folder, rr.RECOMPUTE(offload=["qkv"]))
    arguments = ["--plan", "plan.json", "--target", "cpu:1"]
    code, out, err = run(capsys, "report", "program.py:stacked", *arguments)
    assert (code, out) == (2, "")
    assert err == (
        "revremat: the plan offloads qkv of 3 layers to host memory, and cpu:1 "
        "has none apart from its own: choose a GPU or TPU target, or search again for "
        "this one\n"
    )


def test_the_largest_batch_is_found_and_reported(folder, capsys):
    flags = ["--largest-batch", "width", "--budget", "1MiB", "--json", "m.json"]
    flags += ["--step", "32", "--target", "cpu:1"]
    code, out, err = run(capsys, "report", "program.py:problem", *flags)
    assert (code, err) == (0, "")
    memory = rr.Measurement.from_json((folder / "m.json").read_text()).memory
    assert memory.total_bytes <= 2**20
    width = int(out.split("width=")[1].split()[0])
    assert memory.argument_bytes == 4 * (3 * width**2 + 256 * width)
    assert width % 32 == 0


def test_several_reports_are_a_list_in_json(folder, capsys):
    targets = ["--target", "h100:1", "--target", "a100:1"]
    assert run(capsys, "report", "program.py:problem", *targets, "--json", "m.json")
    found = json.loads((folder / "m.json").read_text())
    assert [m["target"] for m in found] == ["h100:1", "a100:1"]


def test_a_lock_passes_until_bytes_grow(folder, capsys):
    command = ["report", "program.py:problem", "--target", "h100:1"]
    assert run(capsys, *command, "--lock", "memory.lock")[0] == 0
    assert run(capsys, *command, "--check", "memory.lock")[0] == 0
    grown = [*command, "--set", "depth=6", "--check", "memory.lock"]
    code, out, err = run(capsys, *grown)
    assert code == 1
    assert out.startswith("small on h100:1")
    assert err.startswith("revremat: small on h100:1 takes ")
    assert "more than the lock's" in err
    assert err.count("\n") == 1
    assert run(capsys, *grown, "--tolerance", "5")[0] == 1  # the lock's own counts
    assert run(capsys, *command, "--lock", "memory.lock", "--tolerance", "5")[0] == 0
    assert run(capsys, *grown)[0] == 0


def test_targets_are_listed_with_what_is_missing(capsys):
    code, out, err = run(capsys, "targets")
    assert (code, err) == (0, "")
    keys = ["cpu:8", "v100:8", "a100:8", "a6000:8", "h100:8", "h800:8", "h200:8"]
    keys += ["b200:8", "v5e:4x4", "v5p:2x2x1"]
    assert max(map(len, out.splitlines())) <= 100
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(keys) <= lines.keys()
    assert "XLA_CLIENT_MEM_FRACTION=0.9" in lines["h100:8"]
    assert all(lines[key].rstrip().endswith(("yes", "no")) for key in keys)
    assert out.count("pip install") == any(
        lines[key].rstrip().endswith("no") for key in keys
    )


MISTAKES = {
    "unknown device": (["program.py:problem", "--target", "h101:8"], "unknown device"),
    "no number": (["program.py:problem", "--target", "h100:x"], "no number of devices"),
    "one wrong of two": (
        ["program.py:problem", "--target", "cpu:1", "--target", "rtx"],
        "unknown device 'rtx'",
    ),
    "no program": (["program.py", "--target", "cpu:1"], "names no program: write"),
    "no file": (["absent.py:problem", "--target", "cpu:1"], "there is no file"),
    "no module": (["absent.here:problem", "--target", "cpu:1"], "there is no module"),
    "no function": (["program.py:main", "--target", "cpu:1"], "no function 'main'"),
    "wrong return": (
        ["program.py:returns_a_loss", "--target", "cpu:1"],
        "returned function, not a revremat.Problem",
    ),
    "wrong mesh": (
        ["program.py:wrong_mesh", "--target", "h100:8"],
        "the mesh {data: 3} has 3 devices but h100:8 has 8",
    ),
    "another mesh": (
        ["program.py:another_mesh", "--target", "h100:8"],
        "lies on a mesh {data: 2} of 2 devices but h100:8 has 8",
    ),
    "no rule": (["program.py:problem", "--rule", "attn"], "--rule 'attn' is no rule"),
    "a broken rule": (
        ["program.py:problem", "--target", "cpu:1", "--rule", "a=("],
        "--rule: the rule of 'a', '(', is no regular expression",
    ),
    "no plan": (
        ["program.py:problem", "--target", "cpu:1", "--plan", "absent.json"],
        "absent.json: cannot read a plan from it",
    ),
    "nothing set": (["program.py:problem", "--set", "width"], "--set 'width' sets"),
    "no such folder": (
        ["program.py:problem", "--target", "cpu:1", "--json", "absent/m.json"],
        "cannot write 'absent/m.json': No such file or directory",
    ),
    "a file as folder": (
        ["program.py:problem", "--target", "cpu:1", "--html", "program.py/m.html"],
        "cannot write 'program.py/m.html': Not a directory",
    ),
    "wrong suffix": (
        ["program.py:problem", "--target", "cpu:1", "--json", "m.jsn"],
        "cannot write 'm.jsn': write *.json",
    ),
    "suffix of another": (
        ["program.py:problem", "--target", "cpu:1", "--json", "m.html"],
        "cannot write 'm.html': write *.json",
    ),
    "no lock": (
        ["program.py:problem", "--target", "cpu:1", "--check", "absent.lock"],
        "cannot read the lock 'absent.lock'",
    ),
    "a budget alone": (
        ["program.py:problem", "--target", "cpu:1", "--budget", "1KiB"],
        "--budget 1KiB is for the largest batch: write --largest-batch",
    ),
    "a step alone": (
        ["program.py:problem", "--target", "cpu:1", "--step", "3"],
        "--step 3 is for the largest batch: write --largest-batch",
    ),
    "no tolerance": (
        [
            "program.py:problem",
            "--target",
            "cpu:1",
            "--lock",
            "m.lock",
            "--tolerance",
            "-1",
        ],
        "a tolerance of -1.0",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_written(folder, capsys, name):
    arguments, says = MISTAKES[name]
    code, _, err = run(capsys, "report", *arguments)
    assert code == 2
    assert err.startswith("revremat: ")
    assert says in err
    assert err.count("\n") == 1
    assert files(folder) == set()


@pytest.mark.parametrize("place", [".", "absent/plan.json"])
def test_a_place_for_the_plan_is_asked_for_before_the_search(folder, capsys, place):
    where = ["program.py:problem", "--target", "cpu:1", "--budget", "1GiB"]
    code, _, err = run(capsys, "search", *where, "--out", place)
    assert code == 2
    assert err.startswith(f"revremat: cannot write '{place}'")
    assert files(folder) == set()


@pytest.mark.parametrize("arguments", [["report"], ["reprot"], ["report", "--colour"]])
def test_what_is_no_command_is_told_the_commands(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err


def test_missing_wheels_are_said_in_a_sentence(folder, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if "xla_cuda13" in name else real(name, *rest),
    )
    arguments = ["report", "program.py:problem", "--target", "h200:5"]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err == (
        "revremat: target h200:5 cannot be compiled for here: "
        "pip install 'revremat[gpu-targets]' (Linux)\n"
    )
    _, out, _ = run(capsys, "targets")
    cards = ", ".join(f"{key}:8" for key in xla.GPU_CARDS)
    sentence = f"- to use {cards}: pip install 'revremat[gpu-targets]' (Linux)"
    assert sentence in " ".join(out.split())


def test_a_program_that_does_not_trace_shows_its_own_traceback(folder, capsys):
    code, out, err = run(
        capsys, "report", "program.py:does_not_trace", "--target", "h100:1"
    )
    assert (code, out) == (1, "")
    assert "does_not_trace does not compile for h100:1" in err
    assert "jnp.sum(x @ jnp.ones(3))" in err
    assert "dot_general requires contracting dimensions" in err
    assert "_measure.py" not in err
    assert "_cli.py" not in err
    assert "site-packages" not in err


def test_targets_that_refuse_a_program_are_told_of_beside_the_others(folder, capsys):
    both = ["--target", "cpu:1", "--target", "cpu:2"]
    code, out, err = run(capsys, "report", "program.py:wide_on_one_device", *both)
    assert code == 1
    assert "cpu:1" in out
    assert err.startswith(
        "revremat: program.py:wide_on_one_device does not compile for cpu:2:"
    )
    lock = ["--lock", "memory.lock"]
    made = ["report", "program.py:for_one_device", *both, "--json", "found.json"]
    code, out, err = run(capsys, *made)
    assert code == 1
    assert "cpu:1" in out
    assert "ValueError: not for several devices" in err
    assert isinstance(json.loads((folder / "found.json").read_text()), list)
    (folder / "found.json").unlink()
    code, out, err = run(
        capsys, "report", "program.py:wide_on_one_device", *both, *lock
    )
    assert (code, out) == (1, "")
    assert files(folder) == set()


def test_a_full_disk_leaves_the_old_file(folder, capsys, monkeypatch):
    (folder / "m.json").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    arguments = ["report", "program.py:problem", "--target", "cpu:1"]
    code, _, err = run(capsys, *arguments, "--json", "m.json")
    assert code == 2
    assert err == "revremat: cannot write 'm.json': No space left on device\n"
    assert (folder / "m.json").read_text() == "old"
    assert files(folder) == {"m.json"}


def start(folder, *arguments):
    """As a person runs it: in a process of its own, which knows nothing of tests."""
    own = ("JAX_", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    environment["PYTHONPATH"] = str(Path(rr.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "revremat", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(folder, *arguments):
    """Exit code, standard output, standard error."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_standard_error_stays_empty_with_no_device_at_hand(folder):
    code, out, err = command(
        folder, "report", "program.py:problem", "--target", "h100:8"
    )
    # On a busy machine it takes long enough to say that it is still at work.
    told = [line for line in err.splitlines() if not line.endswith(" s")]
    assert (code, told) == (0, [])
    assert out.startswith("small on h100:8")


def test_a_mistake_in_a_process_of_its_own(folder):
    code, out, err = command(
        folder, "report", "program.py:problem", "--target", "h101:8"
    )
    assert (code, out) == (2, "")
    assert err.startswith("revremat: unknown device 'h101': write one of v100")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(folder):
    process = start(folder, "targets")
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=300), err) == (0, "")
    process.stderr.close()


def test_a_check_that_fails_says_so_though_nobody_reads_it(folder):
    words = ["report", "program.py:problem", "--target", "cpu:1"]
    assert command(folder, *words, "--lock", "m.lock")[0] == 0
    process = start(folder, *words, "--set", "width=128", "--check", "m.lock")
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=300) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--compiles", "12"], "leave out --compiles"),
        (["--budget", "1GiB", "--out", "p.json"], "leave out --budget and --out"),
    ],
)
def test_a_frontier_takes_no_budget_and_no_limit(folder, capsys, given, told):
    asked = ["search", "program.py:problem", "--target", "cpu:1", "--pareto", "f.html"]
    assert main([*asked, *given]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("given", "level"), [(None, "2"), ("0", "0"), ("1", "1")])
def test_warnings_of_xla_are_shown_if_asked_for(monkeypatch, capsys, given, level):
    name = "TF_CPP_MIN_LOG_LEVEL"
    monkeypatch.setenv(name, given or "")  # so that it is as before, afterwards
    if given is None:
        monkeypatch.delenv(name)
    assert main(["--version"]) == 0
    assert os.environ[name] == level
