"""Ten training steps as XLA compiled them: its arena, ours, and what streams cost.

Every region of XLA's arena becomes a tensor, every scheduled instruction an operator;
what XLA runs asynchronously (collectives, copies, slices) goes to a stream of its own.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from experiments.configs import gpt, vit_digits
from revremat import Problem, Target
from revremat.allocation import (
    Allocation,
    AllocationProblem,
    Scheduled,
    Tensor,
    allocate,
    lower_bound,
    safe_problem,
    split_streams,
)
from revremat.xla import Heap, Module, compile_step, liveness, target

P = PartitionSpec
_SECONDS = 3.0
_PLAIN = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
_INLINED = {"while", "call", "conditional"}
_LARGEST_ALIGNMENT = 256


def programs() -> Iterator[dict[str, Any]]:
    """One row a program; bytes are those of the device's arena of temporaries."""
    for name, (where, make) in PROGRAMS.items():
        place = target(where)
        problem = make(place)
        step, specs = problem.make_step()
        artifact = compile_step(step, specs, place, donate=problem.donate)
        module = Module.from_bytes(artifact.hlo)
        heap = liveness(module).heap()
        assert heap is not None
        yield row(name, where, module, heap)


def row(name: str, where: str, module: Module, heap: Heap) -> dict[str, Any]:
    """Lays out one arena anew, on one stream and on those that XLA uses."""
    schedule, tensors = read_schedule(module, heap)
    at_once = [
        Scheduled(s.id, s.reads, s.writes, finishes=(), in_place=()) for s in schedule
    ]
    sequential = safe_problem(split_streams(at_once), tensors)
    sequential = AllocationProblem(sequential.buffers)
    one = allocate(sequential, seconds=_SECONDS)
    operators = split_streams(schedule)
    began = time.monotonic()
    parallel = safe_problem(operators, tensors)
    safety = time.monotonic() - began
    many = allocate(parallel, seconds=_SECONDS)
    assert isinstance(one, Allocation)
    assert isinstance(many, Allocation)
    streams = len({op.stream for op in operators})
    return {
        "program": name,
        "target": where,
        "operators": len(operators),
        "buffers": len(tensors),
        "streams": streams,
        "XLA arena": heap.size_bytes,
        "XLA live": heap.peak_bytes,
        "sequential bound": lower_bound(sequential).size_bytes,
        "one stream": one.makespan_bytes,
        "all streams": many.makespan_bytes,
        "optimal": many.optimal,
        "safety ms": round(1000 * safety, 1),
        "offsets ms": round(1000 * many.seconds, 1),
    }


def read_schedule(module: Module, heap: Heap) -> tuple[list[Scheduled], list[Tensor]]:
    """The schedule of a module in terms of the regions of one arena."""
    return _Reader(module, heap).read()


