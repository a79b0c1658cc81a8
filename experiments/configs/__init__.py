"""One file for each experiment: its docstring gives the command and what to expect."""

import importlib
import pkgutil

from revremat import UserError


def names() -> list[str]:
    """The experiments there are."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(module.name for module in modules if module.name != "common")


def load(name: str):
    """The config of an experiment by its name.

    Raises:
      UserError: If there is none of that name; the known ones are listed.
    """
    if name not in names():
        raise UserError(f"unknown experiment {name!r}; known are: {', '.join(names())}")
    return importlib.import_module(f"experiments.configs.{name}").config
