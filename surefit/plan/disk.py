"""What a run will write to its output folder, in bytes; one that does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import RunConfig
from surefit.data.cache import cache_folder, use_cache
from surefit.disk_space import free_bytes, size_of
from surefit.encode.encoder import Encoder
from surefit.findings import accept_findings, rule
from surefit.gigabytes import show_size
from surefit.memory.held_memory import ADAM_STATES, trained_sizes, unique_bytes
from surefit.models.lora import is_adapted
from surefit.models.lora_files import base_name
from surefit.models.model_source import ModelSource
from surefit.pipeline.pipeline import Job
from surefit.plan.choose_rehearsal import choose_rehearsal
from surefit.run.checkpoints import saved_tensors

if TYPE_CHECKING:
    from surefit.plan.plan import Plan

FILES_BYTES, TENSOR_BYTES = 45_000, 250
"""Files beside the tensors of a model or checkpoint; name, shape and offsets of a tensor."""
STEP_BYTES, EVALUATION_BYTES, TOKEN_BYTES = 260, 3_000, 450
"""A step and an evaluation in events.jsonl and report.html; a token of its generated samples."""
RECORD_BYTES = 5_800_000
"""report.html without its curves, config.yaml, plan.json and digests."""

DOES_NOT_FIT_ON_DISK = rule(
    "SF860",
    "error",
    "does not fit on the disk",
    why="The run would stop hours later, when a checkpoint or the model cannot be written.",
    fix="Free some space, set keep=1, train with LoRA, or choose an --output on another disk.",
    accept="The run starts. If the disk fills, it stops with the last checkpoint intact.",
)

NOT_ON_THIS_DISK = rule(
    "SF449",
    "warning",
    "does not fit on the disk of this machine",
    why="The plan is for another machine (--device), whose disk is not known here.",
    fix="See that the machine that trains has this much space, or set keep=1.",
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
    cache: Mapping[str, Any] = field(default_factory=dict)
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
        """The section `disk` of the plan."""
        names = ("predicted_bytes", "free_bytes", "fits", "final_bytes", "existing_bytes")
        about = {"folder": str(self.folder), "parts": dict(self.parts), "cache": dict(self.cache)}
        return {name: getattr(self, name) for name in names} | about


def predict_disk(job: Job, source: ModelSource, config: RunConfig, folder: Path) -> DiskUse:
    """Predict what training the Job writes to `folder`, and look up what is free there."""
    module, encoder = job.pipeline.module, job.pipeline.encoder
    trained = sum(size + TENSOR_BYTES for size in trained_sizes(module))
    saved = _tensors_bytes(saved_tensors(module))
    whole = _tensors_bytes(module.state_dict(keep_vars=True))
    one = saved + ADAM_STATES * trained + FILES_BYTES
    evaluations = -(-job.num_steps // job.eval_every) if job.eval_every else job.epochs
    saves = evaluations + (job.num_steps // config.save_every if config.save_every else 0)
    kept = min(saves, config.keep + bool(len(job.validation)))  # the latest, and the best
    shown = EVALUATION_BYTES + 18 * len(encoder.fitted.get("classes", ()) or ()) ** 2
    if job.generates is not None and len(job.validation):
        shown += TOKEN_BYTES * (2 * int(job.validation.lengths.max()) + job.generates[1])
    model = whole if not is_adapted(module) else saved + (base_name(source) is None) * whole
    gathers = config.parallel == "fsdp" and job.batches.num_processes > 1
    parts = {
        "checkpoints": kept * one,
        "model": model + _encoder_bytes(encoder) + FILES_BYTES,
        "report_and_events": RECORD_BYTES + STEP_BYTES * job.num_steps + evaluations * shown,
        "temporary": max((min(saves, kept + 1) - kept) * one, gathers * whole),
    }
    existing = sum(size_of(folder / name) for name in ("checkpoints", "events.jsonl", "plan.json"))
    encoded = sum(map(size_of, {job.train.folder, job.validation.folder}))
    cache = {"folder": str(cache_folder()), "encoded_bytes": encoded}
    cache["free_bytes"] = free_bytes(cache_folder())
    return DiskUse(folder, parts, existing, free_bytes(folder), cache, one)


def _encoder_bytes(encoder: Encoder) -> int:
    """The Encoder with its tokenizer, as the model's folder holds them."""
    size, tokenizer = len(json.dumps(encoder.state(), indent=1, default=str)), encoder.tokenizer
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        return size + len(backend.to_str(pretty=True).encode()) + FILES_BYTES
    return size + (0 if tokenizer is None else TOKEN_BYTES * len(tokenizer))


def _tensors_bytes(values: Mapping[str, Any]) -> int:
    """A safetensors file of these tensors."""
    tensors = [value for value in values.values() if hasattr(value, "untyped_storage")]
    return unique_bytes(tensors) + TENSOR_BYTES * len(values)


def fit_on_disk(plan: Plan, folder: Path) -> Plan:
    """The plan with what it writes to `folder` and rehearses; the finding that it does not fit."""
    if plan.job is None or plan.model is None:
        return plan
    config = plan.config
    with use_cache(config.cache):
        use = predict_disk(plan.job, plan.model.source, config, folder)
    rehearsal = choose_rehearsal(plan.job, plan.fit, use, config)
    plan = replace(plan, disk=use, rehearsal=rehearsal)
    if use.fits:
        return plan
    parts = {name.replace("_", " "): size for name, size in use.parts.items() if size}
    listed = ", ".join(f"{name} {show_size(size)}" for name, size in parts.items())
    existing = f", of which {show_size(use.existing_bytes)} exist" if use.existing_bytes else ""
    broken = DOES_NOT_FIT_ON_DISK if plan.request.device is None else NOT_ON_THIS_DISK
    found = broken.finding(
        f"The run writes up to {show_size(use.predicted_bytes)} to {folder}, where "
        f"{show_size(use.free_bytes)} are free ({listed}{existing})."
    )
    return plan.found(accept_findings([found], config.accept))