class _Reader:
    """Finds which regions each scheduled instruction reads and writes."""

    def __init__(self, module: Module, heap: Heap):
        self.module = module
        self.heap = heap
        self.schedule: list[Scheduled] = []
        self.written: set[int] = set()
        self.region = {
            (value.instruction.id, value.index): number
            for number, region in enumerate(heap.regions)
            for value in region.values
        }
        self.defined: dict[int, set[int]] = {}
        for (instruction, _), number in self.region.items():
            self.defined.setdefault(instruction, set()).add(number)
        self.caller = {
            computation: calls[0]
            for computation, calls in module.callers.items()
            if len(calls) == 1
        }
        self.parameter = {
            p.id: number
            for c in module.computations.values()
            for number, p in c.parameters.items()
        }

    def read(self) -> tuple[list[Scheduled], list[Tensor]]:
        self._walk(self.module.entry)
        offsets = np.array([r.offset for r in self.heap.regions], np.int64)
        shared = int(np.gcd.reduce(offsets)) or _LARGEST_ALIGNMENT
        alignment = min(shared & -shared, _LARGEST_ALIGNMENT)
        touched = {n for s in self.schedule for n in (*s.reads, *s.writes)}
        tensors = [
            Tensor(str(number), region.size_bytes, alignment)
            for number, region in enumerate(self.heap.regions)
            if str(number) in touched
        ]
        return self.schedule, tensors

    def _walk(self, computation: Any) -> None:
        for i in computation.instructions:
            if i.opcode in _PLAIN:
                continue
            reads = self._reads(i)
            if i.opcode in _INLINED:
                self._add(f"{i.name}/begin", reads, set())
                for called in self.module.called(i):
                    self._walk(called)
                # What a loop takes in and leaves alone is needed in every iteration.
                results = {self._find(i, index) for index in _leaves(i.shape)}
                self._add(i.name, {n for n in results if n is not None}, set())
            elif i.opcode.endswith("-start"):
                writes = set(self.defined.get(i.id, ()))
                for called in self.module.called(i):
                    for inner in called.instructions:
                        writes |= self.defined.get(inner.id, set())
                self._add(i.name, reads, writes, starts=_stream(i, self.module))
            elif i.opcode.endswith("-done"):
                start = self.module.operands(i)[0]
                writes = self.defined.get(i.id, set())
                held = self.defined.get(start.id, set())
                self._add(i.name, held, writes, finishes=(start.name,))
            else:
                writes = self.defined.get(i.id, set())
                # An operand that XLA gives back before it takes the result's region may
                # be overwritten by it: it is read, as it were, before.
                regions = self.heap.regions
                taken = min((regions[n].start for n in writes - reads), default=0)
                early = {n for n in reads - writes if regions[n].end < taken}
                if early:
                    self._add(f"{i.name}/in", early, set())
                self._add(i.name, reads - early, writes)

    def _add(self, name: str, reads: set[int], writes: set[int], **more: Any) -> None:
        writes = writes | (reads - self.written)  # filled from outside the schedule
        self.written |= writes
        self.schedule.append(
            Scheduled(
                name,
                tuple(str(n) for n in sorted(reads - writes)),
                tuple(str(n) for n in sorted(writes)),
                **more,
            )
        )

    def _reads(self, i: Any) -> set[int]:
        found = (
            self._find(operand, index)
            for operand in self.module.operands(i)
            for index in _leaves(operand.shape)
        )
        return {number for number in found if number is not None}

    def _find(self, i: Any, index: tuple[int, ...]) -> int | None:
        """The region that holds a part of an instruction's result, if one does."""
        while True:
            if (i.id, index) in self.region:
                return self.region[i.id, index]
            operands = self.module.operands(i)
            if i.opcode == "get-tuple-element":
                i, index = operands[0], (i.tuple_index, *index)
            elif i.opcode == "tuple" and index:
                i, index = operands[index[0]], index[1:]
            elif i.opcode in ("bitcast", "opt-barrier", "while"):
                i = operands[0]
            elif i.opcode == "async-done":
                i = self.module.called(operands[0])[0].root
            elif i.opcode == "async-start" and index:
                if index[0] == 1:
                    i, index = self.module.called(i)[0].root, index[1:]
                elif index[0] == 0 and len(index) > 1:
                    i, index = operands[index[1]], index[2:]
                else:
                    return None
            elif i.opcode == "copy-done":
                i, index = operands[0], (0,)
            elif i.opcode.endswith("-done"):
                i, index = operands[0], (1, *index)
            elif i.opcode == "call":
                i = self.module.called(i)[0].root
            elif i.opcode == "parameter":
                home = self.module.home[i.id]
                caller = self.caller.get(home)
                if caller is None:
                    return None
                number = self.parameter[i.id]
                if caller.opcode == "conditional":
                    number = 1 + list(caller.called_computation_ids).index(home)
                i = self.module.operands(caller)[number]
            else:
                return None


def _leaves(shape: Any) -> Iterator[tuple[int, ...]]:
    """Indices of the arrays in a shape."""
    if not shape.tuple_shapes:
        yield ()
    for number, part in enumerate(shape.tuple_shapes):
        for index in _leaves(part):
            yield (number, *index)


def _stream(i: Any, module: Module) -> str:
    """Collectives on one stream, everything else that is asynchronous on another."""
    names = [i.opcode, *(x.opcode for c in module.called(i) for x in c.instructions)]
    collective = ("all-", "reduce-scatter", "collective-", "send", "recv")
    return "collectives" if any(n.startswith(collective) for n in names) else "copies"


