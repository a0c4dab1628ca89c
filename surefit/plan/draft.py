"""What the planner's table is made of, and how it is run.

A Stage reads values of a Draft, makes further ones and reports what it found. `plan/stages.py` has
the table. Running it gives progress, the time of each stage, and the list of stages not reached.
Stages whose outcome is kept in the cache are not run again (`plan/proof.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.batches.mixing import Drawn, count_draws
from surefit.config import RunConfig, name_sources
from surefit.errors import FindingError
from surefit.findings import Finding, accept_findings, has_errors
from surefit.memory.limit import Limit, find_limit
from surefit.pipeline.open_pipeline import apply_choices
from surefit.plan.plan import Plan
from surefit.plan.proof import Outcome, Proof
from surefit.progress import Progress
from surefit.request import PythonObjects, Request, metric_of, named_eval_data
from surefit.speed.precision import lower_dtype
from surefit.targets.task_spec import TaskSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.batches.order import Batches
    from surefit.checks.probes.first_batch import FirstPass
    from surefit.checks.probes.model_profile import ModelProfile
    from surefit.data.forecast_windows import Windows
    from surefit.data.split_columns import PartColumn
    from surefit.data.table import Table
    from surefit.inputs.augment.array_augment import ArrayAugment
    from surefit.inputs.augment.augmented_copies import AugmentedCopies
    from surefit.inputs.encoder import Encoder
    from surefit.inputs.model_hints import Hints
    from surefit.inputs.store import Store
    from surefit.memory.trace_step import Traced
    from surefit.models.lora import Adaptation
    from surefit.models.model_source import ModelSource
    from surefit.models.optimizer import OptimizerSettings
    from surefit.pipeline.pipeline import Job, Pipeline
    from surefit.plan.build_model import Built
    from surefit.plan.split_data import SplitData
    from surefit.tasks.source_forms import Forms

Wanted = TaskSpec | tuple[TaskSpec, ...] | None
Findings = Iterable[Finding]
IN_PLAN = frozenset(field.name for field in fields(Plan))


class Draft:
    """The values that stages have made so far; only `run` sets them. A Plan has some of them."""

    loss_fn: Callable[..., Any] | None
    """The user's own loss, passed in or named by the config."""
    wanted: Wanted
    """The task or tasks that the user names."""
    tables: tuple[Table, Table | None]
    """The training and validation data as they were opened, without the column of parts."""
    part_column: PartColumn | None
    """The column that says which part of the split a row belongs to."""
    windows: Windows | None
    """How tables of series are cut into rows."""
    kept_arrays: bool
    """Whether the tables have arrays as they are stored, for a module that reads all columns."""
    source: ModelSource
    hints: Hints
    forms: Forms
    """The tables with one column name per role."""
    kept_where: str | None
    scorer: Callable[[str, str], Any] | None
    copies: AugmentedCopies | None
    data: SplitData
    encoder: Encoder
    proof: Proof
    """What an earlier plan kept, and this one adds to it."""
    module: tuple[nn.Module, Adaptation | None]
    building: tuple[Finding, ...]
    """What was found in building the module."""
    built: Built
    train: Store
    validation: Store
    named: Mapping[str, Store]
    """The validation sets that have names; the first one is `validation`."""
    kept_bytes: int
    augment: ArrayAugment | None
    min_rows: tuple[int, str] | None
    """How many rows the module needs in training, and the layer that needs them."""
    batches: Batches
    optimizer: OptimizerSettings
    first: FirstPass
    probed: Pipeline
    """The Pipeline that probes use."""
    profile: ModelProfile
    """The passes of that Pipeline on a few rows."""
    unreached: tuple[str, ...] | None
    """Adapter weights that the loss does not depend on."""
    work: Job
    """The Job while it is settled; the Plan gets it at the end."""
    traced: Traced | None
    """The largest micro-batch on the meta device; None where it could not be traced."""
    rate_tried: bool | None
    """Whether the learning rate was tried; None where there was no memory for it."""

    def __init__(self, request: Request, progress: Progress, limit: Limit | None = None) -> None:
        self.request, self.progress, self.given_limit = request, progress, limit
        self.plan = Plan(request, task=request.objects.task)
        self.probing = ExitStack()
        """Frees the copy of the model that probes use."""
        self.reported: list[Finding] = []
        """What the stages that are being kept have found."""

    @property
    def config(self) -> RunConfig:
        """The config as the user gave it."""
        return self.request.config

    @property
    def objects(self) -> PythonObjects:
        """The Python objects passed in."""
        return self.request.objects

    @property
    def task(self) -> TaskSpec:
        """The chosen task."""
        assert self.plan.task is not None
        return self.plan.task

    @property
    def watched(self) -> str | None:
        """The metric that the user watches, without the name of a validation set."""
        return metric_of(self.config.early_stopping.metric, named_eval_data(self.request))

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """What an epoch draws of each source of training rows."""
        asked = name_sources(self.config.data)
        return count_draws(self.train.sources, self.train.source_row, asked)

    @property
    def limit(self) -> Limit:
        """The memory limit of this process."""
        config = self.config
        return self.given_limit or find_limit(config.max_memory_gb, config.device_memory_gb)

    @property
    def lower_dtype(self) -> torch.dtype | None:
        """The lower precision of mixed precision on the planned device; None for float32."""
        return lower_dtype(self.plan.precision)

    @property
    def pipeline(self) -> Pipeline:
        """The Pipeline as far as it is settled."""
        return self.built.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Pipeline) -> None:
        self.built = replace(self.built, pipeline=pipeline)

    def note(self, findings: Findings | None) -> None:
        """Add findings to the plan; what the user accepts does not stop the run."""
        found = list[Finding]()
        try:
            found.extend(findings or ())
        finally:  # a check that fails half-way has found what it gave before
            self.reported += found
            self.plan = self.plan.found(accept_findings(found, self.config.accept))


