"""The manual uses the terms of the field.

What commands print stands in blocks, and tables of benchmarks are written by commands:
both are left out here.
"""

import re

import pytest

from tools import pages

COINED = {
    r"ways? back": "remat strategy",
    r"comes? back(?! with an error)": "is restored by",
    r"as (it is )?written": "baseline",
    r"written out": "unrolled",
    r"made again|rebuil[dt]\w*": "recomputed",
    r"menus?": "options",
    r"mix(es)?": "assignment",
    r"by (its|their|the)? ?prices?|prices? of": "per-layer cost",
    r"priced": "costed",
    r"finer|look closer|second look": "column generation",
    r"rivals?|contest|arena": "runners-up, baselines",
    r"ends and edges|edges": "peeled layers",
    r"in order of gradients|gradients in order": "gradient barrier",
    r"levels?": "nesting",
    r"twins?": "variants",
    r"stakes?": "shortlist",
    r"silence": "suppress",
    r"tenants?": "occupants",
    r"holes?": "fragmentation",
    r"dear|dearest": "compute-intensive",
    r"handed on": "carry",
    r"is told|has the last word": "receives, decides",
}


def prose(text):
    """A page without blocks, code and comments."""
    text = re.sub(r"<!--.*?-->", "", pages.FENCE.sub("", text), flags=re.DOTALL)
    return re.sub(r"`[^`]*`", "", text)


def coined(text):
    """Words of our own in a page, each with what to write instead."""
    return [
        f"{found[0]}: {instead}"
        for word, instead in COINED.items()
        for found in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.stem)
def test_a_page_has_no_words_of_our_own(page):
    text = prose(page.read_text())
    if page.parent.name == "benchmarks":
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    assert coined(text) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Two ways back, as written.", 2),
        ("The mixer has a menu.", 1),
        ("Layers are unrolled; see `written out`.", 0),
        ("A mix of twins", 2),
    ],
)
def test_coined_words_are_found(text, number):
    assert len(coined(prose(text))) == number
