"""What is read from a file of others: its numbers, its keys and its types."""

import dataclasses

import pytest

from revremat._io import _json
from revremat._io._types import check_types


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", 1 - 2**63),
        ("0.5e1", 5.0),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("-1e308", -1e308),
        ("1e-400", 0.0),
        ("true", True),
    ],
)
def test_numbers_of_64_bits_are_read(text, found):
    assert _json.parse_json(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9223372036854775808", "a number of 19 digits, which is beyond 64 bits"),
        ("-9223372036854775808", "a number of 19 digits"),
        ("10000000000000000000", "a number of 20 digits"),
        ("-10000000000000000000", "a number of 20 digits"),
        ("1e309", "the number 1e309, which is beyond 64 bits"),
        ("-1e309", "the number -1e309, which is beyond 64 bits"),
        ("1" * 10 + "0" * 400 + ".5", "the number 11111111110000000000, which"),
        ("Infinity", "the number Infinity, which is none"),
        ("[" * 200_000, "it is nested too deeply"),
    ],
)
def test_other_numbers_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        _json.parse_json(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"schema": 4}, "version 4 and .* up to 3; install a newer"),
        ({"schema": 0}, "version 0, which there is not; versions are 1 to 3"),
        ({"schema": True}, "no schema version"),
        ({"schema": "1"}, "no schema version"),
        ({}, "no schema version"),
        ([1], "no schema version"),
    ],
)
def test_only_schemas_that_there_are_are_read(data, reason):
    assert [_json.schema_of({"schema": n}, 3) for n in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(ValueError, match=reason):
        _json.schema_of(data, 3)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        ({}, int, "'n' is missing"),
        ([], int, "'n' is missing"),
        ({"n": -1}, int, "'n' is -1"),
        ({"n": "1"}, int, "'n' is '1'"),
        ({"n": True}, int, "'n' is True"),
        ({"n": 1}, str, "'n' is 1"),
    ],
)
def test_a_key_is_there_and_of_its_kind(data, kind, reason):
    assert [_json.typed({"n": n}, "n", int) for n in (0, 1)] == [0, 1]
    assert _json.typed({"n": -1.5}, "n", float) == -1.5
    with pytest.raises(ValueError, match=reason):
        _json.typed(data, "n", kind)


def test_flags_are_false_where_they_are_missing():
    assert [_json.flag(d, "f") for d in ({}, {"f": True}, {"f": False})] == [0, 1, 0]
    with pytest.raises(ValueError, match="'f' is 1"):
        _json.flag({"f": 1}, "f")


def test_names_are_texts():
    assert _json.names({"n": ["a", "b"]}, "n") == ("a", "b")
    assert _json.names({"n": []}, "n") == ()
    with pytest.raises(ValueError, match=r"'n' is \['a', 1\]"):
        _json.names({"n": ["a", 1]}, "n")


@dataclasses.dataclass
class Inner:
    size: int


@dataclasses.dataclass
class Noun:
    number: int = 1
    share: float = 0.5
    text: str | None = None
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, str] = (1, "a")
    inner: Inner = dataclasses.field(default_factory=lambda: Inner(1))
    inners: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    "fields", [{}, {"share": 2}, {"text": "a"}, {"sizes": ()}, {"inners": (Inner(2),)}]
)
def test_a_noun_of_the_right_types_is_taken(fields):
    check_types(Noun(**fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"number": "1"}, "number is '1', not int"),
        ({"number": True}, "number is True, not int"),
        ({"number": 1.0}, "number is 1.0, not int"),
        ({"share": "x"}, "share is 'x', not float"),
        ({"share": True}, "share is True, not float"),
        ({"text": 3}, "text is 3, not str | None"),
        ({"sizes": [1]}, "sizes is [1], not tuple"),
        ({"sizes": (1, "2")}, "sizes is (1, '2'), not tuple"),
        ({"pair": (1, 2)}, "pair is (1, 2), not tuple"),
        ({"pair": ("a", 1)}, "pair is ('a', 1), not tuple"),
        ({"pair": (1,)}, "pair is (1,), not tuple"),
        ({"pair": (1, "a", 2)}, "pair is (1, 'a', 2), not tuple"),
        ({"inner": 4}, "inner is 4, not Inner"),
        ({"inner": Inner("x")}, "inner.size is 'x', not int"),  # pyright: ignore
        ({"inners": (Inner(1), Inner("y"))}, "inners[1].size is 'y', not int"),  # pyright: ignore
        ({"text": 3, "number": "x" * 99}, f"number is '{'x' * 59}, not int"),
    ],
)
def test_of_another_type_it_says_which_and_what(fields, reason):
    with pytest.raises(TypeError) as caught:
        check_types(Noun(**fields))
    assert str(caught.value).startswith(reason)
