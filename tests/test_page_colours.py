"""Colours of pages: told apart by any eyes, and writing that can be read."""

import math

import pytest

import revremat as rr
from tests.browser import Browser, find_browser
from tests.pages import large

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason="no Chromium on PATH: install one (Debian: apt-get install chromium)",
)


@pytest.fixture(scope="module")
def tab():
    running = Browser.start(find_browser() or "")
    yield running
    running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return rr.write(large(), tmp_path_factory.mktemp("page") / "large.html")


COLOURS = ("argument", "forward", "recompute", "backward", "update", "output")
# Machado, Oliveira, Fernandes (2009), severity 1; rows make red, green, blue.
VISION = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def oklab(linear):
    """Perceptual coordinates of a linear RGB colour (Ottosson 2020)."""
    to_lms = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    to_lab = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    product = lambda rows, v: [
        sum(a * b for a, b in zip(r, v, strict=True)) for r in rows
    ]
    return product(to_lab, [math.cbrt(x) for x in product(to_lms, linear)])


def linear(text):
    """A colour `#rrggbb` as linear red, green and blue."""
    values = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


@pytest.mark.parametrize("dark", [False, True])
def test_colours_are_told_apart_by_any_eyes(tab, path, dark):
    tab.open(path, dark=dark)
    found = tab.evaluate(
        f"{list(COLOURS)}.map((n) => getComputedStyle(document.documentElement)"
        ".getPropertyValue('--' + n).trim())"
    )
    for name, rows in VISION.items():
        seen = []
        for text in found:
            rgb = linear(text)
            mixed = [sum(a * b for a, b in zip(r, rgb, strict=True)) for r in rows]
            seen.append(oklab([min(1.0, max(0.0, x)) for x in mixed]))
        for i, one in enumerate(seen):
            for j in range(i):
                distance = math.dist(one, seen[j])
                assert distance > 0.09, (name, COLOURS[i], COLOURS[j], distance)


@pytest.mark.parametrize("dark", [False, True])
def test_writing_has_contrast(tab, path, dark):
    """At least 4.5 : 1 (WCAG AA), for text on what is painted behind it."""
    tab.open(path, dark=dark)
    pairs = tab.evaluate(
        """(() => {
          const canvas = new OffscreenCanvas(1, 1)
            .getContext("2d", {willReadFrequently: true});
          const rgb = (colour) => {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data];
          };
          const behind = (e) => {
            for (; e; e = e.parentElement) {
              const found = rgb(getComputedStyle(e).backgroundColor);
              if (found[3] === 255) return found;
            }
          };
          return [...document.querySelectorAll("main *")]
            .filter((e) => !e.ownerSVGElement && [...e.childNodes].some((n) =>
              n.nodeType === 3 && n.textContent.trim()))
            .map((e) => [e.textContent, e.className,
              rgb(getComputedStyle(e).color), behind(e)]);
        })()"""
    )
    assert len(pairs) > 50

    def light(colour):
        text = "#" + "".join(f"{v:02x}" for v in colour[:3])
        return sum(
            a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(text), strict=True)
        )

    for text, kind, ink, paper in pairs:
        high, low = sorted((light(ink), light(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, kind, ink, paper)
