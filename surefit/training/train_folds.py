"""Cross-validation: a run for each fold, one after another; resumed where it stopped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefit.errors import UsageError
from surefit.processes import is_main
from surefit.report.folds_page import write_folds_report
from surefit.request import PythonObjects, Request
from surefit.run.fold_runs import FoldRuns, is_folds, open_folds
from surefit.run.run_folder import Run, choose_folder, open_run
from surefit.training.resume import resume_run
from surefit.training.start import SILENT, Listeners, start_run

Work = Callable[[Listeners], Run]
Listen = Callable[[int, Work], Run]
"""Does the work of a fold with listeners of its own."""


def _in_silence(fold: int, work: Work) -> Run:
    return work(SILENT)


def wants_folds(request: Request) -> bool:
    """Whether the request is for all folds, not for a run with one of them."""
    split = request.config.split
    return split.folds is not None and split.fold is None


def fold_request(request: Request, fold: int, output: Path | None = None) -> Request:
    """The request of one fold's run."""
    split = request.config.split.model_copy(update={"fold": fold})
    known: dict[str, Any] = {"split": split}
    if output is not None:
        known["output"] = str(output)
    return replace(request, config=request.config.model_copy(update=known))


def train_folds(request: Request, listen: Listen = _in_silence) -> FoldRuns:
    """Train a run for each fold under the output folder, and summarise their metrics."""
    num_folds = request.config.split.folds
    assert num_folds is not None
    folder = choose_folds_folder(request.config.output)
    fresh = _copier(request.objects)
    done: list[Run] = []
    for fold in range(num_folds):
        place = FoldRuns(folder, num_folds).folder(fold)
        mine = replace(fold_request(request, fold, place), objects=fresh())

        def work(listeners: Listeners, mine: Request = mine) -> Run:
            return start_run(mine, listeners)

        done.append(listen(fold, work))
        _write(FoldRuns(folder, num_folds, done))
    return FoldRuns(folder, num_folds, done)


def resume_folds(
    path: str | Path,
    request: Request,
    named: set[str],
    listen: Listen = _in_silence,
    trust_code: Iterable[str] = (),
) -> FoldRuns:
    """Resume each fold's run where it stopped, and begin those that were not begun."""
    if request.config.output is not None:
        raise UsageError(
            "The runs of folds are resumed where they are.", "Leave out --output, or copy them."
        )
    folds, trusted = open_folds(path), tuple(trust_code)
    first = open_run(folds.runs[0].path, trusted)
    begun, fresh = {run.path for run in folds.runs}, _copier(request.objects)
    done: list[Run] = []
    for fold in range(folds.num_folds):
        mine = fold_request(request, fold) if wants_folds(request) else request
        mine = replace(mine, objects=fresh())

        def work(listeners: Listeners, fold: int = fold, mine: Request = mine) -> Run:
            place = folds.folder(fold)
            if place in begun:
                return resume_run(place, mine, named, listeners, trusted)
            new = replace(mine, config=first.config, code=first.code)
            return start_run(fold_request(new, fold, place), listeners)

        done.append(listen(fold, work))
        _write(FoldRuns(folds.path, folds.num_folds, done))
    return FoldRuns(folds.path, folds.num_folds, done)


def _write(folds: FoldRuns) -> None:
    if is_main():
        folds.write()
        write_folds_report(folds)


def choose_folds_folder(output: str | None) -> Path:
    """The folder of the folds; refuses one that has a run, or folds, already."""
    if output is not None and is_folds(output):
        raise UsageError(
            f"{output} already holds the runs of folds (fold-0).",
            f"Choose another --output, or resume them: surefit train --resume {output}",
        )
    return choose_folder(output, "folds")


def _copier(objects: PythonObjects) -> Callable[[], PythonObjects]:
    """The Python objects with a copy of the module: each fold begins with the same weights."""
    from torch import nn

    if hasattr(objects.optimizer, "param_groups"):
        raise UsageError(
            "split.folds trains several models, and the optimizer passed in holds the parameters "
            "of one.",
            "Pass a function: optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1).",
        )
    if not isinstance(objects.model, nn.Module):
        return lambda: objects
    try:
        kept = copy.deepcopy(objects.model)
        copy.deepcopy(kept)
    except Exception as error:
        raise UsageError(
            f"split.folds trains a copy of the module for each fold; copying it raised {error}.",
            "Pass the model as module:function.",
        ) from error
    return lambda: replace(objects, model=copy.deepcopy(kept))
