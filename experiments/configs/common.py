"""What every experiment says, and how one value of it is changed by name."""

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from experiments.data import DataConfig
from experiments.models.gpt import GPTConfig
from experiments.processes import ProcessesConfig
from revremat import UserError


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with clipping, a warm-up and a cosine.

    Attributes:
      learning_rate: At its peak.
      warmup_steps: Steps from 0 to the peak.
      weight_decay: On matrices, not on norms, biases and positions.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      clip_norm: Largest global norm of a gradient.
      accumulate: Micro-batches a step.
    """

    learning_rate: float = 3e-3
    warmup_steps: int = 20
    weight_decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    clip_norm: float = 1.0
    accumulate: int = 1


@dataclass(frozen=True)
class ShardingConfig:
    """How many devices along each mesh axis; None: all that the others leave.

    Attributes:
      data: Each device has its own examples and all of the state.
      fsdp: Each device has its own examples and a slice of the state.
      model: Each device has its own heads and hidden units (tensor parallelism).
      sequence: Along `model`, each device has its own tokens between the products.
      fsdp_min_size: Arrays with fewer elements are not sliced.
    """

    data: int | None = None
    fsdp: int | None = 1
    model: int | None = 1
    sequence: bool = False
    fsdp_min_size: int = 2**16


@dataclass(frozen=True)
class TrainConfig:
    """How long, how often, and where to.

    Attributes:
      num_steps: Optimizer steps in all.
      seed: Of parameters, dropout and the order of examples.
      dir: Folder of the run: checkpoints, metrics, plot; `runs/NAME` if empty.
      target: Devices to train on: `local`, or `cpu:8` for eight CPU devices.
      plan: File of a plan from `revremat search`: how residuals are restored.
      log_every: Steps between lines of `metrics.jsonl`.
      valid_every: Steps between validations.
      valid_batches: Batches of a validation.
      save_every: Steps between checkpoints.
      keep: Checkpoints kept.
    """

    num_steps: int = 300
    seed: int = 0
    dir: str = ""
    target: str = "local"
    plan: str = ""
    log_every: int = 1
    valid_every: int = 100
    valid_batches: int = 20
    save_every: int = 100
    keep: int = 2


@dataclass(frozen=True)
class Experiment[Model]:
    """One experiment.

    Attributes:
      name: Of the run and its folder.
      model: The configuration of a model, such as `GPTConfig`.
      data: What is trained on.
      optim: How parameters move.
      train: How long, how often, where to.
      sharding: Where arrays live.
      processes: Which process of how many this is.
    """

    name: str
    model: Model
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)


def large_gpt(
    name: str,
    sharding: ShardingConfig,
    learning_rate: float = 3e-4,
    warmup_steps: int = 2000,
    **model: Any,
) -> Experiment[GPTConfig]:
    """A language model for many devices: what such experiments have in common.

    Args:
      name: Of the run and its folder.
      sharding: Where arrays live.
      learning_rate: At its peak.
      warmup_steps: Steps from 0 to the peak.
      **model: Of the `GPTConfig`, which has bfloat16 computation, no biases and
        sequences of 2048 tokens unless this says otherwise.
    """
    model = {"seq_len": 2048, "bias": False, "dtype": "bfloat16"} | model
    return Experiment(
        name=name,
        model=GPTConfig(**model),
        data=DataConfig(batch_size=8),
        optim=OptimConfig(learning_rate=learning_rate, warmup_steps=warmup_steps),
        train=TrainConfig(num_steps=100_000, save_every=1000, valid_every=1000),
        sharding=sharding,
    )


def known_keys(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of a config by its dotted name, in the order it is declared."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            values |= known_keys(value, f"{prefix}{item.name}.")
        else:
            values[prefix + item.name] = value
    return values


def override[C](config: C, overrides: dict[str, Any]) -> C:
    """A config with some values changed.

    Args:
      config: A frozen dataclass of frozen dataclasses.
      overrides: New values by dotted name (`model.num_layers`), or by the last part
        where only one name ends in it (`num_layers`). Text is read as the value's type.

    Returns:
      The changed config.

    Raises:
      UserError: If a name is unknown (the known ones are listed) or ambiguous, or a
        value has the wrong type.
    """
    for name, value in overrides.items():
        key = find_key(config, name)
        config = _replace(config, key.split("."), value, key)
    return config


def find_key(config: Any, name: str) -> str:
    """The full dotted name that a full or short name stands for."""
    known = list(known_keys(config))
    if name in known:
        return name
    found = [key for key in known if key.endswith(f".{name}")]
    if len(found) > 1:
        raise UserError(f"config key {name!r} is ambiguous: write {' or '.join(found)}")
    if not found:
        raise UserError(f"unknown config key {name!r}; known are: {', '.join(known)}")
    return found[0]


def _replace(config: Any, path: list[str], value: Any, key: str) -> Any:
    name, *rest = path
    if rest:
        value = _replace(getattr(config, name), rest, value, key)
    else:
        value = read_value(typing.get_type_hints(type(config))[name], value, key)
    return dataclasses.replace(config, **{name: value})


def read_value(hint: Any, value: Any, key: str) -> Any:
    """The value as the type of a config field, read from text where it is text."""
    options = typing.get_args(hint)
    kind = typing.get_origin(hint)
    if kind in (typing.Union, types.UnionType):
        if value is None or value == "None":
            return None
        (hint,) = (option for option in options if option is not type(None))
        return read_value(hint, value, key)
    if kind is typing.Literal:
        if value in options:
            return value
        wanted = "one of " + ", ".join(map(repr, options))
    elif hint is bool:
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        wanted = "True or False"
    else:
        wanted = {int: "a whole number", float: "a number", str: "text"}[hint]
        fits = not isinstance(value, bool) and not (
            hint is int and isinstance(value, float)
        )
        try:
            if fits and (hint is not str or isinstance(value, str)):
                return hint(value)
        except (TypeError, ValueError):
            pass
    raise UserError(f"config key {key!r} is {value!r}; it takes {wanted}")
