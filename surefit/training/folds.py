"""Cross-validation: OUTPUT/fold-0 … are runs, one after another; OUTPUT/folds.json sums them up."""

from __future__ import annotations

import copy
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.files import refuse_links
from surefit.encode import encoder
from surefit.errors import UsageError
from surefit.findings import accept_findings
from surefit.gigabytes import show_size
from surefit.plan.disk import DOES_NOT_FIT_ON_DISK
from surefit.plan.plan import Plan
from surefit.processes import is_main
from surefit.report.page import as_page, section, table
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run, choose_folder, open_run
from surefit.training.resume import resume_run
from surefit.training.run import SILENT, Listeners, start_run

Work = Callable[[Listeners], Run]
Listen = Callable[[int, Work], Run]
"""Does the work of a fold with listeners of its own."""


@dataclass(frozen=True)
class FoldRuns:
    """The folder of a cross-validation, and the run of each fold that has begun."""

    path: Path
    num_folds: int
    runs: Sequence[Run]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Mean, spread and values of each metric over the folds; see `summarise`."""
        return summarise([dict(_numbers(run)) for run in self.runs])

    def write(self) -> Path:
        """Write folds.json and report.html, as far as the runs have come; the path of the report.

        Only process 0 writes.
        """
        page, metrics = self.path / "report.html", self.metrics
        if not is_main():
            return page
        finished = len(self.runs) == self.num_folds and all(run.finished for run in self.runs)
        runs = [{"path": run.path.name, "best_step": run.best_step} for run in self.runs]
        about = {"folds": self.num_folds, "finished": finished, "metrics": metrics}
        files.write_json(self.path / "folds.json", {**about, "runs": runs})
        names = [run.path.name for run in self.runs]
        title = f"surefit: cross-validation, {len(names)} of {self.num_folds} folds"
        rows = (
            (name, *("–" if v is None else v for v in (one["mean"], one["spread"], *one["values"])))
            for name, one in metrics.items()
        )
        links = "".join(f"<p><a href='{name}/report.html'>{name}</a></p>" for name in names)
        shown = section("Validation metrics", table(("metric", "mean", "spread", *names), rows))
        body = [f"<h1>{title}</h1>", shown, section("Runs", links)]
        files.write_text(page, as_page(title, body))
        return page


def summarise(folds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """The mean of each number, its standard deviation between folds, and its values.

    >>> summarise([{"loss": 1.0}, {"loss": 3.0}])
    {'loss': {'mean': 2.0, 'spread': 1.414..., 'values': [1.0, 3.0]}}
    """
    found = {}
    for name in dict.fromkeys(name for fold in folds for name in fold):
        values = [fold.get(name) for fold in folds]
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = statistics.fmean(known) if known else None
        spread = statistics.stdev(known) if len(known) > 1 else None
        found[name] = {"mean": mean, "spread": spread, "values": values}
    return found


def _numbers(run: Run) -> Iterator[tuple[str, float]]:
    """Each number of a run's metrics; those of a class are named `recall_per_class: bird`."""
    classes: Sequence[Any] = ()
    if (run.model_path / encoder.FILE).is_file():
        classes = encoder.read_state(run.model_path)["fitted"].get("classes") or ()
    for name, value in run.metrics.items():
        if isinstance(value, list):  # the training rows of a fold may lack a class
            value = dict(zip(classes, value, strict=False)) if len(value) == len(classes) else {}
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, number in parts:
            if isinstance(number, int | float):
                yield (f"{name}: {part}" if part != "" else name), number


def wants_folds(request: Request) -> bool:
    """Whether the request is for all folds, not for a run with one of them."""
    split = request.config.split
    return split.folds is not None and split.fold is None


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
    places = [Path(path) / f"fold-{fold}" for fold in range(num_folds)]
    begun = [Run(place) for place in places if (place / "plan.json").is_file()]
    return FoldRuns(Path(path), num_folds, begun)


