"""Totals of a compiled step in bytes, as XLA's `memory_analysis` gives them."""

from revremat.xla.hlo._schema import HloProto
from revremat.xla.memory._liveness import HOST_SPACE

NAMES = ("argument", "output", "alias", "temp", "generated_code")


def totals(hlo: bytes) -> dict[str, int]:
    """The sums of a dump's buffer assignment, each also with the prefix `host_`.

    To the byte those of `memory_analysis` on CPU and GPU, where code counts as nothing.

    Args:
      hlo: A serialized `HloProto`.

    Raises:
      RuntimeError: No buffers were assigned in it.
    """
    found = {prefix + name: 0 for prefix in ("", "host_") for name in NAMES}
    allocations = HloProto.FromString(hlo).buffer_assignment.buffer_allocations
    if not allocations:
        raise RuntimeError("XLA's dump holds no buffers: the compile ended too early")
    for one in allocations:
        prefix = "host_" if one.color == HOST_SPACE else ""
        taken, given = one.is_entry_computation_parameter, one.maybe_live_out
        found[prefix + "argument"] += one.size * taken
        found[prefix + "output"] += one.size * given
        found[prefix + "alias"] += one.size * (taken and given)
        lasting = taken or given or one.is_constant or one.is_thread_local
        found[prefix + "temp"] += one.size * (not lasting)
    return found
