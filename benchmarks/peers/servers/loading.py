"""Import server code of packages and of checkouts, without the modules that these cases do not use."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from torch import nn

UNUSED = {"grpc", "gurobipy", "opacus", "pynvml", "tensorboardX", "tensorflow", "torchvision", "transformers", "wandb"}
"""Modules that peers import but these cases do not use; mocks replace them where they are not installed."""

checkouts: dict[str, Path] = {}
"""Folders of the repositories that were given on the command line, by name."""


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that replaces the named modules, and all modules below them, by mocks."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        unused = _is_below(name, self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if unused else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return mock.MagicMock(__spec__=spec, __path__=[], __name__=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def hashable(made: type | None = None, /, **options: Any) -> Any:
    """Apply `dataclass`, and make FLSim's classes hashable, as Python 3.11 and later require of default values."""
    if made is None:
        return functools.partial(hashable, **options)
    return dataclass(**options | ({"unsafe_hash": True} if made.__module__.startswith("flsim.") else {}))(made)


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Let peers be imported if unused modules are missing, or if they were written for Python before 3.11."""
    finder = StandIns(UNUSED)
    sys.meta_path.append(finder)
    try:
        with mock.patch.object(dataclasses, "dataclass", hashable), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.meta_path.remove(finder)


def load(name: str) -> ModuleType:
    """Import a module of a package."""
    with standing_in():
        return importlib.import_module(name)


@contextlib.contextmanager
def checkout(
    name: str, folder: str = "", *, unused: set[str] | None = None, stubs: Mapping[str, object] | None = None
) -> Iterator[Callable[[str], Any]]:
    """Provide a function that imports modules below a folder of a checkout.

    Modules in `stubs` are replaced by these objects, those in `unused` by mocks. The modules of the checkout are
    forgotten afterwards, because repositories use the same names, such as `utils`. Printed output is discarded.
    """
    root, first = checkouts[name] / folder, StandIns(unused or set())
    own = {child.stem for child in root.iterdir()} | first.names | set(stubs or {})
    hidden = {module: sys.modules.pop(module) for module in list(sys.modules) if _is_below(module, own)}
    sys.meta_path.insert(0, first)
    sys.path.insert(0, str(root))
    sys.modules |= stubs or {}  # type: ignore[arg-type]  # any object will do
    try:
        with standing_in(), contextlib.redirect_stdout(io.StringIO()):
            yield importlib.import_module
    finally:
        sys.path.remove(str(root))
        sys.meta_path.remove(first)
        for module in [module for module in sys.modules if _is_below(module, own)]:
            del sys.modules[module]
        sys.modules.update(hidden)


def _is_below(module: str, parents: set[str]) -> bool:
    """Return whether a module is one of these or inside one of them."""
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def linear(value: float) -> nn.Linear:
    """Return a model with a single parameter of this value."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model
