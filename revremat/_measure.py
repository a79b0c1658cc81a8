"""measure: compile a step for a target and say what it takes."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax

from revremat import xla
from revremat._arguments import modules_are_arguments
from revremat._errors import DoesNotFit, UserError
from revremat._format import format_bytes, parse_bytes
from revremat._measurement import Measurement, Memory, Packing
from revremat._plan import Plan
from revremat._problem import Problem
from revremat.xla import Artifact, Heap, Target

_COARSEST_ALIGNMENT = 4096
_MOST_WORKERS = 8  # each compile of a large program takes a gigabyte or two
REMAT_PASS_OFF = "XLA's own remat pass is off"
_REMAT_PASS_ON = "XLA's own remat pass is on, as by JAX's default"
_NOTES = {
    "cuda": (
        "compiled ahead of time without autotuning: workspaces of convolutions, "
        "products and attention are in the reserve, not in the total",
        REMAT_PASS_OFF,
    ),
    "tpu": (REMAT_PASS_OFF,),
    "cpu": ("offloaded values count as device memory on CPU",),
}


def measure(
    step: Any,
    *specs: Any,
    target: str | Target = "local",
    donate: tuple[int, ...] = (),
    name: str = "",
    options: Mapping[str, Any] | None = None,
    remat_pass: bool = False,
    cache: bool = True,
    packing: bool = False,
    what_if: bool = False,
    rules: Mapping[str, str] | None = None,
) -> Measurement:
    """What one step takes on a target, by asking the target's own compiler.

    Nothing is allocated and no device is needed; the same step on the same target is
    compiled once and afterwards read from disk.

    Args:
      step: The training step: a function, the result of `jax.jit` or `nnx.jit`, a
        `functools.partial` of one, a `Problem`, a `Step`, or what JAX, Flax or Equinox
        made of it on the way: traced, lowered for the target's own devices, or compiled
        for them (then XLA no longer tells buffers, so that only totals and time come
        out).
      *specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s with shardings. A mesh
        of this machine is carried over to the target, here and within the program.
      target: Where it would run; see `revremat.target`.
      donate: Positions of the arguments whose memory the step may reuse.
      name: What reports call it; by default the function's name.
      options: More compiler options, by XLA's names.
      remat_pass: Whether XLA's own rematerialization pass runs, as by JAX's default; it
        may compute again what the program keeps, to get below the device's memory.
      cache: Read and write the compile cache.
      packing: Also pack the temporaries anew, and say how much less they could take.
      what_if: Also say what would fall without a residual or with a donation, and
        whether checkpoints free what they compute again.
      rules: Categories for memory over the schedule, in place of phases: a regular
        expression for each, as for `Memory.by_rule`.

    Returns:
      A `Measurement`: bytes per device, the buffers alive at the peak, and time.

    Raises:
      UserError: The arguments do not suit the target, or wheels are missing.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> def loss(w, x):
      ...     return jnp.sum(jnp.tanh(x @ w))
      >>> w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
      >>> x = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
      >>> m = rr.measure(jax.grad(loss), w, x, target="cpu:1")
      >>> m.memory.argument_bytes
      1310720
    """
    wanted = xla.target(target)
    if isinstance(step, Problem | Step):
        if specs or donate:
            what = type(step).__name__.lower()
            raise UserError(
                f"arguments or donate= were given with a {what}, which has its own: "
                "leave them out"
            )
        name, donate = name or step.name, step.donate
        if isinstance(step, Problem):
            step, specs = step.make_step()
        else:
            step, specs = step.function, step.specs
    stage = xla.stage_of(step)
    if stage is not None:
        artifact = _measured_stage(
            stage, specs, donate, wanted, options, remat_pass, cache
        )
    elif callable(step):
        with modules_are_arguments(name or _name_of(step)):
            artifact = xla.compile_step(
                step,
                specs,
                wanted,
                donate=donate,
                options=options,
                remat_pass=remat_pass,
                cache=cache,
            )
    else:
        raise UserError(
            f"a step is a function, a jitted one or a Problem; this is a "
            f"{type(step).__name__}"
        )
    return read_artifact(
        artifact,
        wanted,
        name or _name_of(step),
        packing=packing,
        what_if=what_if,
        rules=rules,
    )


def _measured_stage(
    stage: Any,
    specs: Any,
    donate: Any,
    target: Target,
    options: Mapping[str, Any] | None,
    remat_pass: bool,
    cache: bool,
) -> Artifact:
    """A step that was traced, lowered or compiled before."""
    state = type(stage).__name__.lower()
    if specs:
        raise UserError(
            f"arguments were given with a step that is already {state} for its own: "
            "leave them out"
        )
    if donate:
        raise UserError(
            f"donate={donate} was given with a step that is already {state}: write "
            "donate_argnums in its jax.jit instead"
        )
    if isinstance(stage, jax.stages.Traced):
        lowered = xla.lower_traced(
            stage, target, options=options, remat_pass=remat_pass
        )
        return lowered.compile(cache=cache)
    xla.check_stage(stage, target)
    if isinstance(stage, jax.stages.Lowered):
        lowered = xla.Lowered(stage, target, options or {}, (), remat_pass)
        return lowered.compile(cache=cache)
    if options or remat_pass:
        given = f"options={dict(options)}" if options else "remat_pass=True"
        raise UserError(
            f"{given} was given with a step that is already compiled: "
            "give options to its compile(compiler_options=) instead"
        )
    return xla.read_compiled(stage)


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
        None for the program without a plan, and for shortened programs.
      key: Where a search asks: text that is equal for equal programs of one problem and
        one version of revremat, under which a table may keep what is known of them.
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
    """Measures several steps, as many at a time as there are cores.

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

    Steps are traced here, one after the other, where a mesh or a configuration of the
    caller's is in force; what takes long, the compiles, runs beside it.

    Args:
      steps: The steps; the next one is taken when its compile can start.
      target: Where they would run.

    Yields:
      What comes of each, in order.
    """
    wanted = xla.target(target)
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Callable[[], Measurement | Failure]] = deque()
        for step in steps:
            try:
                lowered = xla.lower_step(
                    step.function, step.specs, wanted, donate=step.donate
                )
            except Exception as error:
                failure = Failure(error)
                running.append(lambda failure=failure: failure)
            else:
                name = step.name or _name_of(step.function)
                running.append(pool.submit(_finish, lowered, wanted, name).result)
            if len(running) >= workers:
                yield running.popleft()()
        while running:
            yield running.popleft()()


def _finish(lowered: xla.Lowered, target: Target, name: str) -> Measurement | Failure:
    try:
        return read_artifact(lowered.compile(), target, name)
    except Exception as error:
        return Failure(error)


def assert_fits(
    step: Any,
    *specs: Any,
    target: str | Target,
    budget: int | str | None = None,
    donate: tuple[int, ...] = (),
    remat_pass: bool | Literal["both"] = False,
) -> Measurement:
    """Fails a test when a step takes more than its budget on a target.

    Args:
      step: The training step; see `measure`.
      *specs: Its arguments.
      target: Where it must fit.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable; by
        default all that is usable.
      donate: Positions of the arguments whose memory the step may reuse.
      remat_pass: Whether XLA's own rematerialization pass runs: False as within
        `Fit.as_measured`, True as by JAX's default, `"both"` if it must fit either way.

    Returns:
      The `Measurement`; of two the larger.

    Raises:
      DoesNotFit: With what holds most of the memory.
      UserError: An argument is none of these.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> x = jax.ShapeDtypeStruct((1024,), jnp.float32)
      >>> rr.assert_fits(jnp.tanh, x, target="cpu:1", budget="1MiB").fits
      True
    """
    wanted = xla.target(target)
    usable = wanted.usable_bytes
    limit = usable if budget is None else parse_bytes(budget, usable_bytes=usable)
    if remat_pass not in (False, True, "both"):
        raise UserError(
            f"remat_pass={remat_pass!r} says nothing: write False (XLA's own pass is "
            'off), True (it is on) or "both"'
        )
    passes = (False, True) if remat_pass == "both" else (bool(remat_pass),)
    measured = [
        measure(step, *specs, target=wanted, donate=donate, remat_pass=on)
        for on in passes
    ]
    found = max(measured, key=lambda m: m.memory.total_bytes)
    total = found.memory.total_bytes
    if total > limit:
        largest = ", ".join(
            f"{'/'.join(filter(None, key))} {format_bytes(size)}"
            for key, size in list(found.memory.by("phase", "scope").items())[:3]
        )
        on = passes[measured.index(found)]
        told = f" with XLA's own remat pass {'on' if on else 'off'}" * bool(remat_pass)
        raise DoesNotFit(
            f"{found.program} takes {format_bytes(total)} on each device of "
            f"{wanted.spec}{told}, {format_bytes(total - limit)} more than the budget "
            f"of {format_bytes(limit)}; most is held by {largest}"
        )
    return found


def read_artifact(
    artifact: Artifact,
    target: Target,
    name: str,
    *,
    packing: bool = False,
    what_if: bool = False,
    rules: Mapping[str, str] | None = None,
) -> Measurement:
    """What a compile says, as a `Measurement`."""
    module = xla.Module.from_bytes(artifact.hlo)
    stats = artifact.stats
    buffers, fragmentation, packed, curve, changes = (), 0, None, None, None
    if module.proto.buffer_assignment.buffer_allocations:
        memory = xla.liveness(module)
        origins = xla.Origins(module)
        buffers = xla.peak_buffers(module, memory, origins)
        curve = xla.memory_curve(module, memory, origins, rules=rules)
        changes = xla.what_if(module, memory, origins) if what_if else None
        fragmentation = sum(
            heap.fragmentation_bytes
            for heap in memory.heaps
            if heap.space == 0 and heap.traced
        )
        heap = memory.heap()
        if packing and heap is not None:
            packed = _pack(heap)
    host = [stats.get(f"host_{k}", 0) for k in ("argument", "output", "temp")]
    time = xla.estimate(module, target)
    idle = target.num_devices > 1 and artifact.is_whole and not time.collective_us
    return Measurement(
        program=name or module.name,
        target=target.spec,
        device=target.card.name,
        num_devices=target.num_devices,
        device_bytes=target.memory_bytes,
        reserve_bytes=target.reserve_bytes,
        memory=Memory(
            argument_bytes=stats["argument"],
            output_bytes=stats["output"],
            alias_bytes=stats["alias"],
            temp_bytes=stats["temp"],
            host_bytes=sum(host) - stats.get("host_alias", 0),
            fragmentation_bytes=fragmentation,
            buffers=buffers,
            packing=packed,
            curve=curve,
            what_if=changes,
            rules=tuple((rules or {}).items()),
        ),
        time=time,
        compile_seconds=artifact.seconds,
        cached=artifact.cached,
        versions=artifact.versions,
        notes=(
            *_notes(target, artifact.remat_pass),
            *artifact.remarks,
            *(_SAME_WORK.format(target.num_devices),) * idle,
            *(_OPAQUE,) * xla.has_opaque_kernels(module),
            *_unmodeled(xla.unmodeled_calls(module, target.card)),
        ),
    )


def _notes(target: Target, remat_pass: bool) -> tuple[str, ...]:
    notes = _NOTES[target.platform]
    if not remat_pass:
        return notes
    return tuple(_REMAT_PASS_ON if n == REMAT_PASS_OFF else n for n in notes)


def remarks(measurement: Measurement) -> tuple[str, ...]:
    """Notes that are not of every compile: what was done differently than asked."""
    usual = {_REMAT_PASS_ON, *(note for notes in _NOTES.values() for note in notes)}
    return tuple(note for note in measurement.notes if note not in usual)


def _name_of(step: Any) -> str:
    while not hasattr(step, "__name__") and hasattr(step, "func"):
        step = step.func
    traced = xla.stage_of(step)
    if isinstance(traced, jax.stages.Traced):
        return traced.fun_name
    return getattr(step, "__name__", "step")


_PACKING_SECONDS = 5.0
_OPAQUE = (
    "some kernels of the program's own (Pallas) are timed by what they read and write: "
    "their arithmetic is not known"
)
_MOST_CALLS = 4
_SAME_WORK = (
    "no argument is split over the {0} devices and they exchange nothing: each does "
    "the whole step; give arguments a sharding, such as "
    "jax.NamedSharding(rr.target(...).mesh({{'data': {0}}}), jax.P('data')) for a batch"
)


def _unmodeled(calls: Mapping[str, int]) -> tuple[str, ...]:
    """The note on what the estimate leaves out; none where it has everything."""
    if not calls:
        return ()
    told = [
        f"{count} call{'s' * (count > 1)} of {name[:60]}"
        for name, count in calls.items()
    ]
    if len(told) > _MOST_CALLS:
        told[_MOST_CALLS:] = [f"{len(told) - _MOST_CALLS} more kinds"]
    is_one = sum(calls.values()) == 1
    return (
        f"{', '.join(told)} {'has' if is_one else 'have'} no time model: of their time "
        "only reading operands and writing results once is in the estimate",
    )


def _pack(heap: Heap) -> Packing:
    """The same lifetimes packed anew, as one stream in the order of the schedule."""
    from revremat import allocation  # brings a compiler of its own: only when asked

    offsets = math.gcd(*(r.offset for r in heap.regions)) or _COARSEST_ALIGNMENT
    alignment = min(offsets & -offsets, _COARSEST_ALIGNMENT)
    problem = allocation.AllocationProblem(
        tuple(
            allocation.Buffer(str(number), r.start, r.end, r.size_bytes, alignment)
            for number, r in enumerate(heap.regions)
            if r.size_bytes
        )
    )
    found = allocation.allocate(problem, seconds=_PACKING_SECONDS)
    assert isinstance(found, allocation.Allocation)
    return Packing(heap.size_bytes, found.makespan_bytes, found.bound.size_bytes)
