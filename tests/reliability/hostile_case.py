"""One hostile input: what is put where, which command gets it, and how that may end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REFUSED = (1, 2)
ANY = (0, 1, 2)


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

    def copy_run(self) -> Path:
        """A copy of the trained run in the working folder."""
        return Path(shutil.copytree(self.trained / "run", self.work / "run", symlinks=True))


Prepare = Callable[[Scene], Sequence[str]]


@dataclass(frozen=True)
class Case:
    """A name, a function that writes the input and returns the command, and the codes allowed."""

    name: str
    prepare: Prepare
    codes: tuple[int, ...] = REFUSED
    says: str = ""
    own_process: bool = False
    may_write: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def inspects(
    name: str, file: str, write: Callable[[Path], object], codes: tuple[int, ...] = REFUSED
) -> Case:
    """A case that inspects one file in the working folder; a refusal names the file."""

    def prepare(scene: Scene) -> Sequence[str]:
        write(scene.work / file)
        return ["inspect", file]

    shown = file if codes == REFUSED and file.isascii() and file.isprintable() else ""
    return Case(name, prepare, codes, says=shown)
