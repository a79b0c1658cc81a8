"""The timeline: what every stream does when, coarse enough to draw."""

from collections.abc import Iterable
from dataclasses import dataclass

from revremat._measurement._history import Span

MOST_SPANS = 300
STREAMS = ("compute", "collective", "transfer")


@dataclass(slots=True)
class Event:
    """One instruction on its stream, as often as its loop runs it.

    Attributes: see `Span`.
    """

    stream: str
    phase: str
    scope: str
    op: str
    start_us: float
    duration_us: float
    exposed_us: float = 0.0
    times: int = 1

    def repeated(self, start_us: float, trips: float) -> "Event":
        """The same event as part of a loop that starts then and runs so often.

        All trips of one instruction are drawn as one: the body is stretched, so that
        nothing overlaps and all durations add up.
        """
        return Event(
            self.stream,
            self.phase,
            self.scope,
            self.op,
            start_us + trips * self.start_us,
            trips * self.duration_us,
            trips * self.exposed_us,
            round(trips * self.times),
        )


@dataclass(slots=True)
class _Group:
    """Neighbours that are drawn as one."""

    events: list[Event]
    longest: Event
    busy_us: float
    end_us: float

    @staticmethod
    def of(event: Event) -> "_Group":
        end = event.start_us + event.duration_us
        return _Group([event], event, event.duration_us, end)

    def join(self, other: "_Group") -> None:
        self.events += other.events
        self.longest = max(self.longest, other.longest, key=lambda e: e.duration_us)
        self.busy_us += other.busy_us
        self.end_us = other.end_us

    def key(self, depth: int | None) -> tuple[str, tuple[str, ...], int]:
        scope = self.longest.scope.split("/")[:depth]
        return self.longest.phase, tuple(scope), self.longest.times


def spans(events: Iterable[Event], most: int = MOST_SPANS) -> tuple[Span, ...]:
    """Neighbours of one kind put together until about so many are left.

    First those of one phase and scope, then of one outer scope, then of one phase;
    what is too short to be seen joins its neighbour, and what is close together closes
    up. Nothing is dropped: durations and waits of each stream add up as before.

    Args:
      events: In the order they start, on each stream.
      most: How many spans to leave, in all.

    Returns:
      By stream, then by start.
    """
    streams: list[list[_Group]] = [[] for _ in STREAMS]
    for event in events:
        if event.duration_us > 0:
            streams[STREAMS.index(event.stream)].append(_Group.of(event))
    length = max((groups[-1].end_us for groups in streams if groups), default=0.0)
    depths = (None, 3, 2, 1, 0)
    levels = [(d, length * share) for d in depths for share in (1e-9, 3e-4, 1e-3)]
    levels += [(0, length * 2e-3 * 2**n) for n in range(10)]
    for depth, shortest in levels:
        streams = [_joined(groups, depth, shortest) for groups in streams]
        if sum(map(len, streams)) <= most:
            break
    return tuple(_span(group) for groups in streams for group in groups)


def _joined(
    groups: list[_Group], depth: int | None, shortest_us: float
) -> list[_Group]:
    """Joins neighbours of one key, and whatever is shorter than so long."""
    found: list[_Group] = []
    for group in groups:
        if found and group.events[0].start_us - found[-1].end_us <= shortest_us:
            last = found[-1]
            short = min(last.busy_us, group.busy_us) < shortest_us
            if short or last.key(depth) == group.key(depth):
                last.join(group)
                continue
        found.append(group)
    return found


def _span(group: _Group) -> Span:
    most = group.longest
    ops: dict[str, float] = {}
    for event in group.events:
        ops[event.op] = ops.get(event.op, 0.0) + event.duration_us
    seen = [e.scope.split("/") for e in group.events if e.phase == most.phase]
    return Span(
        most.stream,
        most.phase,
        "/".join(_shared(seen)),
        max(ops, key=ops.__getitem__),
        group.events[0].start_us,
        group.busy_us,
        sum(e.exposed_us for e in group.events),
        most.times,
    )


def _shared(paths: list[list[str]]) -> list[str]:
    """What they all begin with."""
    first, last = min(paths), max(paths)
    same = 0
    while same < len(first) and first[same : same + 1] == last[same : same + 1]:
        same += 1
    return first[:same]
