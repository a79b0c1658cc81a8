"""A compile for a GPU that is read before any kernel is made.

Once buffers are assigned, memory, schedule and fusions are settled; what follows, code
for every fusion, is half of a large convolutional network's compile and says nothing
more about any of them.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from google.protobuf.message import DecodeError

from revremat._errors import UserError
from revremat.xla import _compile
from revremat.xla._compile import Artifact
from revremat.xla._liveness import HOST_SPACE
from revremat.xla._schema import HloProto
from revremat.xla._specs import place
from revremat.xla._targets import Target

_POLL_SECONDS = 0.2


def assign_buffers(
    step: Callable[..., Any],
    specs: tuple[Any, ...],
    target: Target,
    *,
    donate: tuple[int, ...] = (),
    cache: bool = True,
) -> Artifact:
    """What `compile_step` returns, as soon as the compiler has decided it.

    The result goes to the same cache. The compiler cannot be stopped: a thread goes on
    with the kernels until the process ends, so this is for processes that end next,
    by `os._exit`.

    Args:
      step: A function.
      specs: Its arguments, as arrays or `jax.ShapeDtypeStruct`s.
      target: GPUs that are not in this machine.
      donate: Positions of the arguments that may be overwritten.
      cache: Read and write the cache.

    Raises:
      UserError: The target is no absent GPU.
    """
    if target.platform != "cuda" or target.present:
        raise UserError(
            f"{target.spec} is no GPU that is elsewhere, and only such a compile can "
            "be read early; use rr.measure."
        )
    options = _compile._default_options(target)
    placed = place(specs, target)
    jitted = jax.jit(step, donate_argnums=donate)
    lowered = jitted.trace(*placed).lower(lowering_platforms=(target.platform,))
    key = _compile._fingerprint(lowered, target, options, placed)
    path = _compile.cache_folder() / f"{key}.zip"
    if cache and (found := _compile._read(path, key)) is not None:
        return found
    start = time.perf_counter()
    remarks: tuple[str, ...] = ()
    try:
        hlo = _first_dump(lowered, options)
    except jax.errors.JaxRuntimeError as error:
        changes, remark = _compile.way_around(error, options)
        if not changes:
            raise
        hlo, remarks = _first_dump(lowered, {**options, **changes}), (remark,)
    seconds = time.perf_counter() - start
    versions = _compile.versions()
    made = Artifact(hlo, totals(hlo), seconds, False, versions, remarks)
    if cache:
        _compile._write(path, key, made)
    return made


def totals(hlo: bytes) -> dict[str, int]:
    """XLA's own totals, summed from the buffer assignment of a dump."""
    found = {p + name: 0 for p in ("", "host_") for name in _compile._STATS}
    proto = HloProto.FromString(hlo)
    for one in proto.buffer_assignment.buffer_allocations:
        prefix = "host_" if one.color == HOST_SPACE else ""
        taken, given = one.is_entry_computation_parameter, one.maybe_live_out
        found[prefix + "argument"] += one.size * taken
        found[prefix + "output"] += one.size * given
        found[prefix + "alias"] += one.size * (taken and given)
        lasting = taken or given or one.is_constant or one.is_thread_local
        found[prefix + "temp"] += one.size * (not lasting)
    return found


def _first_dump(lowered: Any, options: dict[str, Any]) -> bytes:
    """The first dump that has a buffer assignment, while the compiler goes on."""
    folder = tempfile.mkdtemp(prefix="revremat-")
    failed: list[BaseException] = []

    def compile_all() -> None:
        with _compile._compiler_settings():
            try:
                lowered.compile(
                    compiler_options={
                        **options,
                        "xla_dump_to": folder,
                        "xla_dump_hlo_as_proto": True,
                    }
                )
            except BaseException as error:
                failed.append(error)

    thread = threading.Thread(target=compile_all, daemon=True)
    thread.start()
    try:
        while True:
            alive = thread.is_alive()
            for dump in Path(folder).glob("*after_optimizations.hlo.pb"):
                # Half a file does not parse, or has no allocations yet: they come last.
                with contextlib.suppress(DecodeError, OSError):
                    hlo = dump.read_bytes()
                    proto = HloProto.FromString(hlo)
                    if proto.buffer_assignment.buffer_allocations:
                        return hlo
            if failed:
                raise failed[0]
            if not alive:
                raise RuntimeError("XLA wrote no buffer assignment")
            time.sleep(_POLL_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
