"""Steps: one to measure, several at a time, and whoever else may say what they take."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, Self

import jax

from revremat import xla
from revremat._errors import UserError
from revremat._measure._read import read_artifact
from revremat._measure._stopwatch import Runnable
from revremat._measurement import Measurement
from revremat._plan import Plan
from revremat.xla import Target

_MOST_WORKERS = 8  # each compile of a large program takes a gigabyte or two

_LONGEST_REASON = 120


@dataclass(frozen=True)
class Failure:
    """A program that could not be lowered or compiled.

    Attributes:
      error: What JAX or XLA raised.
    """

    error: Exception

    @property
    def reason(self) -> str:
        """One line for people: the error's kind, and the first line it says."""
        lines = str(self.error).strip().splitlines()
        text = f"{type(self.error).__name__}: {lines[0] if lines else 'no message'}"
        text = "".join(c for c in text if c.isprintable())
        if len(text) <= _LONGEST_REASON:
            return text
        return text[: _LONGEST_REASON - 3] + "..."


@dataclass(frozen=True)
class Step:
    """A training step to measure, with its arguments.

    Attributes:
      function: The step: whatever `measure` takes.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      donate: Positions of the arguments whose memory the step may reuse.
      name: What reports call it.
      plan: Where a search asks about a whole program: the plan that the step follows.
        None for the program without a plan, and for shortened programs. With a plan for
        XLA's own remat pass it is measured with that.
      key: Where a search asks: text that is equal for equal programs of one problem and
        one version of revremat, under which a table may keep what is known of them.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> step = rr.Step(jnp.tanh, (jnp.ones(256),), name="tanh")
      >>> rr.measure(step, target="cpu:1").memory.argument_bytes
      1024
    """

    function: Any
    specs: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    name: str = ""
    plan: Plan | None = None
    key: str = ""


class Oracle(Protocol):
    """Whatever says what steps take, in place of the target's compiler.

    A search calls it once for each program that it wants to know of, whole ones and
    shortened ones. An exception drops that program and the search goes on, unless it is
    the program without a plan, which everything is compared with.

    Example:
      A search by times that were measured on this machine:

      >>> import dataclasses, revremat as rr
      >>> def on_this_machine(step):
      ...     found = rr.measure(step, target="local")
      ...     time = dataclasses.replace(found.time, step_us=stopwatch(step))
      ...     return dataclasses.replace(found, time=time)
    """

    def __call__(self, step: Step, /) -> Measurement:
        """What one step takes: bytes and time.

        Args:
          step: The step.
        """
        ...


def measure_each(
    steps: Iterable[Step], *, target: str | Target
) -> Iterator[Measurement]:
    """Measures several steps, one to each core at a time, eight at most.

    Args:
      steps: The steps; the next one is taken when its compile can start.
      target: Where they would run.

    Yields:
      Their measurements, in order.

    Raises:
      UserError: As `measure` does.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> sizes = [jax.ShapeDtypeStruct((n,), jnp.float32) for n in (256, 512)]
      >>> steps = [rr.Step(jnp.tanh, (x,)) for x in sizes]
      >>> found = rr.measure_each(steps, target="cpu:1")
      >>> [m.memory.argument_bytes for m in found]
      [1024, 2048]
    """
    for found in try_each(steps, target=target):
        if isinstance(found, Failure):
            raise found.error
        yield found


def ask_each(steps: Iterable[Step], oracle: Oracle) -> Iterator[Measurement | Failure]:
    """What an oracle says of steps; one of which it says nothing ends nothing.

    Args:
      steps: The steps; the next one is taken when its turn comes.
      oracle: Is asked.

    Yields:
      What comes of each, in order.

    Raises:
      UserError: Its answer is no measurement, or has a time or size that is no number.
    """
    for step in steps:
        try:
            found = oracle(step)
        except Exception as error:
            yield Failure(error)
            continue
        if not isinstance(found, Measurement):
            raise UserError(
                f"the oracle answered with a {type(found).__name__}: return an "
                "rr.Measurement, such as rr.measure(step, target=...)"
            )
        told = {
            "time.step_us": found.time.step_us,
            "memory.total_bytes": found.memory.total_bytes,
        }
        for field, value in told.items():
            if not 0 <= value < math.inf:
                raise UserError(
                    f"the oracle answered {field} = {value!r}: return a measurement "
                    "whose sizes and times are 0 or more, and finite"
                )
        yield found


