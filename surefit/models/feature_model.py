"""Models for feature sequences: AdaptiveProjection and FeatureModel, built, saved and reused.

A transformers model reads `inputs_embeds` of one size. The AdaptiveProjection maps features to
that size; the body is any AutoModel that reads embeddings. It is saved as a transformers folder;
`features.json` and `features.safetensors` hold what transformers has no class for: the projection,
the head and the mask vector.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.data.data_rules import WRONG_SHAPE
from surefit.errors import FindingError, UsageError, describe_error
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.models.model_source import Built
from surefit.models.transformers_models import (
    UNSUITABLE_MODEL,
    input_size,
    load_weights,
    max_positions,
    new_model,
    quiet_transformers,
    resize_config,
    text_config,
)
from surefit.speed.sparse_head import find_input_embedding
from surefit.targets.task_spec import Head

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
        self.linear: nn.Linear = (
            nn.LazyLinear(hidden_size) if width is None else nn.Linear(width, hidden_size)
        )

    @classmethod
    def for_data(cls, sample: Any, hidden_size: int) -> AdaptiveProjection:
        """Return a projection for data like `sample`, of axes (rows, steps, width) or (steps,
        width).

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


READS_FEATURES = "Choose a text encoder or decoder, such as tiny:bert, or a custom module."

FEATURES_PROJECTED = rule(
    "SF325",
    "fixed",
    "features projected to the model's input size",
    why=(
        "A transformers model reads embeddings of one size. A linear layer, trained and saved with "
        "the model, projects the features to it."
    ),
    fix="If the model is to stay as it is, pass features of its size, or a module of your own with "
    "surefit.AdaptiveProjection in its forward.",
)

PROJECTION_LEFT_OUT = rule(
    "SF327",
    "warning",
    "trained projection not reused",
    why="The model was trained on another feature size, so a new projection starts untrained.",
    fix="Pass features of the size that the model was trained on, if they should be the same.",
    accept="A new projection is trained.",
)

CONFIG_FOLLOWS_DATA = rule(
    "SF432",
    "fixed",
    "model config follows the data",
    why="An untrained model is built for the feature size and the sequence length of its rows.",
    fix="",
)


def build_feature_model(
    name: str,
    config: Any,
    head: Head,
    encoder: Encoder,
    from_scratch: bool,
    trust_remote_code: bool = False,
) -> Built:
    """A FeatureModel sized to the data, with the layers of an earlier one that `name` holds."""
    _check_config(name, config)
    features = encoder.input.statistics
    if features.width is None:
        column = encoder.column_of("inputs_embeds")
        message = f"No training row of column {column!r} has the axes [steps, width]."
        raise WRONG_SHAPE.error(message, column=column)
    assert head.size is not None
    assert head.body is not None
    notes = _fit_config(name, config, head, encoder, from_scratch)
    built = _load_body(name, config, from_scratch, trust_remote_code)
    text, embedding = text_config(config), find_input_embedding(built.module)
    std = 0.02 if embedding is None else float(embedding.weight.detach().float().std())
    projection = AdaptiveProjection(input_size(text), features.width)
    projection.standardise(features.mean, features.scale)
    # Its outputs get the deviation of the embeddings, which the norms of the body are made for.
    nn.init.normal_(projection.linear.weight, std=std / features.width**0.5)
    nn.init.zeros_(projection.linear.bias)
    output = nn.Linear(text.hidden_size, head.size(encoder))
    module = FeatureModel(built.module, projection, output, head.body)
    nn.init.normal_(module.mask_vector, std=std)
    is_trained, found = False, list[Finding]()
    if not from_scratch and has_feature_layers(Path(name)):
        is_trained, found = _reuse_layers(module, Path(name))
    room = max_positions(text)
    positions = f", which has {room} positions" if room is not None else ""
    message = (
        f"{'The trained' if is_trained else 'A new'} projection maps feature size {features.width} "
        f"(sequence length up to {features.longest}) to input size {input_size(text)} of {name}"
        f"{positions}."
    )
    found.append(FEATURES_PROJECTED.finding(message))
    return Built(module, (*notes, *built.findings, *found))


def _load_body(name: str, config: Any, from_scratch: bool, trust_remote_code: bool) -> Built:
    """Return a transformers model without a head."""
    from transformers import AutoModel

    with quiet_transformers():
        try:
            built = (
                Built(new_model(AutoModel, config, trust_remote_code))
                if from_scratch
                else load_weights(AutoModel, name, config, trust_remote_code)
            )
        except FindingError:
            raise
        except Exception as error:  # some architectures can only be built with a head
            raise UNSUITABLE_MODEL.error(
                f"{name} cannot be built without a head: {describe_error(error)}",
                fix=READS_FEATURES,
            ) from error
    if "inputs_embeds" not in inspect.signature(built.module.forward).parameters:
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {type(built.module).__name__}; its forward has no argument "
            "inputs_embeds.",
            fix=READS_FEATURES,
        )
    return built


