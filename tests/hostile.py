"""Plans that somebody changed: a seeded mutator over their JSON."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

STRINGS = (
    "",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a\nrevremat: all is well",
    "\u202egnp.exe",
    "\u2066hidden\u2069",
    "\ud800",
    "\ufeff\u200b",
    "\x00",
    "[bold red]markup[/]",
    "{0.__class__} %s %n",
    "'quotes\" \\",
    "x" * 100_000,
    "é" * 3000,
    "h100:999999",
    "stack",
    "input",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**300,
    10**4999,
    1.5,
    -0.0,
    1e300,
    float("inf"),
    float("nan"),
)
OTHERS = (None, True, False, [], {}, [[]], {"schema": 4}, ["save"], [None], "3")


def mutated(text: str, rng: random.Random) -> str:
    """One to four changes to a JSON text, somewhere in its values or its letters."""
    data = json.loads(text)
    for _ in range(rng.randint(1, 4)):
        data = _changed(data, rng)
    try:
        found = _dumps(data)
    except RecursionError:
        found = text
    if rng.random() < 0.15:
        found = _spelled(found, rng)
    return found


def _dumps(data: Any) -> str:
    """As `json.dumps`, for numbers of any length, too."""
    long = {}

    def short(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) > 10**18:
            mark = f"<{len(long)}>"
            long[f'"{mark}"'] = _digits(value)
            return mark
        if isinstance(value, dict):
            return {key: short(one) for key, one in value.items()}
        return [short(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(short(data))
    for mark, digits in long.items():
        text = text.replace(mark, digits)
    return text


def _digits(value: int) -> str:
    return "1" + "0" * 4999 if value == NUMBERS[10] else str(value)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and a key or an index in it."""
    if isinstance(data, dict | list):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key])


def _changed(data: Any, rng: random.Random) -> Any:
    places = list(_places(data))
    if not places or rng.random() < 0.02:
        return rng.choice(OTHERS)
    container, key = rng.choice(places)
    value = container[key]
    match rng.randrange(9):
        case 0:
            container[key] = rng.choice(STRINGS)
        case 1:
            container[key] = rng.choice(NUMBERS)
        case 2:
            container[key] = copy.deepcopy(rng.choice(OTHERS))
        case 3:
            del container[key]
        case 4 if isinstance(container, dict):
            container[rng.choice(STRINGS)] = container.pop(key)
        case 5 if isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        case 6 if isinstance(value, str):
            at = rng.randint(0, len(value))
            container[key] = value[:at] + rng.choice(STRINGS) + value[at:]
        case 7 if type(value) is int and abs(value) < 2**70:
            container[key] = value + rng.choice((-1, 1, 2, 10**6))
        case 8:
            deep: Any = value
            for _ in range(rng.choice((2, 20, 60))):
                deep = [deep]
            container[key] = deep
        case _:
            other, there = rng.choice(places)
            if there in other if isinstance(other, dict) else there < len(other):
                container[key] = copy.deepcopy(other[there])
    return data


def _spelled(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    match rng.randrange(5):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + rng.choice(("\x1b", "\u202e", ",", "]", '"', "\x00"))
        case 2:
            return text[:at] + "[" * rng.choice((3, 100_000)) + text[at:]
        case 3:
            return rng.choice(("\ufeff", " ", "//")) + text
        case _:
            return text[:at] + text[at + 1 :]


NAMES = ("hidden", "input", "dot_general", "stack", "", "hid\x1b[1mden", "other")


def plausible(text: str, rng: random.Random) -> str:
    """One to three changes after which a plan may still be one."""
    data = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        runs = [run for unit in data["units"] for run in unit["actions"]]
        run, lists = (
            rng.choice(runs),
            ("save", "offload", "ahead", "on_device", "on_host"),
        )
        match rng.randrange(8):
            case 0:
                run["kind"] = rng.choice(("save", "recompute", "offload", "invert"))
            case 1:
                run["unroll"] = not run["unroll"]
            case 2:
                run[rng.choice(("chunks", "segment_length"))] = rng.choice(
                    (2, 3, 4, 2**63 - 1)
                )
            case 3:
                run["layers"] = rng.choice((1, 2, 3, 5, 99_999))
            case 4:
                data["gradient_barrier"] = not data["gradient_barrier"]
            case 5:
                unit = rng.choice(data["units"])
                unit[rng.choice(("name", "fingerprint"))] = rng.choice(NAMES)
            case 6:
                data[rng.choice(("target", "jax_version"))] = rng.choice(STRINGS)
            case _:
                run[rng.choice(lists)] = rng.sample(NAMES, rng.randint(0, 3))
    return json.dumps(data)
