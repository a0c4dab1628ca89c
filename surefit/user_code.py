"""The user's own code, named as `module:object`; naming it is what allows it to run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surefit.errors import UsageError, describe_error
from surefit.findings import rule

OWN_CODE_RUN = rule(
    "SF288",
    "info",
    "your own code is run",
    why="Code runs only where it is named; this is the file it comes from.",
    fix="Nothing to do.",
)


def find_object(name: str, beside: Path | None = None) -> Any:
    """Import `module:object`, from beside the config, the working folder or the Python path."""
    module_name, object_name = name.split(":", 1)
    _forget_namesake(module_name, beside)
    with _search_path(beside):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.split(".")[0] and error.name != module_name:
                raise UsageError(
                    f"{module_name} needs the module {error.name!r}, which is not installed.",
                    f"Install {error.name}.",
                ) from None
            places = [str(folder) for folder in _folders(beside)]
            raise UsageError(
                f"There is no Python module {module_name!r} in {' or '.join(places)} "
                "or on the Python path.",
                "Write MODULE:FUNCTION with the file name without .py.",
            ) from None
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"{module_name} could not be imported: {describe_error(error)}",
                "Repair the file; `python -c 'import …'` shows where it fails.",
            ) from error
    if not hasattr(module, object_name):
        found = ", ".join(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        raise UsageError(
            f"{module.__file__} has no {object_name!r}.", f"It has: {found or 'nothing'}."
        )
    return getattr(module, object_name)


def _forget_namesake(module_name: str, beside: Path | None) -> None:
    """Drop a module of the same name that was imported from another folder before."""
    relative = Path(*module_name.split(".")).with_suffix(".py")
    here = next((f / relative for f in _folders(beside) if (f / relative).is_file()), None)
    known = sys.modules.get(module_name)
    if here is not None and known is not None and getattr(known, "__file__", None) != str(here):
        del sys.modules[module_name]


def _folders(beside: Path | None) -> list[Path]:
    return [*([beside.resolve()] if beside else []), Path.cwd()]


@contextmanager
def _search_path(beside: Path | None) -> Iterator[None]:
    before, wrote = list(sys.path), sys.dont_write_bytecode
    sys.path[:0] = [str(folder) for folder in _folders(beside)]
    sys.dont_write_bytecode = True  # nothing is left beside the user's file
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, wrote