def train_folds(
    request: Request,
    listen: Listen = lambda fold, work: work(SILENT),
    resume: str | Path | None = None,
    named: Iterable[str] = (),
    trust_code: Iterable[str] = (),
) -> FoldRuns:
    """Train a run for each fold under the output folder, and sum up their metrics.

    With `resume`, the runs of that folder go on where they stopped, and others begin.
    """
    trusted, fresh = tuple(trust_code), _copier(request.objects)
    if resume is None:
        folds = FoldRuns(_choose_folder(request), request.config.split.folds or 0, ())
    elif request.config.output is None:
        folds = open_folds(resume)
    else:
        fix = "Leave out --output, or copy them."
        raise UsageError("The runs of folds are resumed where they are.", fix)
    begun, done = {run.path for run in folds.runs}, replace(folds, runs=())

    def train_fold(fold: int, listeners: Listeners) -> Run:
        place, mine = folds.path / f"fold-{fold}", replace(request, objects=fresh())
        refuse_links([place])
        if place in begun:
            mine = _fold_request(mine, fold) if wants_folds(request) else mine
            return resume_run(place, mine, set(named), listeners, trusted)
        if resume is not None:
            first = open_run(folds.path / "fold-0", trusted)
            mine = replace(mine, config=first.config.with_local(mine.config), code=first.code)
        return start_run(_fold_request(mine, fold, output=str(place)), listeners)

    for fold in range(folds.num_folds):
        done = replace(done, runs=[*done.runs, listen(fold, partial(train_fold, fold))])
        done.write()
    return done


def _fold_request(request: Request, fold: int, **settings: str) -> Request:
    split = request.config.split.model_copy(update={"fold": fold})
    known = {"split": split, **settings}
    return replace(request, config=request.config.model_copy(update=known))


def _choose_folder(request: Request) -> Path:
    """The folder of the folds; refuses one that has a run, or folds, already."""
    output = request.config.output
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
    except Exception as error:
        raise UsageError(
            f"split.folds trains a copy of the module for each fold; copying it raised {error}.",
            "Pass the model as module:function.",
        ) from error
    return lambda: replace(objects, model=copy.deepcopy(kept))


def check_folds(request: Request, check: Callable[[Request], Plan]) -> Plan:
    """The plan of the first fold, with what all folds take and what only others have found."""
    _choose_folder(request)
    num_folds = request.config.split.folds or 0
    plans = [check(_fold_request(request, fold)) for fold in range(num_folds)]
    first, known = plans[0], {found.code for found in plans[0].findings}
    more = [
        replace(found, message=f"Fold {fold}: {found.message}")
        for fold, plan in enumerate(plans)
        for found in plan.findings
        if found.code not in known
    ]
    joined = replace(first.found(more), folds=tuple(map(_describe, range(num_folds), plans)))
    total, disk = bytes_of_folds(joined.folds), first.disk
    if total is None or disk is None or not disk.fits or total <= disk.free_bytes:
        return joined
    found = DOES_NOT_FIT_ON_DISK.finding(
        f"The {num_folds} runs of the folds write up to {show_size(total)} to "
        f"{disk.folder.parent}, where {show_size(disk.free_bytes)} are free."
    )
    return joined.found(accept_findings([found], first.config.accept))


def _describe(fold: int, plan: Plan) -> dict[str, Any]:
    ledger, disk, fit = plan.ledger, plan.disk, plan.fit
    return {
        "fold": fold,
        "ok": plan.ok,
        "train_rows": ledger.train_rows if ledger else None,
        "eval_rows": ledger.eval_rows if ledger else None,
        "final_bytes": disk.final_bytes if disk else None,
        "predicted_bytes": disk.predicted_bytes if disk else None,
        "predicted_seconds": fit.total_seconds if fit else None,
    }


def bytes_of_folds(folds: Sequence[Mapping[str, Any]]) -> int | None:
    """What all runs write, at its peak: the last one beside those that are finished."""
    if any(fold["predicted_bytes"] is None for fold in folds):
        return None
    return int(sum(f["final_bytes"] for f in folds[:-1]) + folds[-1]["predicted_bytes"])
