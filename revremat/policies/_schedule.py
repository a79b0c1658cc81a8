"""Which segments of a program are recomputed, alone or in groups: an integer program.

Segments follow one another. In the backward pass, while one of them is differentiated,
there is what segments before it keep, what it recomputes, and gradients that wait. The
peak is the largest over these moments, one linear constraint each, as in Checkmate
(Jain et al., 2020) on the graph of segments. A group of segments may be recomputed as
one, keeping only what it is given; its segments are then differentiated one by one, and
may be recomputed once more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy  # its parts are imported when they are first used
from jaxtyping import Float

from revremat._action import RECOMPUTE, Action
from revremat.policies._quiet import without_lines
from revremat.policies._regression import Prior, below_and_at

_MOST_NODES = 2_000
_MOST_ROUNDS = 4
_LEAST_OFF = 0.5
"""Of what choices take on average: how far off the model is of any, at least."""
_ALL_OFF = 1.0
"""Of each: how far off the model may be of all together, by the same share."""
_NOISE = 0.05
"""Of how far off the model can be: by what depends on more than one choice."""
_SIZES_OFF = 0.5
"""Of what is kept by one way: how far off the model is beyond what all ways are."""
_LESS_ELSEWHERE = 0.3
"""Of what the peak counts: the mean over all moments, of which any may be the peak."""


@dataclass(frozen=True)
class Way:
    """What a segment or a group of them takes under one action.

    Attributes:
      action: The action; None to leave it as it is.
      kept: Numbers of the values it keeps that others may keep, too.
      kept_bytes: Size of all else it keeps.
      working_bytes: What is there beside while it is differentiated.
      time_us: What it takes more than keeping all.

    Example:
      >>> from revremat.policies import Way
      >>> Way(None, frozenset(), 64.0, 32.0, 0.0).kept_bytes
      64.0
    """

    action: Action | None
    kept: frozenset[int]
    kept_bytes: float
    working_bytes: float
    time_us: float


@dataclass(frozen=True)
class Segment:
    """A segment and its ways.

    Attributes:
      name: The unit's.
      ways: What it may do.
      again_us: What running it forward once more takes.
      waiting_bytes: Gradients that wait while it is differentiated.

    Example:
      >>> from revremat.policies import Segment
      >>> Segment("segment_0", (), again_us=2.0, waiting_bytes=8.0).name
      'segment_0'
    """

    name: str
    ways: tuple[Way, ...]
    again_us: float
    waiting_bytes: float


@dataclass(frozen=True)
class Group:
    """Segments that follow one another.

    Attributes:
      segments: In the order they run.
      name: The unit's, "" if there is none around them.
      ways: What the unit may do as one.
      given: Numbers of what it keeps where it is recomputed.

    Example:
      >>> from revremat.policies import Group, Segment
      >>> len(Group((Segment("segment_0", (), 2.0, 8.0),)).segments)
      1
    """

    segments: tuple[Segment, ...]
    name: str = ""
    ways: tuple[Way, ...] = ()
    given: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Schedule:
    """What is done with each unit; those left out stay as they are.

    Attributes:
      actions: From unit to its action.
      bytes: What is expected.
      time_us: What is expected beyond keeping all.

    Example:
      >>> from revremat.policies import Schedule
      >>> Schedule({}, bytes=64.0, time_us=0.0).bytes
      64.0
    """

    actions: Mapping[str, Action]
    bytes: float
    time_us: float


@dataclass(frozen=True)
class Chain:
    """All groups of a program, in the order they run.

    Attributes:
      groups: The groups.
      sizes: Of values that several of them may keep, by their numbers.
      times_us: What choices take more than keeping all, where ways say otherwise.
      sizes_of: From a unit and its action to what it keeps beside shared values, and
        what is there while it is differentiated, where ways say otherwise.

    Example:
      >>> import revremat as rr
      >>> from revremat.policies import Chain, Group, Segment, Way
      >>> keep = Way(None, frozenset(), 64.0, 8.0, 0.0)
      >>> again = Way(rr.RECOMPUTE, frozenset(), 0.0, 32.0, 2.0)
      >>> parts = [Segment(f"segment_{k}", (keep, again), 2.0, 0.0) for k in (0, 1)]
      >>> chain = Chain(tuple(Group((part,)) for part in parts))
      >>> chain.schedule(100.0).actions
      {'segment_0': RECOMPUTE}
    """

    groups: tuple[Group, ...]
    sizes: Mapping[int, float] = field(default_factory=dict)
    times_us: Mapping["_Key", float] = field(default_factory=dict)
    sizes_of: Mapping[tuple[str, Action | None], tuple[float, float]] = field(
        default_factory=dict
    )

    def schedule(
        self,
        limit_bytes: float | None,
        excluding: Sequence[tuple[Mapping[str, Action], int]] = (),
        near: tuple[Mapping[str, Action], int] | None = None,
    ) -> Schedule | None:
        """The fastest schedule within a limit, or without one the smallest.

        Args:
          limit_bytes: What it may take; None for as little as can be.
          excluding: Schedules that shall not come again, by their actions, and in how
            many units another one has to differ, at least.
          near: Actions, and in how many units it may differ from them, at most.

        Returns:
          A schedule, or None where there is none.
        """
        rows = _Rows(self)
        return rows.solve(limit_bytes, excluding, near)

    def predict(self, actions: Mapping[str, Action]) -> tuple[float, float]:
        """Bytes and time of a schedule by its actions."""
        rows = _Rows(self)
        chosen = rows.chosen(actions)
        return max(rows.moments(chosen)), rows.time_us(chosen)

    def timed(
        self,
        known: Sequence[tuple[Mapping[str, Action], float]],
        optimism: float = 0.0,
    ) -> "Chain":
        """The same, set right by how long schedules really take.

        Each choice's time is as uncertain as it is long, and none is certain: one that
        the model takes for nothing may cost, or gain. What schedules take tells of the
        sums of their choices, and the likeliest times are those least off for that
        (linear regression with a Gaussian prior).

        Args:
          known: Schedules with what they take more than keeping all.
          optimism: As of `sized`.
        """
        rows = _Rows(replace(self, times_us={}))
        choices = {one.key: one for one in rows.choices if not one.is_nothing}
        if not (choices and known):
            return replace(self, times_us={})
        place = {key: k for k, key in enumerate(choices)}
        mean = np.array([one.way.time_us for one in choices.values()])
        off = np.abs(mean) + _LEAST_OFF * float(np.abs(mean).mean())
        noise = _NOISE * max(1e-9, float(off.max()))
        prior = Prior(mean, off, _ALL_OFF, np.ones((1, len(mean))), noise)
        taken = np.zeros((len(known), len(mean)))
        for row, (actions, _) in zip(taken, known, strict=True):
            row[[place[c.key] for c in rows.chosen(actions) if c.key in place]] = 1.0
        likely = prior.given(taken, np.array([us for _, us in known]))
        times = likely.values - optimism * likely.off
        return replace(self, times_us=dict(zip(choices, times.tolist(), strict=True)))

    def sized(
        self,
        known: Sequence[tuple[Mapping[str, Action], float]],
        optimism: float = 0.0,
    ) -> "Chain":
        """The same with the likeliest sizes of what is kept, by what schedules take.

        Compilers compute much where it is used and never store it. So all sizes may be
        off by the same share, and each by itself; values that pass from one segment to
        another are there for sure.

        Args:
          known: Schedules with their bytes.
          optimism: How much smaller sizes are taken for, in standard deviations: what
            is not known well may be small.
        """
        rows = _Rows(replace(self, sizes_of={}))
        ways = {(c.unit, c.way.action): c.way for c in rows.choices if not c.opens}
        kept, working = (
            np.array([getattr(way, name) for way in ways.values()], float)
            for name in ("kept_bytes", "working_bytes")
        )
        mean = np.concatenate([kept, working])
        if not (known and mean.sum()):
            return replace(self, sizes_of={})
        off = _SIZES_OFF * (mean + _LEAST_OFF * float(mean.mean()))
        names = np.array([unit for unit, _ in ways] * 2)
        alike = np.stack([names == names, *(names == one for one in sorted({*names}))])
        alike = alike.astype(float)
        prior = Prior(mean, off, _ALL_OFF, alike, _NOISE * float(mean.max()))
        found = [rows.parts(rows.chosen(actions), [*ways]) for actions, _ in known]
        peaks = [size for _, size in known]
        taken, beside = zip(*found, strict=True)
        likely = below_and_at(prior, taken, beside, peaks, _MOST_ROUNDS)
        sizes = np.maximum(0.0, likely.values - optimism * likely.off)
        kept, working = sizes.reshape(2, -1).tolist()
        pairs = zip(kept, working, strict=True)
        return replace(self, sizes_of=dict(zip(ways, pairs, strict=True)))


_Key = tuple[str, Action | None, str, str]


@dataclass(frozen=True)
class _Choice:
    """One variable: a way is taken; of a group's segments, within it or not."""

    unit: str
    way: Way
    first: int
    last: int
    within: str = ""
    covers: tuple[int, ...] = ()
    opens: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether it is what the baseline does."""
        return self.way.action is None and not (self.within or self.opens)

    @property
    def key(self) -> _Key:
        """Which one it is."""
        return self.unit, self.way.action, self.within, self.opens


class _Rows:
    """Variables and constraints of the integer program."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.choices: list[_Choice] = []
        self.waiting: list[float] = []
        self.group_of: list[str] = []
        for group in chain.groups:
            self._enter(group)
        self.choices = [replace(c, way=self._known(c)) for c in self.choices]
        self.size = len(self.choices)

    def _known(self, one: _Choice) -> Way:
        """A choice's way, by what was learned of it."""
        way = one.way
        if one.key in self.chain.times_us:
            way = replace(way, time_us=self.chain.times_us[one.key])
        if not one.opens and (one.unit, way.action) in self.chain.sizes_of:
            kept, working = self.chain.sizes_of[one.unit, way.action]
            way = replace(way, kept_bytes=kept, working_bytes=working)
        return way

    def _enter(self, group: Group) -> None:
        start = len(self.waiting)
        stop = start + len(group.segments)
        for k, segment in enumerate(group.segments, start):
            self.waiting.append(segment.waiting_bytes)
            self.group_of.append(group.name)
            for way in segment.ways:
                self.choices.append(_Choice(segment.name, way, k, k, covers=(k,)))
        for way in group.ways:
            covers = tuple(range(start, stop))
            self.choices.append(
                _Choice(group.name, way, start, stop - 1, covers=covers)
            )
        if not group.ways:
            return
        again = sum(segment.again_us for segment in group.segments[:-1])
        way = Way(RECOMPUTE, group.given, 0.0, 0.0, again)
        self.choices.append(_Choice(group.name, way, start, stop - 1, opens=group.name))
        for k, segment in enumerate(group.segments, start):
            for way in segment.ways:
                if way.action is None and k == stop - 1:
                    way = replace(way, time_us=way.time_us + segment.again_us)
                self.choices.append(
                    _Choice(segment.name, way, k, k, group.name, covers=(k,))
                )

    # ---- What a choice of variables comes to -----------------------------------------

    def chosen(self, actions: Mapping[str, Action]) -> list[_Choice]:
        """The variables that are on under given actions."""
        return [one for one in self.choices if self._is_on(one, actions)]

    def _is_on(self, one: _Choice, actions: Mapping[str, Action]) -> bool:
        group = self.group_of[one.first]
        around = actions.get(group) if group else None
        inside = any(
            c.unit in actions
            for c in self.choices
            if c.unit != group and self.group_of[c.first] == group
        )
        is_open = around == RECOMPUTE and inside
        if one.opens or one.within:
            mine = one.opens or actions.get(one.unit) == one.way.action
            return is_open and bool(mine)
        if one.unit == group:
            return around is not None and not is_open and around == one.way.action
        return around is None and actions.get(one.unit) == one.way.action

    def moments(self, chosen: Sequence[_Choice]) -> list[float]:
        """Bytes while each segment is differentiated."""
        found = []
        for k, waiting in enumerate(self.waiting):
            kept: set[int] = set()
            total = waiting
            for one in chosen:
                if one.first <= k and one.within in ("", self.group_of[k]):
                    kept |= one.way.kept
                    total += one.way.kept_bytes
                if k in one.covers:
                    total += one.way.working_bytes
            found.append(total + sum(self.chain.sizes[v] for v in kept))
        return found

    def parts(
        self, chosen: Sequence[_Choice], units: Sequence[tuple[str, Action | None]]
    ) -> tuple[Float[np.ndarray, "moments sizes"], Float[np.ndarray, " moments"]]:
        """Of which ways' sizes each moment's bytes are a sum, and what is beside.

        Args:
          chosen: The variables that are on.
          units: Units with their actions: first what they keep, then what is there
            while they are differentiated.
        """
        place = {key: k for k, key in enumerate(units)}
        taken = np.zeros((len(self.waiting), 2 * len(units)))
        for k in range(len(self.waiting)):
            for one in chosen:
                at = None if one.opens else place[one.unit, one.way.action]
                if at is None:
                    continue
                if one.first <= k and one.within in ("", self.group_of[k]):
                    taken[k, at] += 1
                if k in one.covers:
                    taken[k, at + len(units)] += 1
        beside = [
            replace(c, way=replace(c.way, kept_bytes=0.0, working_bytes=0.0))
            for c in chosen
        ]
        return taken, np.array(self.moments(beside))

    def time_us(self, chosen: Sequence[_Choice]) -> float:
        """What they take more than keeping all."""
        return sum(one.way.time_us for one in chosen)

    # ---- The integer program ---------------------------------------------------------

    def solve(
        self,
        limit: float | None,
        excluding: Sequence[tuple[Mapping[str, Action], int]],
        near: tuple[Mapping[str, Action], int] | None,
    ) -> Schedule | None:
        sizes, choices = self.chain.sizes, self.choices
        keys = sorted(self._lifetimes())
        column = {key: self.size + n for n, key in enumerate(keys)}
        peak = self.size + len(keys)
        scale = max(1.0, limit or sum(sizes.values()))
        rows = _Matrix(peak + 1)
        for k in range(len(self.waiting)):
            rows.add([(j, 1.0) for j, c in enumerate(choices) if k in c.covers], 1, 1)
        for j, one in enumerate(choices):
            for k in range(one.first, one.last + 1) if one.opens else ():
                inside = [
                    (i, 1.0)
                    for i, c in enumerate(choices)
                    if c.within == one.opens and k in c.covers
                ]
                rows.add([*inside, (j, -1.0)], 0, 0)
            if one.opens:  # with nothing decided inside it is the group as one
                idle = [
                    (i, 1.0)
                    for i, c in enumerate(choices)
                    if c.within == one.opens and c.way.action is None
                ]
                rows.add([*idle, (j, float(one.first - one.last))], -np.inf, 0)
        for (value, k, within), n in column.items():
            # Kept outside of a recomputed group, it is there for its segments, too.
            known = column.get((value, k, "")) if within else None
            more = [] if known is None else [(known, 1.0)]
            for j, c in enumerate(choices):
                if c.within == within and c.first <= k and value in c.way.kept:
                    rows.add([(n, 1.0), (j, -1.0), *more], 0, np.inf)
        total = np.zeros(peak + 1)
        for k, waiting in enumerate(self.waiting):
            entries = [
                (j, c.way.kept_bytes)
                for j, c in enumerate(choices)
                if c.first <= k and c.within in ("", self.group_of[k])
            ]
            entries += [
                (j, c.way.working_bytes) for j, c in enumerate(choices) if k in c.covers
            ]
            entries += [
                (n, sizes[v]) for (v, place, _), n in column.items() if place == k
            ]
            entries = [(n, size / scale) for n, size in entries]
            rows.add([*entries, (peak, -1.0)], -np.inf, -waiting / scale)
            for n, size in entries:
                total[n] += size / len(self.waiting)
        for actions, apart in excluding:
            same = self._same(actions)
            rows.add(same, 0, max(0, len(same) - apart))
        if near is not None:
            same = self._same(near[0])
            rows.add(same, max(0, len(same) - near[1]), len(same))
        times = np.array([c.way.time_us for c in choices] + [0.0] * (len(keys) + 1))
        times /= max(1e-9, float(np.abs(times).sum()))
        at_peak = np.zeros(peak + 1)
        at_peak[peak] = 1.0
        if limit is None:
            cost = at_peak + _LESS_ELSEWHERE * total + 1e-4 * times
        else:
            cost = times + 1e-6 * total
        most = np.ones(peak + 1)
        most[peak] = np.inf if limit is None else max(0.0, limit / scale)
        chosen = rows.minimum(cost, most, self.size)
        if chosen is None:
            return None
        taken = [c for c, on in zip(choices, chosen, strict=True) if on > 1 / 2]
        actions = {c.unit: c.way.action for c in taken if c.way.action is not None}
        return Schedule(actions, max(self.moments(taken)), self.time_us(taken))

    def _same(self, actions: Mapping[str, Action]) -> list[tuple[int, float]]:
        """A row that counts what is as in a schedule."""
        on = {id(one) for one in self.chosen(actions)}
        return [(j, 1.0) for j, c in enumerate(self.choices) if id(c) in on]

    def _lifetimes(self) -> set[tuple[int, int, str]]:
        """Values that are kept, while which segment, and in which recomputed group."""
        return {
            (value, k, one.within)
            for one in self.choices
            for k in range(one.first, len(self.waiting))
            if one.within in ("", self.group_of[k])
            for value in one.way.kept
        }


