"""Cross-validation: OUTPUT/fold-0 … are runs, one after another; OUTPUT/folds.json sums them up."""

from __future__ import annotations

import copy
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.errors import UsageError
from surefit.plan.plan import Plan
from surefit.processes import is_main
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run, choose_folder, open_run
from surefit.training.resume import resume_run
from surefit.training.run import start_run
from surefit.training.work import Show


@dataclass(frozen=True)
class FoldRuns:
    """The folder of a cross-validation, and the run of each fold that has begun."""

    path: Path
    num_folds: int
    runs: Sequence[Run] = ()

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return mean, spread and values of each metric that is a number; see `summarise`."""
        return summarise([run.metrics for run in self.runs])

    def write(self) -> None:
        """Write folds.json, as far as the runs have come."""
        is_finished = len(self.runs) == self.num_folds and all(run.finished for run in self.runs)
        runs = [{"path": run.path.name, "best_step": run.best_step} for run in self.runs]
        about = {"folds": self.num_folds, "finished": is_finished, "metrics": self.metrics}
        files.write_json(self.path / "folds.json", {**about, "runs": runs})


def summarise(folds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean of each number, its standard deviation between folds, and its values.

    >>> summarise([{"loss": 1.0, "confusion": [[1]]}, {"loss": 3.0}])
    {'loss': {'mean': 2.0, 'spread': 1.414..., 'values': [1.0, 3.0]}}
    """
    numbers = [{k: v for k, v in fold.items() if isinstance(v, int | float)} for fold in folds]
    found = {}
    for name in dict.fromkeys(name for fold in numbers for name in fold):
        values = [fold.get(name) for fold in numbers]
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = statistics.fmean(known) if known else None
        spread = statistics.stdev(known) if len(known) > 1 else None
        found[name] = {"mean": mean, "spread": spread, "values": values}
    return found


def wants_folds(request: Request) -> bool:
    """Return whether the request is for all folds, not for a run with one of them."""
    split = request.config.split
    return split.folds is not None and split.fold is None


def is_folds(path: str | Path) -> bool:
    """Return whether a folder has the run of a first fold; folds.json follows when it ends."""
    return os.path.isfile(Path(path) / "fold-0" / "plan.json")


def train_folds(
    request: Request,
    show: Show,
    resume: str | Path | None,
    named: set[str],
    trusted: Sequence[str],
) -> FoldRuns:
    """Train a run for each fold under the output folder, and sum up their metrics.

    With `resume`, the runs of that folder resume, and others begin.
    """
    if resume is None:
        folder, new = choose_folder(request.config.output, "folds"), request
    elif request.config.output is not None:
        raise UsageError("The runs of folds are resumed where they are.", "Leave out --output.")
    else:
        folder = Path(resume)
        first = open_run(folder / "fold-0", trusted)
        new = replace(request, config=first.config.with_local(request.config), code=first.code)
    if new.config.split.folds is None:
        raise UsageError(f"{folder}/fold-0 is not the run of a fold.", "Resume that run itself.")
    folds = FoldRuns(folder, new.config.split.folds)
    for fold in range(folds.num_folds):
        place = folder / f"fold-{fold}"
        files.refuse_links([place])
        is_begun = resume is not None and (place / "plan.json").is_file()
        mine = _fold_request(request if is_begun else new, fold, folder)
        mine = replace(mine, objects=_copy_module(request.objects))
        with show(f"fold {fold}") as listeners:
            if is_begun:
                run = resume_run(place, mine, named, listeners, trusted)
            else:
                run = start_run(mine, listeners)
        folds = replace(folds, runs=[*folds.runs, run])
        if is_main():
            folds.write()
    return folds


def _fold_request(request: Request, fold: int, folder: Path) -> Request:
    config, output = request.config, str(folder / f"fold-{fold}")
    known = {"split": config.split.model_copy(update={"fold": fold}), "output": output}
    return replace(request, config=config.model_copy(update=known))


def _copy_module(objects: PythonObjects) -> PythonObjects:
    """Return Python objects with a copy of the module: each fold begins with the same weights."""
    if hasattr(objects.optimizer, "param_groups"):
        raise UsageError(
            "split.folds trains several models, and the optimizer passed in holds the parameters "
            "of one.",
            "Pass a function: optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1).",
        )
    try:
        return replace(objects, model=copy.deepcopy(objects.model))
    except Exception as error:
        raise UsageError(
            f"split.folds trains a copy of the module for each fold; copying it raised {error}.",
            "Pass the model as module:function.",
        ) from error


def check_folds(request: Request, check: Callable[[Request], Plan]) -> Plan:
    """Return the plan of the first fold, with what is found in other folds only."""
    folder, num_folds = choose_folder(request.config.output, "folds"), request.config.split.folds
    plans = [check(_fold_request(request, fold, folder)) for fold in range(num_folds or 0)]
    known = {found.code for found in plans[0].findings}
    more = [
        replace(found, message=f"Fold {fold}: {found.message}")
        for fold, plan in enumerate(plans)
        for found in plan.findings
        if found.code not in known
    ]
    note = f"{num_folds} runs are trained, one for each fold; this is the plan of the first."
    return replace(plans[0], notes=(note, *plans[0].notes)).found(more)
