"""How XLA tiles products of matrices: asked once for a kernel, not at every compile.

XLA makes one kernel of a product and of what is fused into it. Without a card to time
any, it takes the first way to tile the kernel that compiles, and compiles to find out.
That is most of the time a compile takes, and where there is a way, neither memory nor
schedule nor fusions depend on which. So the pass that does it is left out, but where a
program has a kernel that might have no way and was never seen to have one.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from revremat._compat import DISABLED_PASSES, REMAT_LIMIT
from revremat.xla.compile._artifact import versions
from revremat.xla.compile._disk import read_list, write_list
from revremat.xla.hlo._opcodes import TILEABLE
from revremat.xla.hlo._schema import HloProto
from revremat.xla.target._targets import Target, gpu_target_config

_PASS = "config-assigner"
_LIBRARY = "__cublas$"
_UNTILED = b'"__triton_gemm"'
_ASSIGNED = (b'"__cudnn$fusion"', b'"__custom_fusion"')
_TRITON = "xla_gpu_enable_triton_gemm"
_BESIDE = (
    *("name", "metadata", "id", "operand_ids", "called_computation_ids"),
    *("parameter_number", "literal", "sharding", "frontend_attributes"),
)
"""Fields of an instruction that say nothing of what a kernel does to which shapes."""
_HASH = re.compile(r"[0-9a-f]{16}")
_SAYS_HOW = ("triton", "autotun", "gemm", "disable_hlo_passes")


def may_leave_out(target: Target, options: Mapping[str, Any]) -> bool:
    """Whether there is no card to ask and nobody has said how products are tiled."""
    if not target.is_elsewhere:
        return False
    return options.get("xla_gpu_autotune_level") == 0 and not says_how(options)


def says_how(options: Mapping[str, Any]) -> bool:
    """Whether options or $XLA_FLAGS say how products of matrices are made."""
    others = [name for name in options if name != "xla_gpu_autotune_level"]
    said = " ".join([*others, os.environ.get("XLA_FLAGS", "")])
    return any(word in said for word in _SAYS_HOW)


def leave_out(*passes: str) -> dict[str, str]:
    """Compiler options that leave passes out."""
    return {DISABLED_PASSES: ",".join(passes)} if passes else {}


def without_tiling(*others: str) -> dict[str, str]:
    """Compiler options that leave the pass out, and others."""
    return leave_out(_PASS, *others)


def untiled(hlo: bytes) -> dict[str, Any] | None:
    """The kernels in a dump that have a product and may have no tiling.

    Returns:
      By their hashes their computations. Hashes of two programs are the same where the
      kernels do the same to arrays of the same shapes, whatever they are called,
      wherever slices begin and whichever constants there are. None where the pass
      decides more than tilings: workspaces of the library's products.
    """
    module = HloProto.FromString(hlo).hlo_module
    bodies = {one.id: one for one in module.computations}
    doubtful = set()
    for one in (one for body in bodies.values() for one in body.instructions):
        if one.custom_call_target.startswith(_LIBRARY):
            return None
        if one.opcode != "fusion" or one.fusion_kind != "kCustom":
            continue
        if any(kind in one.backend_config for kind in _ASSIGNED):
            return None
        if _UNTILED in one.backend_config:
            doubtful.add(one.called_computation_ids[0])
    return {
        _hash(bodies[i], bodies): bodies[i]
        for i in sorted(doubtful)
        if any(one.opcode not in TILEABLE for one in bodies[i].instructions)
    }


def _hash(body: Any, bodies: Mapping[int, Any]) -> str:
    """Of what a computation does: all that its root needs, operands first."""
    known = {one.id: one for one in body.instructions}
    places: dict[int, int] = {}
    digest = hashlib.sha256()

    def add(one: Any) -> None:
        for i in one.operand_ids:
            if i not in places:
                add(known[i])
        plain = type(one)()
        plain.CopyFrom(one)
        for name in _BESIDE:
            plain.ClearField(name)
        if plain.opcode == "reshape":  # one that moves nothing, or it were none by now
            plain.opcode = "bitcast"
        plain.operand_ids.extend(places[i] for i in one.operand_ids)
        for cut in plain.slices:
            cut.start = cut.limit = 0
        digest.update(plain.SerializeToString(deterministic=True))
        for called in one.called_computation_ids:
            digest.update(_hash(bodies[called], bodies).encode())
        places[one.id] = len(places)

    add(known[body.root_id])
    return digest.hexdigest()[:16]


def seen_tiled(target: Target, options: Mapping[str, Any]) -> frozenset[str]:
    """Hashes of all kernels that this compiler has tiled for such a card before."""
    words = read_list(_list_name(target, options))
    return frozenset(word for word in words if _HASH.fullmatch(word))


def remember(
    kernels: Iterable[str], target: Target, options: Mapping[str, Any]
) -> None:
    """Adds kernels to those that were tiled.

    Where two processes do so at once one of the two may be lost, which costs time only.
    """
    name = _list_name(target, options)
    write_list(name, seen_tiled(target, options).union(kernels))


def _list_name(target: Target, options: Mapping[str, Any]) -> str:
    machine = gpu_target_config(target)
    told = sorted((n, str(value)) for n, value in options.items() if n != REMAT_LIMIT)
    parts = [versions(), machine, told, os.environ.get("XLA_FLAGS", "")]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"tiled-{key[:16]}"


def way_around(
    error: Exception, options: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Options with which a compile that failed would go through, and a remark.

    XLA makes one kernel of a product of matrices and what is fused into it by trying
    out ways to tile it. For some no way compiles, and without a card to ask it does not
    take the library's product instead; with this option it takes that for all of them.

    Returns:
      Nothing where there is no way.
    """
    if "No supported config found for HLO" not in str(error) or _TRITON in options:
        return {}, ""
    return {_TRITON: False}, (
        "XLA could tile a product of matrices in no way, so all of them were compiled "
        f"as calls of the library ({_TRITON}=false): unlike otherwise, their "
        "workspaces are in the total, and the device itself may take less"
    )
