"""The command line of `train.py`: an experiment's name, then changes to its config."""

import difflib
import importlib.util
import sys
import typing
from pathlib import Path
from typing import Any

import tyro

from experiments import configs
from experiments.configs.common import Experiment, known_keys, read_value
from revremat import UserError

_SHORT = {
    "--plan": "--train.plan",
    "--processes": "--processes.count",
    "--process-id": "--processes.index",
    "--coordinator": "--processes.coordinator",
}
USAGE = "python experiments/train.py NAME [--model.num-layers 24 ...]"


def parse(args: list[str]) -> Experiment:
    """The config that a command line asks for.

    Args:
      args: An experiment's name or the path of a config file, then `--KEY VALUE`s.

    Returns:
      The changed config.

    Raises:
      UserError: If the experiment, a key or a value is not known; lists what is.
      SystemExit: After `--help`.
    """
    if not args or args[0].startswith("-"):
        if set(args) & {"-h", "--help"}:
            print(f"usage: {USAGE}\nexperiments: {', '.join(configs.names())}")
            raise SystemExit(0)
        raise UserError(f"which experiment? {', '.join(configs.names())}: {USAGE}")
    args = [args[0], *map(_in_full, args[1:])]
    config = _from_file(Path(args[0])) if args[0].endswith(".py") else None
    config = config or configs.load(args[0])
    if not set(args) & {"-h", "--help"}:
        _check(config, args[1:])
    return tyro.cli(
        Experiment[type(config.model)],
        default=config,
        args=args[1:],
        prog=f"train.py {args[0]}",
        description=f"Train {config.name}.",
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
    )


def _in_full(arg: str) -> str:
    flag, equals, value = arg.partition("=")
    return _SHORT.get(flag, flag) + equals + value


def _check(config: Experiment, args: list[str]) -> None:
    """Say in one sentence what a command line has wrong, before the parser does."""
    known = {key.replace("_", "-"): key for key in known_keys(config)}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if not arg.startswith("--"):
            raise UserError(f"{arg!r} is not a `--KEY VALUE`; write {USAGE}")
        flag, has_value, value = arg.partition("=")
        key = known.get(flag[2:].replace("_", "-"))
        if key is None:
            names = [f"--{name}" for name in known]
            near = difflib.get_close_matches(flag, names, 1)
            guess = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(
                f"unknown config key {flag}{guess}; known are: {', '.join(names)}"
            )
        if not has_value:
            if not rest:
                raise UserError(f"{flag} needs a value, such as {flag} VALUE")
            value = rest.pop(0)
        _check_value(config, key, value)


def _check_value(config: Any, key: str, value: str) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        config = getattr(config, parent)
    read_value(typing.get_type_hints(type(config))[name], value, key)


def _from_file(path: Path) -> Experiment:
    if not path.exists():
        raise UserError(f"there is no config file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not isinstance(getattr(module, "config", None), Experiment):
        raise UserError(f"{path} has no `config = Experiment(...)`")
    return module.config
