"""Text of others made safe to print: no control characters, no endless sentences."""

import re
import sys
import unicodedata

MOST_CHARACTERS = 400
"""Of one error sentence: what a terminal shows in five lines."""

_SHORTEST = 48
_FAR_TOO_LONG = 16 * MOST_CHARACTERS
# Quoted text, else a word: an apostrophe inside of a word opens no quotation.
_WORDS = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"(?!\w)|[^\s'\"]+")


def printable(text: str) -> str:
    r"""Text for one line of a terminal: what cannot be seen is written as an escape.

    That are control characters of either kind, line ends, marks that turn the direction
    of writing, and halves of surrogate pairs, which cannot be encoded.

    >>> printable("a\x1b[31mb\u202ec d")
    'a\\x1b[31mb\\u202ec d'
    """
    if text.isprintable():
        return text
    return "".join(c if _is_seen(c) else _escape(c) for c in text)


def printable_lines(text: str) -> str:
    r"""The same for text of several lines, whose ends stay.

    >>> printable_lines("one\ntwo\r\x07")
    'one\ntwo\\r\\x07'
    """
    return "\n".join(map(printable, text.split("\n")))


def say(text: str, *, error: bool = False) -> None:
    """Prints lines that may hold what somebody else wrote: names, paths, messages.

    Args:
      text: Without colours, which are control characters.
      error: To standard error instead of standard output.
    """
    print(printable_lines(text), file=sys.stderr if error else sys.stdout)


def masked(text: str) -> str:
    r"""The same length as before: where text is laid out already; line ends stay.

    >>> masked("a\x1bb\n")
    'a�b\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or _is_seen(c) else "�" for c in text)


def sentence(text: str) -> str:
    """One printable line of at most `MOST_CHARACTERS`.

    What is longer loses the middle of its longest words and quotations, which are what
    somebody else wrote, and only then its own middle: what is wrong stands at the
    beginning of a sentence of ours, and what to write instead at its end.

    >>> len(sentence(f"no unit is called {'x' * 1000!r}: write one of a, b"))
    400
    """
    text = printable(_cut(text, _FAR_TOO_LONG))
    while (excess := len(text) - MOST_CHARACTERS) > 0:
        longest = max(_WORDS.finditer(text), key=lambda m: len(m[0]), default=None)
        if longest is None or len(longest[0]) <= _SHORTEST:
            return _cut(text, MOST_CHARACTERS)
        size = max(_SHORTEST, len(longest[0]) - excess)
        start, end = longest.span()
        text = text[:start] + _cut(longest[0], size) + text[end:]
    return text


def _cut(text: str, size: int) -> str:
    """Text without its middle."""
    if len(text) <= size:
        return text
    head = size // 2
    return f"{text[:head]}…{text[len(text) - (size - head - 1) :]}"


def _is_seen(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
