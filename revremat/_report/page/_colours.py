"""Colours of categories: told apart with any kind of colour vision."""

from collections.abc import Iterable

from revremat._measurement import PHASES

_SPARE = ("argument", "forward", "recompute", "backward", "update", "output")


def tones(categories: Iterable[str]) -> dict[str, str]:
    """The name of a colour (a variable of the style sheet) for each category.

    Phases have their own; a user's categories take the phases' colours in turn,
    starting with those that no phase among them has.

    >>> tones(["kernels", "forward"])["kernels"]
    'argument'
    """
    found = {name: name for name in (*PHASES, "fragmentation")}
    names = list(dict.fromkeys(categories))
    spare = [t for t in _SPARE if t not in names] + [t for t in _SPARE if t in names]
    new = [name for name in names if name not in found]
    found.update({name: spare[i % len(spare)] for i, name in enumerate(new)})
    return found | ({"others": "constant"} if "others" in new else {})
