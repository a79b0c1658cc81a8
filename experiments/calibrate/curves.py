"""Rates of a CPU by class of work and size, from the times of single instructions.

Small programs are compiled and run under JAX's profiler. The profiler says how long
each instruction took, the compiled program what it did: the same account of work that
the step-time estimator will use.
"""

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.calibrate.trace import durations_us
from revremat.xla import (
    Cost,
    Module,
    cost_of,
    evaluations_of,
    rate_at,
    read_compiled,
)

Curves = dict[str, list[tuple[float, float]]]
Timed = list[tuple[Any, Cost, float]]

KIB = 2**10
_ROUNDS = 8
FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "exponential": jnp.exp,
    "log": lambda x: jnp.log(x * x + 1.0),
    "logistic": jax.nn.sigmoid,
    "divide": lambda x: 1.5 / x,
    "sqrt": lambda x: jnp.sqrt(x * x),
    "rsqrt": lambda x: jax.lax.rsqrt(x * x + 1.0),
    "erf": jax.lax.erf,
    "sine": jnp.sin,
    "cosine": jnp.cos,
    "log-plus-one": lambda x: jnp.log1p(x * x),
    "exponential-minus-one": jnp.expm1,
    "power": lambda x: jnp.power(x * x + 1.0, 1.3),
}


def measure(quick: bool = False) -> Curves:
    """All curves of this machine's first device; see `revremat.xla.Card`."""
    found: Curves = {}
    found["fresh"] = _fresh(quick)  # first: what lies in the heap by then decides
    found["stream"] = _stream(quick)
    found["arithmetic"] = [_arithmetic(found["stream"])]
    found |= _functions(found)
    found |= _reductions(quick)
    found |= _products(quick)
    found |= _convolutions(quick)
    found |= _loop_convolutions(quick)
    found |= _across(quick)
    found |= _loops(quick)
    found["loop.crowded"] = _crowded_loops(quick, found)
    found["loop.by_number"] = _loops_by_number(quick)
    found["row_operations"] = _row_operations(quick)
    return {name: points for name, points in found.items() if points}


def launch_us(quick: bool = False) -> float:
    """Time from one small instruction to the next, beyond what both of them take."""
    walls, busy = [], []
    lengths = (10, 50) if quick else (50, 450)
    for length in lengths:

        def chain(x, length=length):
            for _ in range(length):
                x = x @ x
            return x

        rows = timed(chain, jnp.eye(8))
        busy.append(sum(seconds for _, _, seconds in rows))
        compiled = jax.jit(chain).lower(jnp.eye(8)).compile()
        fastest = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            jax.block_until_ready(compiled(jnp.eye(8)))
            fastest = min(fastest, time.perf_counter() - began)
        walls.append(fastest)
    between = (walls[1] - busy[1]) - (walls[0] - busy[0])
    return max(0.02, 1e6 * between / (lengths[1] - lengths[0]))


def timed(function: Callable[..., Any], *arguments: Any) -> Timed:
    """Every instruction of a compiled function: itself, its work, and seconds.

    The fastest of several runs: what else runs on the machine only adds.
    """
    return _timed_of(function, *arguments)[1]


def _timed_of(function: Callable[..., Any], *arguments: Any) -> tuple[Module, Timed]:
    """The module as well."""
    compiled = jax.jit(function).lower(*arguments).compile()
    module = Module.from_bytes(read_compiled(compiled).hlo)
    run = lambda: jax.block_until_ready(compiled(*arguments))
    for _ in range(2):
        run()
    fastest = {name: min(us) / 1e6 for name, us in durations_us(run, _ROUNDS).items()}
    rows = [
        (i, cost_of(i, module), fastest[i.name])
        for i in module.instructions.values()
        if fastest.get(i.name, 0) > 0
    ]
    return module, rows


def _normal(*shape: int, dtype: Any = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, dtype)


def _largest(found: Timed) -> tuple[Any, Cost, float]:
    return max(found, key=lambda row: row[1].bytes)


def _sizes(quick: bool, first: int, last: int, factor: int = 4) -> Iterator[int]:
    size = first
    while size <= (4 * first if quick else last):
        yield size
        size *= factor


