"""Opens a custom nn.Module: `module:function`, a Python object passed in, or one that was trained.

The folder of a trained module holds its weights and the name of its code, and brings no permission
to run that code. `tiny:mlp` is a module of surefit's own that is saved in the same way.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from surefit.core.foreign import read_json
from surefit.errors import FindingError, UsageError, describe_error
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints
from surefit.models.model_source import Built, ModelSource
from surefit.models.module_inputs import audio_of_module, module_hints
from surefit.models.transformers_models import MODEL_FAILED, UNSUITABLE_MODEL, report_new
from surefit.targets.task_spec import Head
from surefit.user_code import CodeGate
from surefit.user_code.named_code import source_file
from surefit.user_code.run_code import code_of_folder

WEIGHTS = "model.safetensors"
RECIPE = "module.json"
"""How a saved module is built again."""
MLP_NAME = "tiny:mlp"
MLP_SIZE = 256
Made = TypeVar("Made")
SIZE_NAMES = frozenset(
    {"num_classes", "num_labels", "n_classes", "classes", "num_outputs", "output_size"}
)


def open_object(module: Any) -> ModelSource:
    """Return a source that returns the module passed in."""
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"model is a {type(module).__name__}; expected a name or a torch.nn.Module.",
            "Pass a folder, hub id, tiny:ARCH, module:function or an nn.Module object.",
        )
    module = _unwrapped(module)
    name = type(module).__name__
    return ModelSource(
        name,
        "object",
        lambda head, encoder: Built(module),
        recipe={"class": name},
        hints=lambda: module_hints(module),
        audio=lambda: audio_of_module(module),
    )


def _unwrapped(module: Any) -> Any:
    """Return the model inside a PeftModel, together with its adapters."""
    configs = getattr(module, "peft_config", None)
    if configs is None or not hasattr(module, "get_base_model"):
        return module
    kinds = [f"{name} ({config.peft_type.value})" for name, config in configs.items()]
    if kinds != ["default (LORA)"]:
        raise UsageError(
            f"model is a PeftModel with the adapters {', '.join(kinds)}; expected one LoRA adapter "
            "named default.",
            "Pass the plain model and lora_r.",
        )
    return module.get_base_model()


def open_function(name: str, code: CodeGate) -> ModelSource:
    """Return a source that calls `module:function`, with the class count if it accepts one."""
    function = code.find(name)
    if not callable(function):
        raise UsageError(
            f"{name} is a {type(function).__name__}, not a function.",
            "Name a function that returns the module.",
        )
    file = source_file(function)

    def build(head: Head | None, encoder: Encoder) -> Built:
        size = head.size(encoder) if head is not None and head.size is not None else None
        return Built(call_factory(function, name, size))

    def look(at: Callable[[nn.Module], Made], otherwise: Made) -> Made:
        """What a module built in advance reads, with two classes in place of the true number."""
        try:
            return at(call_factory(function, name, 2))
        except FindingError:  # the real build reports it
            return otherwise

    source = str(Path(file).resolve()) if file else None
    return ModelSource(
        name,
        "function",
        build,
        code=source,
        untrained=True,
        recipe={"function": name},
        hints=lambda: look(module_hints, Hints()),
        audio=lambda: look(audio_of_module, None),
    )


def call_factory(function: Callable[..., Any], name: str, size: int | None) -> nn.Module:
    """Call the user's function; its errors are reported with file and line."""
    arguments = _size_argument(function, size)
    try:
        # stdout is for results, so the output of user code goes to stderr
        with redirect_stdout(sys.stderr):
            module = function(*arguments[0], **arguments[1])
    except (Exception, SystemExit) as error:
        place = _innermost(error, source_file(function))
        raise MODEL_FAILED.error(
            f"{name} raised {describe_error(error)}{place}", fix="Correct the function."
        ) from error
    if not isinstance(module, nn.Module):
        raise UNSUITABLE_MODEL.error(
            f"{name} returned a {type(module).__name__}; expected a torch.nn.Module.",
            fix="Return the module from the function.",
        )
    return module


