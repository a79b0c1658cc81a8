"""read: from a dump that a compile left behind, anywhere, to a Measurement."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from revremat import xla
from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._measure import read_artifact
from revremat._measurement import Measurement, categories
from revremat.xla import Target

_FOREIGN = (
    "read from a dump: flags and versions are those of whoever compiled it, and the "
    "device is the one named here"
)


def is_dump(text: str) -> bool:
    """Whether what stands on a command line is a dump rather than a program."""
    if text.endswith((".pb", ".pb.gz", ".txt")):
        return True
    try:
        return text != "" and Path(text).is_dir()
    except (OSError, ValueError):  # a name too long, or with zero bytes
        return False


def read(
    path: str | Path,
    *,
    target: str | Target,
    module: str = "",
    name: str = "",
    packing: bool = False,
    what_if: bool = False,
    rules: Mapping[str, str] | None = None,
) -> Measurement:
    """What a step takes, from the dump of its compile; nothing is compiled.

    Where a run on a cluster ended out of memory: let it run again with
    `XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto"` until it has compiled.

    Args:
      path: The folder XLA dumped to, or its `*after_optimizations.hlo.pb` file, also
        `.hlo.pb.gz` (`--xla_dump_compress_protos`).
      target: The machine it is for; its card's memory is the budget.
      module: Part of the file's name, where a folder holds several modules.
      name: What reports call it; by default the module's name.
      packing: Also pack the temporaries anew.
      what_if: Also say what would fall if one thing changed; see `measure`.
      rules: Categories for memory over the schedule; see `measure`.

    Returns:
      A `Measurement`; where it does not fit, its notes say why and what could go.

    Raises:
      UserError: Nothing there can be read, or it contradicts itself.

    Example:
      >>> import revremat as rr
      >>> m = rr.read("dump", target="h100:8")  # doctest: +SKIP
      >>> m.memory.total_bytes  # doctest: +SKIP
    """
    wanted = xla.target(target)
    categories(rules or {})  # or the file would be blamed for them
    file, aside = xla.find_dump(path, module)
    try:
        artifact = xla.read_dump(file)
        found = read_artifact(
            artifact, wanted, name, packing=packing, what_if=what_if, rules=rules
        )
    except UserError as error:
        raise UserError(f"{file.name}: {error}") from None
    # A file from elsewhere may be wrong in any way; whatever it is, it is the file.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"{file.name} contradicts itself ({reason}): it is "
            "damaged, or of an XLA that revremat does not know; dump it once more"
        ) from error
    notes = (_FOREIGN, *filter(None, (aside,)), *way_out(found))
    return dataclasses.replace(found, notes=notes)


def way_out(found: Measurement) -> tuple[str, ...]:
    """Why a step does not fit, and what of it could go; nothing where it fits.

    The sizes are those of buffers alive at the peak: the most that each way can save,
    since the next highest moment may be close. Only a compile tells exactly.
    """
    if found.fits:
        return ()
    memory = found.memory
    over = -found.headroom_bytes
    holders = ", ".join(
        f"{'/'.join(filter(None, key))} {format_bytes(size)}"
        for key, size in list(memory.by("phase", "scope").items())[:3]
    )
    notes = [
        f"out of memory by {format_bytes(over)}; at the peak most is held by {holders}"
    ]
    unshared = min(
        memory.argument_bytes - memory.alias_bytes,
        memory.output_bytes - memory.alias_bytes,
    )
    if unshared >= 0.01 * memory.total_bytes:
        notes.append(
            f"donating arguments (donate_argnums) can save up to "
            f"{format_bytes(unshared)}: results lie beside arguments of their size"
        )
    kept = memory.where(phase="forward").bytes
    if kept:
        enough = "enough" if kept >= over else "not enough by itself"
        notes.append(
            f"recomputing or offloading what the forward pass keeps can save up to "
            f"{format_bytes(kept)}, {enough}: 'revremat search' finds which"
        )
    if memory.fragmentation_bytes >= 0.01 * memory.total_bytes:
        notes.append(f"{format_bytes(memory.fragmentation_bytes)} are fragmentation")
    return tuple(notes)
