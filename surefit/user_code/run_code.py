"""Code that a run's folder names. The folder is data: it brings no permission to run code.

Such code runs if this command names it too, or if this user made the run on this machine and the
file has not changed since; then exactly the recorded files are run.

The record (the files and their digests) is written when this user starts a run here with code of
their own. It lies in `$XDG_STATE_HOME/surefit/runs` (else `~/.local/state/surefit/runs`) under the
run's id, so that neither a run folder nor `surefit cache clean` can change it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.errors import SurefitError, UsageError
from surefit.user_code.named_code import (
    NamedCode,
    import_failed,
    import_object,
    locate,
    names_of,
    object_of,
    split_name,
    top_folder,
)

_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class CodeRecord:
    """The code of one run: per `module:object` the files of its modules, and remote code."""

    run: str
    code: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """`module:object` to module name to `file` and `digest`."""
    remote: tuple[str, ...] = ()
    """Digests of the Python files of model folders that ran their own code."""


def records_folder() -> Path:
    """Return where records are kept."""
    named = os.environ.get("XDG_STATE_HOME")
    state = Path(named) if named else files.home_folder() / ".local" / "state"
    return state / "surefit" / "runs"


def recall(run_id: Any) -> CodeRecord | None:
    """Return the record of a run; None if this user did not make it here with their own code."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        return None
    try:
        return read_json(records_folder() / f"{run_id}.json", CodeRecord)
    except UsageError:
        return None  # a record that cannot be read permits nothing


def remember(run_id: str, record: CodeRecord) -> None:
    """Write the record of a run, with what an earlier one of the same run holds."""
    if not _RUN_ID.fullmatch(run_id):  # the plan of a stranger's run, which would name any file
        return
    known = recall(run_id) or record
    remote = tuple(sorted({*known.remote, *record.remote}))
    whole = CodeRecord(record.run, {**known.code, **record.code}, remote)
    folder = records_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.sweep(folder, 3600)  # seconds after which no process writes a temporary file
    files.write_json(folder / f"{run_id}.json", asdict(whole))


def files_of(name: str) -> dict[str, dict[str, str]]:
    """Return the files of the imported `module:object`, and of modules beside it that it imports.

    Of a package that is installed in Python, only the file itself.
    """
    module_name, _ = split_name(name)
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None or not file.endswith(".py"):
        return {}
    found, seen = {module_name: Path(file).resolve()}, set[str]()
    root = top_folder(module_name, found[module_name])
    installed = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    waiting = {module_name} if root not in {path.resolve() for path in installed} else set()
    while waiting := waiting - seen - {""}:
        seen.add(each := waiting.pop())
        if path := locate(each, [root]):
            found[each] = path
            waiting |= {*_imports(path, each), each.rpartition(".")[0]}
    return {
        each: {"file": str(path), "digest": hash_code(path.read_bytes())}
        for each, path in found.items()
    }


def _imports(file: Path, name: str) -> Iterator[str]:
    """Yield the names of the modules that the file of a module may import, anywhere in it."""
    parents = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def hash_code(content: bytes) -> str:
    """Return a digest that nobody can meet with another content on purpose."""
    return hashlib.sha256(content).hexdigest()


def hash_folder(folder: Path) -> str | None:
    """Return the digest of all Python files of a folder; None if it has none."""
    digest, found = hashlib.sha256(), sorted(folder.rglob("*.py"))
    for path in found:
        digest.update(f"{path.relative_to(folder)}\0{hash_code(path.read_bytes())}\0".encode())
    return digest.hexdigest() if found else None


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
            module, _ = split_name(name)
            known = [top_folder(module, Path(files[module]["file"]))] if files else []
            return import_object(name, [*known, *self._folders()])
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
    """Return the gate of the code that a model folder names, in a command with another gate.

    The code of a run that is resumed was allowed when the run began, and is in its record.
    """
    if isinstance(gate, RunCode):
        return gate
    return RunCode(folder, run_id, gate.trusted, gate.beside)


CodeGate = NamedCode | RunCode
"""Decides whether code may run, and finds it. All code of users and strangers goes through one."""


def _digest(about: Mapping[str, str]) -> str | None:
    try:
        return hash_code(Path(about["file"]).read_bytes())
    except OSError:
        return None


def import_recorded(name: str, files: Files) -> Any:
    """Import `module:object` from its recorded files; others from where Python is installed."""
    module_name, _ = split_name(name)
    for each, about in files.items():
        known = getattr(sys.modules.get(each), "__file__", None)
        if each in sys.modules and (not known or str(Path(known).resolve()) != about["file"]):
            del sys.modules[each]  # a namesake from another folder
    finder, before = _Recorded(files), list(sys.path)
    sys.path[:] = [folder for folder in before if folder not in ("", str(Path.cwd()))]
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(module_name)
    except SurefitError:
        raise
    except (Exception, SystemExit) as error:
        raise import_failed(module_name, error) from error
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = before
    return object_of(module, name)


@dataclass(frozen=True)
class _Recorded(MetaPathFinder, InspectLoader):
    """Finds the recorded modules, and no others beside them; runs the very bytes it verified."""

    files: Files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.files:
            return None
        file = self.files[fullname]["file"]
        places: list[str] | None = [] if Path(file).name == "__init__.py" else None
        return spec_from_file_location(
            fullname, file, loader=self, submodule_search_locations=places
        )

    def get_source(self, fullname: str) -> str:
        return decode_source(self._content(fullname))

    def get_code(self, fullname: str) -> CodeType:  # no cached bytecode is used
        file = self.files[fullname]["file"]
        return compile(self._content(fullname), file, "exec", dont_inherit=True)

    def _content(self, fullname: str) -> bytes:
        about = self.files[fullname]
        content = Path(about["file"]).read_bytes()
        if hash_code(content) != about["digest"]:
            raise ImportError(f"{about['file']} changed while it was opened")
        return content
