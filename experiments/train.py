"""Train an experiment, from the beginning or from where it stopped.

    python experiments/train.py gpt --model.num-layers 6 --train.num-steps 1000

The same command goes on after Ctrl-C, SIGTERM, a kill or a crash, and the loss curve is
the one of a run that was never interrupted. Several processes train as one where a
cluster starts them, or `python -m experiments.launch`.
"""

import contextlib
import hashlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr
from experiments import cli, data, records
from experiments.checkpoints import Checkpoints, everywhere
from experiments.configs.common import Experiment, known_keys
from experiments.global_arrays import on_devices, rows_here
from experiments.processes import ALONE, Processes, join
from experiments.progress import MIB, Display, peak_bytes
from experiments.step import build, mesh_axes, with_state
from revremat import UserError, sharding, xla


def main(args: list[str]) -> int:
    """Run the command line; 0 done or stopped, 1 failed, 2 not understood."""
    try:
        config = cli.parse(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    processes = ALONE
    try:
        processes = join(config.processes, config.train.target)
        train(config, processes)
    except Exception as error:
        processes.fail(error)
        if not isinstance(error, UserError | OSError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    processes.leave()
    return 0


def train(config: Experiment, processes: Processes = ALONE) -> None:
    """Train to `config.train.num_steps`, or until asked to stop."""
    _check_numbers(config)
    folder = Path(config.train.dir or f"runs/{config.name}")
    stop = StopRequest()

    # ---- Devices, data, program: nothing is allocated yet ----------------------------
    devices = find_devices(config.train.target, processes)
    if getattr(config.model, "attention", "") == "cudnn":
        check_has_cudnn(devices)
    mesh = sharding.make_mesh(mesh_axes(config, len(devices)), devices)
    program = build(config, mesh)
    splits = data.load(config.data, getattr(config.model, "seq_len", 0))
    rows = rows_here(next(iter(program.batch.values())))
    batches = data.train_batches(
        splits.train, config.data.batch_size, config.train.seed, rows
    )
    put = lambda batch: on_devices(batch, program.batch, rows)
    identity, settings = facts(config, splits)
    check_same(processes, "its command and data", identity | settings)
    settings["processes"] = processes.count
    processes.meet("data")

    # ---- Folder of the run -----------------------------------------------------------
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoints", config.train.keep)
    start = checkpoints.last_step or 0
    check_same(processes, f"what {folder} holds", {"its last checkpoint": start})
    changes = processes.hand_out(
        "changes",
        lambda: records.same_run(
            folder / "run.json", identity, settings, begun=start > 0
        ),
    )

    # ---- Compile the step, as it is reported and as it is run ------------------------
    # As in the report: what is kept is decided by us, and by a pass of the compiler
    # only where the plan says so.
    jax.config.update("jax_compiler_enable_remat_pass", False)
    compiling_since = time.perf_counter()
    plan = None
    if config.train.plan:
        text = lambda: rr.Plan.load(config.train.plan).to_json()
        plan = rr.Plan.from_json(processes.hand_out("plan", text))
        check_can_compile(plan, config.train.target)
    loss = program.loss if plan is None else rr.apply(program.loss, plan)
    step_fn = jax.jit(program.make_step(loss), donate_argnums=0)
    with contextlib.nullcontext() if plan is None else plan.compiling():
        lowered = step_fn.lower(program.state, program.batch)
        if processes.count > 1:
            check_same(processes, "the step", {"its program": fingerprint(lowered)})
        step = lowered.compile()
    held_out = data.valid_batches(
        splits.valid, config.data.batch_size, config.train.valid_batches, rows
    )
    valid: Any = jax.jit(program.valid)
    if held_out:
        specs = with_state(program.batch, program.state.model)
        valid = valid.lower(program.state.params, specs).compile()
    compile_s = time.perf_counter() - compiling_since
    processes.meet("compiled")

    # ---- State: restored, or born sharded --------------------------------------------
    if start:
        state = checkpoints.load(program.state, batches)
    else:
        key_data = np.asarray(jax.random.key_data(jax.random.key(config.train.seed)))
        state = sharding.init_sharded(program.init, program.state, key_data)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, program.state)
    processes.meet("state")

    # ---- Train loop ------------------------------------------------------------------
    first = processes.is_first
    metrics = records.Metrics(folder / "metrics.jsonl" if first else None, start)
    items = config.data.batch_size * getattr(config.model, "seq_len", 1)
    unit = "tokens" if hasattr(config.model, "seq_len") else "images"
    display = Display(start, config.train.num_steps, items, unit, is_shown=first)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    display.say(
        f"{config.name}: {num_params:,} parameters on {len(devices)} x "
        f"{devices[0].device_kind}"
        + (f" in {processes.count} processes" if processes.count > 1 else "")
        + f", {splits.source}; compiled in {compile_s:.1f} s; "
        + (f"going on from step {start}" if start else "from the beginning")
    )
    if not records.can_plot():
        display.say(
            f"no loss.svg will be drawn: matplotlib is missing, "
            f"{records.INSTALL} installs it"
        )
    if plan is not None:
        display.say(f"residuals are restored by {config.train.plan}: {plan}")
        if note := plan.target_note(config.train.target):
            display.say(note)
    for change in changes:
        display.say(f"changed since this run began: {change}")
    done, stopping = start, ""
    try:
        for done in range(start + 1, config.train.num_steps + 1):
            state, on_device = step(state, put(next(batches)))
            row = {"step": done, **{k: float(v) for k, v in on_device.items()}}
            check_finite(row, checkpoints)
            row[f"{unit}_per_s"] = round(display.rate(done), 1)
            display.update(done, row)
            if done == start + 2:
                display.say(compare_peak(step, config.train.target))
            stopping = processes.agree_to_stop(done, stop.requested)
            last = done == config.train.num_steps
            if held_out and (done % config.train.valid_every == 0 or last):
                given = (with_state(put(batch), state.model) for batch in held_out)
                scores = [jax.device_get(valid(state.params, b)) for b in given]
                for name in scores[0]:
                    row[f"valid_{name}"] = float(np.mean([s[name] for s in scores]))
            if done % config.train.log_every == 0 or last:
                metrics.write(row)
            if done % config.train.save_every == 0 or last or stopping:
                check_finite_state(done, state.params, checkpoints)
                checkpoints.save(done, state, batches)
            if stopping:
                break
    except Exception as error:
        # Before anything is closed, which would wait for processes that wait for this.
        processes.fail(error)
        raise
    finally:
        display.close()
        metrics.close()
        checkpoints.close()
    # ---- The end ---------------------------------------------------------------------
    if first:
        finish(config, folder, metrics.rows, done, stopping)


def _check_numbers(config: Experiment) -> None:
    """Before anything is written; what is kept of a run hangs on some of them."""
    train, optim = config.train, config.optim
    least = {
        "data.batch_size": (config.data.batch_size, 1),
        "train.num_steps": (train.num_steps, 1),
        "train.log_every": (train.log_every, 1),
        "train.valid_every": (train.valid_every, 1),
        "train.valid_batches": (train.valid_batches, 0),
        "train.save_every": (train.save_every, 1),
        "train.keep": (train.keep, 1),
        "train.seed": (train.seed, 0),
        "optim.accumulate": (optim.accumulate, 1),
        "optim.warmup_steps": (optim.warmup_steps, 0),
    }
    for name, (value, bound) in least.items():
        if value < bound:
            raise UserError(f"{name} is {value}: write {bound} or more")
    dropout = getattr(config.model, "dropout", 0.0)
    if not 0 <= dropout < 1:
        raise UserError(
            f"model.dropout is {dropout}: write the part of values that is dropped, "
            "from 0 to less than 1"
        )


class StopRequest:
    """Ctrl-C or SIGTERM, kept until the step is done; a second one ends at once."""

    def __init__(self):
        self.requested = ""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _: Any) -> None:
        self.requested = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)


