"""Opens `tiny:mlp`, a small untrained network for tabular rows and vectors."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.models.model_source import Built, ModelSource
from surefit.tasks.task_spec import Head

if TYPE_CHECKING:
    from torch import nn

NAME = "tiny:mlp"


def open_mlp() -> ModelSource:
    """A source that sizes the network to the columns and classes of the data."""
    return ModelSource(
        NAME,
        "tiny",
        _build,
        makes_tokenizer=True,
        untrained=True,
        auto_classes=frozenset(),
        recipe={"tiny": NAME},
        hints=lambda: Hints(reads_vectors=lambda size: True),
    )


def _build(head: Head | None, encoder: Encoder) -> Built:
    width = encoder.fitted.get("width")
    if width is None or head is None or head.size is None or head.body is not None:
        raise UNSUITABLE_MODEL.error(
            f"{NAME} reads tabular rows and vectors, and the task {encoder.task} reads "
            f"{', '.join(encoder.roles.values()) or 'whole rows'}.",
            fix="Choose another model, or the task tabular-classification or regression.",
        )
    fitted = encoder.fitted
    spread = (fitted["feature_mean"], fitted["feature_scale"]) if "feature_mean" in fitted else None
    return Built(make_mlp(width, head.size(encoder), spread=spread))


def make_mlp(
    width: int,
    num_outputs: int,
    hidden: int = 256,
    num_layers: int = 3,
    dropout: float = 0.1,
    spread: tuple[list[float], list[float]] | None = None,
) -> nn.Module:
    """Linear, norm, GELU and dropout, `num_layers` times, and a linear output: (B, W) to (B, C).

    Inputs with a `spread`, their means and scales, are standardised first.
    """
    import torch
    from torch import nn

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [width, *[hidden] * num_layers]
            self.body = nn.Sequential(
                *(
                    nn.Sequential(
                        nn.Linear(before, after),
                        nn.LayerNorm(after),
                        nn.GELU(),
                        nn.Dropout(dropout),
                    )
                    for before, after in itertools.pairwise(sizes)
                )
            )
            self.head = nn.Linear(hidden, num_outputs)
            self.mean: torch.Tensor | None
            self.scale: torch.Tensor | None
            mean, scale = map(torch.tensor, spread) if spread is not None else (None, None)
            self.register_buffer("mean", mean)
            self.register_buffer("scale", scale)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if self.mean is not None and self.scale is not None:
                features = (features - self.mean) / self.scale
            logits: torch.Tensor = self.head(self.body(features))
            return logits

    return MLP()
