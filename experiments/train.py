"""Train an experiment, from the beginning or from where it stopped.

    python experiments/train.py gpt --model.num-layers 6 --train.num-steps 1000

The same command goes on after Ctrl-C, SIGTERM, a kill or a crash, and the loss curve is
the one of a run that was never interrupted.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import revremat.sharding as sharding
from experiments import cli, data, records
from experiments.checkpoints import Checkpoints
from experiments.configs.common import Experiment, known_keys
from experiments.progress import MIB, Display, peak_bytes
from experiments.step import build, mesh_axes
from revremat._errors import UserError


def main(args: list[str]) -> int:
    """Run the command line; 0 done or stopped, 1 failed, 2 not understood."""
    try:
        config = cli.parse(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        train(config)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def train(config: Experiment) -> None:
    """Train to `config.train.num_steps`, or until asked to stop."""
    folder = Path(config.train.dir or f"runs/{config.name}")
    stop = StopRequest()

    # ---- Devices, data, program: nothing is allocated yet ----------------------------
    devices = find_devices(config.train.target)
    mesh = sharding.make_mesh(mesh_axes(config, len(devices)), devices)
    program = build(config, mesh)
    splits = data.load(config.data, getattr(config.model, "seq_len", 0))
    batches = data.train_batches(
        splits.train, config.data.batch_size, config.train.seed
    )
    put = lambda batch: jax.device_put(
        batch, {name: program.batch[name].sharding for name in batch}
    )

    # ---- Folder of the run -----------------------------------------------------------
    folder.mkdir(parents=True, exist_ok=True)
    changes = records.same_run(folder / "run.json", *facts(config, splits))
    checkpoints = Checkpoints(folder / "checkpoints", config.train.keep)
    start = checkpoints.last_step or 0

    # ---- Compile the step, as it is reported and as it is run ------------------------
    compiling_since = time.perf_counter()
    step_fn = jax.jit(program.make_step(program.loss), donate_argnums=0)
    step = step_fn.lower(program.state, program.batch).compile()
    valid = jax.jit(program.valid)
    compile_s = time.perf_counter() - compiling_since

    # ---- State: restored, or born sharded --------------------------------------------
    if start:
        state = checkpoints.load(program.state, batches)
    else:
        key_data = jax.random.key_data(jax.random.key(config.train.seed))
        state = sharding.init_sharded(program.init, program.state, key_data)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, program.state)
    held_out = data.valid_batches(
        splits.valid, config.data.batch_size, config.train.valid_batches
    )

    # ---- Train loop ------------------------------------------------------------------
    metrics = records.Metrics(folder / "metrics.jsonl", start)
    items = config.data.batch_size * getattr(config.model, "seq_len", 1)
    unit = "tokens" if hasattr(config.model, "seq_len") else "images"
    display = Display(start, config.train.num_steps, items, unit)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    display.say(
        f"{config.name}: {num_params:,} parameters on {len(devices)} x "
        f"{devices[0].device_kind}, {splits.source}; compiled in {compile_s:.1f} s; "
        + (f"going on from step {start}" if start else "from the beginning")
    )
    for change in changes:
        display.say(f"changed since this run began: {change}")
    done = start
    try:
        for done in range(start + 1, config.train.num_steps + 1):
            state, on_device = step(state, put(next(batches)))
            row = {"step": done, **{k: float(v) for k, v in on_device.items()}}
            check_finite(row, checkpoints.last_step)
            row[f"{unit}_per_s"] = round(display.rate(done), 1)
            display.update(done, row)
            if done == start + 2:
                display.say(compare_peak(step))
            last = done == config.train.num_steps or stop.requested
            if held_out and (done % config.train.valid_every == 0 or last):
                scores = [jax.device_get(valid(state.params, put(b))) for b in held_out]
                for name in scores[0]:
                    row[f"valid_{name}"] = float(np.mean([s[name] for s in scores]))
            if done % config.train.log_every == 0 or last:
                metrics.write(row)
            if done % config.train.save_every == 0 or last:
                check_finite_state(done, state.params, checkpoints.last_step)
                checkpoints.save(done, state, batches)
            if stop.requested:
                break
    finally:
        display.close()
        metrics.close()
        checkpoints.close()
    # ---- The end ---------------------------------------------------------------------
    finish(config, folder, metrics.rows, done, stop)


class StopRequest:
    """Ctrl-C or SIGTERM, kept until the step is done; a second one ends at once."""

    def __init__(self):
        self.requested = ""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _: Any) -> None:
        self.requested = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)


def find_devices(target: str) -> list[jax.Device]:
    """The devices to train on: this machine's, or so many CPU devices."""
    platform, _, count = target.partition(":")
    if platform == "cpu" and (count or "1").isdecimal() and int(count or "1") > 0:
        wanted = int(count or "1")
        try:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", wanted)
        except RuntimeError:
            pass  # The devices are chosen already; counted below.
        if len(jax.devices()) != wanted:
            raise UserError(
                f"train.target {target} wants {wanted} CPU devices and JAX already "
                f"runs on {len(jax.devices())}; choose them before its first use"
            )
    elif target != "local":
        raise UserError(
            f"train.target {target!r} is not a place to train on from here: write "
            "local or cpu:N (`revremat report` measures for machines elsewhere)"
        )
    return jax.devices()


