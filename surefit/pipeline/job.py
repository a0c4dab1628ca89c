"""A Job: a Pipeline, the rows it trains on, in which batches and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.batches.order import Batches
from surefit.encode.store import Store
from surefit.models.call import Call
from surefit.models.frozen_precision import lower_frozen
from surefit.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.encode.augment.array_augment import ArrayAugment


@dataclass(frozen=True)
class Job:
    """What is trained on what: all that memory, time and the loop depend on."""

    pipeline: Pipeline
    train: Store
    validation: Store
    batches: Batches
    num_steps: int
    epochs: int = 1
    eval_every: int | None = None
    generates: tuple[int, int] | None = None
    """Rows and new tokens that each evaluation generates."""
    autocast_dtype: torch.dtype | None = None
    """The lower precision of mixed precision; None for float32."""
    kept_bytes: int = 0
    """Memory of the predictions that the user's own metrics keep in an evaluation."""
    augment: ArrayAugment | None = None
    """How training rows are changed in each epoch; evaluations and probes have them as they are."""

    parallel: str = "ddp"
    """How several processes share the model: each has the whole, or a shard (fsdp)."""
    gathers_whole: bool = False
    """Whether a divided model is gathered as a whole, not block by block."""
    frozen_dtype: torch.dtype | None = None
    """What frozen matrices are cast to when training begins; None leaves them."""

    @property
    def on_meta(self) -> tuple[nn.Module, Call]:
        """The module on the meta device as it is trained, and its Call; for traces."""
        module, call = self.pipeline.on_meta
        lower_frozen(module, self.frozen_dtype)
        return module, call

    def batch(self, rows: Any, epoch: int = 0, device: Any = None) -> dict[str, Any]:
        """Training rows as one batch of tensors, augmented as in that epoch."""
        source = self.train if self.augment is None else self.augment.in_epoch(epoch)
        return self.pipeline.batch(source, rows, epoch, device)

    @property
    def num_evaluations(self) -> int:
        """How often the validation rows are evaluated."""
        if not len(self.validation):
            return 0
        return max(1, self.num_steps // self.eval_every) if self.eval_every else self.epochs
