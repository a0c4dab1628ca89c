"""What is remembered of a run's code, outside the run's folder: the files and their digests.

A record is written when this user starts a run here with code of their own. It lies in
`$XDG_STATE_HOME/surefit/runs` (else `~/.local/state/surefit/runs`) under the run's id, so that
neither a run folder nor `surefit cache clean` can change it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from surefit import atomic
from surefit.user_code.named_code import locate, split_name

FORMAT_VERSION = 1
LEFT_SECONDS = 3600
"""A temporary file that is older belongs to no process that still writes it."""
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
    """Where records are kept."""
    named = os.environ.get("XDG_STATE_HOME")
    state = Path(named) if named else Path.home() / ".local" / "state"
    return state / "surefit" / "runs"


def recall(run_id: Any) -> CodeRecord | None:
    """The record of a run; None if this user did not make it here with code of their own."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        return None
    path = records_folder() / f"{run_id}.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.pop("format_version") != FORMAT_VERSION:
            return None
        return CodeRecord(about["run"], about["code"], tuple(about["remote"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a record that cannot be read permits nothing


def remember(run_id: str, record: CodeRecord) -> None:
    """Write the record of a run, with what an earlier one of the same run holds."""
    known = recall(run_id)
    if known is not None:
        remote = tuple(sorted({*known.remote, *record.remote}))
        record = CodeRecord(record.run, {**known.code, **record.code}, remote)
    folder = records_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    atomic.sweep(folder, LEFT_SECONDS)
    about = {"format_version": FORMAT_VERSION, **asdict(record)}
    atomic.write_json(folder / f"{run_id}.json", about)


def forget(run_id: str) -> None:
    """Remove the record of a run that was only a trial."""
    (records_folder() / f"{run_id}.json").unlink(missing_ok=True)


def files_of(name: str) -> dict[str, dict[str, str]]:
    """The files of the imported `module:object`, and of the modules beside it that they import."""
    module_name, _ = split_name(name)
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None or not file.endswith(".py"):
        return {}
    found = {module_name: Path(file).resolve()}
    root = top_folder(module_name, found[module_name])
    if not _is_installed(root):
        found |= _imported_beside(module_name, root)
    return {
        each: {"file": str(path), "digest": hash_code(path.read_bytes())}
        for each, path in found.items()
    }


def top_folder(module_name: str, file: Path) -> Path:
    """The folder in which the top-level module or package of a module's file lies."""
    inside = file.parent if file.name == "__init__.py" else file
    return inside.parents[module_name.count(".")]


def hash_code(content: bytes) -> str:
    """A digest that nobody can meet with another content on purpose."""
    return hashlib.sha256(content).hexdigest()


def hash_folder(folder: Path) -> str | None:
    """The digest of all Python files of a folder; None if it has none."""
    digest, files = hashlib.sha256(), sorted(folder.rglob("*.py"))
    for path in files:
        digest.update(f"{path.relative_to(folder)}\0{hash_code(path.read_bytes())}\0".encode())
    return digest.hexdigest() if files else None


def _is_installed(root: Path) -> bool:
    paths = sysconfig.get_paths()
    return root in {Path(paths[kind]).resolve() for kind in ("stdlib", "purelib", "platlib")}


def _imported_beside(module_name: str, root: Path) -> dict[str, Path]:
    """A module and the modules under `root` that it imports, directly or not, with their files."""
    found: dict[str, Path] = {}
    waiting = [module_name]
    while waiting:
        name = waiting.pop()
        file = None if name in found else locate(name, [root])
        if file is None:
            continue
        found[name] = file
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [name.rpartition(".")[0]] * ("." in name)
        waiting += _imports(file, package)
    return found


def _imports(file: Path, package: str) -> Iterator[str]:
    """The names of the modules that a file may import, anywhere in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
