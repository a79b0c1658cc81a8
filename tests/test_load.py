"""load: how a program is named, and whose fault it is when it does not come."""

import sys

import pytest

import revremat as rr
from revremat._cli import _program
from revremat._cli._program import ProgramError, _module_name, load, users_errors

GOOD = """
import jax, jax.numpy as jnp
import revremat as rr

WIDTH = 8

def problem(target, rows=4, scale=1.0):
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    return rr.Problem(loss=lambda x: scale * jnp.sum(x), specs=(x,), name=target.spec)

def wrong(target):
    return 3

def broken(target):
    return helper(0)

def helper(n):
    return 1 // n

def refusing(target):
    raise rr.UserError("a clear sentence of their own")
"""
MADE = """
import jax.numpy as jnp
import revremat as rr

made = rr.Problem(loss=lambda x: jnp.sum(x), specs=(jnp.zeros(3),))

def alone():
    return made
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in, with programs of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.startswith("loaded_")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "loaded_alone.py").write_text(GOOD)
    (tmp_path / "loaded_made.py").write_text(MADE)
    package = tmp_path / "loaded_package" / "inner"
    package.mkdir(parents=True)
    for part in (package, package.parent):
        (part / "__init__.py").write_text("")
    (package / "sister.py").write_text("ROWS = 7\n")
    (package / "program.py").write_text(
        "from .sister import ROWS\n" + GOOD.replace("rows=4", "rows=ROWS")
    )
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("loaded_")]:
        del sys.modules[name]


def problem(program, **overrides):
    return load(program, rr.target("h100:8"), overrides)


@pytest.mark.parametrize(
    ("program", "rows"),
    [
        ("loaded_alone.py:problem", 4),
        ("./loaded_alone.py:problem", 4),
        ("loaded_alone:problem", 4),
        ("loaded_package.inner.program:problem", 7),
        ("loaded_package/inner/program.py:problem", 7),
    ],
)
def test_a_program_comes_from_a_file_or_a_module(folder, program, rows):
    found = problem(program)
    assert isinstance(found, rr.Problem)
    assert found.name == "h100:8"  # it was told its target
    assert found.specs[0].shape == (rows, 8)


@pytest.mark.parametrize(
    ("path", "packages", "name"),
    [
        ("c.py", (), None),  # no package: a file by itself
        ("a/c.py", ("a",), "a.c"),
        ("a/c.py", (), None),
        ("a/b/c.py", ("a", "a/b"), "a.b.c"),
        ("a/b/c.py", ("a",), None),
        ("a/b/c.py", ("a/b",), None),
        ("a/b/d/c.py", ("a", "a/b"), None),
        ("a/b/d/c.py", ("a", "a/b", "a/b/d"), "a.b.d.c"),
        ("/elsewhere/a/c.py", (), None),
    ],
)
def test_a_file_is_a_module_where_all_folders_are_packages(
    tmp_path, monkeypatch, path, packages, name
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__init__.py").write_text("")  # counts for nothing
    for package in packages:
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").write_text("")
    assert _module_name(tmp_path / path) == name


def test_a_program_comes_from_an_absolute_path(folder, monkeypatch):
    monkeypatch.chdir("/")
    path = folder / "loaded_alone.py"
    assert problem(f"{path}:problem").specs[0].shape == (4, 8)


def test_overrides_are_its_arguments(folder):
    found = problem("loaded_alone.py:problem", rows=9)
    assert found.specs[0].shape == (9, 8)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("loaded_alone.py", "names no program: write a function of it too"),
        (":problem", "names no program"),
        ("loaded_alone.py:", "names no program"),
        ("absent.py:problem", r"there is no file 'absent\.py'"),
        ("loaded_package:problem", "has no function 'problem': it has none"),
        ("absent.module:problem", r"there is no module 'absent\.module' to import"),
        ("..:problem", r"there is no module"),
        ("loaded_package/inner:problem", "there is no module"),
        (
            "loaded_alone.py:proble",
            "no function 'proble': it has problem, wrong, broken, helper, refusing",
        ),
        ("loaded_alone.py:WIDTH", "has no function 'WIDTH'"),
        ("loaded_made.py:made", "is a Problem, and must be a function .* 'def made"),
        ("loaded_made.py:alone", r"takes no argument, .* write 'def alone\(target\)"),
        ("loaded_alone.py:wrong", r"returned int, not a revremat\.Problem: write"),
        ("loaded_alone.py:refusing", "^a clear sentence of their own$"),
    ],
)
def test_mistakes_are_one_sentence(folder, program, says):
    with pytest.raises(rr.UserError, match=says) as raised:
        problem(program)
    assert not isinstance(raised.value, ProgramError)
    assert "\n" not in str(raised.value)


def test_what_a_program_raises_is_its_own_traceback(folder):
    with pytest.raises(ProgramError) as raised:
        problem("loaded_alone.py:broken")
    text = str(raised.value)
    assert "raised while making its problem" in text
    assert text.index("in broken") < text.index("in helper")
    assert "return 1 // n" in text
    assert text.endswith("ZeroDivisionError: integer division or modulo by zero")
    assert "_load.py" not in text
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("program", ["loaded_bad.py:problem", "loaded_bad:problem"])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def problem(target:\n", "SyntaxError"),
        ("import no_such_package_at_all\n", "No module named 'no_such_package_at_all'"),
        ("raise RuntimeError('of theirs')\n", "RuntimeError: of theirs"),
    ],
)
def test_a_file_that_does_not_import_is_its_own_fault(folder, program, source, reason):
    (folder / "loaded_bad.py").write_text(source)
    with pytest.raises(ProgramError, match=reason) as raised:
        problem(program)
    assert "_load.py" not in str(raised.value)
    assert "importlib" not in str(raised.value)


@pytest.mark.parametrize(
    ("takes", "says"),
    [
        ("target", "no argument 'colour': it has none to set"),
        ("target, rows=3", "no argument 'colour': it has rows"),
        ("target, *more, rows=3, width=4", "no argument 'colour': it has rows, width"),
    ],
)
def test_an_override_it_does_not_take_is_refused(folder, takes, says):
    (folder / "loaded_set.py").write_text(f"def problem({takes}): pass\n")
    with pytest.raises(rr.UserError, match=says) as raised:
        problem("loaded_set.py:problem", colour=3)
    assert not isinstance(raised.value, ProgramError)
    (folder / "loaded_any.py").write_text("def problem(target, **all): raise OSError\n")
    with pytest.raises(ProgramError, match="OSError"):
        problem("loaded_any.py:problem", colour=3)


def test_a_program_that_does_not_trace_shows_the_users_lines_alone(folder):
    import jax
    import jax.numpy as jnp

    def step(x):
        return x @ jnp.ones((3, 3))  # the user's mistake

    with (
        pytest.raises(ProgramError) as raised,
        users_errors("step does not compile"),
    ):
        rr.measure(step, jax.ShapeDtypeStruct((4, 4), jnp.float32), target="cpu:1")
    text = str(raised.value)
    assert "the user's mistake" in text
    assert "dot_general requires contracting dimensions" in text
    assert "_measure.py" not in text
    assert "site-packages" not in text


@pytest.mark.parametrize(
    ("specs", "asked"),
    [
        (["cpu:2", "cpu:8", "cpu:4"], [8]),
        (["cpu:1"], [1]),
        (["local", "h100:8", "cpu:2"], [2]),
        (["local", "h100:8"], []),
    ],
)
def test_as_many_devices_are_started_as_any_target_needs(monkeypatch, specs, asked):
    started = []
    monkeypatch.setattr(_program, "request_cpu_devices", started.append)
    found = _program.start_targets(specs)
    assert [target.spec for target in found] == specs
    assert started == asked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n=3", ("n", 3)),
        ("n=1e-3", ("n", 0.001)),
        ("n=(1, 2)", ("n", (1, 2))),
        ("n=None", ("n", None)),
        ("n=gpt", ("n", "gpt")),
        ("n='3'", ("n", "3")),
        ("n=a=b", ("n", "a=b")),
        ("n=", ("n", "")),
    ],
)
def test_an_override_is_a_literal_or_text(text, found):
    assert _program.read_override(text) == found


@pytest.mark.parametrize("text", ["n", "=3", "="])
def test_an_override_needs_a_name_and_a_value(text):
    with pytest.raises(rr.UserError, match="sets nothing: write --set name=value"):
        _program.read_override(text)


@pytest.mark.parametrize(
    ("parameters", "names", "refused"),
    [
        ("target, rows=4", ["rows"], ["cols"]),
        ("target, *, rows=4", ["rows"], ["cols"]),
        ("target, rows=4, **more", ["rows", "cols"], []),
        ("target, *others, rows=4", ["rows"], ["others", "cols"]),
        ("target, **more", ["anything"], []),
        ("target", [], ["rows"]),
    ],
)
def test_what_can_be_set_is_what_the_function_takes(
    tmp_path, monkeypatch, parameters, names, refused
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"loaded_takes_{abs(hash(parameters))}"
    text = f"import revremat as rr\ndef problem({parameters}):\n"
    text += "    return rr.Problem(lambda x: x, ())\n"
    (tmp_path / f"{name}.py").write_text(text)
    place = f"{name}.py:problem"
    assert problem(place, **dict.fromkeys(names, 3)).specs == ()
    for one in refused:
        with pytest.raises(rr.UserError, match=f"has no argument '{one}'"):
            problem(place, **{one: 3})
    monkeypatch.delitem(sys.modules, name, raising=False)
