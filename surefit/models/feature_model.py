"""The torch modules for feature sequences: AdaptiveProjection and FeatureModel.

A transformers model reads `inputs_embeds` of one size. The AdaptiveProjection maps features to
that size; the body is any AutoModel that reads embeddings.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from surefit.errors import UsageError

Reads = Literal["rows", "steps", "step_classes"]


class AdaptiveProjection(nn.Module):
    """Standardises features per channel and projects them to a model's hidden size.

    `width` is the feature size; without it, the first batch sets it. The means and scales are saved
    with the weights, so whoever loads the model needs no statistics. A custom module receives the
    features unchanged, unless it uses this projection.

    >>> AdaptiveProjection(256, width=12)
    AdaptiveProjection(feature size 12 to hidden size 256, not standardised)
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
        self.before: str | None = None  # the layer of a custom module that it is inserted before
        self.linear: nn.Linear = (
            nn.LazyLinear(hidden_size) if width is None else nn.Linear(width, hidden_size)
        )

    @classmethod
    def for_data(cls, sample: Any, hidden_size: int) -> AdaptiveProjection:
        """A projection for data like `sample`, of axes (rows, steps, width) or (steps, width).

        >>> AdaptiveProjection.for_data(torch.randn(8, 20, 12), 256)
        AdaptiveProjection(feature size 12 to hidden size 256, standardised)
        """
        steps = torch.as_tensor(sample).to(torch.float64)
        if steps.ndim not in (2, 3) or steps.numel() == 0:
            raise UsageError(
                f"The sample has shape {list(steps.shape)}; expected [rows, steps, width] or "
                "[steps, width].",
                "Reshape it, or use AdaptiveProjection(hidden_size, width).",
            )
        steps = steps.reshape(-1, steps.shape[-1])
        steps = steps[steps.isfinite().all(-1)]
        projection = cls(hidden_size, steps.shape[-1])
        if len(steps):
            projection.standardise(steps.mean(0), steps.std(0, correction=0))
        return projection

    def standardise(self, mean: Any, scale: Any) -> None:
        """Set the mean and the scale of each channel; a constant channel is not scaled."""
        self.mean.copy_(torch.as_tensor(mean))
        scale = torch.as_tensor(scale)
        self.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))

    @property
    def width(self) -> int | None:
        """The feature size it expects; None until the first batch if it was not set."""
        return self.linear.in_features or None

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Project (B, T, W) to (B, T, hidden size)."""
        if self.width is not None and inputs_embeds.shape[-1] != self.width:
            raise UsageError(
                f"The projection expects feature size {self.width}; found shape "
                f"{list(inputs_embeds.shape)}.",
                "Build it for this data: AdaptiveProjection.for_data(sample, hidden_size).",
            )
        steps = inputs_embeds.to(self.mean.dtype)
        projected: torch.Tensor = self.linear((steps - self.mean) / self.scale)
        return projected

    def extra_repr(self) -> str:
        """Feature size, hidden size and whether it standardises."""
        standardises = bool((self.mean != 0).any() or (self.scale != 1).any())
        done = "standardised" if standardises else "not standardised"
        size = self.width or "of the data"
        return f"feature size {size} to hidden size {self.linear.out_features}, {done}"

    def __repr__(self) -> str:
        return f"AdaptiveProjection({self.extra_repr()})"


class FeatureModel(nn.Module):
    """Projection, body and head; one output per row, pooled by the mean, or one per step.

    Reconstructed `steps` are in the units of the data: the projection's standardisation is undone.
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
        """Logits (B, C) or (B, T, C), or steps (B, T, W).

        The body sees `mask_vector` at masked steps.
        """
        embeds = self.projection(inputs_embeds)
        if masked_steps is not None:
            embeds = torch.where(masked_steps.bool().unsqueeze(-1), self.mask_vector, embeds)
        states = self.body(inputs_embeds=embeds, attention_mask=attention_mask)
        hidden: torch.Tensor = states.last_hidden_state
        if self.reads != "rows":
            outputs: torch.Tensor = self.head(hidden)
            if self.reads == "step_classes":
                return outputs
            return outputs * self.projection.scale + self.projection.mean
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled: torch.Tensor = self.head((hidden * mask).sum(1) / mask.sum(1).clamp(min=1))
        return pooled
