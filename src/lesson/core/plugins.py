"""Custom classes and functions, named on the command line or in a settings file."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError, describe, raised_inside


def load_named(kind: str, name: str, form: str = "module:Class") -> Any:
    """Import and return the object with a name such as module:Class; modules in the current folder are found, too.

    `kind` and `form` are for error messages.
    """
    module_name, _, class_name = name.partition(":")
    if "/" in module_name or module_name.startswith(".") or module_name.endswith(".py"):
        file = Path(module_name).stem
        raise InputError(f"{kind} '{name}' cannot be loaded; write {file}:{class_name} in the folder of {file}.py")
    if not (module_name and class_name):
        raise InputError(f"{kind} '{name}' cannot be loaded: the name must be {form}")
    search_current_folder()
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except SystemExit as error:
        why = f"{describe(error)}; its module must not call exit"
        raise InputError(f"{kind} '{name}' cannot be loaded: {why}") from error
    except Exception as error:  # a custom module may raise anything
        cause = raised_inside(error)
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            cause = None
        why = f"{error}; the name must be {form}" if cause is None else describe(error)
        raise InputError(f"{kind} '{name}' cannot be loaded: {why}") from cause


def call_custom(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a custom function returns; raise InputError, starting with `name`, if it fails."""
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:  # a custom function may raise anything
        cause = raised_inside(error)
        raise InputError(f"{name} failed: {error if cause is None else describe(error)}") from cause


def search_current_folder() -> None:
    """Let Python import modules from the current folder."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
