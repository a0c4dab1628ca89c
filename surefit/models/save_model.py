"""Saves and loads models: as transformers or peft folders where possible, else as our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder, load_encoder
from surefit.models import lora, lora_files
from surefit.models.custom_modules import RECIPE, WEIGHTS, open_recipe
from surefit.models.feature_model import (
    FeatureModel,
    has_feature_layers,
    load_feature_layers,
    save_feature_layers,
)
from surefit.models.lora import merge_adapters, without_adapters
from surefit.models.model_source import ModelSource
from surefit.models.pretrained import Pretrained, read_pretrained
from surefit.models.quantize import prepare_quantized
from surefit.models.transformers_models import quiet_transformers
from surefit.targets.generation import SHAPING
from surefit.targets.sampling import NOT_SAVED
from surefit.targets.sentence_folder import save_modules
from surefit.targets.task_spec import TaskSpec
from surefit.user_code import CodeGate

GENERATION = "generation_config.json"


def save_model(
    module: nn.Module,
    encoder: Encoder,
    source: ModelSource,
    folder: Path,
    when_written: Callable[[Path], None] = lambda temporary: None,
) -> None:
    """Write the model with its Encoder; the folder is written atomically.

    `when_written` is called with the complete folder before it gets its name.
    """
    recipe = {**source.recipe, "code": source.code}
    with files.new_folder(folder, sealed=True) as temporary:
        if lora.is_adapted(module):
            _save_adapted(module, source.base_name, recipe, temporary)
            lora_files.point_to_base(temporary, folder)
        else:
            _save_plain(module, recipe, temporary)
        _save_reading(encoder, module, temporary)
        when_written(temporary)


def _save_reading(encoder: Encoder, module: nn.Module, folder: Path) -> None:
    """Write how rows are read, texts generated, and vectors made."""
    encoder.save(folder)
    if hasattr(module, "config"):
        save_modules(encoder, module.config, folder)
    for place in (folder, folder / lora_files.BASE):
        _save_generation(encoder, place)


def _save_generation(encoder: Encoder, folder: Path) -> None:
    """Let plain `generate(do_sample=False)` make the texts that were evaluated.

    Penalties, beams and forced tokens of the base model, which an evaluation leaves out unless
    `generate.from_model` names them, are not in the file. How the base model samples is.
    """
    settings = encoder.settings.generate
    if not settings or not (folder / GENERATION).is_file():
        return
    from transformers import GenerationConfig

    before = read_json(folder / GENERATION, dict[str, Any])
    kept = {name: value for name, value in before.items() if name not in SHAPING}
    chosen = {name: value for name, value in settings.items() if name not in NOT_SAVED}
    try:
        config: Any = GenerationConfig(**{**kept, **chosen})
    except ValueError:  # what is kept does not go with what was chosen
        config = GenerationConfig(**settings)
    config.save_pretrained(folder)


def _save_plain(module: nn.Module, recipe: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_model as save_weights

    if isinstance(module, FeatureModel):
        with quiet_transformers():
            module.body.save_pretrained(folder)  # type: ignore[operator]
        save_feature_layers(module, folder)
    elif hasattr(module, "save_pretrained"):
        with quiet_transformers():
            module.save_pretrained(folder)  # type: ignore[operator]
    else:
        save_weights(module, str(folder / WEIGHTS))
        files.write_json(folder / RECIPE, recipe)


def _save_adapted(
    module: nn.Module, base: str | None, recipe: dict[str, Any], folder: Path
) -> None:
    """Write the adapters, and the base model if no loader can find it by name."""
    lora_files.save_adapters(module, folder, base or lora_files.BASE)
    if isinstance(module, FeatureModel):
        save_feature_layers(module, folder)
    if base is None:
        part = lora.adapted_part(module)
        (folder / lora_files.BASE).mkdir()
        with without_adapters(part):
            _save_plain(part, recipe, folder / lora_files.BASE)


def write_merged(folder: Path, task: TaskSpec, out: Path, code: CodeGate) -> None:
    """Write the model of an adapter folder, with its adapters merged, into a folder that exists.

    Weights in 4 bits are merged as they are in the files.
    """
    adapted, encoder = load_model(folder, task, code, quantized=False)
    path = folder / lora_files.BASE / RECIPE
    recipe = read_json(path, dict[str, Any]) if path.is_file() else {}
    _save_plain(merge_adapters(adapted), recipe, out)
    _save_reading(encoder, adapted, out)


def load_model(
    folder: Path,
    task: TaskSpec,
    code: CodeGate,
    module: nn.Module | None = None,
    *,
    quantized: bool = True,
) -> tuple[nn.Module, Encoder]:
    """Read what `save_model` wrote; nothing is unpickled, and code runs only through the gate.

    With `quantized`, the base model of adapters is in 4 bits if they were trained on it so.
    """
    trusted = code.allows_remote(str(folder), False)
    encoder = load_encoder(folder, trusted)
    adapted = lora_files.has_adapters(folder)
    own = folder / lora_files.BASE if adapted else folder
    if (own / RECIPE).is_file():
        if module is None:
            source = open_recipe(str(folder), read_json(own / RECIPE, dict[str, Any]), code)
            module = source.build(task.head_for(encoder), encoder).module
        if not lora.is_adapted(module):
            _load_weights(module, own / WEIGHTS)
    else:
        bits = lora_files.base_quantization(folder) if adapted and quantized else None
        place = lora_files.find_base(folder) if adapted else str(folder)
        trusted = code.allows_remote(place, False)
        base = _read_base(folder, place, trusted, bits)
        built = base.build(task.head_for(encoder), encoder)
        module = built.module
        prepare_quantized(module)
        if has_feature_layers(folder):
            load_feature_layers(module, folder)
        elif not adapted and (built.newly_initialized or base.loads != "whole"):
            # `build` starts such weights anew, as training needs it; what was saved has them all.
            lacks = ", ".join(built.newly_initialized[:3]) or "its weights"
            raise UsageError(
                f"{folder} lacks what the saved model needs, or has it in another shape: {lacks}.",
                "Restore the folder, or train and save the model again.",
            )
    return (lora_files.load_adapters(module, folder) if adapted else module), encoder


def needs_module(folder: Path) -> bool:
    """Whether `load_model` reads the folder's weights into a module of own code, if it has one."""
    return any((place / RECIPE).is_file() for place in (folder, folder / lora_files.BASE))


def _read_base(folder: Path, place: str, trusted: bool, quantize: str | None) -> Pretrained:
    try:
        return read_pretrained(place, False, trusted, quantize)
    except UsageError as error:
        if quantize is None:
            raise
        fix = f"{error.fix} Or merge the adapters, unquantized: surefit export RUN OUT --merge."
        raise UsageError(f"{folder} was trained on 4-bit weights. {error.message}", fix) from None


def _load_weights(module: nn.Module, path: Path) -> None:
    from safetensors.torch import load_file
    from safetensors.torch import load_model as load_weights
    from torch.nn.parameter import is_lazy

    try:
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            module.load_state_dict(load_file(path))  # lazy layers take their sizes from it
        else:
            load_weights(module, str(path))
    except RuntimeError as error:
        raise UsageError(
            f"The module does not match the saved weights: {str(error).splitlines()[0]}",
            "Use the code that the module was trained with.",
        ) from None
