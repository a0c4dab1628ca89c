"""FeatureModels: sized to the data, saved beside their body, taken over from an earlier run.

The folder is a plain transformers folder of the body, with `features.json` and
`features.safetensors` for what transformers has no class for.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.data.data_rules import WRONG_SHAPE
from surefit.encode.encoder import Encoder
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.models.config_sizes import ProjectionPlan, follow_data, plan_projection
from surefit.models.model_rules import MODEL_READS_NO_FEATURES, NEW_HEAD
from surefit.models.model_source import Built
from surefit.tasks.task_spec import Head

if TYPE_CHECKING:
    from torch import nn

    from surefit.models.feature_model import AdaptiveProjection, FeatureModel

FEATURES_PROJECTED = rule(
    "SF325",
    "fixed",
    "features projected to the model's width",
    why=(
        "A transformers model takes embeddings of one width; a layer that is trained and saved with"
        " it brings the data there."
    ),
    fix="Nothing to do.",
)

PROJECTION_LEFT_OUT = rule(
    "SF327",
    "warning",
    "trained projection left out",
    why="The model was trained on features of another width, so its projection starts anew.",
    fix="Give features of the width the model was trained on, if they are meant to be the same.",
)

CONFIG_FOLLOWS_DATA = rule(
    "SF432",
    "fixed",
    "model config follows the data",
    why="A fresh model is made for the width and the length of the rows it will read.",
    fix="",
)

RUN_PARTS_REUSED = rule(
    "SF434",
    "info",
    "parts of a run taken over",
    why="Training goes on from what that run has learned.",
    fix="",
)


PARTS = "features.json"
WEIGHTS = "features.safetensors"
FORMAT_VERSION = 1


def build_features(
    name: str,
    config: Any,
    head: Head,
    encoder: Encoder,
    load_body: Callable[[], Built],
    from_scratch: bool,
) -> Built:
    """A FeatureModel sized to the data, with the parts of an earlier one that `name` holds."""
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
    notes = _follow(name, config, head, encoder, from_scratch)
    plan = plan_projection(fitted["width"], fitted["longest"], config)
    built = load_body()
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
    if from_scratch or not has_parts(folder):
        new = FEATURES_PROJECTED.finding(_describe(name, plan, "A new"))
        return Built(module, (*notes, *built.findings, new))
    found = _take_over(module, folder, plan)
    return Built(module, (*built.findings, *found))


def _follow(
    name: str, config: Any, head: Head, encoder: Encoder, from_scratch: bool
) -> list[Finding]:
    """Let the config of an untrained body follow the data, and any config the classes."""
    if head.body == "rows" and head.size is not None:
        config.num_labels = head.size(encoder)
    if not from_scratch or name.startswith("tiny:"):  # a tiny body is made for the data anyway
        return []
    changed = follow_data(config, encoder.fitted["width"], encoder.fitted["longest"])
    return [CONFIG_FOLLOWS_DATA.finding(f"{name}: {', '.join(changed)}.")] if changed else []


def _check_config(name: str, config: Any) -> None:
    from transformers import AutoModel

    known = type(config) in AutoModel._model_mapping or hasattr(config, "auto_map")
    has_decoder = getattr(config, "is_encoder_decoder", False)
    if has_decoder or not known or not hasattr(config.get_text_config(), "hidden_size"):
        what = "an encoder and a decoder" if has_decoder else "no body for features"
        raise MODEL_READS_NO_FEATURES.error(
            f"{name} is a {config.model_type} model, which has {what}."
        )


def _check_body(name: str, body: nn.Module) -> None:
    if "inputs_embeds" not in inspect.signature(body.forward).parameters:
        raise MODEL_READS_NO_FEATURES.error(
            f"{name} is a {type(body).__name__}; it takes no inputs_embeds."
        )


def _embedding_std(body: Any) -> float:
    """How far the body's own embeddings spread, which its positions and norms are made for."""
    weight = getattr(body.get_input_embeddings(), "weight", None)
    return float(weight.detach().float().std()) if weight is not None else 0.02


def _new_projection(plan: ProjectionPlan, fitted: Any, std: float) -> AdaptiveProjection:
    """A projection whose outputs spread as the embeddings that it stands in for."""
    from torch import nn

    from surefit.models.feature_model import AdaptiveProjection

    projection = AdaptiveProjection(plan.input_size, plan.width)
    projection.standardise(fitted["feature_mean"], fitted["feature_scale"])
    nn.init.normal_(projection.linear.weight, std=std / plan.width**0.5)
    nn.init.zeros_(projection.linear.bias)
    return projection


