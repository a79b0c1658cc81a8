"""`checkpoints.py`: what a failed read leaves behind."""

import asyncio
import gc
import sys
import threading

import grain
import jax.numpy as jnp
import pytest
from orbax.checkpoint._src.serialization import serialization

from experiments import event_loops
from experiments.checkpoints import Checkpoints
from revremat import UserError


def batches() -> grain.DatasetIterator:
    return iter(grain.MapDataset.range(8).to_iter_dataset())


@pytest.fixture
def uncaught(monkeypatch) -> list[object]:
    """What is raised where nobody can catch it."""
    found = []
    note = lambda it: found.append(it.exc_value)
    monkeypatch.setattr(sys, "unraisablehook", note)
    monkeypatch.setattr(threading, "excepthook", note)
    return found


async def never() -> None:
    await asyncio.Event().wait()


async def soon() -> None:
    """A read's thread calls the loop when it is done."""
    done = asyncio.get_running_loop().create_future()
    call = asyncio.get_running_loop().call_soon_threadsafe
    threading.Timer(0.3, lambda: call(done.set_result, None)).start()
    await done


@pytest.mark.parametrize("wait", [never, soon])
def test_reads_that_wait_when_another_fails_end_without_a_word(
    tmp_path, monkeypatch, uncaught, wait
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
        await wait()
        return jnp.arange(4.0)

    monkeypatch.setattr(event_loops, "_PATIENCE_S", 2.0)
    monkeypatch.setattr(serialization, "_read_shard", read)
    with pytest.raises(UserError, match="Input/output error; delete that folder"):
        checkpoints.load(state, batches())
    checkpoints.close()
    gc.collect()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert uncaught == []


def test_two_runs_are_not_at_work_in_one_folder(tmp_path):
    first = Checkpoints(tmp_path, keep=1)
    half = tmp_path / "100.orbax-checkpoint-tmp"
    half.mkdir()
    with pytest.raises(UserError, match=r"another run is at work.*wait for its end"):
        Checkpoints(tmp_path, keep=1)
    assert half.exists()
    first.close()
    assert not half.exists()
    second = Checkpoints(tmp_path, keep=1)
    assert second.steps == []
    half.mkdir()
    first._sweep_at_exit()
    assert half.exists()
    second.close()
