"""What a run will write to its output folder, and which of its phases are rehearsed before step 1.

A run that does not fit on the disk is refused. All phases are rehearsed on request, else the cheap
ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import RunConfig
from surefit.findings import accept_findings, rule
from surefit.gigabytes import free_bytes, show_size, size_of
from surefit.memory.predict_peak import Fit
from surefit.memory.trace_step import unique_bytes
from surefit.models.lora import is_adapted
from surefit.models.model_source import ModelSource
from surefit.pipeline.pipeline import Job
from surefit.run.checkpoints import saved_tensors

if TYPE_CHECKING:
    from surefit.plan.plan import Plan

FILES_BYTES, TENSOR_BYTES, VOCABULARY_BYTES = 45_000, 250, 200
"""Files beside the tensors of a model or checkpoint; a tensor's name and shape; a token's."""
STEP_BYTES, EVALUATION_BYTES, TOKEN_BYTES = 260, 3_000, 450
"""A step and an evaluation in events.jsonl; a token of its generated samples."""
RECORD_BYTES = 1_800_000
"""report.html with the rows it shows (examples.json), config.yaml, plan.json and digests."""

DOES_NOT_FIT_ON_DISK = rule(
    "SF860",
    "error",
    "does not fit on the disk",
    why="The run would stop hours later, when a checkpoint or the model cannot be written.",
    fix="Free some space, set keep=1, train with LoRA, or choose an --output on another disk.",
    accept="The run starts. If the disk fills, it stops with the last checkpoint intact.",
)


@dataclass(frozen=True)
class DiskUse:
    """What a run writes by part, and what is free where it writes.

    The sum of the parts is the most that is there at once: `temporary` is what is deleted again,
    such as the oldest checkpoint once the newest is complete.
    """

    folder: Path
    parts: Mapping[str, int]
    existing_bytes: int = 0
    """What the folder of a resumed run already has of it."""
    free_bytes: int = 0
    checkpoint_bytes: int = 0

    @property
    def predicted_bytes(self) -> int:
        """What is still to be written, at its peak."""
        return max(sum(self.parts.values()) - self.existing_bytes, 0)

    @property
    def final_bytes(self) -> int:
        """What a finished run holds."""
        return sum(size for name, size in self.parts.items() if name != "temporary")

    @property
    def fits(self) -> bool:
        """Whether it can be written."""
        return self.predicted_bytes <= self.free_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the section `disk` of the plan."""
        names = ("predicted_bytes", "free_bytes", "fits", "final_bytes", "existing_bytes")
        about = {name: getattr(self, name) for name in names}
        return {**about, "folder": str(self.folder), "parts": dict(self.parts)}


