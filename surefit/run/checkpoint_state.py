"""state.json of a checkpoint: where the run is, and how the other files are to be read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT_VERSION = 2
"""Version 1, of surefit 0.1 to 0.3, had no digests."""
SHARDED_VERSION = 3
"""The weights and the optimizer state are in one file or more per process."""
STATE = "state.json"


@dataclass
class State:
    """Where a run is. All else (order, learning rate, dropout) is a function of the step."""

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

    @property
    def is_sharded(self) -> bool:
        """Whether several processes have written the tensors, each its share."""
        return self.format_version == SHARDED_VERSION

    @property
    def has_digests(self) -> bool:
        """Whether the checkpoint carries digests of its files."""
        return self.format_version >= 2


def write_about(folder: Path, about: About) -> None:
    """Write state.json into a folder that nobody reads yet."""
    text = json.dumps(asdict(about), indent=1, allow_nan=False)
    (folder / STATE).write_text(text, encoding="utf-8")


def read_about(folder: Path) -> About:
    """The state.json of a checkpoint, of this version or an earlier one."""
    loaded = json.loads((folder / STATE).read_text(encoding="utf-8"))
    known = {each.name for each in fields(State)}
    state = {name: value for name, value in loaded["state"].items() if name in known}
    return About(
        State(**state),
        loaded["optimizer"],
        loaded["scaler"],
        loaded.get("base"),
        int(loaded["format_version"]),
    )
