"""A Job: a Pipeline, the rows it trains on, in which batches and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.batches.order import Batches
from surefit.encode.store import Store
from surefit.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    import torch

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
