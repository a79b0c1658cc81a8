"""What the documentation shows is what happens."""

import re
from pathlib import Path

import jax
import pytest

from revremat import xla
from tools import pages, picture

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()


def running():
    """Pages with something to run, but the README: its program is the index's."""
    manual = [page for page in pages.pages() if page.parent != ROOT]
    return [page for page in manual if list(pages.shown(page.read_text()))]


SLOW = {"tensor-parallel"}
"""Pages that compile layers of a large model."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [])
        for page in running()
    ],
    ids=lambda page: page.stem,
)
def test_a_page_prints_what_it_shows(page):
    assert pages.wrong(page) == []


def test_the_readmes_program_is_the_first_of_the_manual():
    (ours,) = pages.shown(README)
    first = next(pages.shown(INDEX))
    assert (ours.source, ours.output) == (first.source, first.output)
    assert pages.version(README) == pages.version(INDEX) != ""


@pytest.mark.parametrize("page", running(), ids=lambda page: page.stem)
def test_a_page_with_outputs_says_which_jax_printed_them(page):
    text = page.read_text()
    if any(one.output is not None for one in pages.shown(text)):
        assert pages.version(text)


def explaining():
    return [page for page in pages.pages() if page.parent.name != "benchmarks"]


@pytest.mark.parametrize("page", explaining(), ids=lambda page: page.stem)
def test_measurements_stand_in_the_benchmarks_alone(page):
    assert pages.unchecked(page.read_text()) == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem
)
def test_a_page_says_who_should_read_it(page):
    text = re.sub(r"<!--.*?-->", "", page.read_text())
    paragraphs = [p for p in text.split("\n\n") if p.strip()]
    opening = " ".join(paragraphs[:2])
    assert re.search(r"(page|manual) is for (you|people)", opening)


def report(text):
    return pages.Shown("revremat report p", text)


ONE = report("p on h100:8\n69.4 GiB a step\n\nrow 3\n")


@pytest.mark.parametrize(
    ("printed", "version", "is_told"),
    [
        ("p on h100:8\n69.4 GiB a step\n\nrow 3\n", "7", False),
        ("p on h100:8\n69.4 GiB a step  \n\nrow 3\n\n", "7", False),
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
    assert bool(pages.difference(ONE, printed, "7", version)) is is_told


PAGE = """
```python
a = 1
```

```python
print(a)
```

```text
1
```

```console
$ revremat targets
what it prints
$ revremat report p
```

```bash
revremat report q
```
"""


def test_snippets_are_found_in_order_each_with_its_output():
    found = [(one.source, one.output) for one in pages.shown(PAGE)]
    assert found == [
        ("a = 1\n", None),
        ("print(a)\n", "1\n"),
        ("revremat targets", "what it prints\n"),
        ("revremat report p", ""),
    ]


def test_a_wrong_output_is_told_and_written_anew(tmp_path):
    page = tmp_path / "page.md"
    made_with = f"<!-- printed with jax {jax.__version__} by tools/pages.py -->\n"
    page.write_text(made_with + "```python\nprint(2)\n```\n\n```text\n1\n```\n")
    (told,) = pages.wrong(page)
    page.write_text(pages.rewritten(page))
    assert "1" in told
    assert pages.wrong(page) == []


def test_a_command_that_fails_is_no_page():
    with pytest.raises(RuntimeError, match="ended with exit code 2"):
        pages.printed("revremat report no_such_file.py:problem")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it takes 69.4 GiB", ["69.4 GiB"]),
        ("24 % less, in 300 ms", ["24 %", "300 ms"]),
        ("```\n$ revremat report p\n1 GiB\n```", ["$ revremat report p"]),
        ("write `--budget 60GiB`, or `75 %`", []),
        ("under ten minutes on 2 cores", []),
    ],
)
def test_what_nothing_checks_is_found(text, found):
    assert pages.unchecked(text) == found


def test_benchmarks_say_first_what_share_is_unrolling():
    text = (ROOT / "docs" / "benchmarks" / "index.md").read_text()
    head = text.split("\n## ")[0]
    for name in ("gpt2_xl", "vit_l_384", "efficientnet_b7"):
        assert re.search(rf"\| {name} \| .*(%|all of it)", head)


def test_all_cards_are_listed():
    text = (ROOT / "docs" / "reference" / "targets.md").read_text()
    assert all(f"`{key}`" in text for key in xla.GPU_CARDS)


def test_files_that_are_named_exist():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        for name in re.findall(r"\]\(([^)#:]+)[)#]", text):
            assert (page.parent / name).is_file(), (page.name, name)
        for name in re.findall(
            r"`((?:experiments|revremat|tools)/[\w/.-]+\.\w+)", text
        ):
            assert (ROOT / name).is_file(), (page.name, name)


def test_the_picture_shows_the_report_that_is_printed_now():
    told = picture.told(picture.PICTURE.read_bytes())
    version, digest = told.rsplit(" ", 1)
    assert re.fullmatch("[0-9a-f]{64}", digest)
    if version == f"jax {jax.__version__}":
        assert told == picture.now(picture.measured())


def test_what_a_picture_says_it_shows_is_read_back():
    image = picture.PICTURE.read_bytes()
    again = picture.telling(image[:8] + image[-12:], "jax 1.0 " + 64 * "0")
    assert picture.told(again) == "jax 1.0 " + 64 * "0"
    assert picture.told(image[:8] + image[-12:]) == ""
