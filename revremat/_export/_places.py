"""Where in the user's code a value can be tagged, and what stands in for others."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from revremat._graph import Operation, Unit
from revremat._primitives import KEEPS_RESULT
from revremat._sources import CALLED_AT

_MOST_LISTED = 4


@dataclass(frozen=True)
class Tag:
    """A value that can be tagged by its user.

    Attributes:
      name: What the policy calls it.
      given: Whether it has that tag already.
      array: Its dtype and shape, as text.
      where: Words on where it is made, with `file:line`.
      is_within: Whether an expression has to be split to reach it.
    """

    name: str
    given: bool
    array: str
    where: str
    is_within: bool = False


class Places:
    """What of a unit's values can be tagged where.

    Args:
      unit: Of a graph.
    """

    def __init__(self, unit: Unit):
        self.unit = unit

    @cached_property
    def _users(self) -> dict[int, list[Operation]]:
        """The operations that take a value."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for op in self.unit.operations:
            for k in dict.fromkeys(op.inputs):
                found[k].append(op)
        return found

    @cached_property
    def of_the_derivative(self) -> frozenset[str]:
        """Values that the layer itself never makes, such as the cosine for a sine."""
        needed = set(self.unit.outputs)
        for op in reversed(self.unit.operations):
            if needed.intersection(op.outputs):
                needed.update(op.inputs)
        made = {k for op in self.unit.operations for k in op.outputs}
        return frozenset(self.unit.values[k].name for k in made - needed)

    def kept_otherwise(self, name: str) -> str:
        """The function whose derivative keeps its result in a form no tag reaches."""
        maker = self.unit.maker.get(self.unit.position[name])
        return maker.kind if maker and maker.kind in KEEPS_RESULT else ""

    def tag(self, name: str) -> Tag | None:
        """What to tag so that this value, or all that is made of it, is there.

        Where nothing but the next value is made of one, and no derivative takes it,
        the next may stand in: one inside of a library's call has no tag. A tag that is
        there already is taken first, then what needs no expression to be split.

        Returns:
          None where there is no place in the user's code.
        """
        if name in self.of_the_derivative:
            return None
        chain = (self._tag_of(k) for k in self._chain(self.unit.position[name]))
        tags = [tag for tag in chain if tag is not None]
        return min(tags, key=lambda tag: (not tag.given, tag.is_within), default=None)

    def _chain(self, k: int) -> list[int]:
        """A value and those that may stand in for it, the nearest first."""
        chain, wanted = [k], {*self.unit.residuals_of, *self.unit.outputs}
        while chain[-1] not in wanted:
            following = self._users[chain[-1]]
            if len(following) != 1 or following[0].effectful:
                break
            made = following[0].outputs
            sizes = [self.unit.values[one].num_bytes for one in (chain[-1], *made)]
            if len(made) != 1 or sizes[1] > sizes[0] or following[0].compute_intensive:
                break
            chain.append(made[0])
        return chain

    def _tag_of(self, k: int) -> Tag | None:
        value = self.unit.values[k]
        if not value.name or value.name in self.of_the_derivative:
            return None
        array = f"{value.dtype}{list(value.shape)}"
        if value.given:
            return Tag(value.name, True, array, "")
        if value.role == "input":
            return Tag(value.name, False, array, "the layer is given")
        maker = self.unit.maker.get(k)
        if maker is None or not (place := users_place(maker.source)):
            return None
        last = all(users_place(op.source) != place for op in self._users[k])
        if CALLED_AT in maker.source:
            if not last:
                return None
            return Tag(value.name, False, array, f"that the call at {place} returns")
        made = f"that {maker.kind} makes"
        inside = "at" if last else "within the expression at"
        return Tag(value.name, False, array, f"{made} {inside} {place}", not last)


def users_place(source: str) -> str:
    """The user's `file:line (function)` of an operation; "" where there is none.

    >>> users_place("lib.py:7 (dense), called at mine.py:3 (layer)")
    'mine.py:3 (layer)'
    """
    place = source.rpartition(CALLED_AT)[2]
    return place.removeprefix(os.getcwd() + os.sep)


class Lost:
    """What cannot be said elsewhere: a sentence for each reason, however many units."""

    def __init__(self):
        self._units: dict[str, Counter[str]] = {}
        self._names: dict[str, dict[str, None]] = {}

    def add(self, reason: str, unit: str = "", names: Sequence[str] = ()) -> None:
        """Notes a reason once more.

        Args:
          reason: A sentence; `{names}` in it stands for all names.
          unit: Where, if not everywhere.
          names: Of what.
        """
        self._units.setdefault(reason, Counter())[unit] += 1
        self._names.setdefault(reason, {}).update(dict.fromkeys(names))

    def sentences(self) -> tuple[str, ...]:
        """One for each reason, in the order in which they came up."""
        found = []
        for reason, units in self._units.items():
            text = reason.replace("{names}", _listed(list(self._names[reason])))
            places = [repr(unit) for unit in units if unit]
            if places:
                text = f"unit{'s' * (len(places) > 1)} {_listed(places)}: {text}"
            found.append(text)
        return tuple(found)


def _listed(words: Sequence[str]) -> str:
    """`a, b, c, d and 3 more`."""
    shown, rest = words[:_MOST_LISTED], len(words) - _MOST_LISTED
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