def _stream(quick: bool) -> list[tuple[float, float]]:
    points = []
    for size in _sizes(quick, KIB, 16 * KIB * KIB):
        x, y = (_normal(size // 4) for _ in range(2))
        # What lies in no cache has to share its way with whoever else is there.
        tries = 3 if size >= KIB * KIB else 1
        found = [_largest(timed(lambda x, y: x * 2.0 + y, x, y)) for _ in range(tries)]
        seconds = min(seconds for *_, seconds in found)
        points.append((found[0][1].bytes, found[0][1].bytes / seconds))
    return points


def _arithmetic(stream: list[tuple[float, float]]) -> tuple[float, float]:
    def run(x):
        y = x
        for _ in range(32):
            y = y * x + 0.5
        return y

    _, cost, seconds = _largest(timed(run, _normal(2**18) * 0.1))
    return cost.other_flops, cost.other_flops / seconds


def _functions(known: Curves) -> Curves:
    """What a function of every element takes beyond reading and writing it."""
    found: Curves = {}
    for name, function in FUNCTIONS.items():
        run = lambda x, f=function: f(x) * 1.25 + x
        _, cost, seconds = _largest(timed(run, _normal(2**18)))
        elements = cost.functions.get(name, 0.0)
        if elements:
            traffic = cost.bytes / rate_at(known["stream"], cost.bytes)
            beyond = max(seconds - traffic, 0.02 * seconds)
            # Plain arithmetic hides under the traffic, up to here.
            found[f"function.{name}"] = [(elements, elements / beyond)]
    return found


def _reductions(quick: bool) -> Curves:
    found: Curves = defaultdict(list)
    for size in _sizes(quick, 64 * KIB, 16 * KIB * KIB):
        x = _normal(size // 4 // 256, 256)
        for axis in (0, 1):
            for _, cost, seconds in timed(lambda x, a=axis: x.sum(a), x):
                for way, read in cost.reduced_bytes.items():
                    found[f"reduce.{way}"].append((read, read / seconds))
    return {name: _smooth(points) for name, points in found.items()}


_FORMS = ("bij,bjk->bik", "bij,bkj->bik", "bji,bjk->bik", "bji,bkj->bik")


def _products(quick: bool) -> Curves:
    """Matrix products of every size, in every order of their dimensions."""
    found: Curves = defaultdict(list)
    sizes = (16, 64) if quick else (16, 32, 64, 96, 192, 384)
    shapes = [(max(1, 200**3 // n**3), n, n, n) for n in sizes]
    if not quick:
        shapes += [(1, 1024, 96, 384), (1, 512, 512, 128), (1, 128, 512, 512)]
        shapes += [(64, 64, 64, 16), (64, 16, 16, 24), (32, 128, 128, 32)]
        # Gradients of weights: long sums, small results.
        shapes += [(1, 64, 1024, 96), (1, 96, 1024, 256), (1, 128, 768, 384)]
        shapes += [(1, 64, 128, 2048), (1, 128, 256, 1024)]
    for dtype in ("float32", "bfloat16"):
        for batch, i, k, j in shapes:
            for form in _FORMS if dtype == "float32" else _FORMS[:1]:
                sides = {"b": batch, "i": i, "j": k, "k": j}
                left, right = form.split("->")[0].split(",")
                x, y = (
                    _normal(*(sides[d] for d in name), dtype=dtype)
                    for name in (left, right)
                )
                if batch == 1:
                    form, x, y = form.replace("b", ""), x[0], y[0]
                run = lambda x, y, form=form: jnp.einsum(form, x, y)
                for _, cost, seconds in timed(run, x, y):
                    for m in cost.matmuls:
                        point = (m.size, m.flops / seconds)
                        found[f"{m.kind}.{m.dtype}"].append(point)
    return {name: _smooth(points) for name, points in found.items()}


def _convolutions(quick: bool) -> Curves:
    found: Curves = defaultdict(list)
    for features in (4, 8) if quick else (8, 16, 32, 64):
        kernel = _normal(3, 3, features, features)
        images = _normal(8, 16, 16, features)

        def run(x, kernel):
            dims = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=dims
            )

        def gradients(x, kernel, run=run):
            out, back = jax.vjp(run, x, kernel)
            return back(out)

        for _, cost, seconds in timed(gradients, images, kernel):
            for m in cost.matmuls:
                found[f"{m.kind}.{m.dtype}"].append((m.flops, m.flops / seconds))
    return {name: _smooth(points) for name, points in found.items()}


def _loop_convolutions(quick: bool) -> Curves:
    """Gradients of convolutions in a loop's body, which the compiler leaves as such.

    And convolutions in groups, of which a library does one group after the other.
    """
    shapes = [(8, 16, 8, 1), (8, 15, 16, 1), (8, 16, 16, 1), (32, 8, 16, 1)]
    shapes += [(4, 12, 32, 1), (8, 8, 64, 1), (8, 16, 16, 16), (8, 16, 16, 4)]
    found: Curves = defaultdict(list)
    for batch, side, features, groups in shapes[:1] if quick else shapes:
        kernels = _normal(2, 3, 3, features // groups, features)
        images = _normal(batch, side, side, features)

        def run(x, kernel, groups=groups):
            dims = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x,
                kernel,
                (1, 1),
                "SAME",
                dimension_numbers=dims,
                feature_group_count=groups,
            )

        def gradients(x, kernels, run=run):
            def body(shift, kernel):
                out, back = jax.vjp(run, x + shift, kernel)
                by_images, by_kernel = back(out)
                return by_images.mean(), (by_kernel, out.mean())

            return jax.lax.scan(body, 0.0, kernels)

        for _, cost, seconds in timed(gradients, images, kernels):
            for m in cost.matmuls:
                if m.extent:
                    point = (m.extent, m.flops / seconds)
                    found[f"{m.kind}.{m.dtype}"].append(point)
    return {name: _smooth(points) for name, points in found.items()}


def _loops(quick: bool) -> Curves:
    """Loops whose innermost one is long or short, with little to do or much.

    Of plain arithmetic, of rows that are added to their neighbours, and of what scans
    in a tree do. Rows are not a power of two apart.
    """

    small = (
        lambda x, *_: x * x * 3.0 + x,
        lambda x, *_: x * x[0, 0] + x[:, :, :1],
        lambda x, *_: x[:, 2:] + x[:, 1:-1] + x[:, :-2],
        lambda x, *_: x[:, 1::2] * x[:, ::2] + x[:, ::2],
    )
    large = tuple(functools.partial(_tree, levels=levels) for levels in (2, 3))
    found: Curves = {}
    for name, runs in (("loop", small), ("loop.large", large)):
        points = []
        for length in (8, 480) if quick else (4, 8, 16, 32, 60, 120, 480):
            xs = [_normal(4, 256, 480 // length, length) for _ in range(5)]
            for run in runs:
                module, rows = _timed_of(run, *xs)
                i, _, seconds = _largest(rows)
                if i.fusion_kind == "kLoop":
                    done = evaluations_of(i, module)
                    points.append((float(done.innermost), done.work / seconds))
        found[name] = _smooth(points)
    return found


def _crowded_loops(quick: bool, known: Curves) -> list[tuple[float, float]]:
    """Loops that read many rows for each of their own, a power of two apart.

    After other memory, so that the next cache has none of them either.
    """
    points = []
    arrays = [_normal(4, 256, 64, 8) for _ in range(5)]
    other = _normal(2**16 if quick else 2**23)
    for levels in (2,) if quick else (2, 3):

        def run(other, *arrays, levels=levels):
            return _tree(*arrays, levels=levels), other * 2.0 + 1.0

        module, rows = _timed_of(run, other, *arrays)
        for i, _, seconds in rows:
            if i.fusion_kind != "kLoop":
                continue
            found = evaluations_of(i, module)
            if found.crowded:
                plain = found.work / rate_at(known["loop.large"], found.innermost)
                beyond = max(seconds - plain, 0.1 * seconds)
                rows_at_once = found.crowded / found.elements
                points.append((rows_at_once, found.crowded / beyond))
    return _smooth(points)


def _loops_by_number(quick: bool) -> list[tuple[float, float]]:
    """Loops that read anew for each element which entry of a stack they are given.

    That entry is needed in several places: turned around, in parts, and in trees.
    """
    shape = (4, 128, 2 if quick else 60, 8)
    runs: list[Callable[..., jax.Array]] = [
        lambda one, *_: one + one[:, ::-1],
        lambda one, x, *_: one[:, ::2] * x[:, ::2] + one[:, 1::2] * x[:, 1::2],
        lambda one, x, *_: (one * x)[:, ::2] * x[:, ::2] + (one * x)[:, 1::2],
        lambda one, x, *_: sum(one[:, k::4] * x[:, k::4] for k in range(4)),
    ]
    runs += [functools.partial(_tree, levels=levels) for levels in (1, 2)]
    stack, *others = _normal(3, *shape), *(_normal(*shape) for _ in range(4))
    points = []
    for run in runs:

        def of_entry(number, stack, *others, run=run):
            one = jax.lax.dynamic_index_in_dim(stack, number, 0, keepdims=False)
            return run(one, *others)

        arguments = jnp.int32(1), stack, *others
        tries = [_timed_of(of_entry, *arguments) for _ in range(1 if quick else 3)]
        seconds = min(_largest(rows)[2] for _, rows in tries)
        module, rows = tries[0]
        found = evaluations_of(_largest(rows)[0], module)
        if found.by_number:
            work = found.by_number / found.elements
            points.append((work, found.by_number / seconds))
    return _smooth(points)


def _tree(*xs: jax.Array, levels: int) -> jax.Array:
    """What a scan in a tree makes of so many levels of neighbours, of five arrays."""
    decay = xs[0][:, ::2] * xs[1][:, 1::2]
    state = xs[2][:, ::2] * xs[3][:, ::2] + xs[4][:, 1::2]
    for _ in range(levels):
        odd = decay[:, 1::2]
        state = state[:, ::2] * odd + state[:, 1::2]
        decay = decay[:, ::2] * odd
    return state


def _row_operations(quick: bool) -> list[tuple[float, float]]:
    """Operations of a reduction's kernel, by length of the rows that it goes over."""
    points = []
    elements = 2**14 if quick else 2**19
    for length in (8, 64) if quick else (8, 16, 32, 64, 128, 512):
        x, y = (_normal(4, elements // length // 4, length) for _ in range(2))
        for operations, run in (
            (2, lambda x, y: (x * y).sum(-1)),
            (2, lambda x, y: (x * y).sum((0, 1))),
            (5, lambda x, y: (x * y + x * 3.0 + 1.0).sum(-1)),
        ):
            i, _, seconds = _largest(timed(run, x, y))
            if i.fusion_kind == "kCustom":
                points.append((float(length), operations * elements / seconds))
    return _smooth(points)


def _across(quick: bool) -> Curves:
    """Arithmetic on transposed arrays: reads or writes that step over rows.

    With one array the reads do; with several LLVM turns the loops around. The lines of
    rows of 400 numbers fall on all sets of a cache, those of longer or shorter ones by
    powers of two on few.
    """
    found: Curves = defaultdict(list)
    run = lambda *xs: jnp.square(sum(x.T * 1.5 for x in xs)) + xs[0].T * 0.5
    lengths = (48, 400) if quick else (48, 80, 144, 272, 400, 528, 1040, 2064)
    shapes = {1: [(n, 400) for n in lengths], 3: [(400, n) for n in lengths]}
    for pitch in (256, 1024) if quick else (64, 96, 128, 256, 384, 512, 768, 1024):
        for others in (256,) if quick else (256, 512, 768):
            shapes[1].append((others, pitch))
            shapes[3].append((pitch, others))
    sizes = [(arrays, size) for arrays, those in shapes.items() for size in those]
    kept = []  # where arrays lie has a say: the next ones lie elsewhere
    for _ in range(1 if quick else 5):
        for arrays, (rows, width) in sizes:
            xs = [_normal(rows, width) for _ in range(arrays)]
            kept += xs
            for _, cost, seconds in timed(run, *xs):
                ways = ("strided", cost.strided), ("scattered", cost.scattered)
                for way, accesses in ways:
                    number = sum(a.number for a in accesses)
                    for a in accesses[:1]:
                        if a.on_all_sets:
                            found[way].append((a.lines_bytes, number / seconds))
                        elif a.crowded:
                            point = (float(a.sets), number / seconds)
                            found[f"{way}.crowded"].append(point)
    return {name: _smooth(points) for name, points in found.items()}


def _fresh(quick: bool) -> list[tuple[float, float]]:
    """Writing to memory that was not there a moment ago, beyond writing to memory.

    The operating system hands out large pieces page by page when they are touched;
    small ones are kept by the process.
    """
    sizes = (0.25, 1) if quick else (1, 4, 16, 28, 36, 48, 64, 96, 128)
    points = []
    for size in sizes:
        elements = int(size * 2**18)
        fill = lambda x, n=elements: jnp.broadcast_to(x, (n,))
        anew = jax.jit(fill)
        over = lambda old, x, fill=fill: fill(x)  # the result takes over its memory
        again = jax.jit(over, donate_argnums=0, keep_unused=True)
        there = again(anew(1.0), 1.0)
        new_seconds, seconds = float("inf"), float("inf")
        for _ in range(_ROUNDS):
            began = time.process_time()  # the system's share is part of it
            jax.block_until_ready(anew(1.0))
            between = time.process_time()
            there = jax.block_until_ready(again(there, 1.0))
            seconds = min(seconds, time.process_time() - between)
            new_seconds = min(new_seconds, between - began)
        beyond = max(new_seconds - seconds, 0.01 * new_seconds)
        points.append((4.0 * elements, 4.0 * elements / beyond))
    return points


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """One point for each size, the median of those that were measured about there."""
    groups: list[list[tuple[float, float]]] = []
    for point in sorted(points):
        if groups and point[0] < 1.2 * groups[-1][0][0]:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [
        (statistics.median(x for x, _ in g), statistics.median(y for _, y in g))
        for g in groups
    ]
