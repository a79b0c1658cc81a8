"""Keep last: the last layers keep everything, where a stopwatch says what that gains.

The backward pass begins where the forward pass ends. What the last layer recomputes has
its room at once, and keeping it takes the same room. So a last layer that keeps
everything hardly takes more bytes, and recomputes nothing. Costs that add up layer by
layer do not tell that.
"""

from collections.abc import Iterator
from itertools import groupby

from revremat._action import SAVE
from revremat._graph import Unit
from revremat._search._keys import Actions, Request
from revremat._search._layer_costs import SAVE_ALL, SAVE_ALL_UNROLLED, summary
from revremat._search._pass import Ask
from revremat._search._probes import is_loop
from revremat._search._state import State


def keep_last(state: State, ask: Ask) -> State:
    """Measures the best program with as many of its last layers kept as have room.

    Paper says how many those are. Where they are too many, that program does.
    """
    heuristics, budget = state.space.heuristics, state.budget_bytes
    if not heuristics.is_measured or not state.fits or state.space.enclosing:
        return state
    before, room_bytes = state.decided(state.best), budget - state.best.bytes
    most = None
    for _ in range(heuristics.most_kept_last):
        last = list(_last(state, before, room_bytes))[:most]
        if not last:
            break
        request = _kept(state, before, last)
        state = ask(state, [request])
        row = state.rows.get(request.key)  # pyright: ignore[reportArgumentType]
        if row is None or row.bytes <= budget:
            break
        room_bytes, most = room_bytes - (row.bytes - budget), len(last) - 1
    return state


def _last(state: State, actions: Actions, room_bytes: float) -> Iterator[Unit]:
    """The unit of each layer that has room to keep everything, the last one first.

    That one takes no room, unless it keeps everything already. Of what stays a loop the
    last layer is left to be peeled.
    """
    is_free = True
    for unit in reversed(state.units):
        few = actions.get(unit.name, ())
        stays = is_loop(unit) and any(action.unroll is not True for action in few)
        size = lambda action, unit=unit: unit.kept(action).device_bytes
        for action in reversed(() if stays else few):
            if action.kind != SAVE.kind:
                taken = 0 if is_free else size(SAVE) - size(action)
                room_bytes -= taken
                if taken and room_bytes < 0:
                    return
                yield unit
            is_free = False
        is_free = is_free and not few


def _kept(state: State, actions: Actions, last: list[Unit]) -> Request:
    """The program in which so many more of the last layers keep everything."""
    new, runs = dict(actions), {}
    kept = {SAVE: SAVE_ALL, SAVE_ALL_UNROLLED.action: SAVE_ALL_UNROLLED.name}
    for unit in last:
        few = [*new[unit.name]]
        place = max(k for k, action in enumerate(few) if action.kind != SAVE.kind)
        few[place] = SAVE_ALL_UNROLLED.action if is_loop(unit) else SAVE
        new[unit.name] = few
    for unit, few in new.items():
        names = kept | dict(state.costs[unit].names)
        named = groupby(few, lambda action, n=names: n.get(action, str(action)))
        runs[unit] = [(name, len([*run])) for name, run in named]
    return Request(state.key_of(new), summary(runs))
