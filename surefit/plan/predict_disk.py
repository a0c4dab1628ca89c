"""What a run will write to its output folder, in bytes, before it writes any of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import RunConfig
from surefit.data.cache import cache_folder
from surefit.disk_space import free_bytes, size_of
from surefit.encode.encoder import Encoder
from surefit.models.lora import is_adapted
from surefit.models.lora_files import base_name
from surefit.models.model_source import ModelSource
from surefit.pipeline.job import Job
from surefit.run.checkpoints import saved_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

BLOCK = 4096
"""A file takes whole blocks of the file system."""
TENSOR_NAME_BYTES = 120
"""Name, dtype, shape and offsets of a tensor in a safetensors file, besides its own name."""
STEP_BYTES, EVALUATION_BYTES, SHOWN_SAMPLES = 220, 1_000, 6
TOKEN_BYTES = 24
"""The most that a token of a generated sample takes in an event, where its text is escaped."""
BEGINNING_BYTES = 96_000
"""config.yaml, plan.json and digests."""
VOCABULARY_BYTES = 120
"""One token of a tokenizer that cannot print itself, with its merge."""
OPTIMIZER_COPIES = 2
"""Copies of the trained weights that AdamW keeps; assumed of an optimizer passed in, too."""


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
    advice: tuple[Mapping[str, Any], ...] = ()
    num_kept: int = 1
    """How many checkpoints a finished run has."""

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
        return {
            "predicted_bytes": self.predicted_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "final_bytes": self.final_bytes,
            "existing_bytes": self.existing_bytes,
            "folder": str(self.folder),
            "parts": dict(self.parts),
            "cache": dict(self.cache),
            "advice": [dict(option) for option in self.advice],
        }


@dataclass(frozen=True)
class Saving:
    """How often a run saves, and how many checkpoints it keeps."""

    keep: int
    save_every: int | None = None
    gathers: bool = False
    """Whether a divided model is gathered on the disk before it is saved."""

    @classmethod
    def of(cls, config: RunConfig, job: Job) -> Saving:
        """How a run of this config saves."""
        gathers = config.parallel == "fsdp" and job.batches.num_processes > 1
        return cls(config.keep, config.save_every, gathers)


def predict_disk(job: Job, source: ModelSource, saving: Saving, folder: Path) -> DiskUse:
    """Predict what training the Job writes to `folder`, and look up what is free there."""
    module, encoder = job.pipeline.module, job.pipeline.encoder
    events, report = _events_bytes(job), report_bytes(job)
    parts = {
        "model": model_bytes(module, source),
        "tokenizer": encoder_bytes(encoder),
        "report": report,
        "events": events,
        "config_and_plan": BEGINNING_BYTES,
    }
    saves = num_saves(job, saving)
    parts = spread_checkpoints(parts, checkpoint_bytes(module), saves, job, saving)
    return DiskUse(
        folder,
        parts,
        sum(size_of(folder / name) for name in ("checkpoints", "events.jsonl", "plan.json")),
        free_bytes(folder),
        describe_cache(job),
        num_kept=num_kept(saves, job, saving),
    )


def spread_checkpoints(
    parts: Mapping[str, int], one: int, saves: int, job: Job, saving: Saving
) -> dict[str, int]:
    """The parts with the checkpoints that stay, and with what is there for a while."""
    stay = num_kept(saves, job, saving)
    at_once = min(saves, stay + 1)
    after = parts["model"] + parts["tokenizer"] + parts["report"]
    whole = 0
    if saving.gathers:
        whole = sum(p.numel() * p.element_size() for p in job.pipeline.module.parameters())
    temporary = max((at_once - stay) * one - after, whole, 0)
    return {"checkpoints": stay * one, **parts, "temporary": temporary}


def num_kept(saves: int, job: Job, saving: Saving) -> int:
    """How many checkpoints stay: the latest, and the best where rows are evaluated."""
    return min(saves, saving.keep + bool(len(job.validation)))


def num_saves(job: Job, saving: Saving) -> int:
    """How many checkpoints the run writes in all, most of which are deleted again."""
    if job.eval_every is not None:
        evaluations = -(-job.num_steps // job.eval_every)
    else:
        varies = job.batches.max_tokens is not None  # epochs differ in their number of steps
        reached = -(-job.num_steps // max(job.batches.num_steps(0), 1)) + varies
        evaluations = min(job.epochs, reached)
    return evaluations + (job.num_steps // saving.save_every if saving.save_every else 0)


def checkpoint_bytes(module: nn.Module) -> int:
    """One checkpoint: the weights that training changes, and the state of the optimizer."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    state = sum(OPTIMIZER_COPIES * p.nbytes + 4 + 3 * TENSOR_NAME_BYTES for p in trained)
    about = 2_000 + 16 * len(trained)  # state.json and digests.json
    return tensors_bytes(saved_tensors(module)) + state + about + 5 * BLOCK


