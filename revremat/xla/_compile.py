"""Compile a step for a target; the second time it comes from the disk."""

import contextlib
import functools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from revremat._compat import on_device, trace_absent_kernels
from revremat._errors import UserError, arguments_told
from revremat._problem import positions
from revremat._sources import loops_told
from revremat.program._attention import PREFIX as ATTENTION
from revremat.xla._artifact import Artifact, versions
from revremat.xla._disk import cache_folder, fingerprint, left_behind, read, write
from revremat.xla._literals import without_literals
from revremat.xla._no_kernels import no_kernels, quick_kernels
from revremat.xla._specs import place
from revremat.xla._targets import Target
from revremat.xla._tiling import (
    DISABLED_PASSES,
    may_leave_out,
    remember,
    seen_tiled,
    untiled,
    way_around,
    without_tiling,
)
from revremat.xla._totals import NAMES, totals

_FOLDERS = "revremat-"
_NO_ROOM = "RESOURCE_EXHAUSTED"
_REFUSED = (
    "the compiler of {} refuses the program for want of memory; these are the sums of "
    "the buffers that it had laid out, some hundred kB off at most"
)


class DoesNotFitError(UserError):
    """The target's compiler itself refused the program for want of memory."""


@dataclass(frozen=True)
class Lowered:
    """A step that is ready to be compiled, in any thread.

    Attributes:
      program: The `jax.stages.Lowered`.
      target: What to compile for.
      options: Compiler options, by XLA's names.
      placed: The step's arguments on the target's devices.
    """

    program: Any
    target: Target
    options: Mapping[str, Any]
    placed: Any = ()

    @property
    def is_whole(self) -> bool:
        """Whether no argument is split over the devices, as far as it is known."""
        found = [
            getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(self.placed)
        ]
        return bool(found) and all(s and s.is_fully_replicated for s in found)

    def compile(self, *, cache: bool = True) -> Artifact:
        """Compiles it, or reads an identical compile from the disk.

        Raises:
          DoesNotFitError: The compiler ran out of memory before it had laid it out.
        """
        target = self.target
        key = fingerprint(self.program, target, self.options, self.placed)
        path = cache_folder() / f"{key}.zip"
        if cache and (found := read(path, key)) is not None:
            return replace(found, is_whole=self.is_whole)
        made = self._untiled() if cache else None
        made = made or self._tiled()
        if cache:
            write(path, key, made)
        return replace(made, is_whole=self.is_whole)

    def _untiled(self) -> Artifact | None:
        """The program without tiles; None where it takes tiling to know it."""
        if not may_leave_out(self.target, self.options):
            return None
        options = {**self.options, **without_tiling()}
        try:
            made = _compile(self.program, self.target, options)
        except jax.errors.JaxRuntimeError:
            return None
        kernels = untiled(made.hlo)
        if kernels is not None and kernels <= seen_tiled(self.target, self.options):
            return made
        whole = self._tiled()
        same = dict(whole.stats) == dict(made.stats)
        if kernels and same and not whole.remarks:
            remember(kernels, self.target, self.options)
        return replace(whole, seconds=made.seconds + whole.seconds)

    def _tiled(self) -> Artifact:
        try:
            return _compile(self.program, self.target, self.options)
        except jax.errors.JaxRuntimeError as error:
            changes, remark = way_around(error, self.options)
            if not changes:
                raise
            made = _compile(self.program, self.target, {**self.options, **changes})
            return replace(made, remarks=(remark,))