@dataclass(frozen=True)
class Stage:
    """One row of the planner's table; one that makes no value is a check."""

    name: str
    run: Callable[[Draft], Any]
    """Returns what it made, and what it found; a check returns what it found."""
    makes: str = ""
    """Names of values of the Draft or of its Plan, separated by spaces."""
    when: Callable[[Draft], object] = lambda draft: True
    """Whether the stage applies to this plan."""
    if_ok: bool = False
    """Whether planning stops before this stage if an error was found."""

    def apply(self, draft: Draft) -> None:
        """Run the stage; keep what it made and what it found."""
        names = self.makes.split()
        made, findings = self.run(draft) if names else ((), self.run(draft))
        for name, value in zip(names, made if len(names) != 1 else (made,), strict=True):
            if name in IN_PLAN:
                draft.plan = replace(draft.plan, **{name: value})
            else:
                setattr(draft, name, value)
        draft.note(findings)


@dataclass(frozen=True)
class Choice(Stage):
    """A stage that decides by trying; `makes` names what it adds to the Choices of the plan.

    It returns Choices with these set, and what it found. The Choices are applied to the Pipeline. A
    resumed run has them and does not try again.
    """

    stored: bool = False
    """Whether every plan stores it, so that it is tried where an earlier plan has none."""

    def apply(self, draft: Draft) -> None:
        """Choose, or take what was chosen; then apply it to the Pipeline."""
        names, made = self.makes.split(), draft.request.choices
        missing = self.stored and not any(getattr(made, name, None) for name in names)
        if made is None or missing:
            made, findings = self.run(draft)
            draft.note(findings)
        chosen = {name: getattr(made, name) for name in names}
        draft.plan = replace(draft.plan, choices=replace(draft.plan.choices, **chosen))
        draft.pipeline = apply_choices(draft.pipeline, draft.plan.choices)


