"""The manual has short sentences."""

import pytest

from tools import sentences


@pytest.mark.parametrize("page", sentences.pages(), ids=lambda page: page.stem)
def test_a_page_keeps_the_rule(page):
    found = sentences.length(page)
    assert found.mean <= sentences.MOST_WORDS_ON_AVERAGE
    assert max(found.counts, default=0) <= sentences.MOST_WORDS, found.longest


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("One two. Three four five.", (2, 3)),
        ("One two\nthree. Four", (3, 1)),
        ("# A heading\n\nOne `two three four` five.", (3,)),
        ("- one two\n- three\n  four five", (2, 3)),
        ("| a | b |\n|---|---|\n\nOne", (1,)),
        ("One\n\n```python\nx = 1  # Two. Three.\n```\n\ntwo", (1, 1)),
        ("See [a page of it](a/b.md). It is e.g. here.", (5, 4)),
    ],
)
def test_what_is_a_sentence(text, counts):
    found = sentences.sentences(text)
    assert tuple(len(sentences.words(one)) for one in found) == counts


def test_a_long_sentence_breaks_it():
    assert not sentences.Length("p", (31,), "").holds
    assert not sentences.Length("p", (19, 18), "").holds
    assert sentences.Length("p", (30, 6), "").holds
