"""What is remembered of a run's code, outside the run's folder: the files and their digests.

A record is written when this user starts a run here with code of their own. It lies in
`$XDG_STATE_HOME/surefit/runs` (else `~/.local/state/surefit/runs`) under the run's id, so that
neither a run folder nor `surefit cache clean` can change it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.errors import UsageError
from surefit.user_code.named_code import locate, split_name, top_folder

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