def _describe(name: str, plan: ProjectionPlan, which: str) -> str:
    room = f", which has {plan.positions} positions" if plan.positions is not None else ""
    return (
        f"{which} projection takes rows of width {plan.width} (up to {plan.longest} steps) to "
        f"width {plan.input_size} of {name}{room}."
    )


def _take_over(module: FeatureModel, folder: Path, plan: ProjectionPlan) -> list[Finding]:
    """Put in what the folder's model has learned and this one can use, and say what."""
    from safetensors.torch import load_file

    parts, saved = _read_parts(folder), load_file(str(folder / WEIGHTS))
    own = module.state_dict()
    usable = {key: value for key, value in saved.items() if own[key].shape == value.shape}
    if parts["reads"] != module.reads:
        usable = {key: value for key, value in usable.items() if not key.startswith("head.")}
    if parts["width"] != plan.width:
        usable = {k: v for k, v in usable.items() if not k.startswith("projection.")}
    module.load_state_dict(usable, strict=False)
    found = []
    if "head.weight" not in usable:
        found.append(NEW_HEAD.finding("2 weights start untrained: head.weight, head.bias"))
    ours = sorted({key.split(".")[0].replace("_", " ") for key in usable})
    fresh = sorted({key.split(".")[0] for key in saved} - {key.split(".")[0] for key in usable})
    tail = f"; new: {', '.join(fresh)}" if fresh else ""
    found.append(
        RUN_PARTS_REUSED.finding(f"Taken over from {folder}: body, {', '.join(ours)}{tail}.")
    )
    if parts["width"] == plan.width:
        return [*found, FEATURES_PROJECTED.finding(_describe(str(folder), plan, "The trained"))]
    message = f"{folder} was trained on width {parts['width']}; the data has width {plan.width}."
    return [
        *found,
        PROJECTION_LEFT_OUT.finding(message),
        FEATURES_PROJECTED.finding(_describe(str(folder), plan, "A new")),
    ]


def is_feature_model(module: nn.Module) -> bool:
    """Whether the module is one of ours around a transformers body."""
    from surefit.models.feature_model import FeatureModel

    return isinstance(module, FeatureModel)


def has_parts(folder: Path) -> bool:
    """Whether the folder holds a FeatureModel."""
    return (folder / PARTS).is_file()


def trained_width(folder: Path) -> int:
    """The width that the folder's projection takes."""
    return int(_read_parts(folder)["width"])


def save_features(module: Any, folder: Path) -> None:
    """Write the body as a plain transformers folder, and our parts beside it."""
    from surefit.models.pretrained import quiet

    with quiet():
        module.body.save_pretrained(folder)
    save_parts(module, folder)


def save_parts(module: Any, folder: Path) -> None:
    """Write projection, head and mask vector."""
    from safetensors.torch import save_file

    ours = {k: v for k, v in module.state_dict().items() if not k.startswith("body.")}
    save_file({k: v.detach().cpu().contiguous() for k, v in ours.items()}, str(folder / WEIGHTS))
    projection = module.projection.linear
    atomic.write_json(
        folder / PARTS,
        {
            "format_version": FORMAT_VERSION,
            "reads": module.reads,
            "width": projection.in_features,
            "input_size": projection.out_features,
            "hidden_size": module.head.in_features,
            "outputs": module.head.out_features,
        },
    )


def load_features(folder: Path) -> nn.Module:
    """Read what `save_features` wrote, with the body through plain AutoModel."""
    import torch
    from torch import nn
    from transformers import AutoModel

    from surefit.models.feature_model import AdaptiveProjection, FeatureModel
    from surefit.models.pretrained import quiet

    parts = _read_parts(folder)
    with quiet():
        body: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    module = FeatureModel(
        body,
        AdaptiveProjection(parts["input_size"], parts["width"]),
        nn.Linear(parts["hidden_size"], parts["outputs"]),
        parts["reads"],
    )
    load_parts(module, folder)
    return module


def load_parts(module: nn.Module, folder: Path) -> None:
    """Put the saved projection, head and mask vector into a FeatureModel of their sizes."""
    from safetensors.torch import load_file

    module.load_state_dict({**module.state_dict(), **load_file(str(folder / WEIGHTS))})


def _read_parts(folder: Path) -> dict[str, Any]:
    parts = json.loads((folder / PARTS).read_text(encoding="utf-8"))
    if parts["format_version"] != FORMAT_VERSION:
        raise UsageError(
            f"{folder / PARTS} was written by another version of surefit.",
            "Use the version that wrote it.",
        )
    return dict(parts)
