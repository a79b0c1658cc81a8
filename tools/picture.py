"""Makes the picture of a report's page that the README and the manual show.

    python tools/picture.py      # needs Chromium; `$CHROMIUM` names another program

The picture says which report it shows: the JAX that compiled and a digest of the
report's text stand in the file. `told` and `now` read and make them, so that a test
notices a picture that is older than what is printed now.
"""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import jax

import revremat as rr

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
PROGRAM, TARGET = "docs/examples/mlp.py", "h100:1"
SIZE = 1300, 1480
_KEY = b"report\0"
_SIGNATURE = 8  # bytes of every PNG before its first chunk


def measured() -> rr.Measurement:
    """The report that is shown, as the page on first reports has it."""
    sys.path.insert(0, str((ROOT / PROGRAM).parent))
    try:
        from mlp import problem  # pyright: ignore[reportMissingImports]
    finally:
        del sys.path[0]
    return rr.measure(problem(rr.target(TARGET)), target=TARGET)


def now(report: rr.Measurement) -> str:
    """The JAX that compiled, and a digest of the report's text."""
    digest = hashlib.sha256(rr.render(report).encode()).hexdigest()
    return f"jax {jax.__version__} {digest}"


def told(picture: bytes) -> str:
    """What a picture says it shows; nothing where it does not say."""
    place = _SIGNATURE
    while place < len(picture):
        (size,) = struct.unpack_from(">I", picture, place)
        kind, body = picture[place + 4 : place + 8], picture[place + 8 :][:size]
        if kind == b"tEXt" and body.startswith(_KEY):
            return body[len(_KEY) :].decode("latin-1")
        place += size + 12
    return ""


def telling(picture: bytes, text: str) -> bytes:
    """A picture that says what it shows: a text before its last chunk."""
    body = b"tEXt" + _KEY + text.encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body
    chunk += struct.pack(">I", zlib.crc32(body))
    end = len(picture) - 12
    return picture[:end] + chunk + picture[end:]


def main() -> int:
    """Takes the picture; 1 where there is no browser."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "chrome")
    browser = next(filter(None, map(shutil.which, filter(None, names))), None)
    if browser is None:
        print("no Chromium on PATH: name one by $CHROMIUM")
        return 1
    report = measured()
    with tempfile.TemporaryDirectory() as folder:
        page = rr.write(report, Path(folder) / "report.html")
        shot = Path(folder) / "report.png"
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
                f"--window-size={SIZE[0]},{SIZE[1]}",
                f"--user-data-dir={folder}/profile",
                f"--screenshot={shot}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        PICTURE.write_bytes(telling(shot.read_bytes(), now(report)))
    print(f"{PICTURE.relative_to(ROOT)}: {now(report)[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
