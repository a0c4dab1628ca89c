"""The Plan: everything decided before the first step. `plan/make_plan.py` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from surefit import __version__
from surefit.batches.order import Batches
from surefit.checks.ledger import Ledger
from surefit.checks.machine import planned_precision
from surefit.config import RunConfig
from surefit.findings import (
    Finding,
    has_errors,
    part_notes,
    without_covered,
)
from surefit.memory.predict_peak import Fit
from surefit.models.lora import Adaptation
from surefit.models.model_source import ModelSource
from surefit.models.optimizer import describe_patterns
from surefit.models.quantize import num_weights
from surefit.pipeline.open_pipeline import Choices
from surefit.pipeline.pipeline import Job
from surefit.plan.augmentation import describe_augment
from surefit.plan.class_loss_options import describe_loss
from surefit.plan.disk import DiskUse, Rehearsal
from surefit.plan.metrics import describe_metrics
from surefit.request import PythonObjects, Request
from surefit.run.events import without_nan
from surefit.targets.generation import num_new_tokens
from surefit.targets.task_spec import Columns, TaskSpec

FORMAT_VERSION = 1
NO_MEMORY = {"predicted_peak_bytes": None, "limit_bytes": None, "fits": None}
NO_DISK = {"predicted_bytes": None, "free_bytes": None, "fits": None}
NO_TIME = {"predicted_step_seconds": None, "predicted_total_seconds": None}


@dataclass(frozen=True)
class ModelChoice:
    """Where the model comes from, what of it is trained, and at which peak learning rate."""

    source: ModelSource
    lr: float
    adaptation: Adaptation | None = None


@dataclass(frozen=True)
class Plan:
    """What will be done, and what was found; `job` is None where planning had to stop."""

    request: Request
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """Decisions in plain words, as the summary shows them."""
    task: TaskSpec | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    columns: Columns | None = None
    """Each column and its role, None where it is not used; unknown until the task is chosen."""
    ledger: Ledger | None = None
    job: Job | None = None
    model: ModelChoice | None = None
    data_key: str = ""
    fit: Fit | None = None
    choices: Choices = field(default_factory=Choices)
    """What was chosen by trying or measuring; a resumed run does not choose again."""
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Figures of simple predictors on the validation rows, by baseline and metric."""
    disk: DiskUse | None = None
    rehearsal: Rehearsal | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each stage took."""
    remembered: tuple[str, ...] = ()
    """Stages whose outcome was kept by an earlier plan, so that they were not run again."""
    not_checked: tuple[str, ...] = ()
    """Stages that were not reached because of an error."""

    @property
    def config(self) -> RunConfig:
        """Return the config, with what planning settled in it."""
        return self.request.config

    @property
    def precision(self) -> str:
        """Return what the run computes in on the planned device: fp32, bf16 or fp16."""
        config = self.config
        return planned_precision(config.precision, config.device_memory_gb, self.request.device)

    @property
    def objects(self) -> PythonObjects:
        """Return the Python objects passed in."""
        return self.request.objects

    @property
    def ok(self) -> bool:
        """Return whether nothing found keeps the run from starting."""
        return self.job is not None and not has_errors(self.findings)

    @property
    def is_encoded(self) -> bool:
        """Return whether all rows are encoded, and nothing found keeps them from training."""
        return self.ledger is not None and not has_errors(self.findings)

    def found(self, *findings: Iterable[Finding]) -> Plan:
        """Return the plan with further findings, one for each cause, and further notes."""
        more, notes = part_notes(finding for group in findings for finding in group)
        notes = tuple(dict.fromkeys((*self.notes, *notes)))
        return replace(self, findings=without_covered((*self.findings, *more)), notes=notes)

    def processes_dict(self) -> dict[str, Any]:
        """Return how processes share a step; empty for one process."""
        if self.job is None or self.job.batches.num_processes == 1:
            return {}
        batches = self.job.batches
        waiting = round(batches.imbalance(), 6)
        return {
            "count": batches.num_processes,
            "parallel": self.job.parallel,
            "imbalance": waiting,
        }

    def _repr_html_(self) -> str:
        """Return the plan as a page, as notebooks show it."""
        from surefit.report.page import Subject, as_frame, render_subject

        asked = self.config.model_dump(mode="json")
        return as_frame(render_subject(Subject(self.as_dict(), asked)))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as `check --json` prints it and plan.json keeps it; unknown is null."""
        return {
            "ok": self.is_encoded if self.request.encodes_only else self.ok,
            "task": self.task.name if self.task else None,
            "format_version": FORMAT_VERSION,
            "findings": [found.as_dict() for found in self.findings],
            "notes": list(self.notes),
            "ledger": self.ledger.as_dict() if self.ledger else None,
            "columns": dict(self.columns) if self.columns is not None else None,
            "batches": batches_dict(self.job.batches) if self.job else None,
            **({"processes": shared} if (shared := self.processes_dict()) else {}),
            "memory": self.fit.memory_dict() if self.fit else NO_MEMORY,
            "disk": self.disk.as_dict() if self.disk else NO_DISK,
            "rehearsal": asdict(self.rehearsal) if self.rehearsal else None,
            "precision": self.precision,
            "time": self.fit.time_dict() if self.fit else NO_TIME,
            "roles": dict(self.roles),
            "model": _model_dict(self.job, self.model, self.config)
            if self.job and self.model
            else None,
            "loss": describe_loss(self.job.pipeline.encoder) if self.job else None,
            "augment": describe_augment(self.job.augment) if self.job else None,
            "metrics": describe_metrics(self.task, self.config.metrics) if self.task else None,
            "generate": _generate_dict(self.job, self.config) if self.job else None,
            "steps": self.job.num_steps if self.job else None,
            "baselines": without_nan(self.baselines),
            "choices": self.choices.as_dict(),
            "objects": self.objects.names(),
            "data_key": self.data_key,
            "eval_key": self.job.validation.key if self.job else None,
            "stores": {  # cache entries of the encoded rows
                name: store.folder.name
                for name, store in (("train", self.job.train), ("validation", self.job.validation))
            }
            if self.job
            else None,
            "version": __version__,
        }


def batches_dict(batches: Batches) -> dict[str, Any]:
    """Return the sizes of an epoch's batches as plan.json has them."""
    return {
        "count": batches.num_micro_batches(),
        "longest": list(batches.longest()),
        "padding_share": round(batches.padding_share(), 6),
        "order": batches.chosen_order,
        **({"estimated_from_rows": len(batches.epoch(0).rows)} if batches.is_sampled else {}),
    }


def _generate_dict(job: Job, config: RunConfig) -> dict[str, Any] | None:
    """Return how much text an evaluation generates, and the settings for it and for predictions."""
    settings = job.pipeline.encoder.settings.generate
    if settings is None:
        return None
    return {
        "rows": min(config.generate.rows, len(job.validation)) if job.generates else 0,
        "max_new_tokens": num_new_tokens(job.pipeline.encoder, config.generate.max_new_tokens),
        "from_model": list(config.generate.from_model),
        "settings": dict(settings),
    }


def _model_dict(job: Job, model: ModelChoice, config: RunConfig) -> dict[str, Any]:
    parameters = list(job.pipeline.module.parameters())
    return {
        "name": model.source.name,
        "kind": model.source.kind,
        "code": model.source.code,
        "parameters": sum(num_weights(p) for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "max_length": job.pipeline.encoder.max_length,
        "lr": model.lr,
        **describe_patterns(job.pipeline.module, config.freeze, config.lr_by),
        "lora": model.adaptation.as_dict() if model.adaptation is not None else None,
        "columns": dict(job.pipeline.call.arguments),
    }
