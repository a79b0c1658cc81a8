"""Names, printed words and the manual use the terms of the field.

A list of coined words, each with the term to write instead. It is held against the
prose of the manual, file names, identifiers, strings that can be printed, templates and
what recorded commands printed. Exceptions stand below, each with its reason.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ANYWHERE = {
    r"ways? back": "remat strategy, action",
    r"as ((it|they) (is|are) )?written(?! to)": "baseline, as it is",
    r"written out": "unrolled",
    r"made again|rebuil[dt]\w*": "recomputed",
    r"menus?": "options",
    r"pric(e|es|ed|ing)": "per-layer cost, estimated cost",
    r"look closer|second look": "column generation",
    r"rivals?|contest|arenas?": "runners-up, baselines, comparison",
    r"ends and edges": "peeled layers",
    r"in order of gradients|gradients in order": "gradient barrier",
    r"twins?": "variants",
    r"stakes?": "shortlist",
    r"silences?": "suppress",
    r"tenants?": "occupants",
    r"holes?": "fragmentation",
    r"dear|dearest": "compute-intensive",
    r"handed on": "carry",
    r"has the last word": "decides",
    r"costs like best": "is best by its costs",
    r"nouns?": "result",
}
"""Coined words, and few programs need one of them as ordinary English."""

PROSE = ANYWHERE | {
    r"comes? back(?! with an error)": "is restored by",
    r"mix(es)?": "assignment",
    r"finer": "column generation",
    r"edges": "peeled layers",
    r"levels?": "nesting",
    r"is told": "receives",
}
"""In sentences of the manual, where few of them are ordinary English either."""

LABELS = {
    r"x (none|full)": "save all, recompute all",
    r"(all|dots|cut|\d), unrolled": "(unrolled)",
    r"(?<!are )(?<!is )none better": "on the frontier",
    r"no mix|any mix": "assignment",
}
"""Of what tables print."""

NAMES = (set(ANYWHERE) - {r"holes?"}) | {
    "in_order",
    "num_turns",
    "fill(ed)?_from",
}
"""Identifiers; underscores part their words."""

OLD_JSON = "keys and labels of older JSON, which is read"
ALLOWED = {
    ("revremat/_graph.py", "dear"): OLD_JSON,
    ("revremat/_frontier.py", "as written"): OLD_JSON,
    ("revremat/_plan.py", "in_order"): OLD_JSON,
    ("revremat/_measurement/_measurement.py", "holes"): OLD_JSON,
    ("revremat/_io/_json.py", "dear"): OLD_JSON,
    ("revremat/_measurement/_history.py", "arena"): "XLA's word for one allocation",
    ("revremat/_measurement/_measurement.py", "arena"): "XLA's word for one allocation",
    ("revremat/xla/memory/_curve.py", "arenas"): "XLA's word for several",
    ("revremat/xla/memory/_liveness.py", "arenas"): "XLA's word for several",
    ("experiments/bench/allocation_programs.py", "arena"): "XLA's own word",
    ("experiments/results/allocation.txt", "arena"): "XLA's own word",
    ("revremat/xla/memory/_liveness.py", "arena"): "XLA's word for one allocation",
    ("revremat/allocation/_greedy.py", "in_order"): "places buffers in an order",
    ("revremat/allocation/_core.py", "in_order"): "places buffers in an order",
    ("experiments/bench/programs/sequences.py", "in_order"): "tokens in an order",
}
"""From a file and what is found there to the reason why it may."""
ALLOWED_WORDS = {
    "arena_bytes": "a field of reports, and the allocator's own word",
}


def found(text, words):
    """Coined words in a text, each with what to write instead."""
    return [
        (match[0], words[word])
        for word in words
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


def sources(*folders):
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def short(path):
    return path.relative_to(ROOT).as_posix()


def strings(tree):
    """String constants that are no docstrings."""
    bare = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in bare:
            yield node.value


def identifiers(tree):
    """Names of what a module defines, reads and is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg


