"""What this library needs from inside JAX: the only file that touches `jax._src`."""

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src import (
    ad_util,
    compiler,
    config,
    distributed,
    mesh,
    sharding_impls,
    source_info_util,
)
from jax._src.core import JaxprEqn, NamedAxisEffect, Tracer
from jax._src.core import ShardingTypeError as ShardingTypeError
from jax._src.cudnn import fused_attention_stablehlo as cudnn_attention
from jax._src.interpreters import mlir
from jax._src.pallas.triton import gpu_info
from jax._src.state.types import AbstractRef
from jax.extend import backend
from jax.extend.core import (
    ClosedJaxpr,  # type: ignore[reportPrivateImportUsage]
    jaxpr_as_fun,
)
from jaxlib import _hlo  # type: ignore[reportAttributeAccessIssue]
from jaxlib.mlir import passmanager

INTERNALS = "jax._src."
"""How the names of JAX's own modules begin."""
ASK_FOR_PROGRAMS = (f"{INTERNALS}sharding_impls", f"{INTERNALS}mesh_utils")
"""Those of them that ask about devices on behalf of a program."""


DISABLED_PASSES = "xla_disable_hlo_passes"
"""XLA's option with the names of passes that it leaves out, with commas between."""
REMAT_PASS = "rematerialization"
"""What XLA calls its own remat pass there."""
REMAT_LIMIT = "xla_gpu_memory_limit_slop_factor"
"""XLA's option with the share of a GPU's memory that this pass keeps to, in percent."""


def without_lines(module: Any) -> Any:
    """A copy of an MLIR module that says nothing of where its operations come from."""
    bare = module.clone()
    with bare.context:
        strip = passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
        strip.run(bare.operation)
    return bare.operation


def entered_mesh() -> Any:
    """The mesh of the older `with mesh:`, None outside of one."""
    found = mesh.thread_resources.env.physical_mesh
    return None if found.empty else found


def varying_axes(x: Any) -> frozenset[str]:
    """The manual mesh axes along which a value differs, within `jax.shard_map`."""
    return frozenset(jax.typeof(x).mat.varying)


def varying_like(tree: Any, x: Any) -> Any:
    """Values of which types say that they differ along the axes along which `x` does.

    A loop's carry needs it from the start.
    """
    axes = tuple(sorted(varying_axes(x)))
    cast = lambda one: jax.lax.pcast(one, axes, to="varying") if axes else one
    return jax.tree.map(cast, tree)


def knows_varying_axes() -> bool:
    """Whether types say that, within the `jax.shard_map` that is being traced."""
    return bool(config._check_vma.value)


_ANYWHERE = "revremat.anywhere"


def trace_context() -> Any:
    """Settings, meshes and axes by which JAX may trace the same function otherwise."""
    return config.trace_context()


@dataclass(frozen=True)
class Scope:
    """Where an equation stands in a program whose calls are inlined.

    JAX cuts tracebacks off where the program begins that an equation is in: the body of
    a loop, a jitted function, a checkpoint.

    Attributes:
      names: The `jax.named_scope`s around it; as text, joined by `/`.
      caller: The traceback of the calls around it, innermost first; None without any.
    """

    names: Any = field(default_factory=source_info_util.new_name_stack)
    caller: Any = None

    def __str__(self) -> str:
        return str(self.names)

    def within(self, eqn: JaxprEqn) -> "Scope":
        """The scope of an equation of the program."""
        return Scope(self.names + eqn.source_info.name_stack, self.caller)

    def inside(self, eqn: JaxprEqn) -> "Scope":
        """Of the program that an equation with this scope holds."""
        return Scope(self.names, self.made_at(eqn))

    def anywhere(self) -> "Scope":
        """A scope that stands for any other one; `placed` says for which."""
        return Scope(source_info_util.new_name_stack(_ANYWHERE), self.caller)

    def placed(self, around: "Scope") -> "Scope":
        """The scope with another one for `anywhere`."""
        parts = (
            around.names.stack if getattr(one, "name", "") == _ANYWHERE else (one,)
            for one in self.names.stack
        )
        stack = tuple(one for few in parts for one in few)
        return Scope(type(self.names)(stack), around.caller)

    def differentiated(self, *, backward: bool = False) -> "Scope":
        """The scope in a forward or a backward pass, as JAX's own has it."""
        stack = source_info_util.new_name_stack()
        if backward:
            stack = stack.transform("transpose")
        return Scope(stack.transform("jvp") + self.names, self.caller)

    def made_at(self, eqn: JaxprEqn) -> Any:
        """The traceback of an equation, with that of the calls around it."""
        made_at = eqn.source_info.traceback
        if made_at is None or self.caller is None:
            return made_at or self.caller
        try:
            return made_at + self.caller
        except TypeError:  # an older JAX, which cuts none off
            return made_at