def predict_disk(job: Job, source: ModelSource, config: RunConfig, folder: Path) -> DiskUse:
    """Predict what training the Job writes to `folder`, and look up what is free there."""
    module, encoder = job.pipeline.module, job.pipeline.encoder
    saved = _tensors_bytes(saved_tensors(module))
    whole = _tensors_bytes(module.state_dict(keep_vars=True))
    states = job.optimizer.keeps.state_bytes(module, lambda weight: weight.nbytes + TENSOR_BYTES)
    one = saved + states + FILES_BYTES
    evaluations = -(-job.num_steps // job.eval_every) if job.eval_every else job.epochs
    saves = evaluations + (job.num_steps // config.save_every if config.save_every else 0)
    kept = min(saves, config.keep + bool(len(job.validation)))  # the latest, and the best
    shown = EVALUATION_BYTES + 18 * len(encoder.classes) ** 2
    if job.generates is not None and len(job.validation):
        shown += TOKEN_BYTES * (2 * int(job.validation.lengths.max()) + job.generates[1])
    model = whole if not is_adapted(module) else saved + (source.base_name is None) * whole
    gathers = config.parallel == "fsdp" and job.batches.num_processes > 1
    fitted = len(json.dumps(encoder.state(), indent=1, default=str))
    vocabulary = VOCABULARY_BYTES * (0 if encoder.tokenizer is None else len(encoder.tokenizer))
    parts = {
        "checkpoints": kept * one,
        "model": model + fitted + vocabulary + FILES_BYTES,
        "report_and_events": RECORD_BYTES + STEP_BYTES * job.num_steps + evaluations * shown,
        "temporary": max((min(saves, kept + 1) - kept) * one, gathers * whole),
    }
    existing = sum(size_of(folder / name) for name in ("checkpoints", "events.jsonl", "plan.json"))
    return DiskUse(folder, parts, existing, free_bytes(folder), one)


def _tensors_bytes(values: Mapping[str, Any]) -> int:
    """Return a safetensors file of these tensors."""
    tensors = [value for value in values.values() if hasattr(value, "untyped_storage")]
    return unique_bytes(tensors) + TENSOR_BYTES * len(values)


def fit_on_disk(plan: Plan, folder: Path) -> Plan:
    """The plan with what it writes to `folder` and rehearses; the finding that it does not fit."""
    if plan.job is None or plan.model is None:
        return plan
    config = plan.config
    use = predict_disk(plan.job, plan.model.source, config, folder)
    rehearsal = choose_rehearsal(plan.job, plan.fit, use, config)
    plan = replace(plan, disk=use, rehearsal=rehearsal)
    if use.fits or plan.request.device is not None:  # the disk of another machine is not known
        return plan
    parts = {name.replace("_", " "): size for name, size in use.parts.items() if size}
    listed = ", ".join(f"{name} {show_size(size)}" for name, size in parts.items())
    existing = f", of which {show_size(use.existing_bytes)} exist" if use.existing_bytes else ""
    found = DOES_NOT_FIT_ON_DISK.finding(
        f"The run writes up to {show_size(use.predicted_bytes)} to {folder}, where "
        f"{show_size(use.free_bytes)} are free ({listed}{existing})."
    )
    return plan.found(accept_findings([found], config.accept))


FREE_SECONDS, FREE_SHARE = 2.0, 0.01
"""A phase is cheap if it takes less than either: seconds, or a share of the predicted time."""
BYTES_PER_SECOND = 150e6
"""Assumed of a disk that is written to and read back."""
FEW_TOKENS = 4
"""Tokens that are generated where the rehearsal is to be cheap."""


@dataclass(frozen=True)
class Rehearsal:
    """The phases that are done once before the first step, and why others are not."""

    phases: Sequence[str]
    left_out: Mapping[str, str]
    true_size: bool
    """Whether every phase is done at its true size; else on one batch, with a few new tokens."""


def choose_rehearsal(job: Job, fit: Fit | None, disk: DiskUse, config: RunConfig) -> Rehearsal:
    """Choose by the predicted time; an evaluation of step 0 needs no rehearsal."""
    step, total = (fit.step_seconds or 0.0, fit.total_seconds or 0.0) if fit else (0.0, 0.0)
    forward, tokens = step / 3 / max(job.batches.grad_accum, 1), FEW_TOKENS * bool(job.generates)
    seconds = {
        "evaluation": forward * (1 + tokens),
        "checkpoint": disk.checkpoint_bytes / BYTES_PER_SECOND,
        "model": disk.parts["model"] / BYTES_PER_SECOND,
        "report": 0.0,
    }
    if not len(job.validation):
        del seconds["evaluation"]
    left_out = {}
    if not config.rehearse:
        budget = max(FREE_SECONDS, FREE_SHARE * total)
        left_out = {k: f"would take about {s:.0f} s" for k, s in seconds.items() if s > budget}
        if config.eval_at_start and "evaluation" in seconds:
            left_out["evaluation"] = "step 0 is evaluated"
    return Rehearsal([k for k in seconds if k not in left_out], left_out, config.rehearse)