def find_devices(target: str, processes: Processes = ALONE) -> list[Any]:
    """The devices of all processes to train on: what they have, or CPU devices."""
    if target == "local":
        return jax.devices()
    wanted = rr.target(target)
    if wanted.platform != "cpu":
        raise UserError(
            f"train.target {target!r} is not a place to train on from here: write "
            "local or cpu:N (`revremat report` measures for machines elsewhere)"
        )
    # Asked before JAX starts; where it has started, the mesh says what is missing.
    jax.config.update("jax_platforms", "cpu")
    # Of those each process was told its own number when it joined the others.
    return wanted.devices if processes.count == 1 else jax.devices()


def check_has_cudnn(devices: list[Any]) -> None:
    """Refuses attention by cuDNN where there is none."""
    if devices[0].platform != "gpu":
        raise UserError(
            f"model.attention is cudnn, and {devices[0].device_kind} devices have no "
            "cuDNN: write --model.attention dot_product"
        )


def check_can_compile(plan: rr.Plan, target: str) -> None:
    """Refuses a plan for XLA's own remat pass where that cannot be told its limit."""
    if plan.remat_pass_percent is not None:
        xla.remat_pass_options(rr.target(target), plan.remat_pass_percent)


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
        if key.startswith("processes."):
            continue
        moves = key.startswith(free) and key != "train.seed"
        (settings if moves else identity)[key] = value
    return identity, settings


