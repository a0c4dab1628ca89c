"""One hostile input: what is put where, which command gets it, and how that may end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REFUSED = (1, 2)
ANY = (0, 1, 2)
CANARY = "CANARY"
"""Stands in texts for the path of the file that code of the input would make."""
Content = bytes | str | Sequence[Any] | Callable[[Path], object]
"""What a file holds: bytes, text, rows as JSON lines, or what a function does with its path."""


@dataclass(frozen=True)
class Scene:
    """The scratch folders of a case, and a trained run to copy."""

    root: Path
    trained: Path

    @property
    def work(self) -> Path:
        """The working folder, where the input lies."""
        return self.root / "work"

    @property
    def canary(self) -> Path:
        """The file that code of the input would make."""
        return self.root / "canary"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send a command to these folders."""
        return {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "SUREFIT_CACHE": str(self.root / "cache"),
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CACHE_HOME": str(self.root / "home" / ".cache"),
            "HF_HUB_OFFLINE": "1",
        }


@dataclass(frozen=True)
class Case:
    """A name, the command, the files that are put into the working folder, the codes allowed."""

    name: str
    command: Sequence[str]
    files: Mapping[str, Content] = field(default_factory=dict)
    codes: tuple[int, ...] = REFUSED
    says: str = ""
    run: str = ""
    """Where a copy of the trained run of that name, or of `run`, is put first, if anywhere."""
    own_process: bool = False
    may_write: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, scene: Scene) -> None:
        """Put the input where the command finds it."""
        if self.run:
            trained = scene.trained / Path(self.run).name
            source = trained if trained.is_dir() else scene.trained / "run"
            shutil.copytree(source, scene.work / self.run, symlinks=True)
        for name, content in self.files.items():
            path = scene.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, content, scene.canary)


def put(path: Path, content: Content, canary: Path) -> None:
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        text = content.replace(CANARY, str(canary))
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))


def canary_beside(path: Path) -> Path:
    """The canary of the case that a file in the working folder belongs to."""
    return next(each for each in path.parents if each.name == "work").parent / "canary"


def inspects(name: str, file: str, content: Content, codes: tuple[int, ...] = REFUSED) -> Case:
    """A case that inspects one file in the working folder; a refusal names the file."""
    shown = file if codes == REFUSED and file.isascii() and file.isprintable() else ""
    return Case(name, ["inspect", file], {file: content}, codes, says=shown)
