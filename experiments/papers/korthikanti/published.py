"""What the paper prints: sizes of models, formulas, tables.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models"; tables 2 to 5 and appendix A.
"""

from dataclasses import dataclass

LENGTH = 2048
VOCABULARY = 51_200
TENSOR = 8
PEAK_FLOPS = 312e12
"""Of an A100 in 16 bits, by its data sheet."""


@dataclass(frozen=True)
class Size:
    """A row of table 3, and of table 5.

    Attributes:
      heads: Attention heads.
      width: Of the residual stream.
      layers: In all.
      pipeline: Stages.
      interleave: Chunks of layers on each device; 1 without interleaving.
      global_batch: Sequences an iteration.
      micro_batch: Sequences at a time.
      full_s: Seconds an iteration with full recompute.
      present_s: With the paper's.
      mfu: Model FLOPs utilization, percent.
      hfu: Hardware FLOPs utilization, percent.
    """

    heads: int
    width: int
    layers: int
    pipeline: int
    interleave: int
    global_batch: int
    micro_batch: int
    full_s: float
    present_s: float
    mfu: float
    hfu: float

    @property
    def devices(self) -> int:
        """Of one model, without data parallelism."""
        return TENSOR * self.pipeline

    @property
    def sbh(self) -> int:
        """Elements of the residual stream, of one micro-batch."""
        return LENGTH * self.micro_batch * self.width

    @property
    def first_stage(self) -> float:
        """Layers that the first stage keeps at a time, interleaving included."""
        p, m = self.pipeline, self.interleave
        return self.layers * (1 + (p - 1) / (p * m) if m > 1 else 1)


SIZES = {
    "22B": Size(64, 6144, 48, 1, 1, 4, 4, 1.42, 1.10, 41.5, 43.7),
    "175B": Size(96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75, 51.4, 52.8),
    "530B": Size(128, 20480, 105, 35, 3, 280, 1, 49.05, 37.83, 56.0, 57.0),
    "1T": Size(160, 25600, 128, 64, 1, 512, 1, 94.42, 71.49, 56.3, 57.0),
}


def size_of(name: str) -> Size:
    """A model of the paper, or one of another width: `4096x32x2`.

    Args:
      name: Of the paper's; or width, attention heads and sequences at a time.

    Raises:
      ValueError: It is neither.

    Example:
      >>> size_of("4096x32x2").sbh
      16777216
    """
    if name in SIZES:
        return SIZES[name]
    parts = name.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(
            f"{name!r} is no size: write {', '.join(SIZES)}, or WIDTHxHEADSxBATCH, "
            "such as 4096x32x2"
        )
    width, heads, batch = map(int, parts)
    if width % heads:
        raise ValueError(f"{name}: {heads} heads do not divide a width of {width}")
    return Size(heads, width, 0, 1, 1, batch, batch, 0.0, 0.0, 0.0, 0.0)


def layer_bytes(size: Size, scheme: str, tensor: int = TENSOR) -> float:
    """Table 2: bytes of a layer's activations on one device.

    Args:
      size: The model.
      scheme: A name in `SCHEMES`.
      tensor: Devices of tensor parallelism.
    """
    attention = 5 * size.heads * LENGTH / size.width
    factor = {
        "none": 34 + attention,
        "tp": 10 + 24 / tensor + attention / tensor,
        "tp+sp": 34 / tensor + attention / tensor,
        "tp+selective": 10 + 24 / tensor,
        "tp+sp+selective": 34 / tensor,
        "selective, sums": 34 / tensor,
        "tp+sp, cudnn": 34 / tensor,
        "full": 2,
        "full, sharded": 2 / tensor,
    }
    return size.sbh * factor[scheme]


OVERHEADS = {"tp+sp": -3, "full": 39, "tp+selective": 7, "tp+sp+selective": 4}
"""Table 4, 22B: percent of a layer's time, over tensor parallelism alone."""


def model_flops(size: Size) -> float:
    """Of an iteration, without anything computed twice (appendix A)."""
    return _flops(size, LENGTH / (6 * size.width))


def hardware_flops(size: Size) -> float:
    """The same with selective recompute."""
    return _flops(size, LENGTH / (3 * size.width))


def _flops(size: Size, attention: float) -> float:
    head = VOCABULARY / (12 * size.width * size.layers)
    tokens = size.global_batch * LENGTH
    return 72 * tokens * size.layers * size.width**2 * (1 + attention + head)


def utilization(flops: float, seconds: float, devices: int) -> float:
    """Percent of the devices' peak."""
    return 100 * flops / seconds / devices / PEAK_FLOPS
