"""Measurement: sums, queries, and JSON that reads back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from revremat._format import format_us
from revremat._measure._read import _unmodeled
from tests.measurements import BUFFERS, GIB, MEASUREMENT, MIB, changed

MEMORY = MEASUREMENT.memory


def test_total_is_argument_plus_output_minus_alias_plus_temp():
    assert MEMORY.total_bytes == 11 * GIB + 256 * MIB


def test_what_is_printed_by_hand_is_one_line():
    one = changed(program="step", target="h100:1")
    took = format_us(one.time.step_us)
    assert repr(one).startswith("<Measurement of 'step' on h100:1: 11.2 GiB of ")
    assert repr(one).endswith(f", {took} a step>")


def test_it_fits_when_step_and_reserve_fit():
    total = MEMORY.total_bytes
    exact = changed(device_bytes=total + 2 * GIB)
    assert (exact.usable_bytes, exact.headroom_bytes) == (total, 0)
    assert exact.fits
    less = changed(device_bytes=total + 2 * GIB - 1)
    assert less.headroom_bytes == -1
    assert not less.fits


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"phase": "forward"}, [0]),
        ({"phase": "re*"}, [3]),
        ({"scope": "layer"}, [0, 3, 4]),
        ({"scope": "layer/attn"}, [0, 4]),
        ({"scope": "layer/at"}, []),
        ({"scope": "lay*/attn"}, [0, 4]),
        ({"scope": "*softmax"}, [0]),
        ({"scope": "state.params['mlp']*"}, [1]),
        ({"scope": "state*['up']"}, [1, 2]),
        ({"source": "*attention.py:*"}, [0]),
        ({"dtype": "bfloat16"}, [0, 3]),
        ({"dtype": "b*16", "phase": "recompute"}, [3]),
        ({"space": "host"}, [6]),
        ({"space": "*"}, [0, 1, 2, 3, 4, 5, 6]),
        ({"scope": "nowhere"}, []),
    ],
)
def test_queries(query, found):
    buffers = MEMORY.where(**query)
    assert list(buffers) == [BUFFERS[n] for n in found]
    assert buffers.bytes == sum(BUFFERS[n].bytes for n in found)
    assert len(buffers) == len(found)


def test_slices_of_buffers_are_buffers():
    buffers = MEMORY.where()
    assert buffers[:2].bytes == 7 * GIB
    assert buffers[0] is BUFFERS[0]


def test_an_unknown_phase_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown phase 'fwd': write one of argument"):
        MEMORY.where(phase="fwd")


def test_sums_by_attributes_are_of_the_device_largest_first():
    assert MEMORY.by("dtype") == {
        ("float32",): 5 * GIB + 768 * MIB,
        ("bfloat16",): 5 * GIB,
    }
    sums = MEMORY.by("phase", "scope")
    assert list(sums.values()) == sorted(sums.values(), reverse=True)
    assert sum(sums.values()) == MEMORY.where().bytes


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_sums_that_are_equal_the_first_name_comes_first(order):
    few = [rr.Buffer(8, (), "f", "forward", name) for name in ("b", "a")]
    few.append(rr.Buffer(9, (), "f", "forward", "c"))
    memory = rr.Memory(0, 0, 0, 25, buffers=tuple(few[k] for k in order))
    assert list(memory.by("scope").items()) == [(("c",), 9), (("a",), 8), (("b",), 8)]
    assert list(memory.by("phase", "dtype").items()) == [(("forward", "f"), 25)]


def test_json_reads_back_as_it_was():
    assert rr.Measurement.from_json(MEASUREMENT.to_json()) == MEASUREMENT
    assert json.loads(MEASUREMENT.to_json())["memory"]["total_bytes"] == (
        MEMORY.total_bytes
    )


words = st.text(max_size=20)
sizes = st.integers(0, 2**50)
buffers = st.builds(
    rr.Buffer,
    sizes,
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    words,
    words,
    words,
    words,
    words,
    words,
    st.none() | sizes,
    sizes,
    sizes,
    sizes,
    st.booleans(),
)


@given(
    st.builds(
        rr.Measurement,
        words,
        words,
        words,
        st.integers(1, 10**6),
        sizes,
        sizes,
        st.builds(
            rr.Memory,
            *[sizes] * 6,
            st.lists(buffers, max_size=4).map(tuple),
        ),
        st.builds(rr.Time, *[st.floats(0, 1e15)] * 9, st.booleans()),
        notes=st.lists(words, max_size=3).map(tuple),
    )
)
def test_any_measurement_reads_back(measurement):
    assert rr.Measurement.from_json(measurement.to_json()) == measurement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        '{"schema": 1}',
        '{"schema": "1"}',
        '{"schema": 1, "memory": {}}',
        MEASUREMENT.to_json().replace('"step_us"', '"step_s"'),
        MEASUREMENT.to_json().replace('"program"', '"programme"'),
        MEASUREMENT.to_json()[:-100],
        MEASUREMENT.to_json().replace(
            '"reserve_bytes": ', '"reserve_bytes": "x", "y": '
        ),
        json.dumps(json.loads(MEASUREMENT.to_json()) | {"device_bytes": "large"}),
        json.dumps(json.loads(MEASUREMENT.to_json()) | {"notes": [3]}),
        json.dumps(json.loads(MEASUREMENT.to_json()) | {"cached": 1}),
    ],
)
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(ValueError, match="not a measurement"):
        rr.Measurement.from_json(text)


def test_a_newer_schema_is_refused():
    newer = json.loads(MEASUREMENT.to_json()) | {"schema": 99}
    with pytest.raises(ValueError, match="schema version 99 and this revremat reads"):
        rr.Measurement.from_json(json.dumps(newer))


def test_a_report_of_schema_1_is_still_read():
    older = json.loads(MEASUREMENT.to_json()) | {"schema": 1}
    added = ("offset_bytes", "start", "end", "padding_bytes", "aliased")
    for buffer in older["memory"]["buffers"]:
        for name in added:
            del buffer[name]
    assert rr.Measurement.from_json(json.dumps(older)) == MEASUREMENT


def test_no_report_of_schema_3_was_of_a_step_that_was_run():
    older = json.loads(MEASUREMENT.to_json()) | {"schema": 3}
    del older["time"]["measured"]
    assert rr.Measurement.from_json(json.dumps(older)) == MEASUREMENT


def test_schema_2_had_another_word_for_fragmentation():
    curve = rr.Curve((0, 4), (("forward", (8, 16)),), fragmentation_bytes=(0, 2))
    memory = dataclasses.replace(MEMORY, curve=curve)
    new = dataclasses.replace(MEASUREMENT, memory=memory)
    older = json.loads(new.to_json()) | {"schema": 2}
    of_curve = older["memory"]["curve"]
    of_curve["holes_bytes"] = of_curve.pop("fragmentation_bytes")
    assert rr.Measurement.from_json(json.dumps(older)) == new


def test_a_word_of_an_older_schema_is_none_of_this_one():
    curve = rr.Curve((0, 4), (("forward", (8, 16)),), fragmentation_bytes=(0, 2))
    new = dataclasses.replace(
        MEASUREMENT, memory=dataclasses.replace(MEMORY, curve=curve)
    )
    text = new.to_json().replace('"fragmentation_bytes": [', '"holes_bytes": [')
    with pytest.raises(ValueError, match=r"not a measurement.*holes_bytes"):
        rr.Measurement.from_json(text)


@pytest.mark.parametrize(
    ("columns", "peak"),
    [
        ([], 0),
        ([[]], 0),
        ([[1, 3, 2]], 1),
        ([[1, 2], [2, 1]], 0),
        ([[0, 5], [4, 0]], 1),
    ],
)
def test_a_curves_peak_is_the_first_place_with_most(columns, peak):
    parts = tuple((f"c{k}", tuple(one)) for k, one in enumerate(columns))
    positions = tuple(range(len(columns[0]))) if columns else ()
    assert rr.Curve(positions, parts).peak == peak


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ({}, None),
        ({"one": 1}, "1 call of one has"),
        ({"one": 2}, "2 calls of one have"),
        ({"one": 1, "two": 1}, "1 call of one, 1 call of two have"),
        (dict.fromkeys("abcd", 2), ", 2 calls of d have"),
        (dict.fromkeys("abcde", 2), ", 2 calls of d, 1 more kinds have"),
        (dict.fromkeys("abcdef", 2), ", 2 calls of d, 2 more kinds have"),
        ({"n" * 61: 1}, f"1 call of {'n' * 60} has"),
    ],
)
def test_calls_without_a_time_model_are_named_up_to_four(calls, told):
    notes = _unmodeled(calls)
    assert len(notes) == (told is not None)
    assert all(told + " no time model: " in note for note in notes)


def test_a_span_is_of_one_run_and_waited_for_by_nobody_unless_it_says_so():
    span = rr.Span("compute", "forward", "layer", "dot", 0.0, 5.0)
    assert (span.exposed_us, span.times) == (0.0, 1)
