"""The list of wheels that are carried to a machine without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*words, script=ROOT / "tools" / "wheels"):
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_wheels_are_listed_with_versions_and_sizes_and_fit():
    done = run("--list")
    assert done.returncode == 0
    *wheels, total = done.stdout.splitlines()
    assert "tyro 1.0.17" in done.stdout
    sizes = [int(line.split()[0].replace(",", "")) for line in wheels]
    assert int(total.split()[0].replace(",", "")) == sum(sizes) <= 64 * 2**20


def test_what_is_carried_is_what_pyproject_names_or_what_that_needs():
    named = (ROOT / "pyproject.toml").read_text()
    needed = {"docstring-parser": "tyro", "typeguard": "tyro"}
    needed |= {"wadler-lindig": "jaxtyping"}
    for line in (ROOT / "tools" / "wheels.txt").read_text().splitlines():
        if not line.startswith("#"):
            name = line.split("==")[0]
            assert re.search(rf'"{needed.get(name, name)}>=', named), name


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("tyro", 1, "'tyro' is no line of a wheel"),
        ("a==1 --hash=sha256:" + "0" * 64 + "  # 80,000,000 bytes", 1, "too many"),
        ("a==1 --hash=sha256:" + "0" * 64 + "  # 8 bytes", 0, ""),
    ],
)
def test_a_list_that_cannot_be_carried_is_told(tmp_path, line, code, told):
    script = tmp_path / "wheels"
    script.write_text((ROOT / "tools" / "wheels").read_text())
    (tmp_path / "wheels.txt").write_text(f"# a comment\n{line}\n")
    done = run("--list", script=script)
    assert done.returncode == code
    assert told in done.stderr


@pytest.mark.parametrize("words", [(), ("--lost",), ("a", "b")])
def test_other_words_show_how_it_is_used(words):
    done = run(*words)
    assert done.returncode == 2
    assert "tools/wheels FOLDER" in done.stderr