class _Matrix:
    """Constraints, row by row."""

    def __init__(self, width: int):
        self.width = width
        self.rows: list[Float[np.ndarray, " width"]] = []
        self.bounds: list[tuple[float, float]] = []

    def add(
        self, entries: Iterable[tuple[int, float]], least: float, most: float
    ) -> None:
        """One more: a sum of some variables is within bounds."""
        row = np.zeros(self.width)
        for k, factor in entries:
            row[k] += factor
        self.rows.append(row)
        self.bounds.append((least, most))

    def minimum(
        self,
        cost: Float[np.ndarray, " width"],
        most: Float[np.ndarray, " width"],
        num_choices: int,
    ) -> Float[np.ndarray, " choices"] | None:
        """The choices, 0 or 1, for which a cost is least; None if there are none."""
        lower, upper = np.array(self.bounds, float).T
        with without_lines(b"HighsMipSolverData::"):
            found = scipy.optimize.milp(
                cost,
                integrality=np.arange(self.width) < num_choices,
                bounds=scipy.optimize.Bounds(  # pyright: ignore[reportArgumentType]
                    np.zeros(self.width), most
                ),
                constraints=scipy.optimize.LinearConstraint(
                    np.array(self.rows), lower, upper
                ),
                options={"mip_rel_gap": 1e-4, "node_limit": _MOST_NODES},
            )
        return None if found.x is None else np.rint(found.x[:num_choices])
