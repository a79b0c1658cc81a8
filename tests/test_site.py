"""The manual builds without a warning, its links hold, and it loads nothing."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import revremat

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "_extensions"))


class Page(HTMLParser):
    """What a page links, what it loads, and what can be linked in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(found["id"])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n"]
    command += ["-d", str(folder / "trees"), "docs", str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    files = (folder / "html").rglob("*.html")
    return {path.resolve(): Page(path.read_text()) for path in files}


def is_elsewhere(link):
    return re.match(r"(https?:)?//|mailto:|data:", link) is not None


def test_links_and_anchors_hold(site):
    broken = []
    for path, page in site.items():
        for link in page.links:
            if is_elsewhere(link):
                continue
            name, anchor = urldefrag(unquote(link))
            to = (path.parent / name).resolve() if name else path
            if not to.exists() or (
                anchor and to in site and anchor not in site[to].anchors
            ):
                broken.append((path.name, link))
    assert broken == []


def test_pages_load_nothing_from_elsewhere(site):
    assert [
        one for page in site.values() for one in page.loads if is_elsewhere(one)
    ] == []


def test_every_public_name_has_its_place(site):
    from public_names import public_names

    (reference,) = [page for path, page in site.items() if path.stem == "api"]
    modules = ("", ".reversible", ".reversible.linen", ".sharding", ".policies")
    missing = [
        f"revremat{module}.{name}"
        for module in (*modules, ".allocation", ".xla")
        for name in public_names(f"revremat{module}")
        if f"revremat{module}.{name}" not in reference.anchors
    ]
    # A submodule has a heading; `Target` and `target` stand at the root.
    known = {"revremat.reversible", "revremat.xla.Target", "revremat.xla.target"}
    assert set(missing) - known == set()
    assert hasattr(revremat, "fit")


def test_every_command_has_its_place(site):
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    from command_help import help_of

    commands = re.findall(r"[{,](\w+)(?=[,}])", help_of("").split("\n")[0])
    assert len(commands) > 5
    assert set(re.findall(r"```{command-help} (\w+)", text)) == set(commands)
