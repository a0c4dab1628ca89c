"""Feature sequences into transformers models: projection, body, pooling and head in one module.

A transformers model takes `inputs_embeds` of its own width only, and has no head for them. The
AdaptiveProjection brings the data to that width; the body is any AutoModel that reads embeddings.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from surefit.errors import UsageError

Reads = Literal["rows", "steps"]


class AdaptiveProjection(nn.Module):
    """Steps of any width, standardised per channel, to a model's hidden size.

    Without `width` it is taken from the first batch. The means and scales are part of the
    weights, so whoever loads the model needs no statistics; a module of one's own is given the
    features as they are, unless it uses this projection.

    >>> AdaptiveProjection(256, width=12)
    AdaptiveProjection(width 12 to hidden size 256, as they are)
    >>> AdaptiveProjection(256, width=12)(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 256])
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, hidden_size: int, width: int | None = None) -> None:
        super().__init__()
        channels = () if width is None else (width,)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.before: str | None = None  # the layer of a module that it was put before
        self.linear: nn.Linear = (
            nn.LazyLinear(hidden_size) if width is None else nn.Linear(width, hidden_size)
        )

    @classmethod
    def for_data(cls, sample: Any, hidden_size: int) -> AdaptiveProjection:
        """A projection for data like `sample` (rows, steps, width) or (steps, width).

        >>> AdaptiveProjection.for_data(torch.randn(8, 20, 12), 256)
        AdaptiveProjection(width 12 to hidden size 256, standardised)
        """
        steps = torch.as_tensor(sample).to(torch.float64)
        if steps.ndim not in (2, 3) or steps.numel() == 0:
            raise UsageError(
                f"The sample has shape {list(steps.shape)}; expected [rows, steps, width] or "
                "[steps, width].",
                "Reshape it, or give AdaptiveProjection(hidden_size, width).",
            )
        steps = steps.reshape(-1, steps.shape[-1])
        steps = steps[steps.isfinite().all(-1)]
        projection = cls(hidden_size, steps.shape[-1])
        if len(steps):
            projection.standardise(steps.mean(0), steps.std(0, correction=0))
        return projection

    def standardise(self, mean: Any, scale: Any) -> None:
        """Set what is subtracted from each channel, and what it is then divided by.

        A channel that never changes is left at its scale.
        """
        self.mean.copy_(torch.as_tensor(mean))
        scale = torch.as_tensor(scale)
        self.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))

    @property
    def width(self) -> int | None:
        """The width it takes; None until the first batch where none was given."""
        return self.linear.in_features or None

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Project (B, T, W) to (B, T, hidden size)."""
        if self.width is not None and inputs_embeds.shape[-1] != self.width:
            raise UsageError(
                f"The projection takes width {self.width}; found {list(inputs_embeds.shape)}.",
                "Make it for this data: AdaptiveProjection.for_data(sample, hidden_size).",
            )
        steps = inputs_embeds.to(self.mean.dtype)
        projected: torch.Tensor = self.linear((steps - self.mean) / self.scale)
        return projected

    def extra_repr(self) -> str:
        """What the projection does, in words."""
        moved = bool((self.mean != 0).any() or (self.scale != 1).any())
        done = "standardised" if moved else "as they are"
        width = self.width or "of the data"
        return f"width {width} to hidden size {self.linear.out_features}, {done}"

    def __repr__(self) -> str:
        return f"AdaptiveProjection({self.extra_repr()})"


class FeatureModel(nn.Module):
    """Projection, body and head; one output per row (the mean over its steps) or per step.

    Outputs per step are in the units of the data, which the projection knows.
    """

    def __init__(
        self, body: nn.Module, projection: AdaptiveProjection, head: nn.Linear, reads: Reads
    ) -> None:
        super().__init__()
        self.projection = projection
        self.body = body
        self.head = head
        self.reads = reads
        self.mask_vector = nn.Parameter(torch.zeros(projection.linear.out_features))

    def forward(
        self,
        inputs_embeds: torch.Tensor,  # (B, T, W)
        attention_mask: torch.Tensor,  # (B, T)
        masked_steps: torch.Tensor | None = None,  # (B, T)
    ) -> torch.Tensor:
        """Logits (B, classes), or (B, T, W); masked steps are hidden from the body."""
        embeds = self.projection(inputs_embeds)
        if masked_steps is not None:
            embeds = torch.where(masked_steps.bool().unsqueeze(-1), self.mask_vector, embeds)
        states = self.body(inputs_embeds=embeds, attention_mask=attention_mask)
        hidden: torch.Tensor = states.last_hidden_state
        if self.reads == "steps":
            outputs: torch.Tensor = self.head(hidden)
            return outputs * self.projection.scale + self.projection.mean
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled: torch.Tensor = self.head((hidden * mask).sum(1) / mask.sum(1).clamp(min=1))
        return pooled
