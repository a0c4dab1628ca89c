"""Opens a custom module that surefit trained: the folder of its run, or of its export.

The folder holds the weights and the name of the code, and brings no permission to run that code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.core.foreign import read_json
from surefit.encode.encoder import Encoder
from surefit.errors import UsageError
from surefit.models import custom_modules, tiny
from surefit.models.load_weights import UNSUITABLE_MODEL, report_new
from surefit.models.model_source import Built, ModelSource
from surefit.models.save_model import RECIPE, WEIGHTS
from surefit.tasks.task_spec import Head
from surefit.user_code import CodeGate
from surefit.user_code.run_code import code_of_folder

if TYPE_CHECKING:
    import torch
    from torch import nn


def find_module_folder(name: str) -> Path | None:
    """The folder with the recipe of a custom module: `name` itself, or the model of a run."""
    places = (Path(name), Path(name) / "model")
    return next((place for place in places if (place / RECIPE).is_file()), None)


def open_trained_module(name: str, folder: Path, code: CodeGate, from_scratch: bool) -> ModelSource:
    """A source that builds the module as its run did, with the weights of the folder."""
    recipe = read_json(folder / RECIPE, dict[str, Any])
    if recipe.get("tiny") == tiny.NAME:
        source = tiny.open_mlp()
    elif "function" in recipe:
        gate = code_of_folder(code, Path(name), _run_id(folder))
        source = custom_modules.open_function(recipe["function"], gate)
    else:
        raise UsageError(
            f"{name} is a {recipe['class']} that was passed in from Python; its folder does not "
            "have its code.",
            f"From Python, load it into your module: model=surefit.load({name!r}, "
            "model=my_module).",
        )
    if from_scratch:
        return source

    def build(head: Head | None, encoder: Encoder) -> Built:
        return _with_weights(source.build(head, encoder), folder / WEIGHTS, name)

    return replace(source, name=name, build=build, untrained=False)


def _run_id(folder: Path) -> Any:
    """The id of the run that the folder is the model of; None for an export."""
    plan = folder.parent / "plan.json"
    if folder.name != "model" or not plan.is_file():
        return None
    return read_json(plan, dict[str, Any]).get("run_id")


def _with_weights(built: Built, path: Path, name: str) -> Built:
    """The module with the weights that fit it; those of another size start untrained."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        saved = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise UNSUITABLE_MODEL.error(
            f"The weights {path} cannot be read: {str(error).splitlines()[0]}",
            fix="Export the model again.",
        ) from None
    module = built.module
    own = module.state_dict()
    shared = saved.keys() & own.keys()
    fitting = {key: saved[key] for key in shared if saved[key].shape == own[key].shape}
    if not fitting:
        raise UNSUITABLE_MODEL.error(
            f"The weights of {name} fit no layer of the module that its code makes.",
            fix="Use the code that the module was trained with.",
        )
    module.load_state_dict(fitting, strict=False)
    loaded = {own[key].data_ptr() for key in fitting}  # shared weights are saved once
    new = sorted(k for k, v in own.items() if k not in fitting and v.data_ptr() not in loaded)
    if not new:
        return built
    findings = (*built.findings, *report_new(new))
    return replace(built, findings=findings, newly_initialized=tuple(new))


def saved_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers in the state of a module; not what layers add to it, as quantized ones do."""
    state = module.state_dict(keep_vars=True)
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name in state}


def trained_tensors(module: nn.Module) -> dict[str, Any]:
    """The weights that are trained, and the buffers: the module's own tensors."""
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {**weights, **saved_buffers(module)}