def facts(config: Experiment, splits: data.Splits) -> tuple[dict, dict]:
    """What makes a run that run, and what may change when it goes on."""
    free = (
        "train.",
        "optim.",
        "sharding.",
        "data.path",
        "model.dtype",
        "model.dropout",
    )
    identity: dict[str, Any] = {"source": splits.source, "sha256": splits.digest}
    settings: dict[str, Any] = {"jax": jax.__version__}
    for key, value in known_keys(config).items():
        moves = key.startswith(free) and key != "train.seed"
        (settings if moves else identity)[key] = value
    return identity, settings


def compare_peak(step: jax.stages.Compiled) -> str:
    """What the compiler said the step takes, next to what the device has seen."""
    stats = step.memory_analysis()
    compiled = stats.argument_size_in_bytes + stats.output_size_in_bytes
    compiled += stats.temp_size_in_bytes - stats.alias_size_in_bytes
    text = f"the compiled step takes {compiled / MIB:,.1f} MiB a device"
    peak = peak_bytes()
    if peak is None:
        return f"{text} (this device does not count its own peak)"
    return (
        f"{text}, the device's own peak is {peak / MIB:,.1f} MiB "
        f"({(peak - compiled) / compiled:+.1%})"
    )


def check_finite(row: dict[str, Any], good: int | None) -> None:
    """Stop at the first loss or gradient that is not a finite number."""
    try:
        chex.assert_tree_all_finite({key: np.asarray(row[key]) for key in row})
    except AssertionError:
        raise UserError(not_finite(row["step"], row, good)) from None


def check_finite_state(step: int, params: Any, good: int | None) -> None:
    """Never save parameters that are not finite."""
    finite = jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), params)
    if not all(map(bool, jax.tree.leaves(finite))):
        raise UserError(not_finite(step, {"parameters": "not finite"}, good))


def not_finite(step: int, seen: dict[str, Any], good: int | None) -> str:
    """The sentence about a run that has gone astray."""
    values = ", ".join(f"{key} {value}" for key, value in seen.items() if key != "step")
    where = "there is no checkpoint yet" if good is None else f"step {good} is saved"
    return (
        f"step {step} is not finite ({values}); the last good checkpoint: {where}; try "
        "a lower --optim.learning-rate, more --optim.warmup-steps, a smaller "
        "--optim.clip-norm, or --model.dtype float32, and run it again"
    )


def finish(
    config: Experiment,
    folder: Path,
    rows: list[dict[str, Any]],
    done: int,
    stop: StopRequest,
) -> None:
    """Draw the loss and say how it ended."""
    records.plot_loss(rows, config.name, folder / "loss.svg")
    if stop.requested and done < config.train.num_steps:
        print(f"{stop.requested}: saved step {done}; the same command goes on from it")
    elif rows:
        results = {k: v for k, v in rows[-1].items() if "loss" in k or "valid" in k}
        told = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        print(f"step {done}: {told}; in {folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
