"""The training step: what is measured and what is run are one function."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments import models
from experiments.configs.common import Experiment, OptimConfig
from experiments.models.layout import Layout
from revremat import Problem, UserError, sharding

Loss = Callable[[Any, dict[str, Any]], Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a step changes, and all that a checkpoint of the device holds.

    Attributes:
      params: Float32 arrays.
      opt_state: Optax's state, with the moments laid out as the parameters.
      step: Steps done, int32 scalar.
      key: Key data uint32 [2]; a step's dropout key is this one folded with `step`.
      model: What a step moves without a gradient, batch norm's running statistics;
        empty for a model that has none.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array
    model: Any = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """An experiment on a mesh, abstractly: nothing is allocated.

    Attributes:
      mesh: The devices.
      init: Key data to a fresh state.
      loss: `loss(params, batch)`, pure; `batch["key"]` is key data for dropout. Of a
        model with state, `batch["state"]` is that, and `(loss, new state)` returned.
      valid: `valid(params, batch)`, the metrics of held-out data; see `with_state`.
      make_step: Turns a loss into `step(state, batch) -> (state, metrics)`.
      state: Shapes, dtypes and shardings of the state.
      batch: The same of a batch as it comes from the data.
      micro_batch: The same of what `loss` gets: a part of a batch, and a key.
      learning_rate: The schedule, of the number of steps done.
    """

    mesh: Mesh
    init: Callable[[jax.Array], TrainState]
    loss: Loss
    valid: Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]]
    make_step: Callable[[Loss], Callable[..., Any]]
    state: TrainState
    batch: dict[str, jax.ShapeDtypeStruct]
    micro_batch: dict[str, jax.ShapeDtypeStruct]
    learning_rate: optax.Schedule


def mesh_axes(config: Experiment, num_devices: int) -> dict[str, int]:
    """The sizes of the three mesh axes, the open one completed."""
    axes = config.sharding
    sizes = {"data": axes.data, "fsdp": axes.fsdp, "model": axes.model}
    try:
        return sharding.complete_axes(sizes, num_devices)
    except UserError as error:
        raise UserError(f"sharding: {error}") from error


def build(config: Experiment, mesh: Mesh) -> Program:
    """Put an experiment on a mesh of the axes `data`, `fsdp` and `model`.

    Args:
      config: What is trained, and how it is sharded.
      mesh: The devices; they need not exist on this machine.

    Returns:
      The functions and the abstract arguments of the training step.

    Raises:
      UserError: If sizes do not divide.
    """
    model = models.module_of(config.model)
    layout = Layout(mesh, config.sharding.sequence)
    by_batch = NamedSharding(mesh, PartitionSpec(layout.batch_axes or None))
    _check_batch(config, mesh)
    _check_sequence(config, mesh)

    loss = model.loss_fn(config.model, layout=layout)
    valid = model.metrics_fn(config.model, layout=layout)
    schedule = make_schedule(config.optim, config.train.num_steps)
    optimizer = make_optimizer(config.optim, schedule)

    def init(key_data: jax.Array) -> TrainState:
        init_key, run_key = jax.random.split(jax.random.wrap_key_data(key_data))
        params = model.init(config.model, init_key)
        stateful = hasattr(model, "init_state")
        return TrainState(
            params,
            optimizer.init(params),
            jnp.zeros((), jnp.int32),
            jax.random.key_data(run_key),
            model.init_state(config.model) if stateful else {},
        )

    rules = sharding_rules(config, mesh)
    state = sharding.abstract_state(init, rules, mesh, _key_spec())
    shardings = sharding.shardings_of(state)

    def make_step(loss: Loss) -> Callable[..., Any]:
        return make_train_step(
            loss, optimizer, schedule, config.optim.accumulate, shardings
        )

    def specs(batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        shapes = model.batch_specs(config.model, batch_size)
        return sharding.with_shardings(shapes, jax.tree.map(lambda _: by_batch, shapes))

    whole = NamedSharding(mesh, PartitionSpec())
    return Program(
        mesh=mesh,
        init=init,
        loss=loss,
        valid=valid,
        make_step=make_step,
        state=state,
        batch=specs(config.data.batch_size),
        micro_batch=with_state(
            specs(config.data.batch_size // config.optim.accumulate)
            | {"key": sharding.with_shardings(_key_spec(), whole)},
            state.model,
        ),
        learning_rate=schedule,
    )


def problem(config: Experiment, target: Any) -> Problem:
    """An experiment as revremat sees it: the very step that `train.py` runs.

    Args:
      config: The experiment.
      target: Has `num_devices` and `mesh(axis_sizes)`, as `revremat.target(...)` does.

    Returns:
      A problem whose step is the training step, with the train state donated.
    """
    axes = mesh_axes(config, target.num_devices)
    program = build(config, target.mesh(axes))
    return Problem(
        loss=program.loss,
        specs=(program.state.params, program.micro_batch),
        step=lambda loss: (program.make_step(loss), (program.state, program.batch)),
        donate=(0,),
        name=config.name,
    )


def sharding_rules(config: Experiment, mesh: Mesh) -> tuple[sharding.Rule, ...]:
    """Tensor parallelism by path, then FSDP over what it left."""
    rules: list[sharding.Rule] = []
    if mesh.shape["model"] > 1:
        table = models.module_of(config.model).tensor_parallel(config.model, "model")
        rules.append(sharding.ByPath(table))
    if mesh.shape["fsdp"] > 1:
        scanned = r"(^|/)blocks/" if getattr(config.model, "scan", False) else None
        rules.append(sharding.FSDP("fsdp", config.sharding.fsdp_min_size, scanned))
    return tuple(rules)


def make_schedule(config: OptimConfig, num_steps: int) -> optax.Schedule:
    """Linear warm-up, then a cosine to a tenth of the peak at the last step."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=max(num_steps, config.warmup_steps + 1),
        end_value=config.learning_rate / 10,
    )


