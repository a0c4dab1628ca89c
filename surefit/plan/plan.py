"""The Plan: everything decided before the first step. `planning` makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.batches.batch_layout import Layout
from surefit.batches.field import Field
from surefit.batches.order import Batches
from surefit.checks.ledger import Ledger
from surefit.config import RunConfig
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.findings import Finding, has_errors
from surefit.memory.predict_peak import Fit
from surefit.models.call import Call
from surefit.models.lora import Adaptation
from surefit.models.model_source import ModelSource
from surefit.tasks.task_spec import Loss, TaskSpec

if TYPE_CHECKING:
    from torch import nn

FORMAT_VERSION = 1
NO_MEMORY = {"predicted_peak_bytes": None, "limit_bytes": None, "fits": None}
NO_TIME = {"predicted_step_seconds": None, "predicted_total_seconds": None}


@dataclass(frozen=True)
class Given:
    """Objects handed over from Python, which no config file can hold."""

    data: Any = None
    eval_data: Any = None
    model: Any = None
    task: TaskSpec | None = None
    loss_fn: Callable[..., Any] | None = None
    collate_fn: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    callbacks: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
    augment: Callable[..., str] | None = None
    scorer: Callable[[str, str], Any] | None = None
    beside: Path | None = None
    """The config file's folder, where `module:function` is looked for first."""
    choices: Mapping[str, Any] | None = None
    """What an earlier plan of the same run chose by trying, to be taken as it is."""


@dataclass(frozen=True)
class Parts:
    """What the loop is made of."""

    source: ModelSource
    module: nn.Module
    call: Call
    loss: Loss
    encoder: Encoder
    train: Store
    evaluation: Store
    batches: Batches
    fields: Mapping[str, Field]
    layout: Layout
    num_steps: int
    lr: float
    adaptation: Adaptation | None = None


@dataclass(frozen=True)
class Plan:
    """What will be done, and what was found; `parts` is None where planning had to stop."""

    config: RunConfig
    task: TaskSpec | None
    findings: tuple[Finding, ...]
    roles: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    parts: Parts | None = None
    given: Given = Given()
    data_key: str = ""
    fit: Fit | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What was chosen by trying or measuring; a resumed run does not choose again."""

    @property
    def ok(self) -> bool:
        """Whether nothing found keeps the run from starting."""
        return self.parts is not None and not has_errors(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The plan as `check --json` prints it and plan.json keeps it; unknown is null."""
        return {
            "ok": self.ok,
            "task": self.task.name if self.task else None,
            "format_version": FORMAT_VERSION,
            "findings": [found.as_dict() for found in self.findings],
            "ledger": self.ledger.as_dict() if self.ledger else None,
            "batches": _batches_dict(self.parts.batches) if self.parts else None,
            "memory": self.fit.memory_dict() if self.fit else NO_MEMORY,
            "time": self.fit.time_dict() if self.fit else NO_TIME,
            "roles": dict(self.roles),
            "model": _model_dict(self.parts) if self.parts else None,
            "steps": self.parts.num_steps if self.parts else None,
            "choices": dict(self.choices),
            "data_key": self.data_key,
            "eval_key": self.parts.evaluation.key if self.parts else None,
            "version": __version__,
        }


def _batches_dict(batches: Batches) -> dict[str, Any]:
    return {
        "count": batches.num_micro_batches(),
        "longest": list(batches.longest()),
        "padding_share": round(batches.padding_share(), 6),
    }


def _model_dict(parts: Parts) -> dict[str, Any]:
    parameters = list(parts.module.parameters())
    return {
        "name": parts.source.name,
        "kind": parts.source.kind,
        "code": parts.source.code,
        "parameters": sum(p.numel() for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "max_length": parts.encoder.max_length,
        "lr": parts.lr,
        "lora": parts.adaptation.as_dict() if parts.adaptation is not None else None,
        "columns": dict(parts.call.arguments),
    }
