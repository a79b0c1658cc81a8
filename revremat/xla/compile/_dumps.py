"""Dumps: what somebody else's compile left in a folder, read with suspicion."""

import gzip
import zlib
from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat._io._files import open_regular, read_bytes
from revremat.xla.compile._artifact import Artifact
from revremat.xla.hlo._hlo import Module, is_tuple
from revremat.xla.memory._liveness import liveness
from revremat.xla.memory._totals import totals

_SUFFIX = "after_optimizations.hlo.pb"
_HOW = (
    "compile with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto' and give DIR, "
    f"or a '*{_SUFFIX}' file of it"
)
_DEEPEST_CALLS = 60
_MOST_BYTES = 1 << 30
"""Of a dump, once it is unpacked. As Python objects it takes several times as much."""
_COMPRESSED = ".gz"  # of --xla_dump_compress_protos
_MAGIC = b"\x1f\x8b"


def find_dump(place: str | Path, module: str = "") -> tuple[Path, str]:
    """The dump of a compiled module in a folder, or the file itself.

    Args:
      place: A folder that XLA dumped to, or one file of it.
      module: Part of the file's name; by default the module with the largest dump,
        which is a training program's step.

    Returns:
      The file, and a sentence on what was left aside, or "".

    Raises:
      UserError: Nothing there can be read.

    Example:
      >>> import pathlib, tempfile
      >>> from revremat import xla
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for size, name in enumerate(("init", "step"), 1):
      ...     path = folder / f"module_0001.jit_{name}.after_optimizations.hlo.pb"
      ...     _ = path.write_bytes(bytes(size))
      >>> xla.find_dump(folder, module="init")[0].name
      'module_0001.jit_init.after_optimizations.hlo.pb'
    """
    place = Path(place)
    try:
        if not place.exists():
            raise UserError(f"there is no file or folder {str(place)!r}")
        if not place.is_dir():
            if place.suffix == ".txt":
                raise UserError(
                    f"{str(place)!r} is text, which has no lifetimes of buffers: {_HOW}"
                )
            return place, ""
        files = sorted(
            file
            for end in (_SUFFIX, _SUFFIX + _COMPRESSED)
            for file in place.glob(f"*{end}")
            if file.is_file()
        )
        if not files:
            _explain(place)
        named = [f for f in files if module in f.name]
        if not named:
            names = ", ".join(f.name.partition(f".{_SUFFIX}")[0] for f in files[:5])
            raise UserError(f"no module {module!r} in {str(place)!r}: it has {names}")
        chosen = max(named, key=lambda f: (_unpacked_bytes(f), f.name))
    except OSError as error:
        raise UserError(f"cannot read {str(place)!r}: {error.strerror}") from None
    except UserError:
        raise
    except ValueError:  # zero bytes in the path
        raise UserError(f"there is no file or folder {str(place)!r}") from None
    if len(named) == 1:
        return chosen, ""
    return chosen, (
        f"of {len(named)} modules in the folder this is the largest, {chosen.name}; "
        "--module NAME reads another"
    )


def _explain(folder: Path) -> None:
    if any(folder.glob("*after_optimizations*.txt")):
        reason = "holds XLA's dumps as text only, without lifetimes of buffers"
    elif any(folder.glob("*.hlo.pb")) or any(folder.glob("*.hlo.pb.gz")):
        reason = "holds modules from before optimization only: the compile did not end"
    else:
        reason = "holds no dump of XLA's"
    raise UserError(f"{str(folder)!r} {reason}: {_HOW}")


def read_dump(path: Path) -> Artifact:
    """What a dump says of the step, totals added up from its buffer assignment.

    Args:
      path: The file; it may be compressed with gzip, as XLA does where it is told to.

    Raises:
      UserError: It is damaged, has no buffer assignment, or contradicts itself.

    Example:
      >>> from revremat import xla
      >>> path, _ = xla.find_dump("dump", module="train_step")  # doctest: +SKIP
      >>> xla.read_dump(path).stats["temp"]  # doctest: +SKIP
    """
    try:
        data = read_bytes(path, most=_MOST_BYTES)
        if data[:2] == _MAGIC:
            data = _unpack(path)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(
            f"{str(path)!r} is a damaged gzip file: dump it again"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if not data:
        raise UserError(f"{str(path)!r} is empty")
    module = Module.from_bytes(data)
    check_module(module)
    liveness(module)  # raises where buffers are missing, or contradict one another
    return Artifact(data, totals(data), 0.0, False, "")


def _unpack(path: Path) -> bytes:
    """The bytes in a gzip file, if they are few enough."""
    with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        data = unpacked.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UserError(
            f"{str(path)!r} is larger than {_MOST_BYTES:,} bytes when it is unpacked: "
            "give a smaller module's dump"
        )
    return data


def _unpacked_bytes(path: Path) -> int:
    """The size of a dump; where it is compressed, as the file's end says."""
    size = path.stat().st_size
    if path.suffix == _COMPRESSED and size > 18:  # head, one byte, end
        with open_regular(path) as file:
            file.seek(-4, 2)
            size = int.from_bytes(file.read(4), "little")
    return size


def check_module(module: Module) -> None:
    """Makes sure that a walk over the program ends.

    Raises:
      UserError: An instruction reads or calls what is not there, values depend on
        themselves, or computations call themselves.
    """
    for computation in module.computations.values():
        seen: set[int] = set()
        for i in computation.instructions:
            _check_instruction(module, computation.name, i, seen)
            seen.add(i.id)
    depths: dict[int, int] = {}
    entry = module.entry
    # Depth first without recursion: a damaged graph may be deeper than Python's stack.
    stack: list[tuple[int, bool]] = [(entry.id, False)]
    open_calls: set[int] = set()
    while stack:
        number, done = stack.pop()
        called = {
            c
            for i in module.computations[number].instructions
            for c in i.called_computation_ids
        }
        if done:
            open_calls.discard(number)
            depths[number] = 1 + max((depths[c] for c in called), default=0)
            if depths[number] > _DEEPEST_CALLS:
                raise _damaged(module, f"calls are more than {_DEEPEST_CALLS} deep")
        elif number in open_calls:
            raise _damaged(module, "computations call themselves")
        elif number not in depths:
            open_calls.add(number)
            stack.append((number, True))
            stack.extend((c, False) for c in called if c not in depths)
            if called & open_calls:
                raise _damaged(module, "computations call themselves")


def _check_instruction(module: Module, home: str, i: Any, seen: set[int]) -> None:
    if not set(i.called_computation_ids) <= module.computations.keys():
        raise _damaged(module, f"{i.name!r} calls a computation that is not there")
    if not set(i.operand_ids) <= seen:
        raise _damaged(module, f"{i.name!r} in {home!r} reads what is not made yet")
    if any(size < 0 for size in i.shape.dimensions):
        raise _damaged(module, f"{i.name!r} has a size below zero")
    if i.opcode == "get-tuple-element":
        made = module.operands(i)
        whole = made[0].shape if made else i.shape
        if not is_tuple(whole) or not 0 <= i.tuple_index < len(whole.tuple_shapes):
            raise _damaged(module, f"{i.name!r} takes a part that is not there")
    if i.opcode in ("while", "conditional") and not i.called_computation_ids:
        raise _damaged(module, f"{i.name!r} has no body")


def _damaged(module: Module, why: str) -> UserError:
    return UserError(f"the dump of module {module.name!r} is damaged: {why}")
