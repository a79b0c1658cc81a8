"""The programs of the search benchmark, at real sizes and in smaller ones.

    python -m experiments.bench.programs

compiles each of them for its target and prints what the baseline takes.
"""

from collections.abc import Collection, Iterable

from experiments.bench.programs import (
    mixer,
    patterns,
    residual_nets,
    revbifpn,
    sequences,
    transformers,
    unet,
)
from experiments.bench.programs._entry import SIZES as SIZES
from experiments.bench.programs._entry import Entry as Entry
from experiments.bench.programs._entry import Size as Size
from experiments.bench.programs._entry import State as State
from experiments.bench.programs._entry import values as values

_FAMILIES = (transformers, residual_nets, unet, mixer, sequences, revbifpn, patterns)

PROGRAMS: dict[str, Entry] = {
    entry.name: entry for family in _FAMILIES for entry in family.ENTRIES
}
"""All programs by name: the standard ones first."""


def refusal(names: Iterable[str], known: Collection[str], what: str = "program") -> str:
    """What to say of a name that no program has; nothing if all are known.

    >>> refusal(["gpt3"], ["gpt2_xl", "vit_l_384"])
    "no program 'gpt3'; there are gpt2_xl, vit_l_384"
    """
    for name in names:
        if name not in known:
            return f"no {what} {name!r}; there are {', '.join(known)}"
    return ""
