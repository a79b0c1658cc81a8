"""Files that are there in whole or not at all; of the standard library alone."""

import os
from pathlib import Path


def write_whole(file: Path, text: str) -> Path:
    """Replace a file by a whole new one, or leave it as it was; returns the file."""
    temporary = file.with_name(file.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return file