def spoken(name):
    """The words of an identifier or a file name.

    >>> spoken("UnitMenu.of_prices"), spoken("_way_back")
    ('Unit Menu of prices', 'way back')
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.sub(r"[\W_]+", " ", parted).strip()


def allowed(path, word):
    return (short(path), word.lower()) in ALLOWED


# ---- The manual ----------------------------------------------------------------------


def prose(text):
    """A page without blocks, code and comments."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(
        r"^([`:~]{3,}).*?^\1[`:~]*$", "", text, flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`]*`", "", text)


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=short)
def test_a_page_has_no_words_of_our_own(page):
    text = prose(page.read_text())
    if page.parent.name == "benchmarks":  # tables are written by commands
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    assert found(text, PROSE) == []


# ---- Code ----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["revremat", "experiments", "tools"])
def test_file_names_have_none(folder):
    names = {p: spoken(short(p).removesuffix(".py")) for p in sources(folder)}
    assert {short(p): found(n, ANYWHERE) for p, n in names.items()} == {
        short(p): [] for p in names
    }


@pytest.mark.parametrize("folder", ["revremat", "experiments"])
def test_what_can_be_printed_has_none(folder):
    wrong = [
        (short(path), text, word, instead)
        for path in sources(folder)
        for text in strings(ast.parse(path.read_text()))
        for word, instead in found(text, ANYWHERE | LABELS)
        if not allowed(path, word)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["revremat", "experiments", "tools"])
def test_comments_and_docstrings_have_none(folder):
    wrong = [
        (short(path), word, instead)
        for path in sources(folder)
        for word, instead in found(path.read_text(), ANYWHERE)
        if not allowed(path, word)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["revremat", "experiments"])
def test_identifiers_have_none(folder):
    words = {word: ANYWHERE.get(word, "a term") for word in NAMES}
    wrong = {
        (short(path), name)
        for path in sources(folder)
        for name in set(identifiers(ast.parse(path.read_text())))
        if name not in ALLOWED_WORDS
        for word, _ in found(spoken(name) + f" {name}", words)
        if not allowed(path, word)
    }
    assert wrong == set()


def test_templates_have_none():
    folder = ROOT / "revremat" / "_report" / "page" / "templates"
    texts = {path.name: path.read_text() for path in sorted(folder.iterdir())}
    assert texts
    assert {name: found(text, ANYWHERE | LABELS) for name, text in texts.items()} == {
        name: [] for name in texts
    }


def outputs():
    """What commands printed or wrote, as tests and the manual hold it."""
    yield from sorted((ROOT / "tests/search/asked").glob("*.json"))
    yield from sorted((ROOT / "experiments/results").rglob("*.txt"))
    yield from sorted((ROOT / "docs").rglob("*.txt"))


@pytest.mark.parametrize("path", [*outputs()], ids=short)
def test_recorded_outputs_have_none(path):
    wrong = found(path.read_text(), ANYWHERE | LABELS)
    assert [one for one in wrong if not allowed(path, one[0])] == []


# ---- The test itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Two ways back, as written.", 2),
        ("The mixer has a menu.", 1),
        ("Layers are unrolled; see `written out`.", 0),
        ("A mix of twins", 2),
        ("It is written to a file, in order to be read inside of a loop.", 0),
    ],
)
def test_coined_words_are_found(text, number):
    assert len(found(prose(text), PROSE)) == number


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ('"""By prices."""\nsay(f"by prices {x}")', 1),
        ('menu = {"a": "no mix"}', 1),
        ('x = "in order to recompute"', 0),
    ],
)
def test_docstrings_are_not_printed(code, number):
    texts = strings(ast.parse(code))
    assert sum(len(found(text, ANYWHERE | LABELS)) for text in texts) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [("UnitMenu", 1), ("_price_of", 1), ("way_back", 1), ("layer_costs", 0)],
)
def test_words_of_identifiers_are_found(name, number):
    assert len(found(spoken(name), ANYWHERE)) == number


def test_exceptions_are_still_needed():
    files = {file for file, _ in ALLOWED}
    assert all((ROOT / file).exists() for file in files)
    for file, word in ALLOWED:
        text = (ROOT / file).read_text()
        assert re.search(rf"(?<![a-zA-Z]){word}", text, re.IGNORECASE), (file, word)