def check_same(processes: Processes, what: str, mine: dict[str, Any]) -> None:
    """Refuses a process that would train something else than the first one."""
    mine = json.loads(json.dumps(mine))
    first = processes.hand_out(what, lambda: mine)
    if differing := [key for key in mine if first.get(key) != mine[key]]:
        key = differing[0]
        raise UserError(
            f"process {processes.index} differs from process 0 in {what}: {key} is "
            f"{mine[key]!r} and not {first.get(key)!r}; start all with one command, "
            "the same packages and data, and a --train.dir that all of them share"
        )


def fingerprint(lowered: jax.stages.Lowered) -> str:
    """SHA-256 of a program's text: processes with different ones would wait forever."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def compare_peak(step: jax.stages.Compiled, target: str) -> str:
    """What the report says the step takes, next to what the device has seen."""
    try:
        report = rr.measure(step, target=target).memory.total_bytes
    except UserError as error:
        return f"no report to compare with the device's own peak: {error}"
    text = f"the report says {report / MIB:,.1f} MiB a device"
    peak = peak_bytes()
    if peak is None:
        return f"{text}; this device does not count its own peak"
    return (
        f"{text}, the device's own peak is {peak / MIB:,.1f} MiB "
        f"({(peak - report) / MIB:+,.1f} MiB, {(peak - report) / report:+.1%})"
    )


def check_finite(row: dict[str, Any], checkpoints: Checkpoints) -> None:
    """Stop at the first loss or gradient that is not a finite number."""
    try:
        chex.assert_tree_all_finite({key: np.asarray(row[key]) for key in row})
    except AssertionError:
        raise UserError(not_finite(row["step"], row, checkpoints)) from None


def check_finite_state(step: int, params: Any, checkpoints: Checkpoints) -> None:
    """Never save parameters that are not finite."""
    leaves = jax.tree.leaves(params)
    if not jax.jit(_all_finite, out_shardings=everywhere(leaves[0]))(leaves):
        raise UserError(not_finite(step, {"parameters": "not finite"}, checkpoints))


def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def not_finite(step: int, seen: dict[str, Any], checkpoints: Checkpoints) -> str:
    """The sentence about a run that has gone astray."""
    values = ", ".join(f"{key} {value}" for key, value in seen.items() if key != "step")
    checkpoints.wait()
    # Finite parameters that give a loss that is not are no place to go on from.
    suspect = step - 1 in checkpoints.steps
    good = [saved for saved in checkpoints.steps if saved < step - 1]
    where = f"step {good[-1]}" if good else "none"
    if suspect:
        where += f" (delete {checkpoints.path(step - 1)}, which led here)"
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
    stopping: str,
) -> None:
    """Draw the loss and say how it ended."""
    if records.can_plot():
        records.plot_loss(rows, config.name, folder / "loss.svg")
    if stopping and done < config.train.num_steps:
        print(f"{stopping}: saved step {done}; the same command goes on from it")
    elif rows:
        results = {k: v for k, v in rows[-1].items() if "loss" in k or "valid" in k}
        told = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        print(f"step {done}: {told}; in {folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
