"""The lock: growth past its tolerance is found, and blamed on what grew."""

import dataclasses
import json

import pytest

from revremat import UserError
from revremat._report._lock import check_lock, lock_text
from tests.measurements import BUFFERS, GIB, MEASUREMENT, MIB, changed


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "memory.lock"
    path.write_text(lock_text([MEASUREMENT], tolerance=0.01))
    return path


def grown(by, number=0):
    bigger = dataclasses.replace(BUFFERS[number], bytes=BUFFERS[number].bytes + by)
    buffers = (*BUFFERS[:number], bigger, *BUFFERS[number + 1 :])
    return changed(temp_bytes=6 * GIB + by, buffers=buffers)


def test_what_is_as_it_was_passes(lock):
    assert check_lock([MEASUREMENT], lock) == []


def test_less_passes(lock):
    assert check_lock([grown(-GIB)], lock) == []


def test_growth_within_the_tolerance_passes(lock):
    one_percent = MEASUREMENT.memory.total_bytes // 100
    assert check_lock([grown(one_percent)], lock) == []
    assert len(check_lock([grown(one_percent + 2)], lock)) == 1


@pytest.mark.parametrize("tolerance", [0, 0.0])
def test_a_lock_may_let_nothing_pass(lock, tolerance):
    lock.write_text(lock_text([MEASUREMENT], tolerance))
    assert check_lock([MEASUREMENT], lock) == []
    assert len(check_lock([grown(1)], lock)) == 1


@pytest.mark.parametrize(("size", "is_one"), [(1, True), (0, False), (-1, False)])
def test_an_entry_takes_bytes_and_a_tolerance_is_no_less_than_nothing(
    lock, size, is_one
):
    data = json.loads(lock.read_text())
    data["entries"][0]["total_bytes"] = size
    lock.write_text(json.dumps(data))
    if is_one:
        assert len(check_lock([MEASUREMENT], lock)) == 1
        lock.write_text(json.dumps({**data, "tolerance": -0.5}))
    with pytest.raises(UserError, match=r"is no lock: make one with --lock"):
        check_lock([MEASUREMENT], lock)


def test_growth_is_blamed_on_what_grew(lock):
    (sentence,) = check_lock([grown(GIB)], lock)
    assert sentence == (
        "gpt on h100:8 takes 12.2 GiB, 1.00 GiB (8.9 %) more than the lock's 11.2 GiB: "
        "forward/layer/attn/softmax +1.00 GiB"
    )
    (sentence,) = check_lock([grown(GIB, number=3)], lock)
    assert sentence.endswith(": recompute/layer/mlp +1.00 GiB")


def test_something_new_is_blamed_too(lock):
    new = dataclasses.replace(BUFFERS[0], scope="adapter", bytes=2 * GIB)
    m = changed(temp_bytes=8 * GIB, buffers=(new, *BUFFERS))
    (sentence,) = check_lock([m], lock)
    assert sentence.endswith(": forward/adapter +2.00 GiB")


def test_growth_without_a_buffer_is_fragmentation(lock):
    (sentence,) = check_lock([changed(temp_bytes=8 * GIB)], lock)
    assert sentence.endswith(": fragmentation between buffers")


def test_every_target_is_checked_against_its_own_entry(tmp_path):
    path = tmp_path / "memory.lock"
    other = changed(target="a100:8")
    path.write_text(lock_text([MEASUREMENT, other]))
    bigger = dataclasses.replace(grown(GIB), target="a100:8")
    (sentence,) = check_lock([MEASUREMENT, bigger], path)
    assert sentence.startswith("gpt on a100:8 takes")


def test_an_entry_that_is_not_there_is_named(lock):
    with pytest.raises(UserError, match="has no entry for gpt on a100:8"):
        check_lock([changed(target="a100:8")], lock)


def test_locks_are_small_and_stable(lock):
    assert lock.stat().st_size < 2000
    assert lock_text([MEASUREMENT], 0.01) == lock.read_text()
    # Figures that change from run to run have no place in a committed file.
    again = changed(compile_seconds=99.0, cached=True)
    assert lock_text([again], 0.01) == lock.read_text()


def test_a_missing_lock_says_how_to_make_one(tmp_path):
    path = tmp_path / "absent.lock"
    with pytest.raises(UserError, match=rf"No such file.*make it with --lock {path}"):
        check_lock([MEASUREMENT], path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1, "tolerance": "much", "entries": []}',
        '{"schema": 1, "tolerance": 0.1, "entries": [3]}',
        '{"schema": 1, "tolerance": 0.1, "entries": [{"program": "gpt"}]}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_lock_is_refused(lock, text):
    lock.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=r"is no lock: make one with --lock"):
        check_lock([MEASUREMENT], lock)


def test_an_entry_without_figures_is_refused(lock):
    data = json.loads(lock.read_text())
    del data["entries"][0]["total_bytes"]
    lock.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"is no lock: make one with --lock"):
        check_lock([MEASUREMENT], lock)


def test_a_newer_lock_is_refused(lock):
    lock.write_text(lock.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(UserError, match="has schema 2, this revremat reads 1"):
        check_lock([MEASUREMENT], lock)


def test_growth_under_another_compiler_names_both(lock):
    newer = dataclasses.replace(grown(GIB), versions="jax 1.0")
    (sentence,) = check_lock([newer], lock)
    assert sentence.endswith("(locked with jax 0.12.0.1; this is jax 1.0)")


def test_tiny_parts_are_left_out(lock):
    entry = json.loads(lock.read_text())["entries"][0]
    assert entry["total_bytes"] == MEASUREMENT.memory.total_bytes
    small = dataclasses.replace(BUFFERS[0], bytes=MIB, scope="small")
    text = lock_text([changed(buffers=(*BUFFERS, small))])
    assert "small" not in text
