"""A compile is read and never run: it ends before kernels are made, or hurries there.

Once buffers are assigned, memory, schedule and fusions are settled. What follows, code
for every fusion, is half of a compile and more, and says nothing of any of them. For a
GPU that is elsewhere it would make what could not run here.
"""

from pathlib import Path


def no_kernels(folder: Path) -> dict[str, str]:
    """Compiler options with which a compile fails where its first kernel would be made.

    XLA reads a file of finished kernels when it has assigned the buffers, and has
    written its dump, and gives up if that is no such file. A version that does not read
    it compiles to the end.

    Args:
      folder: Where to put such a file.
    """
    path = folder / "no-kernels"
    path.write_bytes(b"\xff")
    return {"xla_gpu_kernel_cache_file": str(path)}


def quick_kernels() -> dict[str, object]:
    """Compiler options with which XLA makes a CPU's kernels as fast as it can."""
    return {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    }
