"""Lowered: a step that is compiled, or read from the disk the second time."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from revremat._compat import (
    DISABLED_PASSES,
    REMAT_PASS,
    forget_callbacks,
    use_compiler_options,
    use_remat_pass,
    without_compilation_cache,
)
from revremat._errors import DoesNotFit, UserError
from revremat.xla.compile._artifact import Artifact, versions
from revremat.xla.compile._disk import fingerprint, read, write
from revremat.xla.compile._kernels_alone import WAYS, can_stand_alone, traced_alone
from revremat.xla.compile._no_kernels import no_kernels, quick_kernels
from revremat.xla.compile._scratch import scratch_folder
from revremat.xla.compile._tiling import (
    leave_out,
    may_leave_out,
    remember,
    seen_tiled,
    untiled,
    way_around,
    without_tiling,
)
from revremat.xla.compile._tuning import Tuning, hand_to_xla, not_tuned, tuning_of
from revremat.xla.hlo._literals import without_literals
from revremat.xla.memory._totals import NAMES, totals
from revremat.xla.target._targets import Target

_NO_ROOM = "RESOURCE_EXHAUSTED"
_NOT_ALONE = jax.errors.JaxRuntimeError, TypeError, ValueError, NotImplementedError
"""What is raised where XLA has no tiling, or does what JAX does not take."""
_REFUSED = (
    "the compiler of {} refuses the program for want of memory; these are the sums of "
    "the buffers that it had laid out, some hundred kB off at most"
)


@dataclass(frozen=True)
class Lowered:
    """A step that is ready to be compiled, in any thread.

    Attributes:
      program: The `jax.stages.Lowered`.
      target: What to compile for.
      options: Compiler options, by XLA's names.
      placed: The step's arguments on the target's devices, as leaves.
      remat_pass: Whether XLA's own rematerialization pass runs.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> lowered = xla.lower_step(jnp.sin, (jnp.ones(256),), rr.target("cpu:1"))
      >>> lowered.compile().stats["argument"]
      1024
    """

    program: Any
    target: Target
    options: Mapping[str, Any]
    placed: Any = ()
    remat_pass: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no argument is split over the devices, as far as it is known."""
        found = [
            getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(self.placed)
        ]
        return bool(found) and all(s and s.is_fully_replicated for s in found)

    @property
    def identity(self) -> str:
        """A hash of everything that its compile depends on."""
        return self._key()

    def compile(self, *, cache: bool = True, exact: bool = True) -> Artifact:
        """Compiles it, or reads an identical compile from the disk.

        Args:
          cache: Read and write the disk's.
          exact: Find out whether XLA has a way to tile each of its products, which
            takes longer than all else. Without, that is taken for granted: hardly any
            product has none.

        Raises:
          DoesNotFit: The compiler ran out of memory before it had laid it out.
          UserError: XLA holds another tuning of the card in this process.
        """
        tuning = tuning_of(self.target, self.options)
        key = self._key(tuning=tuning.digest) if tuning else self._key()
        if cache and (found := read(key)) is not None:
            return self._marked(found, tuning)
        hand_to_xla(tuning, self.target)
        is_exact = True
        if tuning:
            made = self._tuned(tuning)
        elif cache:
            made, is_exact = self._untiled(exact)
        else:
            made, _ = self._tiled()
        if cache and is_exact:
            write(key, made)
        return self._marked(made, tuning)

    def _key(self, **how: Any) -> str:
        if self.remat_pass:
            how["remat_pass"] = True
        options = {**self.options, **how}
        return fingerprint(self.program, self.target, options, self.placed)

    def compile_to_run(self) -> tuple[Artifact, Any]:
        """Compiles it for devices of this machine, kernels included.

        Returns:
          What `compile` returns, and the `jax.stages.Compiled`.

        Raises:
          DoesNotFit: As `compile` does.
        """
        made, compiled = self._tiled(to_run=True)
        return self._marked(made, None), compiled

    def _marked(self, made: Artifact, tuning: Tuning | None) -> Artifact:
        return replace(
            made,
            is_whole=self.is_whole,
            remat_pass=self.remat_pass,
            tuned=tuning is not None,
        )

    def _tuned(self, tuning: Tuning) -> Artifact:
        """With the card's choices, and a remark where they are not for all kernels."""
        try:
            return self._compiled({**self.options, **tuning.whole})
        except jax.errors.JaxRuntimeError as error:
            remark = not_tuned(error, self.target)
            if not remark:
                raise
        try:
            made = self._compiled({**self.options, **tuning.options})
        except jax.errors.JaxRuntimeError as error:
            changes, way = way_around(error, self.options)
            if not changes:
                raise
            made = self._compiled({**self.options, **tuning.options, **changes})
            made = replace(made, remarks=(way,))
        return replace(made, remarks=(remark, *made.remarks))

    def _untiled(self, exact: bool) -> tuple[Artifact, bool]:
        """The program without tiles, where that is known to be the same.

        Args:
          exact: Else it is if it may be, which the second result tells apart.
        """
        if not may_leave_out(self.target, self.options):
            return self._tiled()[0], True
        key = self._key(tiling=False)
        if (made := read(key)) is None:
            try:
                made = self._with(without_tiling())
            except jax.errors.JaxRuntimeError:
                return self._tiled()[0], True
            write(key, made)
        kernels = untiled(made.hlo)
        if kernels is not None:
            seen = seen_tiled(self.target, self.options)
            new = {name: kernels[name] for name in kernels.keys() - seen}
            if not (new and exact):
                return made, not new
            start = time.perf_counter()
            if self._tiles_alone(new):
                remember(new, self.target, self.options)
                seconds = made.seconds + time.perf_counter() - start
                return replace(made, seconds=seconds), True
        whole, _ = self._tiled()
        same = dict(whole.stats) == dict(made.stats)
        if kernels and same and not whole.remarks:
            remember(kernels, self.target, self.options)
        return replace(whole, seconds=made.seconds + whole.seconds), True

    def _tiles_alone(self, kernels: Mapping[str, Any]) -> bool:
        """Whether XLA tiles kernels, as far as programs of them alone can tell."""
        if not all(can_stand_alone(body) for body in kernels.values()):
            return False
        groups, left = [], dict(kernels)
        try:
            for passes in WAYS:
                without = self._alone(left)._with(without_tiling(*passes))
                found = left.keys() & (untiled(without.hlo) or {})
                groups.append(({name: left.pop(name) for name in found}, passes))
                if not left:
                    return all(self._tiles(*group) for group in groups)
        except _NOT_ALONE:  # the whole program shows whether one has no tiling
            pass
        return False

    def _tiles(self, kernels: Mapping[str, Any], passes: Sequence[str]) -> bool:
        """Whether nothing but tilings changes where XLA chooses them."""
        if not kernels:
            return True
        alone = self._alone(kernels)
        tiled = alone._with(leave_out(*passes))
        without = alone._with(without_tiling(*passes))
        return dict(tiled.stats) == dict(without.stats)

    def _alone(self, kernels: Mapping[str, Any]) -> "Lowered":
        target, bodies = self.target, list(kernels.values())
        with ThreadPoolExecutor(1) as without_the_callers_mesh:
            traced = without_the_callers_mesh.submit(
                traced_alone, bodies, target.devices[0]
            ).result()
        program = traced.lower(lowering_platforms=(target.platform,))
        return Lowered(program, target, self.options)

    def _tiled(self, to_run: bool = False) -> tuple[Artifact, Any]:
        try:
            return self._made(self.options, to_run)
        except jax.errors.JaxRuntimeError as error:
            changes, remark = way_around(error, self.options)
            if not changes:
                raise
            made, compiled = self._made({**self.options, **changes}, to_run)
            return replace(made, remarks=(remark,)), compiled

    def _with(self, more: Mapping[str, Any]) -> Artifact:
        """Compiled with these options beside its own."""
        return self._compiled({**self.options, **more})

    def _compiled(self, options: Mapping[str, Any]) -> Artifact:
        return self._made(options)[0]

    def _made(
        self, options: Mapping[str, Any], to_run: bool = False
    ) -> tuple[Artifact, Any]:
        with scratch_folder() as folder:
            return _compile_in(folder, self, options, to_run)


