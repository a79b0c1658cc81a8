"""Shortlist: which units of a program are worth how many compiles.

A program may have dozens of units, a U-Net for one. Every candidate of every unit is a
compile, and bytes are held by few of them.
"""

from collections.abc import Mapping, Sequence

from revremat._graph import Unit
from revremat.policies._candidate import Candidate

MOST_PROBED = 6
_LEAST_SHARE = 0.005
_SIMPLE = ("recompute all", "save all")


def bytes_in_question(unit: Unit, candidates: Sequence[Candidate]) -> int:
    """Between the candidate that keeps most and the one that keeps least."""
    kept = [unit.kept(c.action).device_bytes for c in candidates]
    return unit.num_layers * (max(kept) - min(kept))


def shortlist(
    all_options: Mapping[str, Sequence[Candidate]], units: Sequence[Unit]
) -> dict[str, tuple[Candidate, ...]]:
    """What is costed of all candidates, unit by unit, in order of the units.

    Units that hold less than half a percent of all these bytes are left out, to stay
    unchanged. Beyond the six largest, units are left to keep all or nothing.

    Args:
      all_options: From unit to its candidates; units with one are left out.
      units: The units.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import candidates, shortlist
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> unit = rr.trace(loss, w, x)["stack"]
      >>> list(shortlist({"stack": candidates(unit)}, [unit]))
      ['stack']
    """
    in_question = {
        u.name: bytes_in_question(u, all_options[u.name])
        for u in units
        if len(all_options.get(u.name, ())) > 1
    }
    by_name = {u.name: u for u in units}
    total = sum(in_question.values())
    largest = sorted(in_question, key=lambda name: -in_question[name])
    found = {}
    for name, num_bytes in in_question.items():
        if num_bytes < _LEAST_SHARE * total:
            continue
        costed = largest.index(name) < MOST_PROBED
        found[name] = (
            tuple(all_options[name])
            if costed
            else _two(by_name[name], all_options[name])
        )
    return found


def _two(unit: Unit, unit_options: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """All or nothing; where these are the same, and one of them, what keeps least."""
    simple = [c for c in unit_options if c.name in _SIMPLE]
    others = [c for c in unit_options if c.name not in _SIMPLE]
    others.sort(key=lambda c: unit.kept(c.action).device_bytes)
    return tuple([*simple, *others][: len(_SIMPLE)])
