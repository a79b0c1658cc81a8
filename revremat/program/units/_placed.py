"""How the values of a surveyed program, and of its units' layers, are cut."""

from collections.abc import Mapping

from revremat import _compat
from revremat.program.ir._ops import Op, Program, Value
from revremat.program.ir._placement import Cut, Placement, placement
from revremat.program.units._sites import Site, Survey


def cuts_in(found: Survey, given: Mapping[Value, Cut | None]) -> dict[Value, Cut]:
    """Of the values of a program and of all that its operations hold.

    Args:
      found: The program.
      given: Of its inputs, as far as that is known.
    """
    here = placement(found.program, given)
    cuts = dict(here.cuts)
    for op, places in found.inner.items():
        for _, _, inside in places:
            cuts |= cuts_in(inside, _given(op, inside.program, here))
    return cuts


def layer_placement(
    site: Site, forward: Program, cuts: Mapping[Value, Cut]
) -> Placement:
    """Of the values of a layer's forward pass.

    Args:
      site: Where the layer stands.
      forward: Takes what the site's body takes.
      cuts: Of the program that the site is in.
    """
    stacked = site.num_consts + len(site.carried) if site.is_loop else None
    given = {}
    for number, (outside, inside) in enumerate(
        zip(site.inputs, forward.inputs, strict=True)
    ):
        cut = cuts.get(outside) if isinstance(outside, Value) else None
        if cut is not None and stacked is not None and number >= stacked:
            cut = cut[1:]
        given[inside] = cut
    return placement(forward, given)


def _given(op: Op, inside: Program, here: Placement) -> dict[Value, Cut | None]:
    """What is known of the inputs of a program that an operation holds."""
    taken = op.inputs[1:] if op.kind == "cond" else op.inputs
    if op.kind == "shard_map" or len(taken) != len(inside.inputs):
        return {}
    whole = len(taken)
    if op.kind == "scan":
        whole = sum(_compat.scan_counts(op.eqn))
    cuts = [here.cuts.get(a) if isinstance(a, Value) else None for a in taken]
    return {
        value: cut if cut is None or number < whole else cut[1:]
        for number, (value, cut) in enumerate(zip(inside.inputs, cuts, strict=True))
    }
