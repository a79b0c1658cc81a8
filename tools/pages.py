"""Runs every snippet of the README and of docs/, and compares what it prints.

    python tools/pages.py                       # exit code 1 where a page is wrong
    python tools/pages.py docs/index.md         # that page alone
    python tools/pages.py --write [PAGE...]     # puts in what is printed now

Blocks of one page run in order. A ```python block runs in the page's one namespace, and
a ```text block right below it shows what it prints. In a ```console block each line
that begins with `$ ` is a command of revremat, and the lines below show what that
prints. Pages run in a folder of their own with the files of docs/examples, and the
README in the root of the repository.

The page's first comment names the JAX that printed. With that version every character
must be equal. Another version's compiler may choose otherwise: there everything must
run, and of a report the lines before its first table must have the same words.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[^\n`]*)\n"
    r"(?P<body>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_VERSION = re.compile(r"<!-- printed with jax (\S+) by tools/pages.py -->")
_FIGURE = re.compile(r"\d[\d.,]*( (B|KiB|MiB|GiB|us|ms|s|%))?")
_COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """Something that prints, as a page shows it.

    Attributes:
      source: A command as it is typed, or Python.
      output: What the page says it prints; None where it does not say.
      start: Where the output is, in the page's characters; the end follows.
      end: Where it ends.
      is_command: Whether it is a command.
    """

    source: str
    output: str | None
    start: int = 0
    end: int = 0
    is_command: bool = True


def pages() -> list[Path]:
    """The README and every page of the manual."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(text: str) -> Iterator[Shown]:
    """Everything in a page that runs, in order."""
    blocks = list(FENCE.finditer(text))
    for block, below in zip(blocks, [*blocks, None][1:], strict=True):
        language = block["language"].strip()
        if language == "python":
            is_output = (
                below is not None
                and below["language"].strip() == "text"
                and not text[block.end() : below.start()].strip()
            )
            place = (below.start("body"), below.end("body")) if is_output else (0, 0)
            output = below["body"] if below is not None and is_output else None
            yield Shown(block["body"], output, *place, is_command=False)
        elif language == "console":
            first = block.start("body")
            for one in _COMMAND.finditer(block["body"]):
                yield Shown(one[1], one[2], first + one.start(2), first + one.end(2))


def version(text: str) -> str:
    """The JAX that printed a page's outputs; "" where it names none."""
    found = _VERSION.search(text)
    return found[1] if found else ""


def unchecked(text: str) -> list[str]:
    """Commands in blocks that nothing runs, and figures in sentences."""
    commands = [
        line
        for block in FENCE.finditer(text)
        if block["language"].strip() not in ("console", "python", "text")
        for line in re.findall(r"^\$ .*", block["body"], re.MULTILINE)
    ]
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", text))
    return commands + re.findall(r"\d[\d.,]* (?:KiB|MiB|GiB|us|ms|%)(?!\w)", prose)


def printed(command: str) -> str:
    """What a command of revremat prints, run in the current folder.

    Raises:
      RuntimeError: It fails.
    """
    from revremat._cli import main

    program, *words = shlex.split(command)
    if program != "revremat":
        raise RuntimeError(f"{command!r} is no command of revremat")
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()) as e,
    ):
        code = main(words)
    if code:
        said = e.getvalue()[-400:]
        raise RuntimeError(f"{command!r} ended with exit code {code}: {said}")
    return out.getvalue()


def run(source: str, name: str, namespace: dict) -> str:
    """What Python prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, name, "exec"), namespace)
    return out.getvalue()


@contextlib.contextmanager
def workspace(page: Path) -> Iterator[Path]:
    """The folder in which a page runs, made the current one."""
    if page.parent == ROOT:
        with contextlib.chdir(ROOT):
            yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "work"
        shutil.copytree(EXAMPLES, place, ignore=shutil.ignore_patterns("__pycache__"))
        before, searched = set(sys.modules), os.environ.get("PYTHONPATH")
        sys.path.insert(0, str(place))
        os.environ["PYTHONPATH"] = str(ROOT)  # what a page starts runs this tree, too
        try:
            with contextlib.chdir(place):
                yield place
        finally:  # another page has its own copy of the examples
            sys.path.remove(str(place))
            os.environ.pop("PYTHONPATH")
            if searched is not None:
                os.environ["PYTHONPATH"] = searched
            for path in place.glob("*.py"):
                if path.stem not in before:
                    sys.modules.pop(path.stem, None)


def outputs(page: Path, text: str) -> Iterator[tuple[Shown, str]]:
    """Runs a page; what each of its parts prints, as it does."""
    namespace: dict = {"__name__": "__page__"}
    with workspace(page):
        for one in shown(text):
            if one.is_command:
                yield one, printed(one.source)
            else:
                yield one, run(one.source, page.name, namespace)


def difference(
    one: Shown, output: str, with_version: str, this_version: str | None = None
) -> str:
    """What a page shows otherwise than it prints; "" for nothing."""
    import jax

    if one.output is None:
        return ""
    expected, found = (tidy(text).splitlines() for text in (one.output, output))
    if with_version != (this_version or jax.__version__):
        if not one.source.startswith("revremat report"):
            return ""
        expected, found = _form(expected), _form(found)
    for number in range(max(len(expected), len(found))):
        pair = [
            rows[number] if number < len(rows) else "" for rows in (expected, found)
        ]
        if pair[0] != pair[1]:
            return f"line {number + 1}: page {pair[0]!r}, printed {pair[1]!r}"
    return ""


def tidy(text: str) -> str:
    """Without spaces that end lines, and empty lines that end the text."""
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in lines)


def _form(lines: list[str]) -> list[str]:
    """Lines before the first empty one, without figures."""
    head = lines[: lines.index("")] if "" in lines else lines
    return [_FIGURE.sub("#", line) for line in head]


def wrong(page: Path) -> list[str]:
    """What a page shows that is not so."""
    text = page.read_text(encoding="utf-8")
    made_with = version(text)
    found = []
    for one, output in outputs(page, text):
        if told := difference(one, output, made_with):
            found.append(f"{one.source.strip().splitlines()[-1]}: {told}")
    return found


def rewritten(page: Path) -> str:
    """A page with what its parts print now."""
    import jax

    text = page.read_text(encoding="utf-8")
    for one, output in reversed(list(outputs(page, text))):
        if one.output is not None:
            text = text[: one.start] + tidy(output) + text[one.end :]
    now = f"<!-- printed with jax {jax.__version__} by tools/pages.py -->"
    return _VERSION.sub(now, text)


def main(words: list[str]) -> int:
    """Checks pages, or writes them."""
    is_writing = "--write" in words
    names = [Path(word).resolve() for word in words if word != "--write"]
    if missing := [name for name in names if not name.is_file()]:
        print(f"{missing[0]} is no page")
        return 2
    told: Callable[[str], None] = print
    failed = False
    for page in names or pages():
        if is_writing:
            page.write_text(rewritten(page), encoding="utf-8")
            continue
        for sentence in wrong(page):
            failed = True
            told(f"{page.relative_to(ROOT)}: {sentence}")
    return int(failed)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
    with tempfile.TemporaryDirectory() as cards:
        os.environ["REVREMAT_CARDS"] = cards
        sys.exit(main(sys.argv[1:]))
