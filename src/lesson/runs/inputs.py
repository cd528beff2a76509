"""Digests of what a run depends on besides its settings: the files and the code that the settings name."""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import sys
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from lesson.core.errors import INSTALLED, InputError
from lesson.core.plugins import search_current_folder
from lesson.settings.settings import Settings

_IMPORTED: dict[str, tuple[ModuleSpec | None, str]] = {}
"""By module of custom code: its spec when a run first used it, which a reload replaces, and the digest of its file."""


def input_digests(settings: Settings) -> dict[str, str]:
    """Return a digest of each input file, and of each source file of custom code, by file name."""
    digests = {path: _digest(_content(Path(path))) for path in settings.input_files.values()}
    for name in _custom(settings):
        digests |= code_digests(name)
    return digests


def code_digests(name: str) -> dict[str, str]:
    """Return a digest of each source file behind `module:Class`: its module, and those it imports from its folder.

    Imports are found in the source, also inside functions. Of an installed package, only its own modules count. In
    `__main__`, a script or a notebook, only the class itself counts, if its source is known.
    """
    module, _, attribute = name.partition(":")
    if module == "__main__":
        return _digest_in_main(attribute)
    if (root := _root_of(module)) is None:
        return {}
    digests, waiting, seen = dict[str, str](), [module], set[str]()
    while waiting:
        one = waiting.pop()
        if one in seen or not _is_custom(one, module, root):
            continue
        seen.add(one)
        package = one.rpartition(".")[0]
        waiting += [package] if package else []  # it is imported first
        if (path := _source_of(root, one)) is not None:
            source = _content(path)
            digests[path.relative_to(root).as_posix()] = _digest(source)
            waiting += _imports(source, one if path.stem == "__init__" else package)
    return digests


def check_imported(settings: Settings) -> None:
    """Raise InputError if this process has imported an earlier version of custom code.

    Python imports a module once, so the edited file would be recorded for a run that executes the earlier code.
    """
    for name in _custom(settings):
        for file, digest in code_digests(name).items():
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if (imported := sys.modules.get(module)) is None:
                continue
            known = _IMPORTED.get(module)
            if known is None or known[0] is not imported.__spec__:  # not used before, or reloaded since then
                _IMPORTED[module] = imported.__spec__, digest
            elif known[1] != digest:
                remedy = f"restart Python or, in a notebook, call importlib.reload on {module}"
                raise InputError(f"{file} has changed since this process imported it; {remedy}")


def _custom(settings: Settings) -> list[str]:
    """Return the names of custom code, as far as there is any."""
    names = settings.strategy.name, settings.data.dataset, settings.upload.compression, *settings.radio.custom
    return [name for name in names if ":" in name]


def _root_of(module: str) -> Path | None:
    """Return the folder from which a module or its outermost package is imported; None if it is not in a folder."""
    search_current_folder()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:  # a module that was not imported from a file
        return None
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)  # a package has folders, a module a file
    return None if place is None else Path(place).parent


def _is_custom(name: str, module: str, root: Path) -> bool:
    """Return whether a module may belong to the user's code: not to Python, an installed package or this one."""
    outermost = name.partition(".")[0]
    if outermost in ("lesson", module.partition(".")[0]):
        return outermost != "lesson"
    return outermost not in sys.stdlib_module_names and not INSTALLED & {*root.parts}


def _source_of(root: Path, module: str) -> Path | None:
    """Return the source file of a module below this folder; None if there is none."""
    path = root.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)


@lru_cache(maxsize=1024)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Return what a module of a package imports: modules, and names that may be modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # its import would fail as well
        return ()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than parent packages
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(found))


def _digest_in_main(attribute: str) -> dict[str, str]:
    """Return the digest of the source of an object in `__main__`; none if its source is unknown."""
    try:
        source = inspect.getsource(getattr(sys.modules["__main__"], attribute))
    except (AttributeError, OSError, TypeError):
        return {}
    return {f"__main__:{attribute}": _digest(source.encode())}


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