def read_compiled(compiled: Any) -> Artifact:
    """What can be read from a `jax.stages.Compiled`: totals and module, no buffers.

    Args:
      compiled: The result of `.compile()`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import xla
      >>> compiled = jax.jit(jnp.sin).lower(jnp.ones(256)).compile()
      >>> xla.read_compiled(compiled).stats["argument"]
      1024
    """
    module = compiled.runtime_executable().hlo_modules()[0]
    text = module.as_serialized_hlo_module_proto()
    # An HloProto with the module as its field 1.
    hlo = b"\x0a" + _varint(len(text)) + text
    return Artifact(hlo, _stats(compiled), 0.0, False, versions())


def _compile_in(
    folder: str, lowered: Lowered, options: Mapping[str, Any], to_run: bool
) -> tuple[Artifact, Any]:
    """What can be read from the compiler's dumps, and what it returned, if anything."""
    program, target, remat_pass = lowered.program, lowered.target, lowered.remat_pass
    elsewhere = target.is_elsewhere
    if elsewhere:
        forget_callbacks(program)
    if DISABLED_PASSES in options and not remat_pass:
        # Takes the place of what JAX says by its setting.
        passes = f"{options[DISABLED_PASSES]},{REMAT_PASS}"
        options = {**options, DISABLED_PASSES: passes}
    options = {
        **(quick_kernels() if target.platform == "cpu" and not to_run else {}),
        **options,
        **(no_kernels(Path(folder)) if elsewhere else {}),
        "xla_dump_to": folder,
        "xla_dump_hlo_as_proto": True,
        # Whatever XLA_FLAGS say:
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_compress_protos": False,
    }
    start, remarks, compiled = time.perf_counter(), (), None
    try:
        with (
            use_remat_pass(remat_pass),
            use_compiler_options({}),  # the caller's own are in no key
            without_compilation_cache(),
        ):
            try:
                compiled = program.compile(compiler_options=options)
                stats = _stats(compiled)
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
            raise DoesNotFit(
                f"the compiler of {target.spec} refuses the program: {reason}"
            ) from None
        raise
    made = Artifact(without_literals(hlo), stats, seconds, False, versions(), remarks)
    return made, compiled


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


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))