def _fit_config(
    name: str, config: Any, head: Head, encoder: Encoder, from_scratch: bool
) -> list[Finding]:
    """Set the class count of any config, and the sizes of an untrained body's."""
    if head.body != "steps" and head.size is not None:
        config.num_labels = head.size(encoder)
    if not from_scratch or name.startswith("tiny:"):  # a tiny body is always built for the data
        return []
    changed = resize_config(config, encoder.input.width or 0, encoder.input.statistics.longest)
    return [CONFIG_FOLLOWS_DATA.finding(f"{name}: {', '.join(changed)}.")] if changed else []


def _check_config(name: str, config: Any) -> None:
    from transformers import AutoModel

    known = type(config) in AutoModel._model_mapping or hasattr(config, "auto_map")
    has_decoder = getattr(config, "is_encoder_decoder", False)
    if has_decoder or not known or not hasattr(config.get_text_config(), "hidden_size"):
        what = "an encoder and a decoder" if has_decoder else "no body that reads features"
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, which has {what}.", fix=READS_FEATURES
        )


def _reuse_layers(module: FeatureModel, folder: Path) -> tuple[bool, list[Finding]]:
    """Load the folder's trained layers that fit; whether the projection does, and a report."""
    sizes, saved, own = read_sizes(folder), read_weights(folder), module.state_dict()
    trained_size, size = sizes["width"], module.projection.width
    other = [
        name
        for name, fits in (
            ("projection.", trained_size == size),
            ("head.", sizes["reads"] == module.reads),
        )
        if not fits
    ]
    usable = {
        key: value
        for key, value in saved.items()
        if own[key].shape == value.shape and not key.startswith(tuple(other))
    }
    module.load_state_dict(usable, strict=False)
    found = []
    if "head.weight" not in usable:
        found.append(note("2 weights start untrained: head.weight, head.bias"))
    reused = sorted({key.split(".")[0].replace("_", " ") for key in usable})
    new = sorted({key.split(".")[0] for key in saved} - {key.split(".")[0] for key in usable})
    rest = f"; new: {', '.join(new)}" if new else ""
    found.append(note(f"Reused from {folder}: body, {', '.join(reused)}{rest}."))
    if trained_size != size:
        message = f"{folder} was trained on feature size {trained_size}; the data has feature size "
        found.append(PROJECTION_LEFT_OUT.finding(f"{message}{size}."))
    return trained_size == size, found


SIZES = "features.json"
WEIGHTS = "features.safetensors"
FORMAT_VERSION = 1


def has_feature_layers(folder: Path) -> bool:
    """Return whether the folder holds the layers of a FeatureModel."""
    return (folder / SIZES).is_file()


def save_feature_layers(module: Any, folder: Path) -> None:
    """Write projection, head and mask vector."""
    from safetensors.torch import save_file

    ours = {k: v for k, v in module.state_dict().items() if not k.startswith("body.")}
    save_file({k: v.detach().cpu().contiguous() for k, v in ours.items()}, str(folder / WEIGHTS))
    projection = module.projection.linear
    files.write_json(
        folder / SIZES,
        {
            "format_version": FORMAT_VERSION,
            "reads": module.reads,
            "width": projection.in_features,
            "input_size": projection.out_features,
            "hidden_size": module.head.in_features,
            "outputs": module.head.out_features,
        },
    )


def load_feature_layers(module: nn.Module, folder: Path) -> None:
    """Load the saved projection, head and mask vector into a FeatureModel of their sizes."""
    module.load_state_dict({**module.state_dict(), **read_weights(folder)})


def read_weights(folder: Path) -> dict[str, Any]:
    """Return the saved tensors of projection, head and mask vector, by their names."""
    from safetensors.torch import load_file

    return dict(load_file(str(folder / WEIGHTS)))


def read_sizes(folder: Path) -> dict[str, Any]:
    """Return the saved sizes of the layers, where `width` is the feature size."""
    sizes = read_json(folder / SIZES, dict[str, Any])
    if sizes.get("format_version") != FORMAT_VERSION:
        raise UsageError(
            f"{folder / SIZES} was written by another version of surefit.",
            "Use the version that wrote it.",
        )
    return dict(sizes)
