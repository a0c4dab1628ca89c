"""The runs of a cross-validation: OUTPUT/fold-0 … and OUTPUT/folds.json."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from surefit import atomic
from surefit.encode.encoder import FILE as ENCODER_FILE
from surefit.encode.encoder import read_state
from surefit.errors import UsageError
from surefit.run.fold_figures import summarise
from surefit.run.run_folder import Run, open_run

FILE = "folds.json"


class FoldRuns:
    """A folder with a run for each fold; `metrics` has the mean and the spread of each figure."""

    def __init__(self, path: Path, num_folds: int, runs: Iterable[Run] | None = None) -> None:
        self.path = path
        self.num_folds = num_folds
        self._runs = list(runs) if runs is not None else None

    def __repr__(self) -> str:
        return f"FoldRuns({str(self.path)!r})"

    @cached_property
    def runs(self) -> list[Run]:
        """The run of each fold that has begun."""
        if self._runs is not None:
            return self._runs
        folders = (self.folder(fold) for fold in range(self.num_folds))
        return [Run(folder) for folder in folders if (folder / "plan.json").is_file()]

    def folder(self, fold: int) -> Path:
        """The folder of a fold's run."""
        return self.path / f"fold-{fold}"

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Mean, spread and values of each figure over the folds; see `summarise`."""
        return summarise((run.metrics for run in self.runs), [_classes(r) for r in self.runs])

    def write(self) -> None:
        """Write folds.json, as far as the runs have come."""
        about = {
            "folds": self.num_folds,
            "finished": len(self.runs) == self.num_folds and all(r.finished for r in self.runs),
            "metrics": self.metrics,
            "runs": [{"path": run.path.name, "best_step": run.best_step} for run in self.runs],
        }
        atomic.write_json(self.path / FILE, about)


def _classes(run: Run) -> list[Any] | None:
    """The classes of a run, in the order of its figures; None before it has a model."""
    if not (run.model_path / ENCODER_FILE).is_file():
        return None
    found = read_state(run.model_path)["fitted"].get("classes")
    return None if found is None else list(found)


def is_folds(path: str | Path) -> bool:
    """Whether a folder has the run of a first fold; folds.json is there when that is finished."""
    return os.path.isfile(Path(path) / "fold-0" / "plan.json")


def open_folds(path: str | Path) -> FoldRuns:
    """The runs of a cross-validation that was begun."""
    num_folds = open_run(Path(path) / "fold-0").config.split.folds
    if num_folds is None:
        raise UsageError(
            f"{path} has a folder fold-0 that is not the run of a fold.", "Resume that run itself."
        )
    return FoldRuns(Path(path), num_folds)
