"""Which checkpoint a run resumes from: the newest that is whole."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from surefit.core import digests, files
from surefit.core.digests import Damage
from surefit.core.foreign import parse_json
from surefit.errors import RunFailedError, UsageError

FORMAT_VERSION = 4
"""Versions 1 to 3, of surefit up to 0.6, had other files for one process and for several."""
STATE = "state.json"


@dataclass
class State:
    """Where a run is. All else (order, learning rate, dropout) is a function of the step."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    step: int = 0
    tokens: int = 0
    evaluated_step: int = -1
    best: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    stale_evaluations: int = 0
    stopped_early: bool = False
    splits: int = 1
    """Parts that each micro-batch is split into, because a whole one did not fit in memory."""
    skipped_steps: int = 0
    """Steps whose gradient was not finite, and which changed nothing."""
    skipped_in_a_row: int = 0
    stream: dict[str, Any] | None = None
    """Where the stream is that the rows come from, as plain values."""


@dataclass(frozen=True)
class About:
    """What state.json holds."""

    state: State
    optimizer: dict[str, Any]
    scaler: dict[str, Any] = field(default_factory=dict)
    base: str | None = None
    """Digest of the frozen model that adapters belong to."""
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Version:
    """What state.json of every version holds."""

    format_version: int


def write_about(folder: Path, about: About) -> None:
    """Write state.json into a folder that nobody reads yet."""
    text = json.dumps(asdict(about), indent=1, allow_nan=False)
    (folder / STATE).write_text(text, encoding="utf-8")


def read_about(folder: Path) -> About:
    """Return the state.json of a checkpoint; one of an earlier version is refused."""
    text = (folder / STATE).read_bytes()
    version = parse_json(text, Version, str(folder / STATE)).format_version
    if version != FORMAT_VERSION:
        raise RunFailedError(
            f"{folder} has checkpoint format {version}, and this version of surefit reads format "
            f"{FORMAT_VERSION} only.",
            "Resume with the version of surefit that wrote it, or start a new run.",
        )
    return parse_json(text, About, str(folder / STATE))


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
    """Return where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """List checkpoints by step, whole or not; other names, and links, are not ours."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    return sorted((p for p in named if p.is_dir() and not p.is_symlink()), key=step_of)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, from its name."""
    named = NAME.fullmatch(path.name)
    assert named is not None
    return int(named[1])


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint whose state can be read; its weights are not read."""
    readable = (path for path in reversed(list_checkpoints(folder)) if not _state_damage(path))
    return next(readable, None)


def latest_state(folder: Path) -> State | None:
    """Return the state of the newest checkpoint, if there is any."""
    latest = latest_checkpoint(folder)
    return None if latest is None else read_about(latest).state


def checkpoint_damage(path: Path) -> list[Damage]:
    """Return what is wrong with the files of a checkpoint."""
    return _state_damage(path) or _permitted(path, None)


def choose_checkpoint(folder: Path) -> Chosen:
    """Choose the newest checkpoint that is whole, or the beginning; each file is read."""
    notices, chosen, forgets_best = list[str](), None, False
    for path in reversed(list_checkpoints(folder)):
        wrong = checkpoint_damage(path)
        if not wrong:
            chosen = path
            break
        notices.append(f"{path.name} is damaged and was passed over: {wrong[0]}.")
    best = read_about(chosen).state.best_step if chosen is not None else None
    best_path = chosen if best is None else checkpoint_path(folder, best)
    if best_path is not None and best_path != chosen and (wrong := checkpoint_damage(best_path)):
        forgets_best = True
        notices.append(
            f"The best checkpoint, {best_path.name}, is damaged: {wrong[0]}. A later evaluation "
            "will choose another best step."
        )
    if notices:
        notices.append(f"Resuming from step {step_of(chosen) if chosen is not None else 0}.")
    return Chosen(chosen, tuple(notices), forgets_best)


def set_aside(folder: Path, after: Path | None) -> None:
    """Rename the checkpoints after the one to resume from: their steps will be made anew."""
    for path in list_checkpoints(folder):
        if after is None or step_of(path) > step_of(after):
            files.set_aside(path, path.with_name(path.name + SET_ASIDE))


def _state_damage(path: Path) -> list[Damage]:
    """Return what is wrong with state.json, which says how the rest is to be read."""
    try:
        read_about(path)
    except PermissionError as error:
        raise _forbidden(error) from None
    except (OSError, UsageError):
        return [Damage(path / STATE, "is missing or is not what was written")]
    return _permitted(path, (STATE,))


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
