"""docs/contributing.md follows values through the code as they really go."""

import re
import sys
import threading
import tomllib
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import revremat as rr

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "contributing.md").read_text().split("## Following")[1]
SECTIONS = [part.split("\n", 1) for part in TEXT.split("\n### ")[1:]]
ROW = re.compile(r"^\| `([\w.]+)` \| `(revremat/[\w/.]+)` \|", re.MULTILINE)
PATHS = {t: [(file, name) for name, file in ROW.findall(s)] for t, s in SECTIONS}
UP = {title: int(re.findall(r"Steps back up: (\d)", s)[0]) for title, s in SECTIONS}


def layers():
    """The height of each module at the root, by the import contract."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    rows = tool["importlinter"]["contracts"][0]["layers"]
    return {
        name.strip(): -row
        for row, names in enumerate(rows)
        for name in re.split(r"[|:]", names)
    }


HEIGHT = layers()


def height(file):
    """How high a module is; within a folder all are the same."""
    return HEIGHT.get(Path(file).parts[1].removesuffix(".py"), 0)


@pytest.fixture(scope="module")
def calls():
    """Every first call of a function of ours: its file and name, and its callers."""
    prefix, found = f"{ROOT}/", {}

    def place(frame):
        code = frame.f_code
        if code.co_filename.startswith(f"{prefix}revremat/"):
            name = code.co_qualname.split(".<locals>")[0]
            return code.co_filename.removeprefix(prefix), name
        return None

    def note(frame, event, _):
        if event == "call" and (at := place(frame)) and at not in found:
            stack = []
            while frame:
                stack.append(place(frame))
                frame = frame.f_back
            found[at] = [one for one in reversed(stack) if one]

    def loss(w, x):
        return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()

    w, x = jnp.ones((4, 64, 64)), jnp.ones((256, 64))
    threading.setprofile(note)  # compiles have threads of their own
    sys.setprofile(note)
    try:
        rr.fit(loss, w, x, budget="640KiB", target="cpu:1", most_compiles=12)
        fitted, found = found, {}  # `note` goes on in the new one
        plan = rr.trace(loss, w, x).plan({"stack": rr.RECOMPUTE})
        found.clear()
        jax.grad(rr.apply(loss, plan))(w, x)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {title: found if "apply" in title else fitted for title in PATHS}


@pytest.mark.parametrize("title", PATHS)
def test_every_function_of_a_path_is_called(title, calls):
    assert len(PATHS[title]) > 5
    assert [one for one in PATHS[title] if one not in calls[title]] == []


@pytest.mark.parametrize("title", PATHS)
def test_a_path_climbs_as_often_as_it_says(title, calls):
    """Calls of a higher layer, within the stacks in which its functions are called."""
    pairs = {pair for place in PATHS[title] for pair in pairwise(calls[title][place])}
    climbs = {pair for pair in pairs if height(pair[0][0]) < height(pair[1][0])}
    assert len(climbs) == UP[title], climbs