def source_frames(eqn: JaxprEqn, scope: Scope) -> Iterator[tuple[str, str]]:
    """Where an equation comes from, outside of JAX, the innermost call first.

    Yields:
      A file, and `file:line (function)`.
    """
    for frame in source_info_util.user_frames(scope.made_at(eqn)):
        line = f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
        yield frame.file_name, line


def refused_frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """Where the equation comes from that JAX could not transform, innermost first.

    Yields:
      A file, and `file:line (function)`; nothing if JAX does not say.
    """
    cause: BaseException | None = error
    told = source_info_util.JaxStackTraceBeforeTransformation
    while cause is not None and not isinstance(cause, told):
        cause = cause.__cause__
    if cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            yield frame.filename, f"{frame.filename}:{frame.lineno} ({frame.name})"


@contextlib.contextmanager
def _where(eqn: JaxprEqn, scope: Scope) -> Iterator[None]:
    stack = source_info_util.current_name_stack() + scope.names
    with (
        source_info_util.user_context(scope.made_at(eqn), name_stack=stack),
        eqn.ctx.manager,
    ):
        yield


def bind(
    eqn: JaxprEqn, values: Sequence[Any], scope: Scope, **changed: Any
) -> list[Any]:
    """Evaluate one equation on other values, under its own scope, mesh and settings.

    Args:
      eqn: The equation.
      values: One value for each of its inputs.
      scope: Where it stands.
      changed: Parameters to replace, such as a rewritten `jaxpr`.
    """
    bound = eqn.primitive.get_bind_params({**eqn.params, **changed})
    # Up to 0.11 call-like primitives took their functions as positional arguments.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    with _where(eqn, scope):
        out = eqn.primitive.bind(*functions, *values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def here(f: Callable[[], Any]) -> Any:
    """Calls a function, without anything around it."""
    return f()


def shard_mapped(eqn: JaxprEqn, f: Callable[..., Any], scope: Scope) -> Any:
    """Another function mapped over devices as a `shard_map` equation maps its own.

    Args:
      eqn: The equation.
      f: Takes what the equation's function takes; returns a tuple as long as its own.
      scope: Where it stands.
    """
    params = eqn.params
    renamed = "newly_manual_axes" in params  # since JAX 0.12
    manual = params["newly_manual_axes" if renamed else "manual_axes"]
    mapped = jax.shard_map(
        f,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=set(manual),
        check_vma=params["check_vma"],
    )

    def call(*values: Any) -> Any:
        with _where(eqn, scope):
            return mapped(*values)

    return call


def mapped_like(eqn: JaxprEqn) -> Callable[[Callable[[], Any]], Any]:
    """A way to call functions as if inside of a `shard_map` equation.

    There the mesh's axes have names and arrays know over which of them they vary.
    """

    def within(f: Callable[[], Any]) -> Any:
        found = []

        def body(*args: Any) -> Any:
            found.append(f())
            return eval_jaxpr(eqn.params["jaxpr"], args)

        specs = [v.aval for v in eqn.invars]
        mapped = shard_mapped(eqn, body, Scope().within(eqn))
        jax.eval_shape(mapped, *specs)
        return found[0]

    return within


def eval_jaxpr(jaxpr: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """A jaxpr without constants, evaluated."""
    return tuple(jaxpr_as_fun(close(jaxpr))(*args))


def zeros_of(aval: Any) -> Any:
    """What changes no sum of values of a type; always in the device's memory."""
    with _mesh_of(aval):
        return ad_util.zeros_like_aval(aval)


def empty_of(aval: Any) -> Any:
    """An array of a type, its entries yet to be written."""
    with _mesh_of(aval):
        return ad_util.empty_like_aval(aval)


def is_for_one_device(ctx: Any) -> bool:
    """Whether what is lowered has no arrays that the compiler splits over devices."""
    where = ctx.module_context.axis_context
    if isinstance(where, sharding_impls.ShardingContext):
        return where.num_devices == 1
    manual = getattr(where, "manual_axes", frozenset())
    return bool(manual) and manual == frozenset(where.mesh.axis_names)


def _mesh_of(aval: Any) -> contextlib.AbstractContextManager[Any]:
    mesh = aval.sharding.mesh
    if mesh.empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


def add_cotangents(a: Any, b: Any) -> Any:
    """The sum of two cotangents, as differentiation itself would add them."""
    return ad_util.add_jaxvals(a, b)


def lowered_to_memory(ctx: Any, x: Any, kind: str) -> list[Any]:
    """A value of a program that is being lowered, in a memory of the device."""
    (aval,) = ctx.avals_out
    return [mlir.wrap_with_memory_kind(ctx.module_context, x, kind, aval)]


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def side_effects(eqn: JaxprEqn) -> list[Any]:
    """What an equation does beside computing its results.

    That a collective within `jax.shard_map` needs its mesh axis is no such thing.
    """
    return [e for e in eqn.effects if not isinstance(e, NamedAxisEffect)]


def is_tracer(x: Any) -> bool:
    """Whether a value is only known while something is being traced."""
    return isinstance(x, Tracer)


def is_ref(aval: Any) -> bool:
    """Whether it is the type of memory that is written, not of an array."""
    return isinstance(aval, AbstractRef)


def close(jaxpr: Any) -> Any:
    """A jaxpr without constants as a closed one."""
    return ClosedJaxpr(jaxpr, ())


def constants_of(closed: Any) -> list[tuple[Any, Any]]:
    """The variables of a closed jaxpr that have values attached, with the values."""
    return list(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def has_explicit_placement(eqn: JaxprEqn) -> bool:
    """Whether a jitted call fixes shardings, layouts or compiler options of its own."""
    params = eqn.params
    placed = any(
        type(s).__name__ != "UnspecifiedValue"
        for key in ("in_shardings", "out_shardings")
        for s in params.get(key, ())
    )
    laid_out = any(
        layout is not None
        for key in ("in_layouts", "out_layouts")
        for layout in params.get(key, ())
    )
    return placed or laid_out or bool(params.get("compiler_options_kvs"))


def serialized_hlo(text: str) -> bytes:
    """A `HloModuleProto` of a module that was printed.

    Raises:
      jax.errors.JaxRuntimeError: It is no such text.
    """
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def how_it_runs(eqn: JaxprEqn) -> str:
    """What an equation's surroundings say of it: its kind of core, notes for XLA."""
    ctx = eqn.ctx
    told = ctx.compute_type, ctx.xla_metadata, ctx.threefry_partitionable
    return repr(told)


def compile_settings(lowered: Any) -> list[str]:
    """All that JAX adds to a compile beside the module: options and devices.

    Args:
      lowered: A `jax.stages.Lowered`.
    """
    lowering = lowered._lowering
    # The compiler_options of jax.jit.
    options = getattr(lowering, "_compiler_options_kvs", None) or ()
    devices = devices_of_lowered(lowered)
    names = (
        "jax_optimization_level",
        "jax_memory_fitting_level",
        "jax_disable_most_optimizations",
        "jax_use_shardy_partitioner",
    )
    settings = [f"{name}={jax.config.values.get(name)}" for name in names]
    return [*settings, str(sorted(options)), str([d.id for d in devices])]


def devices_of_lowered(lowered: Any) -> tuple[Any, ...]:
    """The devices that a `jax.stages.Lowered` is for, in the order of the program."""
    return tuple(getattr(lowered._lowering, "_device_list", None) or ())


def coordination() -> tuple[Any, int, int]:
    """JAX's client of its coordination service, which process this is, how many."""
    state = distributed.global_state
    return state.client, state.process_id, state.num_processes


def jax_version() -> str:
    return jax.__version__


_capability: ContextVar[tuple[int, ...] | None] = ContextVar("capability", default=None)
_CUDNN = 92000  # What is said where there is none to ask.
_OLDEST = (8, 0)


@functools.cache
def trace_absent_kernels() -> None:
    """cuDNN's attention may be traced where there is no cuDNN, and no card to ask.

    JAX looks for both while it traces, which is long before anything runs. From here on
    it gets an answer where it would have had none: a recent cuDNN, and the card of
    `on_device`, or one that can do what is asked. Cards that are there are asked.
    """
    version = cudnn_attention.check_cudnn_version
    shapes = cudnn_attention.check_is_flash_attention
    at_least = cudnn_attention.check_compute_capability
    equals = cudnn_attention.is_cuda_compute_capability_equal

    def check_cudnn_version() -> int:
        try:
            return version()
        except RuntimeError:
            return _CUDNN

    def check_compute_capability(wanted: str) -> bool:
        if (asked := _capability.get()) is not None:
            return asked >= _parts(wanted)
        return at_least(wanted) if _has_card() else True

    def is_cuda_compute_capability_equal(wanted: str) -> bool:
        if (asked := _capability.get()) is not None:
            return asked == _parts(wanted)
        return equals(wanted)

    def check_is_flash_attention(*args: Any, **kwargs: Any) -> None:
        asked = _capability.get()
        if asked is not None and asked < _OLDEST:  # JAX leaves that to cuDNN
            raise NotImplementedError(
                "cuDNN's attention needs a device of compute capability "
                f"{_text(_OLDEST)} or more, and the target's is {_text(asked)}"
            )
        shapes(*args, **kwargs)

    cudnn_attention.check_is_flash_attention = check_is_flash_attention
    cudnn_attention.check_cudnn_version = check_cudnn_version
    cudnn_attention.check_compute_capability = check_compute_capability
    cudnn_attention.is_cuda_compute_capability_equal = is_cuda_compute_capability_equal

    if hasattr(gpu_info, "_get_device_arch_name"):  # since JAX 0.11.2
        gpu_info._get_device_arch_name = _arch_or(gpu_info._get_device_arch_name)


@functools.cache
def lower_absent_callbacks() -> None:
    """Callbacks may be lowered for an NVIDIA device where JAX has no such platform.

    JAX compares the names of platforms by looking among those that it started.
    """
    backend_of = mlir.ModuleContext.get_backend

    def get_backend(self: Any, optional: bool = False) -> Any:
        try:
            return backend_of(self, optional)
        except RuntimeError:
            if getattr(self.backend, "_raw_platform", None) not in self.platforms:
                raise
            return self.backend

    mlir.ModuleContext.get_backend = get_backend


def forget_callbacks(lowered: Any) -> None:
    """Drops the host's side of callbacks; a program that only compiles never calls."""
    lowered._lowering.compile_args["host_callbacks"] = ()


def ambient_mesh() -> tuple[Any, bool]:
    """The mesh of `jax.set_mesh` or of the older `with mesh:`; whether by the latter.

    Returns:
      None in place of the mesh where none is set.
    """
    new, old = mesh.get_concrete_mesh(), mesh.thread_resources.env.physical_mesh
    if new is not None and not new.empty:
        return new, False
    return (None, False) if old.empty else (old, True)


def use_remat_pass(on: bool) -> contextlib.AbstractContextManager[Any]:
    """Within it, this thread's compiles run XLA's own remat pass, or do not."""
    return config.enable_remat_opt_pass(on)


_OPTIONS: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("options", default=())


@contextlib.contextmanager
def use_compiler_options(options: Mapping[str, str]) -> Iterator[None]:
    """Within it, this thread's compiles have these options, but for their own."""
    if options:
        _hand_on_options()
    token = _OPTIONS.set(tuple(options.items()))
    try:
        yield
    finally:
        _OPTIONS.reset(token)


@functools.cache
def _hand_on_options() -> None:
    """JAX has compiler options for one function, and none for all of a thread."""
    made = compiler.get_compile_options

    def get_compile_options(*args: Any, **kwargs: Any) -> Any:
        own = kwargs.pop("env_options_overrides", None) or {}
        given = {**dict(_OPTIONS.get()), **own}
        return made(*args, **kwargs, env_options_overrides=given or None)

    compiler.get_compile_options = get_compile_options


def without_compilation_cache() -> contextlib.AbstractContextManager[Any]:
    """Within it, this thread reads no executables that JAX wrote to the disk."""
    return config.enable_compilation_cache(False)


def _arch_or(arch_of: Callable[[str], str]) -> Callable[[str], str]:
    """The capability of a card that Pallas does not know by its name."""

    def get(device_kind: str) -> str:
        asked = _capability.get()
        return arch_of(device_kind) if asked is None else _text(asked)

    return get


def _text(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))


def _parts(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.rstrip("af").split("."))


def _has_card() -> bool:
    return "cuda" in backend.get_backend().platform_version


@contextlib.contextmanager
def on_device(device: Any, capability: str) -> Iterator[None]:
    """Kernels are traced and lowered for a device that is not there.

    Args:
      device: One of a topology's.
      capability: Of NVIDIA's cards, what they can do: `9.0a`; else empty.
    """
    trace_absent_kernels()
    known = jax.sharding.get_abstract_mesh().update(
        abstract_device=mesh.abstract_device_from(device)
    )
    token = _capability.set(_parts(capability) if capability else None)
    try:
        with jax.sharding.use_abstract_mesh(known):
            yield
    finally:
        _capability.reset(token)
