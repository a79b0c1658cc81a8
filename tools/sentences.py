"""How long the sentences of the README and the manual are.

    python tools/sentences.py    # exit code 1 where a page breaks the rule

Code, tables, headings and directives are left out. A code span is one word.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 30
MOST_WORDS_ON_AVERAGE = 18

_BLOCK = re.compile(r"^(?P<fence>```+)[^\n]*\n.*?^(?P=fence)[ ]*$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_LEFT_OUT = re.compile(r"^\s*(#|\||:::|!\[|:\w+:)")
_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])[*_\")]*\s+(?=[A-Z0-9`*_\[\"])")


@dataclass(frozen=True)
class Length:
    """The sentences of one page.

    Attributes:
      page: The page's name.
      counts: Words of each sentence.
      longest: The longest sentence.
    """

    page: str
    counts: tuple[int, ...]
    longest: str

    @property
    def mean(self) -> float:
        """Words per sentence."""
        return sum(self.counts) / max(1, len(self.counts))

    @property
    def holds(self) -> bool:
        """Whether the page keeps the rule."""
        return (
            self.mean <= MOST_WORDS_ON_AVERAGE
            and max(self.counts, default=0) <= MOST_WORDS
        )


def sentences(text: str) -> list[str]:
    """The sentences of a page in Markdown."""
    text = _COMMENT.sub("", _BLOCK.sub("\n\n", text))
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or _LEFT_OUT.match(line):
            paragraphs.append([])
            continue
        if _ITEM.match(line):
            paragraphs.append([])
            line = _ITEM.sub("", line)
        paragraphs[-1].append(line.strip())
    found = []
    for lines in filter(None, paragraphs):
        prose = re.sub(r"`[^`]*`", "`x`", " ".join(lines))
        prose = re.sub(r"\]\([^)]*\)", "]", prose)
        found += [one for one in _END.split(prose) if re.search(r"\w", one)]
    return found


def words(sentence: str) -> list[str]:
    """The words of a sentence."""
    return re.findall(r"\S*\w\S*", sentence)


def length(page: Path) -> Length:
    """How long the sentences of a page are."""
    found = sentences(page.read_text(encoding="utf-8"))
    counts = [len(words(one)) for one in found]
    longest = max(zip(counts, found, strict=True), default=(0, ""))[1]
    return Length(str(page.relative_to(ROOT)), tuple(counts), longest)


def pages() -> list[Path]:
    """What is held to the rule."""
    names = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*names, *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Prints a row for each page, and for all of them."""
    rows = [length(page) for page in pages()]
    everything = Length("all", tuple(n for row in rows for n in row.counts), "")
    print(f"{'page':34} {'sentences':>9} {'mean':>6} {'longest':>7}")
    for row in [*rows, everything]:
        most = max(row.counts, default=0)
        told = "" if row.holds else f"  {row.longest}"
        print(f"{row.page:34} {len(row.counts):9} {row.mean:6.1f} {most:7}{told}")
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