def model_bytes(module: nn.Module, source: ModelSource) -> int:
    """The folder `model/` without its Encoder: the whole model, or adapters and their base."""
    whole = tensors_bytes(module.state_dict(keep_vars=True)) + 20_000 + 6 * BLOCK
    if not is_adapted(module):
        return whole
    return tensors_bytes(saved_tensors(module)) + (whole if base_name(source) is None else 0)


def encoder_bytes(encoder: Encoder) -> int:
    """The Encoder with its tokenizer, as the model's folder holds them."""
    state = len(json.dumps(encoder.state(), indent=1, default=str))
    tokenizer: Any = encoder.tokenizer
    if tokenizer is None:
        return state + BLOCK
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        text = len(backend.to_str(pretty=True).encode())
    else:
        text = VOCABULARY_BYTES * len(tokenizer)
    template = len(str(getattr(tokenizer, "chat_template", "") or "")) * 2
    return state + text + template + 16_000 + 5 * BLOCK


def report_bytes(job: Job) -> int:
    """report.html: the library that draws the curves, and the curves."""
    import plotly

    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    library = script.stat().st_size if script.is_file() else 6_000_000
    return library + 200_000 + 40 * job.num_steps + 2 * _evaluation_bytes(job)


def _events_bytes(job: Job) -> int:
    evaluations = num_saves(job, Saving(1))
    return job.num_steps * STEP_BYTES + evaluations * _evaluation_bytes(job) + BLOCK


def _evaluation_bytes(job: Job) -> int:
    """One evaluation in events.jsonl: metrics, a confusion matrix, and generated samples."""
    classes = len(job.pipeline.encoder.fitted.get("classes", ()) or ())
    samples = 0
    if job.generates is not None and len(job.validation):
        longest = 2 * int(job.validation.lengths.max()) + job.generates[1]
        samples = SHOWN_SAMPLES * TOKEN_BYTES * longest
    return EVALUATION_BYTES + 6 * classes * classes + samples


def tensors_bytes(values: Mapping[str, Any]) -> int:
    """A safetensors file of these tensors; those that share their memory are written once.

    What else a module has in its state is not counted: it cannot be saved.
    """
    import torch

    seen: dict[Any, int] = {}
    names = 0
    for name, tensor in values.items():
        names += len(name) + TENSOR_NAME_BYTES
        if isinstance(tensor, torch.Tensor):
            seen[_identity(tensor)] = tensor.nbytes
    return sum(seen.values()) + names


def _identity(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape)


def describe_cache(job: Job) -> dict[str, Any]:
    """Where the encoded rows are, how large they are, and what is free there."""
    folder = cache_folder()
    stores = {job.train.folder, job.validation.folder}
    return {
        "folder": str(folder),
        "encoded_bytes": sum(size_of(each) for each in stores),
        "free_bytes": free_bytes(folder),
    }
