"""What the documentation shows is what happens."""

import doctest
import importlib
import math
import pkgutil
import re
import warnings
from pathlib import Path

import jax
import pytest

import revremat
import revremat as rr
from revremat import xla
from revremat._cli._program import load
from tools import readme

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


def test_every_command_prints_what_the_readme_shows():
    shown = readme.shown(README)
    assert [one.command.split()[:2] for one in shown] == [["revremat", "report"]]
    for one in shown:
        assert readme.difference(one, readme.printed(one.command)) == ""


def test_every_figure_stands_where_it_is_checked():
    assert readme.unchecked(README) == []


def test_the_number_of_parameters_is_the_configs():
    (told,) = re.findall(r"A language model of (\S+) parameters", README)
    problem = load("experiments/configs/gpt_24.py:problem", rr.target("h100:8"), {})
    sizes = (math.prod(leaf.shape) for leaf in jax.tree.leaves(problem.specs[0]))
    assert f"{sum(sizes):.1e}".replace("e+0", "e") == told


ONE = readme.Shown("revremat report p", "p on h100:8\n69.4 GiB a step\n\nrow 3\n", "7")


@pytest.mark.parametrize(
    ("printed", "version", "is_told"),
    [
        ("p on h100:8\n69.4 GiB a step\n\nrow 3\n", "7", False),
        ("p on h100:8\n69.5 GiB a step\n\nrow 3\n", "7", True),
        ("p on h100:8\n69.4 GiB a step\n\nrow 4\n", "7", True),
        ("p on h100:8\n69.4 GiB a step\n", "7", True),
        ("p on h100:8\n970 MiB a step\n\nother rows\n", "8", False),
        ("p on h100:8\n69.4 GiB\n\nrow 3\n", "8", True),
        ("", "8", True),
    ],
)
def test_figures_are_compared_with_the_version_that_printed_them(
    printed, version, is_told
):
    assert bool(readme.difference(ONE, printed, version)) is is_told


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it takes 69.4 GiB", ["69.4 GiB"]),
        ("24 % less, in 300 ms", ["24 %", "300 ms"]),
        ("```\n$ revremat report p\n1 GiB\n```", ["$ revremat report p"]),
        ("write `--budget 60GiB`", []),
        ("under ten minutes on 2 cores", []),
    ],
)
def test_what_nothing_checks_is_found(text, found):
    assert readme.unchecked(text) == found


def test_benchmarks_say_first_what_share_is_unrolling():
    head = (ROOT / "docs" / "benchmarks.md").read_text().split("\n## ")[0]
    for name in ("gpt2_xl", "vit_l_384", "efficientnet_b7"):
        assert re.search(rf"\| {name} \| .*(%|all of it)", head)


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
