"""Opens a custom nn.Module: `module:function`, or a Python object passed in."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.errors import FindingError, UsageError, describe_error
from surefit.findings import rule
from surefit.models.audio_inputs import module_inputs
from surefit.models.load_weights import MODEL_FAILED, UNSUITABLE_MODEL
from surefit.models.model_source import Built, ModelSource
from surefit.models.module_inputs import find_size_mismatch, module_hints
from surefit.tasks.task_spec import Head
from surefit.user_code import CodeGate
from surefit.user_code.named_code import source_file

if TYPE_CHECKING:
    from torch import nn

OTHER_FEATURE_SIZE = rule(
    "SF433",
    "error",
    "a layer expects another feature size",
    why="The matrix product would fail: mat1 and mat2 shapes cannot be multiplied.",
    fix="Build the module for the feature size of the data, or project the features first.",
)


Made = TypeVar("Made")
SIZE_NAMES = frozenset(
    {"num_classes", "num_labels", "n_classes", "classes", "num_outputs", "output_size"}
)


def open_object(module: Any) -> ModelSource:
    """A source that returns the module passed in."""
    from torch import nn

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
        lambda head, encoder: _check_feature_size(module, head, encoder),
        recipe={"class": name},
        hints=lambda: module_hints(module),
        audio=lambda: module_inputs(module),
    )


def _check_feature_size(module: nn.Module, head: Head | None, encoder: Encoder) -> Built:
    """Raise if a layer of the module expects another feature size than the data has."""
    fitted = encoder.fitted
    if head is None or head.body is None or fitted.get("width") is None:
        return Built(module)
    size = fitted["width"]
    mismatch = find_size_mismatch(module, fitted["longest"], size)
    if mismatch is None:
        return Built(module)
    raise OTHER_FEATURE_SIZE.error(
        f"layer {mismatch.layer!r} of {type(module).__name__} expects feature size "
        f"{mismatch.expected}, the data has {size}.",
        fix=f"Build the module for feature size {size}, or project the features: in __init__, "
        f"self.projection = surefit.AdaptiveProjection({mismatch.expected}, {size}); in forward, "
        "inputs_embeds = self.projection(inputs_embeds).",
    )


def _unwrapped(module: Any) -> Any:
    """The model inside a PeftModel, together with its adapters."""
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
    """A source that calls `module:function`, with the class count if it accepts one."""
    function = code.find(name)
    if not callable(function):
        raise UsageError(
            f"{name} is a {type(function).__name__}, not a function.",
            "Name a function that returns the module.",
        )
    file = source_file(function)

    def build(head: Head | None, encoder: Encoder) -> Built:
        size = head.size(encoder) if head is not None and head.size is not None else None
        return _check_feature_size(call_factory(function, name, size), head, encoder)

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
        audio=lambda: look(module_inputs, None),
    )


def call_factory(function: Callable[..., Any], name: str, size: int | None) -> nn.Module:
    """Call the user's function; its errors are reported with file and line."""
    from torch import nn

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
