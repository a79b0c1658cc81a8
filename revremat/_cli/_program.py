"""load: from the name a person writes on the command line to a Problem."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from revremat._errors import UserError
from revremat._printable import printable_lines
from revremat._problem import Problem
from revremat._saved import what_is
from revremat.xla import Target, request_cpu_devices, target

FORM = "'package.module:problem' or 'path/to/file.py:problem'"


class ProgramError(UserError):
    """The user's own program raised; the message is its own traceback."""

    def __init__(self, message: str = ""):
        Exception.__init__(self, printable_lines(message))


def load(program: str, machine: Target, overrides: dict[str, Any]) -> Problem:
    """The problem that `program` names, made for `machine`.

    Args:
      program: `package.module:function` or `file.py:function`; the function is called
        as `function(target, **overrides)` and returns a `Problem`.
      machine: What it will be compiled for.
      overrides: More arguments for the function.

    Returns:
      A `Problem`.

    Raises:
      UserError: No such module, file or function, or it returns something else.
      ProgramError: The program itself raised.
    """
    function = _function(program)
    with users_errors(f"{program} raised while making its problem"):
        parameters = inspect.signature(function).parameters
        if not parameters:
            raise UserError(
                f"{program} takes no argument, and is given the target: "
                f"write 'def {program.rpartition(':')[2]}(target): ...'"
            )
        names = _settable(parameters)
        for name in () if _takes_any(parameters) else overrides:
            if name not in names:
                raise UserError(_no_argument(program, name, names))
        problem = function(machine, **overrides)
    if not isinstance(problem, Problem):
        raise UserError(
            f"{program} returned {type(problem).__name__}, not a revremat.Problem: "
            "write 'return rr.Problem(loss=..., specs=(...))'"
        )
    return problem


def default_of(program: str, argument: str) -> Any:
    """The default of an argument of a program's function; None where it has none.

    Raises:
      UserError: The function has no such argument.
    """
    parameters = inspect.signature(_function(program)).parameters
    found = parameters.get(argument)
    if found is None and not _takes_any(parameters):
        raise UserError(_no_argument(program, argument, _settable(parameters)))
    return None if found is None or found.default is found.empty else found.default


Parameters = Mapping[str, inspect.Parameter]


def _takes_any(parameters: Parameters) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _settable(parameters: Parameters) -> list[str]:
    """Arguments with a name; the first of all is the target."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in [*parameters.values()][1:] if p.kind in kinds]


def _no_argument(program: str, name: str, names: Sequence[str]) -> str:
    has = f"it has {', '.join(names)}" if names else "it has none to set"
    return f"{program} has no argument {name!r}: {has}"


def _function(program: str) -> Callable[..., Any]:
    place, _, function_name = program.rpartition(":")
    if told := what_is(program):
        raise UserError(
            f"{program!r} is {told}, no program: write {FORM}; a plan is given beside "
            "the program with --plan, reports are compared by 'revremat diff'"
        )
    if not place or not function_name:
        form = FORM
        if program.endswith(".py") and Path(program).is_file():
            form = f"a function of it too, as in '{program}:problem'"
        raise UserError(f"{program!r} names no program: write {form}")
    module = _import(place, program)
    function = getattr(module, function_name, None)
    if isinstance(function, Problem):
        raise UserError(
            f"{program} is a Problem, and must be a function that makes one for a "
            f"target: write 'def {function_name}(target): return rr.Problem(...)'"
        )
    if not callable(function):
        callables = [n for n, v in vars(module).items() if _is_own(v, module)]
        has = f"it has {', '.join(callables)}" if callables else "it has none"
        raise UserError(f"{place} has no function {function_name!r}: {has}")
    return function


def _is_own(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _import(place: str, program: str) -> ModuleType:
    # A user's own packages are found from where the command is run.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not place.endswith(".py"):
        return _import_module(place)
    path = Path(place).resolve()
    if not path.is_file():
        raise UserError(f"there is no file {place!r}: {program!r} must be {FORM}")
    name = _module_name(path)
    if name is not None:
        with users_errors(f"importing {place} failed"):
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # files that end in .py have a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    with users_errors(f"importing {place} failed"):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    parts = name.split(".")
    itself = {".".join(parts[: n + 1]) for n in range(len(parts))}
    with users_errors(f"importing {name} failed"):
        try:
            if not all(part.isidentifier() for part in parts):
                raise ModuleNotFoundError(name=name)
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in itself:
                raise  # something that it imports is missing
            raise UserError(
                f"there is no module {name!r} to import: write {FORM}"
            ) from None


def _module_name(path: Path) -> str | None:
    """The dotted name of a file inside a package under the current folder."""
    try:
        relative = path.relative_to(Path.cwd())
    except ValueError:
        return None
    in_package = all(
        (Path.cwd() / parent / "__init__.py").is_file()
        for parent in list(relative.parents)[:-1]
    )
    if len(relative.parts) < 2 or not in_package:
        return None
    return ".".join(relative.with_suffix("").parts)


@contextlib.contextmanager
def users_errors(doing: str) -> Iterator[None]:
    """Turns what a user's program raises into its own traceback, without ours.

    A `UserError` passes through: it is already one clear sentence.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        hidden = _hidden_places()
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(hidden)
        ]
        text = "".join(traceback.format_list(frames))
        reason = "".join(traceback.format_exception_only(error)).strip()
        reason = reason.split("\n--------------------\n")[0]
        raise ProgramError(f"{doing}:\n{text}{reason}") from None


def start_targets(specs: Sequence[str]) -> list[Target]:
    """The targets, with as many CPU devices as any of them needs."""
    found = [target(spec) for spec in specs if spec != "local"]
    cpus = [t.num_devices for t in found if t.platform == "cpu"]
    if cpus:
        request_cpu_devices(max(cpus))
    return [target(spec) for spec in specs]


def read_override(text: str) -> tuple[str, Any]:
    """One `name=value` of the command line; values are Python literals, or text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--set {text!r} sets nothing: write --set name=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _hidden_places() -> tuple[str, ...]:
    """Files whose frames tell a user nothing about their own program."""
    packages = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax")]
    folders = [f for p in packages if p for f in p.submodule_search_locations or ()]
    own = Path(__file__).resolve().parents[1]
    library = [str(contextlib.__file__), str(Path(importlib.__file__).parent)]
    return ("<frozen", str(own) + os.sep, *(f + os.sep for f in folders), *library)
