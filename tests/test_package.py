"""What is installed: one version, its types, its templates and its license."""

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import revremat as rr
from revremat import _version
from revremat._cli import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_packages(capsys):
    assert rr.__version__ == PROJECT["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"revremat {PROJECT['version']}\n"


def test_without_an_installation_the_version_is_unknown(monkeypatch):
    def absent(name):
        raise _version.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_version.metadata, "version", absent)
    assert _version.installed_version() == "0+unknown"


def test_the_changelog_knows_the_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert PROJECT["version"] in headings


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="builds the wheel: pip install -e .[dev]")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_package(wheel):
    files = (p for p in (ROOT / "revremat").rglob("*") if p.is_file())
    expected = {
        p.relative_to(ROOT).as_posix() for p in files if "__pycache__" not in p.parts
    }
    names = set(wheel.namelist())
    assert expected <= names
    for one in (
        "py.typed",
        "_report/page/templates/report.html",
        "xla/target/cards.toml",
    ):
        assert f"revremat/{one}" in names
    assert all(name.startswith("revremat") for name in names)
    assert not any("__pycache__" in name for name in names)


def test_the_wheel_says_what_it_is(wheel):
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    said = email.message_from_string(wheel.read(name).decode())
    for key in ("Author", "Summary", "Keywords", "Description-Content-Type"):
        assert said[key], key
    assert said["Version"] == rr.__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in said.get_all("Classifier")
    text = wheel.read(name.replace("METADATA", "licenses/LICENSE")).decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