@dataclass(frozen=True)
class Kept:
    """Rows of the table whose common outcome is kept in the cache and taken again.

    They read only what the key of the Proof stands for. `makes` are the values that later stages
    read, fields of an Outcome; a value of None is not known, and nothing is kept.
    """

    name: str
    stages: tuple[Stage, ...]
    makes: str = ""
    may_keep: Callable[[Draft], bool] = lambda draft: True

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the Choices that are made."""
        return tuple(
            name
            for stage in self.stages
            if isinstance(stage, Choice)
            for name in stage.makes.split()
        )

    def rows(self, draft: Draft) -> tuple[Stage, ...]:
        """Return the stage that takes the kept outcome; else these stages, and one to keep it."""
        first = self.stages[0]
        if self.may_keep(draft) and (known := draft.proof.outcomes.get(self.name)) is not None:
            take = partial(self._take, known)
            return (Stage(first.name, take, self.makes, if_ok=first.if_ok),)
        draft.reported = []
        return (*self.stages, Stage(self.stages[-1].name, self._keep))

    def _take(self, known: Outcome, draft: Draft) -> Any:
        made = {name: getattr(known.choices, name) for name in self.choices}
        if made:
            choices = replace(draft.plan.choices, **made)
            draft.plan = replace(draft.plan, choices=choices)
            draft.pipeline = apply_choices(draft.pipeline, choices)
        names = tuple(dict.fromkeys(stage.name for stage in self.stages))
        before = draft.plan.timings
        timings = {**before, **{name: before.get(name, 0.0) for name in names}}
        remembered = (*draft.plan.remembered, *names)
        draft.plan = replace(draft.plan, timings=timings, remembered=remembered)
        values = tuple(getattr(known, name) for name in self.makes.split())
        if not values:
            return known.findings
        return (values[0] if len(values) == 1 else values), known.findings

    def _keep(self, draft: Draft) -> None:
        made = {name: _value(draft, name) for name in self.makes.split()}
        is_known = None not in made.values() and not has_errors(draft.plan.findings)
        if is_known and self.may_keep(draft):
            found = Outcome(tuple(draft.reported), draft.plan.choices, **made)
            draft.proof = draft.proof.with_outcome(self.name, found)


def _value(draft: Draft, name: str) -> Any:
    return getattr(draft.plan if name in IN_PLAN else draft, name, None)


Row = Stage | Kept


def all_stages(table: Iterable[Row]) -> tuple[Stage, ...]:
    """Return every stage of a table, those whose outcome is kept included."""
    groups = (row.stages if isinstance(row, Kept) else (row,) for row in table)
    return tuple(stage for group in groups for stage in group)


def run(draft: Draft, table: Iterable[Row]) -> bool:
    """Run stages in order; False if an error that makes the rest meaningless ended it."""
    remaining = deque(table)
    with draft.probing:
        try:
            while remaining:
                row = remaining.popleft()
                if isinstance(row, Kept):
                    remaining.extendleft(reversed(row.rows(draft)))
                elif row.if_ok and has_errors(draft.plan.findings):
                    return _stop(draft, (row, *remaining))
                elif row.when(draft):
                    _apply(row, draft)
        except FindingError as error:
            draft.note(error.findings)
            return _stop(draft, remaining)
    return True


def _apply(stage: Stage, draft: Draft) -> None:
    began = time.perf_counter()
    draft.progress(stage.name, 0, 1)
    try:
        stage.apply(draft)
    finally:
        taken = draft.plan.timings.get(stage.name, 0.0) + time.perf_counter() - began
        draft.plan = replace(draft.plan, timings={**draft.plan.timings, stage.name: taken})
    draft.progress(stage.name, 1, 1)


def _stop(draft: Draft, remaining: Iterable[Row]) -> bool:
    names = dict.fromkeys(stage.name for stage in all_stages(remaining))
    draft.plan = replace(draft.plan, not_checked=tuple(names))
    return False