def lower_step(
    step: Callable[..., Any],
    specs: tuple[Any, ...],
    target: Target,
    *,
    donate: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> Lowered:
    """Traces `step` and lowers it for `target`; see `compile_step`."""
    placed, donate = place(specs, target), positions(donate)
    if hasattr(step, "trace"):
        if donate:
            raise UserError(
                f"donate={donate} was given with a step that is already jitted: write "
                "donate_argnums in its jax.jit instead"
            )
        jitted: Any = step
    else:
        _check_positions(donate, len(specs))
        jitted = jax.jit(step, donate_argnums=donate)
    trace_absent_kernels()
    with _elsewhere(target):
        label = getattr(step, "__name__", "the step")
        with arguments_told(label, step, specs), loops_told(label):
            traced = jitted.trace(*placed)
        lowered = _lower(traced, target)
    options = {**_default_options(target), **(options or {})}
    return Lowered(lowered, target, options, placed)


def _check_positions(donate: tuple[int, ...], number: int) -> None:
    """JAX refuses positions that are not there, unless the step takes `*args`."""
    if any(not -number <= position < number for position in donate):
        raise UserError(
            f"donate={donate} names an argument that the step is not given: it has "
            f"{number}, the first at position 0"
        )


def _lower(traced: Any, target: Target) -> Any:
    try:
        return traced.lower(lowering_platforms=(target.platform,))
    except NotImplementedError as error:
        if target.platform == "cuda" or ATTENTION not in str(error):
            raise
        raise UserError(
            f"the program calls cuDNN's attention, which {target} does not have: write "
            "another implementation, or a target such as h100:1"
        ) from None


def _elsewhere(target: Target) -> contextlib.AbstractContextManager[None]:
    """Kernels that ask which device they are for are told the target's."""
    if target.platform == "cpu" or target.present:
        return contextlib.nullcontext()
    capability = target.card.description.get("compute_capability", "")
    return on_device(target.devices[0], str(capability))


def compile_step(
    step: Callable[..., Any],
    specs: tuple[Any, ...],
    target: Target,
    *,
    donate: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
    cache: bool = True,
) -> Artifact:
    """Compiles `step` for `target`, or reads an identical compile from the disk.

    XLA's own rematerialization pass is off, so that the program keeps what it says it
    keeps.

    Args:
      step: A function, or the result of `jax.jit`.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      target: What to compile for.
      donate: Positions of the arguments that may be overwritten; only for a `step`
        that is not jitted yet.
      options: More compiler options, by XLA's names.
      cache: Read and write the cache.

    Returns:
      An `Artifact`.

    Raises:
      DoesNotFitError: The compiler ran out of memory before it had laid it out.
      UserError: The arguments do not suit the target.
    """
    lowered = lower_step(step, specs, target, donate=donate, options=options)
    return lowered.compile(cache=cache)


def read_compiled(compiled: Any) -> Artifact:
    """What can be read from a `jax.stages.Compiled`: totals and module, no buffers."""
    module = compiled.runtime_executable().hlo_modules()[0]
    text = module.as_serialized_hlo_module_proto()
    # An HloProto with the module as its field 1.
    hlo = b"\x0a" + _varint(len(text)) + text
    return Artifact(hlo, _stats(compiled), 0.0, False, versions())


def _default_options(target: Target) -> dict[str, Any]:
    if target.platform == "cuda" and not target.present:
        return {"xla_gpu_autotune_level": 0}  # nothing to tune on
    return {}


_SETTINGS = {
    "jax_compiler_enable_remat_pass": False,
    "jax_enable_compilation_cache": False,
}
_settings_lock = threading.Lock()
_settings_before: list[dict[str, Any]] = []  # one for each compile under way


@contextlib.contextmanager
def _compiler_settings() -> Iterator[None]:
    """No remat pass of XLA's own; no reading of executables that were never dumped.

    The settings are the process's: the first of several compiles at a time sets them
    and the last one puts back what was there.
    """
    with _settings_lock:
        before = {name: getattr(jax.config, name) for name in _SETTINGS}
        _settings_before.append(_settings_before[0] if _settings_before else before)
        for name, value in _SETTINGS.items():
            jax.config.update(name, value)
    try:
        yield
    finally:
        with _settings_lock:
            before = _settings_before.pop()
            if not _settings_before:
                for name, value in before.items():
                    jax.config.update(name, value)


def _compile(lowered: Any, target: Target, options: Mapping[str, Any]) -> Artifact:
    _sweep()
    folder = tempfile.mkdtemp(prefix=_FOLDERS)
    elsewhere = target.platform == "cuda" and not target.present
    if DISABLED_PASSES in options:  # takes the place of what JAX says by its setting
        passes = f"{options[DISABLED_PASSES]},rematerialization"
        options = {**options, DISABLED_PASSES: passes}
    options = {
        **(quick_kernels() if target.platform == "cpu" else {}),
        **options,
        **(no_kernels(Path(folder)) if elsewhere else {}),
        "xla_dump_to": folder,
        "xla_dump_hlo_as_proto": True,
        # Whatever XLA_FLAGS say:
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_compress_protos": False,
    }
    start, remarks = time.perf_counter(), ()
    try:
        with _compiler_settings():
            try:
                stats = _stats(lowered.compile(compiler_options=options))
            except jax.errors.JaxRuntimeError as error:
                refused = target.platform == "tpu" and _NO_ROOM in str(error)
                if not (elsewhere or refused):
                    raise
                try:  # All we ask for is settled once buffers are assigned.
                    stats = totals(_largest_dump(folder))
                except RuntimeError:
                    raise error from None
                remarks = (_REFUSED.format(target.spec),) * refused
        seconds = time.perf_counter() - start
        hlo = _largest_dump(folder)
        if not hlo:
            raise RuntimeError(f"XLA wrote no dump for {target.spec}")
    except jax.errors.JaxRuntimeError as error:
        if _NO_ROOM in str(error):
            reason = str(error).splitlines()[0]
            raise DoesNotFitError(
                f"the compiler of {target.spec} refuses the program: {reason}"
            ) from None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Artifact(without_literals(hlo), stats, seconds, False, versions(), remarks)


def _largest_dump(folder: str) -> bytes:
    dumps = [p.read_bytes() for p in Path(folder).glob("*after_optimizations.hlo.pb")]
    return max(dumps, key=len, default=b"")


def _stats(compiled: Any) -> dict[str, int]:
    found = compiled.memory_analysis()
    if found is None:
        raise UserError("this backend's compiler states no memory figures")
    return {
        prefix + name: getattr(found, f"{prefix}{name}_size_in_bytes")
        for prefix in ("", "host_")
        for name in NAMES
    }


@functools.cache
def _sweep() -> None:
    """Removes the dumps of processes that were killed."""
    for folder in left_behind(Path(tempfile.gettempdir()), f"{_FOLDERS}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))
