"""Fit and Row: what a search compiled whole, and what it chose of it."""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from revremat._action import SAVE
from revremat._format import format_bytes, format_us
from revremat._graph import Graph
from revremat._io._notebook import InNotebooks
from revremat._measurement import Measurement
from revremat._plan import Plan
from revremat._saved import FIT_SCHEMA
from revremat.policies import UnitOptions

_MUCH = 0.25
"""Of all bytes in question."""


@dataclass(frozen=True)
class Row:
    """One whole program that was compiled on the way.

    Attributes:
      name: What it does, layers counted: `12 x save all, 12 x recompute all`.
      plan: Its plan; None for the baseline.
      measurement: What the target's compiler says.
      predicted_bytes: What was expected of it; None if nothing was, as of the
        baseline.
    """

    name: str
    plan: Plan | None
    measurement: Measurement
    predicted_bytes: float | None = None

    @property
    def bytes(self) -> int:
        """Per device."""
        return self.measurement.memory.total_bytes

    @property
    def time_us(self) -> float:
        """Estimated time of a step."""
        return self.measurement.time.step_us

    @property
    def alike(self) -> bool:
        """Whether there is a plan, and in it no unit with layers of two kinds."""
        units = self.plan.units if self.plan else ()
        return bool(units) and all(len(set(unit.actions)) == 1 for unit in units)

    def takes(self, *ways: str) -> bool:
        """Whether any layer is unrolled ("unroll"), or has anything "on_host"."""
        units = self.plan.units if self.plan else ()
        actions = {action for unit in units for action in unit.actions}
        return any(getattr(action, way) for action in actions for way in ways)


