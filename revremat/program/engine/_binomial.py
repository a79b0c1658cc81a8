"""Which states of a long loop are kept when: binomial checkpointing in given slots.

The loop's backward pass needs the state before each step, from the last to the first,
and there is room for few. Of all schedules, those of Griewank and Walther (2000,
revolve) run the fewest steps again: from a state that is kept the loop is run on to one
between, which is kept as well, then the part behind is done, then the part before.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb

from revremat._resolve import times_run


@dataclass(frozen=True)
class Binomial:
    """In which slot each state lies, in forward and in backward order.

    Attributes:
      first_slot: Where the state before the first step lies.
      forward: Of each step but the last, the slot that its result is written to.
      begin: Of each step, the kept state from which the state before it is computed
        again, by the number of the step that comes after; its own number where the
        state is kept itself.
      source: Of each step, the slot of that state.
      again: Runs of steps, in the order in which they are run again: the slot that
        their results are written to, and the number of the step to stop before.
      num_states: How many slots there are: as many as states are kept, and one for the
        state that is computed.
    """

    first_slot: int
    forward: tuple[int, ...]
    begin: tuple[int, ...]
    source: tuple[int, ...]
    again: tuple[tuple[int, int], ...]
    num_states: int

    @property
    def last_slot(self) -> int:
        """Where the state before the last step lies."""
        return self.source[-1]


@lru_cache(maxsize=64)
def binomial(num_steps: int, slots: int) -> Binomial:
    """The schedule that runs the fewest steps again.

    Args:
      num_steps: Of the loop, 1 or more.
      slots: How many states may be kept at a time, the first one included.
    """
    slots = min(slots, num_steps)
    free = list(reversed(range(slots + 1)))
    first_slot = free.pop()
    forward: list[int] = []
    again: list[tuple[int, int]] = []
    begin, source = [0] * num_steps, [0] * num_steps
    run_from: tuple[int, int] | None = None
    is_forward = True
    waiting = [(0, num_steps, slots, first_slot)]
    while waiting:
        start, stop, room, slot = waiting.pop()
        if stop - start == 1:
            is_again = run_from is not None and not is_forward
            begin[start], source[start] = run_from if is_again else (start, slot)  # pyright: ignore
            free.append(slot)
            run_from, is_forward = None, False
            continue
        number = _until_next(stop - start, room)
        if run_from is None:
            run_from = start, slot
        into = free.pop()
        if is_forward:
            forward.extend([into] * number)
        else:
            again.append((into, start + number))
        waiting.append((start, start + number, room, slot))
        waiting.append((start + number, stop, room - 1, into))
    return Binomial(
        first_slot, tuple(forward), tuple(begin), tuple(source), tuple(again), slots + 1
    )


def _until_next(num_steps: int, room: int) -> int:
    """After how many steps the next state is kept; with room for none, the last one."""
    if room == 1:
        return num_steps - 1
    times = times_run(num_steps, room)
    reach = comb(room + times - 1, room)
    behind = comb(room + times - 2, room - 1)
    return min(reach, num_steps - behind)
