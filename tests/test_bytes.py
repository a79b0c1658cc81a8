"""Bytes and times, as people write and read them."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from revremat import UserError
from revremat._format import format_bytes, format_us, parse_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (1, 1),
        (np.int64(2**40), 2**40),
        (123_456_789_012, 123_456_789_012),
        ("60GiB", 60 * 2**30),
        ("60 gib", 60 * 2**30),
        (" 1.5GiB ", 3 * 2**29),
        ("512MiB", 2**29),
        ("3KiB", 3072),
        ("2TiB", 2**41),
        ("80GB", 80 * 10**9),
        ("0.5 MB", 500_000),
        ("7kB", 7000),
        ("1TB", 10**12),
        ("17B", 17),
        ("75%", 750),
        ("100 %", 1000),
        ("12.5%", 125),
        (np.int64(7), 7),
        (jnp.int32(7), 7),
    ],
)
def test_what_may_be_written(text, number):
    assert parse_bytes(text, usable_bytes=1000) == number


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        *((text, "is no number of bytes") for text in ("60 gigs", "GiB", "", "1e9B")),
        *((text, "is no number of bytes") for text in ("1,5GiB", "60GiB 1", "0x10B")),
        *((text, "is no number of bytes") for text in ("1.GiB", None, True)),
        *((text, "has no unit") for text in ("60", 2.5, "-3")),
        *((text, "is not above zero") for text in ("-1GiB", "0GiB", "0%")),
        ("101%", "is more than there is"),
        *((text, "is less than a byte") for text in ("0.4B", "0.01%")),
        *((text, "is beyond 64 bits") for text in ("9" * 30 + "GiB", "8" * 20 + "B")),
    ],
)
def test_anything_else_is_told_what_to_write(text, wrong):
    sentence = f"{text!r} {wrong}: write one like '60GiB', '512MiB' or '75%'"
    with pytest.raises(UserError, match=re.escape(sentence)):
        parse_bytes(text, usable_bytes=1000)


@pytest.mark.parametrize("number", [0, -5])
def test_a_budget_of_nothing_is_refused(number):
    with pytest.raises(UserError, match=f"{number} bytes is not above zero"):
        parse_bytes(number)


def test_a_share_needs_something_to_be_a_share_of():
    with pytest.raises(UserError, match="'75%' is no number of bytes"):
        parse_bytes("75%")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (123 * 1024, "123 KiB"),
        (1000 * 1024, "0.98 MiB"),
        (2**30, "1.00 GiB"),
        (-3 * 2**29, "-1.50 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_for_people(number, text):
    assert format_bytes(number) == text


@example(10_732_049_531)  # a little less than 10 GiB
@example(107_374_000_000)
@given(st.integers(1, 2**55))
def test_what_is_shown_can_be_written(number):
    text = format_bytes(number)
    assert parse_bytes(text) == pytest.approx(number, rel=0.011)
    assert len(text) <= len("9.99 GiB") or number >= 1000 * 2**40


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"),
        (12.4, "12 us"),
        (999, "999 us"),
        (1000, "1.00 ms"),
        (43_210, "43.2 ms"),
        (297_400, "297 ms"),
        (1.5e6, "1.50 s"),
        (3.2e8, "320 s"),
    ],
)
def test_times_for_people(us, text):
    assert format_us(us) == text
