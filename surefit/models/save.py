"""Models on disk: plain transformers folders where the model is theirs, else ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.data.encoder import Encoder, load_encoder
from surefit.errors import UsageError
from surefit.models import custom, feature_bodies, mlp
from surefit.models.own_widths import projection_recipe, restore_projection
from surefit.models.pretrained import quiet
from surefit.models.source import ModelSource
from surefit.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = "model.safetensors"
RECIPE = "module.json"


def save_model(module: nn.Module, encoder: Encoder, source: ModelSource, folder: Path) -> None:
    """Write the model with its Encoder; the folder appears whole or not at all."""
    from safetensors.torch import save_model as save_weights

    with atomic.new_folder(folder) as temporary:
        if feature_bodies.is_feature_model(module):
            feature_bodies.save_features(module, temporary)
        elif hasattr(module, "save_pretrained"):
            with quiet():
                module.save_pretrained(temporary)  # type: ignore[operator]
        else:
            save_weights(module, str(temporary / WEIGHTS))
            recipe = {**source.recipe, "code": source.code, **projection_recipe(module)}
            atomic.write_json(temporary / RECIPE, recipe)
        encoder.save(temporary)


def load_model(
    folder: Path, task: TaskSpec, module: nn.Module | None = None
) -> tuple[nn.Module, Encoder]:
    """Read what `save_model` wrote; only safetensors and JSON are read."""
    encoder = load_encoder(folder)
    if feature_bodies.has_parts(folder):
        return feature_bodies.load_features(folder), encoder
    if (folder / "config.json").is_file() and not (folder / RECIPE).is_file():
        return _load_pretrained(folder, task), encoder
    recipe = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    if module is None:
        module = _make_again(recipe, task, encoder)
    restore_projection(module, recipe)
    _load_weights(module, folder / WEIGHTS)
    return module, encoder


def _load_pretrained(folder: Path, task: TaskSpec) -> nn.Module:
    import torch
    import transformers

    assert task.head is not None
    assert task.head.auto_class is not None
    auto = getattr(transformers, task.head.auto_class)
    with quiet():
        module: Any = auto.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return module  # type: ignore[no-any-return]


def _make_again(recipe: dict[str, Any], task: TaskSpec, encoder: Encoder) -> nn.Module:
    if recipe.get("tiny") == mlp.NAME:
        return mlp.open_mlp().build(task.head_for(encoder), encoder).module
    if "function" not in recipe:
        raise UsageError(
            f"The run trained a {recipe['class']} object given from Python; its code is not in "
            "the run's folder.",
            "From Python, pass the module again: surefit.load(run, model=my_module).",
        )
    beside = Path(recipe["code"]).parent if recipe.get("code") else None
    head = task.head_for(encoder)
    return custom.open_function(recipe["function"], beside).build(head, encoder).module


def _load_weights(module: nn.Module, path: Path) -> None:
    from safetensors.torch import load_model as load_weights

    try:
        load_weights(module, str(path))
    except RuntimeError as error:
        raise UsageError(
            f"The module does not fit the saved weights: {str(error).splitlines()[0]}",
            "Use the code of the module that was trained.",
        ) from None
