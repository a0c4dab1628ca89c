"""The figures of gradient-boosted trees, beside those of the other baselines of a table."""

from __future__ import annotations

from dataclasses import replace

from surefit.findings import has_errors
from surefit.memory.limit import find_limit
from surefit.plan.plan import Plan
from surefit.progress import Progress
from surefit.tasks.tree_baseline import TREES, measure_trees


def compare_with_trees(plan: Plan, progress: Progress) -> Plan:
    """The plan of a table with the figures of trees; a resumed run has those it was begun with."""
    config, job, task = plan.config, plan.job, plan.task
    if job is None or task is None or task.judge is None or not config.table.trees:
        return plan
    if has_errors(plan.findings) or plan.request.choices:
        return plan
    progress("fitting trees to compare with", 0, 1)
    free = find_limit(config.max_memory_gb, host=True).free_bytes
    figures = measure_trees(job.train, job.validation, job.pipeline.encoder, task.judge, free)
    progress("fitting trees to compare with", 1, 1)
    return replace(plan, baselines={**plan.baselines, TREES: figures}) if figures else plan
