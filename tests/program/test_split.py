"""Chunks: what each keeps."""

import pytest

from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat.program.engine._split import _without_input


@pytest.mark.parametrize(
    ("action", "found"),
    [
        (RECOMPUTE(chunks=4), RECOMPUTE),
        (RECOMPUTE(save=["input", "h"], chunks=2), RECOMPUTE(save=["h"])),
        (RECOMPUTE(offload=["input_1", "h"]), RECOMPUTE(offload=["h"])),
        (RECOMPUTE(save=["inputs"]), RECOMPUTE(save=["inputs"])),
        (SAVE(offload=["h", "input"]), SAVE(offload=["h"])),
        (OFFLOAD(save=["h"]), OFFLOAD(save=["h"])),
    ],
)
def test_a_chunk_keeps_no_input(action, found):
    assert _without_input(action) == found
