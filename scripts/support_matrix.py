"""What works with what: every task is planned in each way of training, and its plan is read.

`scripts/make_docs.py` writes the table into docs/support.md. A cell is what `surefit check` says
about a small run of the task (`tests/task_runs.py`), or what its TaskSpec declares.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

YES, NO = "yes", "–"
WAYS: Mapping[str, dict[str, Any]] = {
    "LoRA": {"lora_r": 4},
    "QLoRA": {"lora_r": 4, "lora": {"quantize": "4bit"}},
    "FSDP": {"parallel": "fsdp", "processes": 2},
    "NEFTune": {"neftune": 5},
    "EMA": {"ema": 0.9},
}
"""Columns that say whether a run planned with these options may start."""


def _layout(plan: Any) -> str:
    layout = plan.job.pipeline.layout
    return "prompt shared" if layout.shares_prompt else YES if layout.padding_free else NO


def _export(task: Any, plan: Any) -> str:
    head = task.head_for(plan.job.pipeline.encoder)
    if head is None or head.auto_class is None:
        return "body only" if head is not None and head.body else "own module"
    return "transformers"


READ: Mapping[str, Callable[[Any, Any], str]] = {
    "padding-free": lambda task, plan: _layout(plan),
    "sparse head": lambda task, plan: YES if plan.job.pipeline.call.head is not None else NO,
    "generates": lambda task, plan: YES if task.generate is not None else NO,
    "class weights": lambda task, plan: YES if task.figures.class_scores else NO,
    "label smoothing": lambda task, plan: (
        YES if task.figures.class_scores or task.figures.smoothed_loss else NO
    ),
    "`overlong: split`": lambda task, plan: YES if task.text.splits_rows else NO,
    "augmented copies": lambda task, plan: (
        YES
        if task.text.augments
        else "each epoch"
        if task.reads.arrays(plan.job.pipeline.encoder.roles)
        else NO
    ),
    "export": _export,
}
"""Columns that are read from the plan of a full run, and from the TaskSpec."""


def support_page() -> str:
    """Return the page: a row for each task; what is refused is named below the table."""
    from task_runs import RUNS

    lines, refused = [], dict[str, list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        try:
            for run in RUNS:
                place = Path(folder, run.task)
                place.mkdir()
                run.write(place)
                os.chdir(place)
                lines.append(_row(run, refused))
        finally:
            os.chdir(before)
    names = ("task", "model", *WAYS, *READ)
    return "\n".join(
        [
            "# What works with what",
            "",
            "Made by `scripts/make_docs.py`: a small run of each task is planned in each way, and",
            "its plan is read. `tiny:` models are tried; another architecture may be laid out",
            "otherwise, which its own plan says.",
            "",
            f"| {' | '.join(names)} |",
            f"|{' --- |' * len(names)}",
            *lines,
            "",
            "padding-free: rows lie end to end; `prompt shared`: both answers of a pair share",
            "their prompt. sparse head: logits at labelled tokens only. export: a plain",
            "transformers (or peft) folder, its body with files of ours, or your own module.",
            "",
            "Refused:",
            "",
            *(f"- {why} ({', '.join(tasks)})" for why, tasks in sorted(refused.items())),
            "",
        ]
    )


def _row(run: Any, refused: dict[str, list[str]]) -> str:
    """Return the line of a task, and note what keeps a run of it from starting."""
    from surefit.config.settings import nest, parse_setting

    options = {"data": run.data, "model": run.model, "task": run.task, "max_steps": 3}
    options |= nest(dict(map(parse_setting, run.more)))
    plan = _check(options)
    if isinstance(plan, str):
        raise SystemExit(f"{run.task} cannot be planned: {plan}")
    cells = [run.task, f"`{run.model}`"]
    if hasattr(plan.job.pipeline.module, "save_pretrained"):  # as a trained model comes
        plan.job.pipeline.module.save_pretrained("base")
        plan.job.pipeline.encoder.save(Path("base"))
        options["model"] = "base"
    for name, more in WAYS.items():
        found = _check({**options, **more})
        cells.append(NO if isinstance(found, str) else YES)
        if isinstance(found, str):
            refused.setdefault(f"{name}: {found}", []).append(run.task)
    return f"| {' | '.join([*cells, *(read(plan.task, plan) for read in READ.values())])} |"


def _check(options: Mapping[str, Any]) -> Any:
    """Return the plan, or what keeps the run from starting."""
    import surefit
    from surefit.api import check_request
    from surefit.request import make_request, plan_for

    processes = options.get("processes")
    given = {name: value for name, value in options.items() if name != "processes"}
    try:
        plan = check_request(plan_for(make_request(given), processes, None))
    except surefit.SurefitError as error:
        return " ".join(error.lines)
    errors = [found.message for found in plan.findings if found.severity == "error"]
    return errors[0] if errors else plan


if __name__ == "__main__":
    print(support_page())