def try_each(
    steps: Iterable[Step], *, target: str | Target
) -> Iterator[Measurement | Failure]:
    """As `measure_each`; a step that cannot be lowered or compiled ends nothing.

    Args:
      steps: The steps; the next one is taken when its compile can start.
      target: Where they would run.

    Yields:
      What comes of each, in order.
    """
    with Compiles(target, read_step) as compiles:
        for step in steps:
            yield from compiles.start(step)
        yield from compiles.rest()


class Compiles[T]:
    """Compiles under way, one to each core at a time, eight at most.

    Steps are traced here, one after the other, where a mesh or a configuration of the
    caller's is in force; what takes long, the compiles, runs beside it.

    Args:
      target: Where the steps would run.
      finish: Makes a result of a lowered step and its name: `read_step`, `step_to_run`.
    """

    def __init__(
        self, target: str | Target, finish: Callable[[xla.Lowered, str], T | Failure]
    ):
        self.target = xla.target(target)
        self._finish = finish
        self._workers = min(_MOST_WORKERS, os.cpu_count() or 1)
        self._running: deque[Future[T | Failure]] = deque()

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._workers).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        # What nobody will take any longer is not begun.
        self._pool.shutdown(cancel_futures=error != (None, None, None))

    def start(
        self, step: Step, lower: Callable[[], xla.Lowered] | None = None
    ) -> Iterator[T | Failure]:
        """Traces a step and starts its compile.

        Args:
          step: The step.
          lower: Has it lowered already.

        Yields:
          Results in order, as far as they are there. While all cores are busy and one
          more step waits for them, that is when one is done, whichever it is.
        """
        try:
            lowered = lower() if lower else self._lower(step)
        except Exception as error:
            self._running.append(failed := Future())
            failed.set_result(Failure(error))
        else:
            name = step.name or name_of(step.function)
            self._running.append(self._pool.submit(self._finish, lowered, name))
        while len(busy := [one for one in self._running if not one.done()]) > (
            self._workers
        ):
            wait(busy, return_when=FIRST_COMPLETED)
        while self._running and self._running[0].done():
            yield self._running.popleft().result()

    def _lower(self, step: Step) -> xla.Lowered:
        return xla.lower_step(
            step.function,
            step.specs,
            self.target,
            donate=step.donate,
            **remat_pass_of(step.plan, self.target),
        )

    def rest(self) -> Iterator[T | Failure]:
        """All results that are not handed out yet, in order."""
        while self._running:
            yield self._running.popleft().result()


def read_step(
    lowered: xla.Lowered, name: str, *, exact: bool = True
) -> Measurement | Failure:
    """Compiles a step, or reads it from the disk, and says what it takes.

    Args:
      lowered: The step.
      name: What reports call it.
      exact: As `Lowered.compile` takes it.
    """
    try:
        return read_artifact(lowered.compile(exact=exact), lowered.target, name)
    except Exception as error:
        return Failure(error)


def step_to_run(
    lowered: xla.Lowered, name: str
) -> tuple[Measurement, Runnable] | Failure:
    """Compiles a step for devices of this machine, to be run."""
    try:
        made, compiled = lowered.compile_to_run()
        return read_artifact(made, lowered.target, name), Runnable(compiled)
    except Exception as error:
        return Failure(error)


def remat_pass_of(plan: Plan | None, target: Target) -> dict[str, Any]:
    """What `xla.lower_step` is told of XLA's own remat pass.

    Raises:
      UserError: The plan wants it where it cannot be told a limit.
    """
    percent = None if plan is None else plan.remat_pass_percent
    if percent is None:
        return {}
    return {"options": xla.remat_pass_options(target, percent), "remat_pass": True}


def name_of(step: Any) -> str:
    """What reports call a step: its function's own name."""
    while not hasattr(step, "__name__") and hasattr(step, "func"):
        step = step.func
    traced = xla.stage_of(step)
    if isinstance(traced, jax.stages.Traced):
        return traced.fun_name
    return getattr(step, "__name__", "step")
