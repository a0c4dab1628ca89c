"""The folder of a run that begins, with its resolved config and its plan."""

from __future__ import annotations

from pathlib import Path

from surefit.checks.machine import resolve_precision
from surefit.plan.plan import Plan
from surefit.processes import num_processes
from surefit.report.augmented_rows import make_examples
from surefit.report.page import write_report
from surefit.run.run_folder import Run, create_run
from surefit.training.resolved_config import resolve_config


def begin_run(plan: Plan, run_id: str, folder: Path) -> Run:
    """Make the folder of a run with the resolved config and the plan.

    Where rows are augmented, the report that shows some of them is written before training.
    """
    assert plan.task is not None
    assert plan.job is not None
    examples = make_examples(plan.job)
    stored = {
        **plan.as_dict(),
        "run_id": run_id,
        "num_processes": num_processes(),
        "precision": resolve_precision(plan.config.precision),
        **({"examples": examples} if examples else {}),
    }
    run = create_run(folder, resolve_config(plan, folder), stored, plan.task)
    if examples:
        write_report(run)
    return run