def make_optimizer(
    config: OptimConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW that decays matrices only."""

    def decayed(params):
        def is_matrix(path, _):
            return path[-1].key in ("kernel", "embedding")

        return jax.tree_util.tree_map_with_path(is_matrix, params)

    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )


def make_train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    accumulate: int,
    shardings: TrainState,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Gradient (averaged over micro-batches), clip, update; state in, state out.

    Args:
      loss: `loss(params, micro_batch)`; of a model with state, as in `Program`.
      optimizer: Its update includes clipping.
      schedule: For the learning rate in the metrics.
      accumulate: Micro-batches a step; they are visited by one scan.
      shardings: Of the state; gradients and new state are pinned to them.

    Returns:
      `step(state, batch) -> (state, metrics)`; donate the state.
    """

    stateful = bool(jax.tree.leaves(shardings.model))
    with_aux = loss if stateful else lambda params, batch: (loss(params, batch), {})

    def gradients(params, model, batch):
        differentiate = jax.value_and_grad(with_aux, has_aux=True)
        (value, model), grads = differentiate(params, with_state(batch, model))
        grads = jax.lax.with_sharding_constraint(grads, shardings.params)
        return (value, grads), model

    def step(state: TrainState, batch: dict[str, jax.Array]):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if accumulate == 1:
            batch = batch | {"key": jax.random.key_data(key)}
            (value, grads), model = gradients(state.params, state.model, batch)
        else:
            keys = jax.random.key_data(jax.random.split(key, accumulate))
            parts = jax.tree.map(lambda leaf: _cut(leaf, accumulate), batch)

            def add(carry, part):
                sums, model = carry
                more, model = gradients(state.params, model, part)
                return (jax.tree.map(jnp.add, sums, more), model), None

            zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params)
            (sums, model), _ = jax.lax.scan(
                add, (zeros, state.model), parts | {"key": keys}
            )
            value, grads = jax.tree.map(lambda leaf: leaf / accumulate, sums)
        with jax.named_scope("update"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        state = TrainState(params, opt_state, state.step + 1, state.key, model)
        metrics = {
            "loss": value,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(schedule(state.step - 1), jnp.float32),
        }
        return jax.lax.with_sharding_constraint(state, shardings), metrics

    return step


def with_state(batch: dict[str, Any], model: Any) -> dict[str, Any]:
    """A batch with the model's state, for a model that has any."""
    return batch | {"state": model} if jax.tree.leaves(model) else batch


def _cut(leaf: jax.Array, parts: int) -> jax.Array:
    """[B, ...] to [parts, B / parts, ...], each device keeping its own examples."""
    shape = (leaf.shape[0] // parts, parts, *leaf.shape[1:])
    return leaf.reshape(shape).swapaxes(0, 1)


def _key_spec() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))


def _check_sequence(config: Experiment, mesh: Mesh) -> None:
    if not config.sharding.sequence:
        return
    length = getattr(config.model, "seq_len", 0)
    if not length:
        raise UserError(
            f"sharding.sequence cuts sequences of tokens, which {config.name} has not: "
            "write --sharding.sequence False"
        )
    parts = mesh.shape["model"]
    if parts == 1:
        raise UserError(
            "sharding.sequence cuts over the axis `model`, which has 1 device: write "
            "--sharding.model 2 or more"
        )
    if length % parts:
        raise UserError(
            f"model.seq_len {length} does not split over sharding.model {parts}: write "
            f"a multiple of {parts}, for example {-(-length // parts) * parts}"
        )


def _check_batch(config: Experiment, mesh: Mesh) -> None:
    replicas = mesh.shape["data"] * mesh.shape["fsdp"]
    parts = replicas * config.optim.accumulate
    if config.data.batch_size % parts:
        nearest = parts * max(1, round(config.data.batch_size / parts))
        raise UserError(
            f"data.batch_size {config.data.batch_size} does not split over {replicas} "
            f"data-parallel devices x {config.optim.accumulate} micro-batches; take a "
            f"multiple of {parts}, for example {nearest}"
        )
