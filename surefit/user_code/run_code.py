"""Code that a run's folder names. The folder is data: it brings no permission to run code.

Such code runs if this command names it too, or if this user made the run on this machine and the
file has not changed since; then exactly the recorded files are run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from surefit.errors import SurefitError, UsageError
from surefit.user_code.code_records import hash_code, hash_folder, recall, top_folder
from surefit.user_code.named_code import (
    NamedCode,
    import_failed,
    import_object,
    locate,
    object_of,
    split_name,
)
from surefit.user_code.remote_code import names_of

Files = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class RunCode:
    """The code that the folder `run` names; `trusted` are the names that this command allows."""

    run: Path
    run_id: Any = None
    trusted: frozenset[str] = frozenset()
    beside: Path | None = None
    trust_remote_code: bool = False
    """Whether this command, not the run's config, allows code of model folders and the hub."""

    def find(self, name: str) -> Any:
        """Import `module:object` if it may run; else say which file it would be."""
        record = recall(self.run_id)
        files = record.code.get(name) if record is not None else None
        if name in self.trusted:
            return import_object(name, [*_recorded_folder(name, files), *self._folders()])
        if not files:
            raise self._not_named(name)
        changed = next((f["file"] for f in files.values() if _digest(f) != f["digest"]), None)
        if changed is not None:
            state = "changed since the run began" if Path(changed).is_file() else "is missing"
            raise UsageError(
                f"{self.run} names the code {name}, and its file {changed} {state}, so it is not "
                "run.",
                f"Look at the file. If it is right, add --trust-code {name} "
                f"(in Python: trust_code={name!r}).",
            )
        return import_recorded(name, files)

    def allows_remote(self, place: str, asked: bool) -> bool:
        """Whether a model folder or hub repository may run its own code; `asked` by the run."""
        names = names_of(place)
        if self.trust_remote_code or (names and self.trusted.issuperset(names)):
            return True
        record = recall(self.run_id)
        if not names or record is None:
            return False
        return hash_folder(Path(place)) in record.remote

    def _folders(self) -> list[Path]:
        return NamedCode(self.beside).folders()

    def _not_named(self, name: str) -> UsageError:
        module, _ = split_name(name)
        file = locate(module, [*self._folders(), *sys.path])
        would = f"It would run {file}." if file else f"No file {module}.py was found here."
        return UsageError(
            f"{self.run} names the code {name}, which this command does not, and the run was not "
            f"made here by you with that code. {would}",
            f"Read the file. If you trust it, add --trust-code {name} "
            f"(in Python: trust_code={name!r}).",
        )


def code_of_folder(gate: CodeGate, folder: Path, run_id: Any) -> RunCode:
    """The gate of the code that a model folder names, in a command with another gate.

    The code of a run that is resumed was allowed when the run began, and is in its record.
    """
    if isinstance(gate, RunCode):
        return gate
    return RunCode(folder, run_id, gate.trusted, gate.beside)


CodeGate = NamedCode | RunCode
"""Decides whether code may run, and finds it. All code of users and strangers goes through one."""


def _recorded_folder(name: str, files: Files | None) -> list[Path]:
    module, _ = split_name(name)
    if not files or module not in files:
        return []
    return [top_folder(module, Path(files[module]["file"]))]


def _digest(about: Mapping[str, str]) -> str | None:
    try:
        return hash_code(Path(about["file"]).read_bytes())
    except OSError:
        return None


def import_recorded(name: str, files: Files) -> Any:
    """Import `module:object` from its recorded files, compiled from the very bytes verified."""
    module_name, _ = split_name(name)
    with _only_recorded(files):
        try:
            module = importlib.import_module(module_name)
        except SurefitError:
            raise
        except (Exception, SystemExit) as error:
            raise import_failed(module_name, error) from error
    return object_of(module, name)


class _Verified(SourceFileLoader):
    """Runs a file only if its content has the recorded digest; no cached bytecode is used."""

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self.digest = digest

    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        if hash_code(content) != self.digest:
            raise ImportError(f"{self.path} changed while it was opened")
        return compile(content, self.path, "exec", dont_inherit=True)


@dataclass(frozen=True)
class _Recorded(MetaPathFinder):
    """Finds the recorded modules at their recorded files, and no others beside them."""

    files: Files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        about = self.files.get(fullname)
        if about is None:
            return None
        file = about["file"]
        places: list[str] | None = [] if Path(file).name == "__init__.py" else None
        loader = _Verified(fullname, file, about["digest"])
        return spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=places
        )


@contextmanager
def _only_recorded(files: Files) -> Iterator[None]:
    """Import recorded modules from their files, and others from where Python is installed."""
    for name, about in files.items():
        known = sys.modules.get(name)
        file = getattr(known, "__file__", None)
        if known is not None and (not file or str(Path(file).resolve()) != about["file"]):
            del sys.modules[name]  # a namesake from another folder
    finder, before = _Recorded(files), list(sys.path)
    here = {"", str(Path.cwd())}
    sys.path[:] = [folder for folder in before if folder not in here]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = before
