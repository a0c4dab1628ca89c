"""Opens any `--model`: chooses the opener by the kind of model."""

from __future__ import annotations

from typing import Any

from surefit.data.remote_url import is_url
from surefit.errors import UsageError
from surefit.models import custom_modules, pretrained, tiny
from surefit.models.adapted_models import Adapter, find_adapters, open_adapted
from surefit.models.model_source import NO_LIMITS, ModelSource, WeightLimits
from surefit.user_code import CodeGate
from surefit.user_code.named_code import is_code_name


def open_model(
    model: Any,
    *,
    from_scratch: bool = False,
    trust_remote_code: bool = False,
    quantize: str | None = None,
    limits: WeightLimits = NO_LIMITS,
    adapter: Adapter | None = None,
    code: CodeGate,
) -> ModelSource:
    """Return source of a folder, hub id, GGUF file, `tiny:ARCH`, `module:function` or nn.Module.

    `adapter` says what becomes of the adapters that a folder has.
    """
    adapted = find_adapters(model)
    if adapted is not None:
        how = adapter or "continue"
        return open_adapted(adapted, how, from_scratch, trust_remote_code, quantize, code)
    source = _open_other(model, from_scratch, code)
    if adapter is not None:
        raise UsageError(
            f"adapter={adapter} is about LoRA adapters, and {model} brings none.",
            "Leave out adapter, or pass a folder of adapters or of a run with LoRA as the model.",
        )
    if source is None:
        trusted = code.allows_remote(pretrained.model_folder(model), trust_remote_code)
        source = pretrained.open_pretrained(model, from_scratch, trusted, quantize, limits)
    if quantize is not None and (source.kind != "pretrained" or source.untrained):
        raise UsageError(
            f"lora.quantize={quantize} needs a trained transformers model; {source.name} is none.",
            "Pass a model folder or hub id, or leave out lora.quantize.",
        )
    return source


def _open_other(model: Any, from_scratch: bool, code: CodeGate) -> ModelSource | None:
    """Return the source of any model but a transformers folder and a hub id."""
    if not isinstance(model, str):
        return custom_modules.open_object(model)
    if not model:
        raise UsageError(
            "No model was given.",
            "Pass --model with a folder, hub id, GGUF file, tiny:ARCH or module:function.",
        )
    if is_url(model):
        raise UsageError(
            "A model cannot be read from a URL; only data can.",
            "Copy it to a folder and pass that, or pass the hub id.",
        )
    if model.endswith(".gguf"):
        return pretrained.open_gguf(model, from_scratch)
    if model == custom_modules.MLP_NAME:
        return custom_modules.open_mlp()
    if model.startswith("tiny:"):
        return tiny.open_tiny(model.removeprefix("tiny:"))
    trained = custom_modules.find_module_folder(model)
    if trained is not None:
        return custom_modules.open_trained_module(model, trained, code, from_scratch)
    return custom_modules.open_function(model, code) if is_code_name(model) else None
