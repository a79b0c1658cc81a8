"""Measurements written by hand."""

import dataclasses
from typing import Any

from revremat import Buffer, Curve, Measurement, Memory, Span, Time

GIB = 2**30
MIB = 2**20

BUFFERS = (
    Buffer(
        4 * GIB,
        (24, 1024, 512),
        "bfloat16",
        "forward",
        "layer/attn/softmax",
        "exp",
        "/home/someone/project/models/attention.py:37",
    ),
    Buffer(3 * GIB, (1024, 768), "float32", "argument", "state.params['mlp']['up']"),
    Buffer(
        2 * GIB,
        (1024, 512),
        "float32",
        "argument",
        "state.opt_state[0].mu['mlp']['up']",
    ),
    Buffer(1 * GIB, (512, 512), "bfloat16", "recompute", "layer/mlp", "tanh", "m.py:9"),
    Buffer(512 * MIB, (512, 256), "float32", "backward", "layer/attn", "dot_general"),
    Buffer(256 * MIB, (64,), "float32", "output", "", "tuple"),
    Buffer(128 * MIB, (8,), "bfloat16", "forward", "layer/attn", "mul", space="host"),
)

MEASUREMENT = Measurement(
    program="gpt",
    target="h100:8",
    device="NVIDIA H100 80GB HBM3",
    num_devices=8,
    device_bytes=79 * GIB,
    reserve_bytes=2 * GIB,
    memory=Memory(
        argument_bytes=5 * GIB,
        output_bytes=5 * GIB + 256 * MIB,
        alias_bytes=5 * GIB,
        temp_bytes=6 * GIB,
        host_bytes=128 * MIB,
        fragmentation_bytes=512 * MIB,
        buffers=BUFFERS,
        curve=Curve(
            positions=(0, 10, 20),
            bytes=(("argument", (5 * GIB,) * 3), ("forward", (0, 4 * GIB, GIB))),
            fragmentation_bytes=(0, 512 * MIB, 0),
            labels=("layer/attn", "layer/mlp", "update"),
        ),
    ),
    time=Time(
        step_us=43_200.0,
        compute_us=39_000.0,
        recompute_us=2_400.0,
        hidden_recompute_us=900.0,
        collective_us=14_000.0,
        exposed_collective_us=4_200.0,
        transfer_us=800.0,
        flops=2.5e13,
        spans=(
            Span("compute", "forward", "layer/attn", "dot_general", 0.0, 30_000.0),
            Span("compute", "recompute", "layer/mlp", "tanh", 30_000.0, 9_000.0),
            Span("collective", "backward", "", "psum", 20_000.0, 14_000.0, 4_200.0, 24),
        ),
    ),
    compile_seconds=3.25,
    versions="jax 0.12.0.1",
    notes=("a note to believe the figures",),
)


def changed(**fields: Any) -> Measurement:
    """The measurement with other fields; those of its memory and time as well."""
    parts: dict[str, Any] = {}
    for part in ("memory", "time"):
        noun = getattr(MEASUREMENT, part)
        own = {f.name for f in dataclasses.fields(noun)} & fields.keys()
        parts[part] = dataclasses.replace(noun, **{k: fields.pop(k) for k in own})
    return dataclasses.replace(MEASUREMENT, **parts, **fields)
