"""Opens a model that LoRA adapters are trained on already: a run, an export, or a folder of peft.

The adapters are trained further, stay frozen below new ones, or are merged into the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from surefit.errors import UsageError
from surefit.findings import note
from surefit.inputs.encoder import Encoder
from surefit.inputs.tokenizer import has_tokenizer
from surefit.models import lora_files
from surefit.models.custom_modules import RECIPE, open_trained_module
from surefit.models.feature_model import has_feature_layers, load_feature_layers
from surefit.models.lora import (
    Beneath,
    adapted_part,
    adapter_config,
    base_fingerprint,
    fully_trained_modules,
    merge_adapters,
    scale_of,
    trainable_names,
)
from surefit.models.model_source import Built, ModelSource
from surefit.models.pretrained import open_pretrained
from surefit.models.quantize import prepare_quantized
from surefit.models.transformers_models import report_new
from surefit.targets.task_spec import Head
from surefit.user_code import CodeGate

Adapter = Literal["continue", "stack", "merge"]
KIND = "adapted"
DOES = {
    "continue": "are trained further",
    "stack": "stay as they are below the new ones",
    "merge": "are merged into its weights before training",
}


def find_adapters(model: Any) -> Path | None:
    """Return the folder of adapters that a name means: itself, or the model of a run."""
    places = (Path(model), Path(model, "model")) if isinstance(model, str) and model else ()
    return next((place for place in places if lora_files.has_adapters(place)), None)


def open_adapted(
    folder: Path,
    how: Adapter,
    from_scratch: bool,
    trust_remote_code: bool,
    quantize: str | None,
    code: CodeGate,
) -> ModelSource:
    """Return a folder of adapters with their base model; `how` says what becomes of them."""
    if from_scratch:
        raise UsageError(
            f"{folder} has trained adapters, and from_scratch starts from new weights.",
            "Leave out --from-scratch, or pass another model.",
        )
    if how != "continue" and quantize is not None:
        raise UsageError(
            f"adapter={how} merges adapters, which 4-bit weights do not allow.",
            "Merge them first: surefit export RUN OUT --merge, and pass OUT as the model.",
        )
    own = folder / lora_files.BASE
    if (own / RECIPE).is_file():
        source = open_trained_module(str(folder), own, code, from_scratch)
    else:
        place = lora_files.find_base(folder)
        trusted = code.allows_remote(place, trust_remote_code)
        if how == "continue":
            quantize = quantize or lora_files.base_quantization(folder)
        source = open_pretrained(place, False, trusted, quantize)
    base = None if own.is_dir() or how == "merge" else source.base_name
    opening = Opening(folder, source, how, base is not None)
    tokenizer = str(folder) if has_tokenizer(str(folder)) else source.tokenizer
    return replace(
        source,
        name=str(folder),
        kind=KIND,
        base=base,
        build=opening.build,
        outline=None,
        tokenizer=tokenizer,
    )


@dataclass(frozen=True)
class Opening:
    """A folder of adapters, the source of their base model, and what becomes of them."""

    folder: Path
    base: ModelSource
    how: Adapter
    is_named: bool
    """Whether the base model is found by its name; one that is not is saved as it is in memory."""

    def build(self, head: Head | None, encoder: Encoder) -> Built:
        """Return the base model of the task with the adapters in it, or merged into it."""
        built = self.base.build(head, encoder)
        module, part = built.module, adapted_part(built.module)
        prepare_quantized(part)
        if module is not part and has_feature_layers(self.folder):
            load_feature_layers(module, self.folder)
        lora_files.load_adapters(module, self.folder, resized=bool(built.added_tokens))
        kept = fully_trained_modules(part)
        message = (
            f"The adapters of {self.folder} (rank {adapter_config(part).r}) on {self.base.name} "
            f"{DOES[self.how]}."
        )
        if encoder.settings.preference is not None:
            message += " A reference is the model with them."
        beneath = self._beneath(part) if self.how == "stack" and self.is_named else None
        if self.how == "continue":
            trained = trainable_names(module)
            for name, weight in module.named_parameters():
                weight.requires_grad_(name in trained)
        else:
            merge_adapters(module)
            module.requires_grad_(True)
        if beneath is not None:
            part.beneath = beneath  # type: ignore[assignment]
        new = [n for n in built.newly_initialized if not n.startswith(tuple(f"{k}." for k in kept))]
        known = report_new(list(built.newly_initialized))
        found = [each for each in built.findings if each not in known]
        findings = (note(message), *found, *report_new(new))
        return replace(built, findings=findings, newly_initialized=tuple(new))

    def _beneath(self, part: nn.Module) -> Beneath:
        """Return what is to be saved with the new adapters; refuse what they cannot hold."""
        config = adapter_config(part)
        if config.use_dora or config.trainable_token_indices or config.bias != "none":
            raise UsageError(
                f"The adapters of {self.folder} are more than two matrices for each layer (DoRA, "
                "trained tokens or biases), which new ones cannot be stacked on.",
                "Use --set adapter=merge, or adapter=continue to train them further.",
            )
        kept = fully_trained_modules(part)
        state = lora_files.adapter_state(part)
        tensors = {
            name: state[name].detach() * (scale_of(part, layer) if letter == "B" else 1.0)
            for letter in "AB"
            for name, layer in lora_files.matrices(state, letter).items()
        }
        return Beneath(tensors, kept, base_fingerprint(part))