def _size_argument(
    function: Callable[..., Any], size: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters = inspect.signature(function).parameters
    named = next((name for name in parameters if name in SIZE_NAMES), None)
    if size is None:
        return (), {}
    if named is not None:
        return (), {named: size}
    required = [
        p
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return ((size,), {}) if required else ((), {})


def _innermost(error: BaseException, file: str | None) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" ({file}, line {line})" if line is not None else ""


def open_mlp() -> ModelSource:
    """`tiny:mlp`, a small network that is sized to the columns and classes of the data."""
    return ModelSource(
        MLP_NAME,
        "tiny",
        _build_mlp,
        makes_tokenizer=True,
        untrained=True,
        auto_classes=frozenset(),
        recipe={"tiny": MLP_NAME},
        hints=lambda: Hints(reads_vectors=lambda size: True),
    )


def _build_mlp(head: Head | None, encoder: Encoder) -> Built:
    width, features = encoder.input.width, encoder.input.features
    if width is None or head is None or head.size is None or head.body is not None:
        raise UNSUITABLE_MODEL.error(
            f"{MLP_NAME} reads tabular rows and vectors, and the task {encoder.task} reads "
            f"{', '.join(encoder.roles.values()) or 'whole rows'}.",
            fix="Choose another model, or the task tabular-classification or regression.",
        )
    spread = (None, None) if features is None else (features.mean, features.scale)
    return Built(make_mlp(width, head.size(encoder), *spread))


def make_mlp(
    width: int, num_outputs: int, mean: Sequence[float] | None, scale: Sequence[float] | None
) -> nn.Module:
    """Three times linear, norm, GELU and dropout, and a linear output: (B, W) to (B, C).

    Inputs whose means and scales are known are standardised first.
    """

    class MLP(nn.Module):
        mean: torch.Tensor | None
        scale: torch.Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(layer(size) for size in (width, MLP_SIZE, MLP_SIZE)))
            self.head = nn.Linear(MLP_SIZE, num_outputs)
            for name, values in (("mean", mean), ("scale", scale)):
                self.register_buffer(name, None if values is None else torch.tensor(values))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if self.mean is not None and self.scale is not None:
                features = (features - self.mean) / self.scale
            logits: torch.Tensor = self.head(self.body(features))
            return logits

    def layer(size: int) -> nn.Module:
        norm = nn.LayerNorm(MLP_SIZE)
        return nn.Sequential(nn.Linear(size, MLP_SIZE), norm, nn.GELU(), nn.Dropout(0.1))

    return MLP()


def find_module_folder(name: str) -> Path | None:
    """Return folder with the recipe of a custom module: `name` itself, or the model of a run."""
    places = (Path(name), Path(name) / "model")
    return next((place for place in places if (place / RECIPE).is_file()), None)


def open_recipe(name: str, recipe: Mapping[str, Any], code: CodeGate) -> ModelSource:
    """Return the source that a saved module was built by; `name` is its folder."""
    if recipe.get("tiny") == MLP_NAME:
        return open_mlp()
    if "function" in recipe:
        return open_function(recipe["function"], code)
    raise UsageError(
        f"{name} has a {recipe['class']} that was passed in from Python; the folder does not have "
        "its code.",
        f"From Python, load it into your module: surefit.load({name!r}, model=my_module).",
    )


def open_trained_module(name: str, folder: Path, code: CodeGate, from_scratch: bool) -> ModelSource:
    """Return a source that builds the module as its run did, with the weights of the folder."""
    gate = code_of_folder(code, Path(name), _run_id(folder))
    source = open_recipe(name, read_json(folder / RECIPE, dict[str, Any]), gate)
    if from_scratch:
        return source

    def build(head: Head | None, encoder: Encoder) -> Built:
        return _with_weights(source.build(head, encoder), folder / WEIGHTS, name)

    return replace(source, name=name, build=build, untrained=False)


def _run_id(folder: Path) -> Any:
    """Return the id of the run that the folder is the model of; None for an export."""
    folder = folder.parent if folder.name == "base" else folder  # of adapters
    plan = folder.parent / "plan.json"
    if folder.name != "model" or not plan.is_file():
        return None
    return read_json(plan, dict[str, Any]).get("run_id")


def _with_weights(built: Built, path: Path, name: str) -> Built:
    """Return the module with the weights that fit it; those of another size start untrained."""
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
