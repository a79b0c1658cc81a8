"""`checkpoints.py`: what a failed read leaves behind."""

import asyncio
import gc
import sys

import grain
import jax.numpy as jnp
import pytest
from orbax.checkpoint._src.serialization import serialization

from experiments.checkpoints import Checkpoints
from revremat import UserError


def batches() -> grain.DatasetIterator:
    return iter(grain.MapDataset.range(8).to_iter_dataset())


@pytest.fixture
def uncaught(monkeypatch) -> list[str]:
    """What is raised where nobody can catch it."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: found.append(it.exc_value))
    return found


def test_reads_that_wait_when_another_fails_end_without_a_word(
    tmp_path, monkeypatch, uncaught
):
    state = {name: jnp.arange(4.0) for name in "abc"}
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state, batches())
    checkpoints.wait()
    reads = []

    async def read(**_):
        reads.append(1)
        if len(reads) == len(state):
            raise OSError("Input/output error")
        await asyncio.Event().wait()

    monkeypatch.setattr(serialization, "_read_shard", read)
    with pytest.raises(UserError, match="Input/output error; delete that folder"):
        checkpoints.load(state, batches())
    checkpoints.close()
    gc.collect()
    assert uncaught == []


class EndsBadly:
    def __del__(self):
        raise RuntimeError("not to be lost")


def test_what_others_raise_there_is_still_heard_of(tmp_path, uncaught):
    with pytest.raises(UserError, match="cannot open the checkpoints"):
        Checkpoints(tmp_path / "a file" / "\0", keep=1)
    del (ends := [EndsBadly()])[0]
    assert [str(error) for error in uncaught] == ["not to be lost"]
    assert ends == []
