"""Builds a FeatureModel around a transformers body, sized to the data or reusing an earlier run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.data.data_rules import WRONG_SHAPE
from surefit.encode.encoder import Encoder
from surefit.errors import describe_error
from surefit.findings import Finding, note, rule
from surefit.kernels.tied_embeddings import find_input_embedding
from surefit.models.auto_classes import quiet_transformers
from surefit.models.config_sizes import ProjectionPlan, plan_projection, resize_config
from surefit.models.feature_model_files import (
    has_feature_layers,
    read_sizes,
    read_weights,
)
from surefit.models.load_weights import UNSUITABLE_MODEL, load_weights, new_model
from surefit.models.model_source import Built
from surefit.tasks.task_spec import Head

if TYPE_CHECKING:
    from torch import nn

    from surefit.models.feature_model import AdaptiveProjection, FeatureModel

READS_FEATURES = "Choose a text encoder or decoder, such as tiny:bert, or a custom module."

FEATURES_PROJECTED = rule(
    "SF325",
    "fixed",
    "features projected to the model's input size",
    why=(
        "A transformers model reads embeddings of one size. A linear layer, trained and saved with "
        "the model, projects the features to it."
    ),
    fix="Nothing to do.",
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
    from torch import nn

    from surefit.models.feature_model import FeatureModel

    _check_config(name, config)
    fitted = encoder.fitted
    if fitted["width"] is None:
        column = encoder.roles["features"]
        message = f"No training row of column {column!r} has the axes [steps, width]."
        raise WRONG_SHAPE.error(message, column=column)
    assert head.size is not None
    assert head.body is not None
    notes = _fit_config(name, config, head, encoder, from_scratch)
    plan = plan_projection(fitted["width"], fitted["longest"], config)
    built = _load_body(name, config, from_scratch, trust_remote_code)
    _check_body(name, built.module)
    std = _embedding_std(built.module)
    module = FeatureModel(
        built.module,
        _new_projection(plan, fitted, std),
        nn.Linear(plan.hidden_size, head.size(encoder)),
        head.body,
    )
    nn.init.normal_(module.mask_vector, std=std)
    folder = Path(name)
    if from_scratch or not has_feature_layers(folder):
        new = FEATURES_PROJECTED.finding(_describe(name, plan, "A new"))
        return Built(module, (*notes, *built.findings, new))
    found = _reuse_layers(module, folder, plan)
    return Built(module, (*built.findings, *found))


def _load_body(name: str, config: Any, from_scratch: bool, trust_remote_code: bool) -> Built:
    """A transformers model without a head."""
    from transformers import AutoModel

    with quiet_transformers():
        if not from_scratch:
            return load_weights(AutoModel, name, config, trust_remote_code)
        try:
            return Built(new_model(AutoModel, config, trust_remote_code))
        except Exception as error:  # some architectures can only be built with a head
            what = f"{describe_error(error)}"
            raise UNSUITABLE_MODEL.error(
                f"{name} cannot be built without a head: {what}", fix=READS_FEATURES
            ) from error


def _fit_config(
    name: str, config: Any, head: Head, encoder: Encoder, from_scratch: bool
) -> list[Finding]:
    """Set the class count of any config, and the sizes of an untrained body's."""
    if head.body != "steps" and head.size is not None:
        config.num_labels = head.size(encoder)
    if not from_scratch or name.startswith("tiny:"):  # a tiny body is always built for the data
        return []
    changed = resize_config(config, encoder.fitted["width"], encoder.fitted["longest"])
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


def _check_body(name: str, body: nn.Module) -> None:
    if "inputs_embeds" not in inspect.signature(body.forward).parameters:
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {type(body).__name__}; its forward has no argument inputs_embeds.",
            fix=READS_FEATURES,
        )


def _embedding_std(body: Any) -> float:
    """The standard deviation of the body's embeddings, which its norms are made for."""
    embedding = find_input_embedding(body)
    return float(embedding.weight.detach().float().std()) if embedding is not None else 0.02


def _new_projection(plan: ProjectionPlan, fitted: Any, std: float) -> AdaptiveProjection:
    """A projection whose outputs have the standard deviation of the embeddings they replace."""
    from torch import nn

    from surefit.models.feature_model import AdaptiveProjection

    projection = AdaptiveProjection(plan.input_size, plan.feature_size)
    projection.standardise(fitted["feature_mean"], fitted["feature_scale"])
    nn.init.normal_(projection.linear.weight, std=std / plan.feature_size**0.5)
    nn.init.zeros_(projection.linear.bias)
    return projection


def _describe(name: str, plan: ProjectionPlan, which: str) -> str:
    room = f", which has {plan.positions} positions" if plan.positions is not None else ""
    return (
        f"{which} projection maps feature size {plan.feature_size} (sequence length up to "
        f"{plan.longest}) to input size {plan.input_size} of {name}{room}."
    )


def _reuse_layers(module: FeatureModel, folder: Path, plan: ProjectionPlan) -> list[Finding]:
    """Load the folder's trained layers that fit this model, and report which they are."""
    sizes, saved = read_sizes(folder), read_weights(folder)
    own = module.state_dict()
    usable = {key: value for key, value in saved.items() if own[key].shape == value.shape}
    if sizes["reads"] != module.reads:
        usable = {key: value for key, value in usable.items() if not key.startswith("head.")}
    if sizes["width"] != plan.feature_size:
        usable = {k: v for k, v in usable.items() if not k.startswith("projection.")}
    module.load_state_dict(usable, strict=False)
    found = []
    if "head.weight" not in usable:
        found.append(note("2 weights start untrained: head.weight, head.bias"))
    reused = sorted({key.split(".")[0].replace("_", " ") for key in usable})
    new = sorted({key.split(".")[0] for key in saved} - {key.split(".")[0] for key in usable})
    rest = f"; new: {', '.join(new)}" if new else ""
    found.append(note(f"Reused from {folder}: body, {', '.join(reused)}{rest}."))
    if sizes["width"] == plan.feature_size:
        return [*found, FEATURES_PROJECTED.finding(_describe(str(folder), plan, "The trained"))]
    message = (
        f"{folder} was trained on feature size {sizes['width']}; the data has feature size "
        f"{plan.feature_size}."
    )
    return [
        *found,
        PROJECTION_LEFT_OUT.finding(message),
        FEATURES_PROJECTED.finding(_describe(str(folder), plan, "A new")),
    ]