@dataclass(frozen=True)
class Dropped:
    """A program that could not be lowered or compiled, and was left out.

    Attributes:
      name: What it does, as for `Row`; of a shortened one, the unit first.
      reason: The first line of what JAX or XLA said, at most 120 characters.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Skipped:
    """A pass that a limit of compiles cut, or after which an effort ends.

    What would have come after it is left out.

    Attributes:
      what: The pass.
      num_compiles: How many more it would have needed, at least.
    """

    what: str
    num_compiles: int


@dataclass(frozen=True)
class Fit(InNotebooks):
    """A program that was made to fit.

    Attributes:
      loss: The loss with the plan applied.
      plan: The plan; `plan.fits` says whether it stays within its budget.
      measurement: The chosen program on the target.
      rows: Every whole program compiled on the way, the chosen one included.
      layer_costs: What a layer costs under each candidate. Of a timed search, times are
        a layer's share of the whole step where programs had all layers.
      bound_us: The estimated time that no assignment of the candidates can beat, by
        their costs; 0 where that is not known.
      greedy_us: What the costs say of an assignment chosen greedily; None if it found
        none.
      filled: Whether what the plan leaves of the budget is of no use to any near it:
        less than 0.3 %, or nothing that would take it is faster by its estimated costs,
        but for what came out slower.
      num_compiles: Programs compiled or read from the cache, cut ones included.
      most_compiles: How many of them were allowed, if not as many as it takes.
      is_cut_short: Whether anything was left out because of that.
      left: Units with so few bytes that they were left as they are.
      not_sent: Bytes on each device that the plan sends to the host and the compiler
        leaves where they are, as TPU's does outside of loops.
      dropped: Programs that could not be compiled; what they would have told of is
        left out.
      skipped: What a limit of compiles cut.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((64, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> fit = rr.fit(loss, w, x, budget="1MiB", target="cpu:1", most_compiles=6)
      >>> fit.plan.fits, fit.num_compiles <= 6, fit.loss(w, x) == loss(w, x)
      (True, True, Array(True, dtype=bool))
    """

    loss: Callable[..., Any]
    plan: Plan
    measurement: Measurement
    rows: tuple[Row, ...]
    layer_costs: tuple[UnitOptions, ...]
    bound_us: float
    greedy_us: float | None
    filled: bool
    num_compiles: int
    most_compiles: int | None = None
    is_cut_short: bool = False
    left: tuple[str, ...] = ()
    not_sent: int = 0
    dropped: tuple[Dropped, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def as_measured(self) -> contextlib.AbstractContextManager[None]:
        """Within it, this thread compiles and runs programs as this one was measured.

        XLA's own rematerialization pass is off, or has the plan's limit. By JAX's
        default it is on, and may compute again what the plan keeps. A jitted function
        that was compiled outside is compiled once more inside, and each is run where it
        was compiled::

            step = jax.jit(jax.value_and_grad(fit.loss))
            with fit.as_measured():
                value, gradients = step(weights, batch)
        """
        return self.plan.compiling()

    @property
    def compiler_options(self) -> dict[str, str]:
        """What does the same in `jax.jit(step, compiler_options=...)`.

        They are those of the plan; see `Plan.compiler_options`.
        """
        return self.plan.compiler_options

    def to_json(self) -> str:
        """One JSON object: the plan and the measurement as they write themselves.

        Beside them name, bytes and step time of every row, and what the search knows.
        """
        rows = [
            {"name": row.name, "bytes": row.bytes, "step_us": row.time_us}
            for row in self.rows
        ]
        return json.dumps(
            {
                "schema": FIT_SCHEMA,
                "plan": json.loads(self.plan.to_json()),
                "measurement": json.loads(self.measurement.to_json()),
                "rows": rows,
                "bound_us": self.bound_us,
                "greedy_us": self.greedy_us,
                "filled": self.filled,
                "num_compiles": self.num_compiles,
                "most_compiles": self.most_compiles,
                "is_cut_short": self.is_cut_short,
                "left": self.left,
                "not_sent": self.not_sent,
                "dropped": [asdict(one) for one in self.dropped],
                "skipped": [asdict(one) for one in self.skipped],
            },
            indent=1,
        )

    def __repr__(self) -> str:
        size, budget = self.measurement.memory.total_bytes, self.plan.budget_bytes
        of = "" if budget is None else f" of {format_bytes(budget)}"
        took = format_us(self.measurement.time.step_us)
        return (
            f"<Fit for {self.plan.target}: {format_bytes(size)}{of}, {took} a step, "
            f"{self.num_compiles} compiles>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self.plan}\nrr.render(fit) says how it was chosen"


def over(rows: Iterable[Row]) -> float:
    """By how much the worst came out above its costs, where there were any."""
    known = ((row.bytes, row.predicted_bytes) for row in rows)
    return max([0.0, *(size - told for size, told in known if told is not None)])


def times_alive(written: Row, recomputed: Row, graph: Graph) -> float:
    """How often what a loss keeps is alive at a time: a step may run it several times.

    Below one where activations are cut more often than the program says.

    Args:
      written: The baseline.
      recomputed: One that recomputes all it can.
      graph: What `rr.trace` finds in the loss.
    """
    assert recomputed.plan is not None
    given_back = sum(
        graph[unit].kept(SAVE).device_bytes - graph[unit].kept(action).device_bytes
        for unit, actions in recomputed.plan.actions.items()
        for action in actions
    )
    kept = [
        row.measurement.memory.where(phase="forward") for row in (written, recomputed)
    ]
    return (kept[0].bytes - kept[1].bytes) / max(1.0, given_back)


def not_sent(row: Row, graph: Graph, share: float, other: Row | None = None) -> int:
    """Bytes that a plan sends to the host and the compiler leaves on the device.

    Args:
      row: The program.
      graph: What `rr.trace` finds in it.
      share: Part of what a layer keeps by the graph that lies on one device.
      other: The same program without anything sent: what it has on the host is its own.
    """
    wanted = share * sum(
        graph[unit].kept(action).host_bytes
        for unit, actions in (row.plan.actions if row.plan else {}).items()
        for action in actions
    )
    there = row.measurement.memory.host_bytes
    there -= other.measurement.memory.host_bytes if other else 0
    return round(wanted - there) if there < (1 - _MUCH) * wanted else 0


def holders(row: Row, graph: Graph, share: float, times: float = 1.0) -> str:
    """What takes most of a program's memory, for people to read.

    Args:
      row: The program.
      graph: What `rr.trace` finds in it.
      share: Part of what a layer keeps by the graph that lies on one device.
      times: How often what the loss keeps is alive at a time.
    """
    memory = row.measurement.memory
    parts = list(memory.by("phase", "module").items())[:3]
    held = ", ".join(
        f"{'/'.join(filter(None, key))} {format_bytes(size)}" for key, size in parts
    )
    if row.plan is None:  # Nothing was decided, inside of units or outside.
        return held
    decided = sum(
        graph[unit].kept(action).device_bytes
        for unit, actions in row.plan.actions.items()
        for action in actions
    )
    undecided = memory.where(phase="forward").bytes - times * share * decided
    if undecided <= _MUCH * row.bytes:
        return held
    where = f"{held}; about {format_bytes(undecided)} of that are kept outside of all "
    if graph.undecided:
        return f"{where}units: {graph.undecided[0]}"
    return (
        f"{where}units, where nothing is decided: put rr.block, jax.checkpoint or your "
        "library's remat around what makes them"
    )


def why_it_does_not_fit(found: Fit) -> str:
    """A sentence about a plan that is over its budget."""
    plan = found.plan
    assert plan.budget_bytes is not None
    assert plan.total_bytes is not None
    more = f"; allow more than {found.most_compiles} compiles to try other actions"
    others = more if found.is_cut_short else ""
    size, over = map(format_bytes, (plan.total_bytes, plan.shortfall_bytes))
    takes = f"the smallest that was compiled takes {size}, {over} more"
    if found.rows and not gains_bytes(found.rows):
        memory = found.measurement.memory
        fixed = format_bytes(memory.total_bytes - memory.temp_bytes)
        takes = (
            f"none takes less than the program as it is, {size}, {over} more, of which "
            f"arguments and results alone are {fixed}"
        )
    return (
        f"no plan stays within {format_bytes(plan.budget_bytes)} on {plan.target}: "
        f"{takes}; most is held by {plan.held_by}{others}"
    )


def gains_bytes(rows: Collection[Row]) -> bool:
    """Whether any plan takes less memory than the program without one."""
    written = [row.bytes for row in rows if row.plan is None]
    return not written or any(row.bytes < min(written) for row in rows)
