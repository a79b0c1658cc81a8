"""What the fields of a reversible module may be, and what they make: NNX's and Linen's.

Both libraries' modules are given the maps of a coupling by name, and its kind.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from revremat._errors import UserError
from revremat.reversible._coupling import Coupling, Halves, Map
from revremat.reversible._couplings import additive, affine, silo
from revremat.reversible._joins import Add, Affine

_KINDS = {"additive": (additive, Add), "affine": (affine, Affine)}


def check_kind(who: str, kind: Any) -> None:
    """Refuses what is no kind of coupling.

    Raises:
      UserError: The sentence.
    """
    if kind not in _KINDS:
        known = " or ".join(map(repr, _KINDS))
        raise UserError(f"{who}: {kind!r} is no kind of coupling; write {known}.")


def check_maps(
    who: str, maps: Mapping[str, Any], is_map: Callable[[Any], bool], wrong: str
) -> None:
    """Refuses what cannot be a map of a coupling.

    Args:
      who: The module's name, for messages.
      maps: Its maps by name.
      is_map: Whether something can be one.
      wrong: What is wrong with all else, and what to give instead.

    Raises:
      UserError: The sentence.
    """
    for name, module in maps.items():
        if not is_map(module):
            kind = type(module).__name__
            raise UserError(f"{who}: {name} is a {kind}, which {wrong}.")


def pair_of(
    maps: Mapping[str, Map], kind: str, *, first: int, halves: bool, has_aux: bool
) -> Coupling:
    """The coupling of maps `f` and `g`, on two streams or on one array's halves."""
    make, _ = _KINDS[kind]
    coupling = make(maps["f"], maps["g"], first=first, has_aux=has_aux)
    return Halves(coupling) if halves else coupling


def silo_of(
    maps: Mapping[str, Map],
    down: Iterable[tuple[int, int]],
    up: Iterable[tuple[int, int]],
    kind: str,
    *,
    num_inputs: int | None,
    has_aux: bool,
) -> Coupling:
    """The coupling of maps `down_0_1`, `up_1_0` and so on, by `(from, to)`."""
    _, join = _KINDS[kind]
    return silo(
        {(i, j): maps[f"down_{i}_{j}"] for i, j in down},
        {(j, i): maps[f"up_{j}_{i}"] for j, i in up},
        join=join(),
        num_inputs=num_inputs,
        has_aux=has_aux,
    )