def _spec(*shape: int, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def _mlp(depth: int, remat: bool, place: Target) -> Problem:
    def layer(x, w):
        return x + jax.nn.gelu(x @ w[0]) @ w[1]

    def loss(params, x):
        for w in params:
            x = jax.checkpoint(layer)(x, w) if remat else layer(x, w)
        return jnp.mean(x**2)

    params = tuple((_spec(256, 1024), _spec(1024, 256)) for _ in range(depth))
    return Problem(loss, (params, _spec(2048, 256)))


def _convolutions(place: Target) -> Problem:
    def loss(kernels, x):
        for kernel in kernels:
            y = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(y) + (x if y.shape == x.shape else 0)
        return jnp.mean(x**2)

    kernels = tuple(_spec(3, 3, 32, 32) for _ in range(12))
    return Problem(loss, (kernels, _spec(8, 64, 64, 32)))


def _fsdp(place: Target) -> Problem:
    mesh = place.mesh({"data": place.num_devices})
    split = NamedSharding(mesh, P("data"))

    def loss(params, x):
        for w in params:
            x = x + jnp.tanh(x @ w[0]) @ w[1]
        return jnp.mean(x**2)

    params = tuple(
        (_spec(512, 2048, sharding=split), _spec(2048, 512, sharding=split))
        for _ in range(8)
    )
    return Problem(loss, (params, _spec(4096, 512, sharding=split)))


def _tensor_parallel(place: Target) -> Problem:
    mesh = place.mesh({"data": 2, "model": 4})

    def loss(params, x):
        def layer(x, ws):
            return x + jnp.tanh(x @ ws[0]) @ ws[1], None

        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    params = (
        _spec(8, 512, 2048, sharding=NamedSharding(mesh, P(None, None, "model"))),
        _spec(8, 2048, 512, sharding=NamedSharding(mesh, P(None, "model", None))),
    )
    x = _spec(2048, 512, sharding=NamedSharding(mesh, P("data")))
    return Problem(loss, (params, x))


def _pipeline(place: Target) -> Problem:
    count = place.num_devices
    mesh = place.mesh({"stage": count})
    ring = [(i, (i + 1) % count) for i in range(count)]

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("stage"), P("stage")),
        out_specs=P("stage"),
    )
    def stages(w, x):
        kept = []
        for _ in range(count):
            x = jnp.tanh(x @ w[0])
            kept.append(x)
            x = jax.lax.ppermute(x, "stage", ring)
        return sum(kept) + x

    def loss(w, x):
        return jnp.mean(stages(w, x) ** 2)

    split = NamedSharding(mesh, P("stage"))
    w = _spec(count, 512, 512, sharding=split)
    return Problem(loss, (w, _spec(count * 1024, 512, sharding=split)))


def _offloaded(place: Target) -> Problem:
    def layer(x, ws):
        h = checkpoint_name(x @ ws[0], "hidden")
        return x + jnp.tanh(h) @ ws[1], None

    def loss(params, x):
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["hidden"],
            offload_src="device",
            offload_dst="pinned_host",
        )
        body = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        return jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)

    params = (_spec(12, 512, 2048), _spec(12, 2048, 512))
    return Problem(loss, (params, _spec(2048, 512)))


_GPT = {"num_layers": 6, "width": 256, "num_heads": 4, "seq_len": 256, "batch_size": 8}

PROGRAMS: dict[str, tuple[str, Callable[[Target], Problem]]] = {
    "GPT, scanned": ("h100", lambda t: gpt.problem(t, **_GPT)),
    "GPT, unrolled": ("h100", lambda t: gpt.problem(t, **_GPT, scan=False)),
    "ViT": ("cpu", lambda t: vit_digits.problem(t, num_layers=6, batch_size=64)),
    "MLP, 24 layers": ("h100", partial(_mlp, 24, False)),
    "MLP, rematerialized": ("h100", partial(_mlp, 24, True)),
    "convolutions": ("cpu", _convolutions),
    "FSDP": ("h100:8", _fsdp),
    "tensor parallel": ("h100:8", _tensor_parallel),
    "pipeline": ("h100:8", _pipeline),
    "offloaded": ("h100", _offloaded),
}
"""What is compiled, and for what; none of it needs the devices."""
