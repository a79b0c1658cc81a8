"""What the documentation shows is what happens."""

import doctest
import importlib
import pkgutil
import re
import warnings
from pathlib import Path

import pytest

import revremat
from revremat import xla

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out.split()
    assert said[0] == "True"
    assert (tmp_path / "report.html").exists()


def test_the_flax_example_runs(capsys):
    page = (ROOT / "docs" / "search.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    exec(compile(code, "search.md", "exec"), {})
    assert capsys.readouterr().out.startswith("True")


def test_the_report_is_as_wide_as_reports_are():
    (block,) = re.findall(r"```\n(\$ revremat report.*?)```", README, re.DOTALL)
    assert max(map(len, block.splitlines())) <= 100


def test_all_cards_are_listed():
    assert all(f"`{key}`" in README for key in xla.GPU_CARDS)


def test_files_that_are_named_exist():
    for name in re.findall(r"\]\(([^)#:]+)\)|(experiments/\S+?\.py)", README):
        assert (ROOT / "".join(name)).is_file()


def modules():
    found = pkgutil.walk_packages(revremat.__path__, "revremat.")
    return sorted(m.name for m in found if not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
