"""Which checkpoint a run resumes from: the newest that is whole, with the best one it names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from surefit import digests
from surefit.digests import Damage
from surefit.errors import UsageError
from surefit.run.checkpoint_state import STATE, State, read_about
from surefit.stored_files import WRONG_CONTENT

NAME = re.compile(r"step-(\d{8,})")
SET_ASIDE = ".damaged"


@dataclass(frozen=True)
class Chosen:
    """The checkpoint to resume from, if any, and what is to be reported about the others."""

    path: Path | None
    notices: tuple[str, ...] = ()
    forgets_best: bool = False
    """Whether the best checkpoint that this one names is lost."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints by step, whole or not; other names in the folder are not ours."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
    named = NAME.fullmatch(path.name)
    assert named is not None
    return int(named[1])


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose state can be read, if there is any; its weights are not read."""
    readable = (path for path in reversed(list_checkpoints(folder)) if not _state_damage(path))
    return next(readable, None)


def latest_state(folder: Path) -> State | None:
    """The state of the newest checkpoint, if there is any."""
    latest = latest_checkpoint(folder)
    return None if latest is None else read_about(latest).state


def checkpoint_damage(path: Path) -> list[Damage]:
    """What is wrong with the files of a checkpoint; version 0.3.0 wrote no digests to check."""
    wrong = _state_damage(path)
    if wrong or not read_about(path).has_digests:
        return wrong
    return _permitted(path, None)


def choose_checkpoint(folder: Path) -> Chosen:
    """The newest checkpoint that is whole and whose best one is whole; each file is read.

    Where none is, the newest whole one without its best; where there is none, the beginning.
    """
    damaged: list[str] = []
    lost: list[str] = []
    fallback: Path | None = None
    for path in reversed(list_checkpoints(folder)):
        wrong = checkpoint_damage(path)
        if wrong:
            damaged.append(f"{path.name} is damaged and was passed over: {wrong[0]}.")
            continue
        best = read_about(path).state.best_step
        best_path = path if best is None else checkpoint_path(folder, best)
        wrong = checkpoint_damage(best_path) if best_path != path else []
        if not wrong:
            return Chosen(path, (*damaged, *lost, *_resumes(path, damaged + lost)))
        fallback = fallback or path
        lost.append(f"The best checkpoint, {best_path.name}, is damaged: {wrong[0]}.")
    notices = [*damaged, *lost[:1]]
    if fallback is not None:
        notices.append("A later evaluation will choose another best step.")
    return Chosen(fallback, (*notices, *_resumes(fallback, notices)), fallback is not None)


def _resumes(path: Path | None, passed_over: list[str]) -> Iterator[str]:
    if passed_over:
        yield f"Resuming from step {step_of(path) if path is not None else 0}."


def set_aside(folder: Path, after: Path | None) -> None:
    """Rename the checkpoints after the one to resume from: their steps will be made anew."""
    for path in list_checkpoints(folder):
        if after is None or step_of(path) > step_of(after):
            os.replace(path, _free_name(path.with_name(path.name + SET_ASIDE)))


def _free_name(path: Path) -> Path:
    tries = (path.with_name(path.name + (f"-{n}" if n else "")) for n in range(1000))
    return next(each for each in tries if not each.exists())


def _state_damage(path: Path) -> list[Damage]:
    """What is wrong with state.json, which says how the rest is to be read."""
    try:
        about = read_about(path)
    except PermissionError as error:
        raise _forbidden(error) from None
    except (OSError, *WRONG_CONTENT):
        return [Damage(path / STATE, "is missing or is not what was written")]
    return _permitted(path, (STATE,)) if about.has_digests else []


def _permitted(path: Path, only: tuple[str, ...] | None) -> list[Damage]:
    try:
        return digests.find_damage(path, only)
    except PermissionError as error:
        raise _forbidden(error) from None


def _forbidden(error: PermissionError) -> UsageError:
    return UsageError(
        f"{error.filename} may not be read by this user (permission denied).",
        f"Ask its owner for: chmod u+rwX,go+rX {Path(str(error.filename)).parent}",
    )
