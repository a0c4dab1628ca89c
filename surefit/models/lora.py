"""LoRA: adapters put into a model in place, so that it is called, hooked and saved as before."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.config import Lora
from surefit.findings import Finding, rule
from surefit.kernels.fused_lora import fuse_adapters
from surefit.models.lora_targets import (
    ends_are_clear,
    find_kept,
    find_targets,
    in_short,
    output_embedding,
    shares_weights,
)
from surefit.models.model_rules import NO_LORA_TARGET
from surefit.models.model_source import Built
from surefit.models.quantize import prepare_quantized

if TYPE_CHECKING:
    from torch import nn

OTHER_ADAPTERS = rule(
    "SF323",
    "error",
    "the model already has other adapters",
    why="Adapters on adapters could be neither merged nor loaded by peft.",
    fix="Pass the module without its adapters, or ask for the same rank.",
)

NEW_TOKENS_TRAINED = rule(
    "SF324",
    "info",
    "new tokens trained beside the adapters",
    why="A frozen row of a token that the model never saw would stay random.",
    fix="Nothing to do.",
)


ADAPTER = "default"
TASK_TYPES = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
}
"""What peft calls a model, by the Auto class that a task asks for; others have no name there."""


@dataclass(frozen=True)
class Adaptation:
    """What LoRA changed: the adapted layers, those trained in full, all weights that are trained.

    `not_in_every_batch` are the trained weights that some batches may not touch.
    """

    r: int
    alpha: float
    targets: tuple[str, ...]
    kept: tuple[str, ...]
    trained: frozenset[str]
    not_in_every_batch: frozenset[str] = frozenset()

    def as_dict(self) -> dict[str, Any]:
        """The adaptation as the plan shows it."""
        ends = dict.fromkeys(name.rpartition(".")[2] for name in self.targets)
        return {
            "r": self.r,
            "alpha": self.alpha,
            "layers": len(self.targets),
            "targets": list(ends),
            "trained_in_full": list(self.kept),
        }


def adapt(
    built: Built, settings: Lora, num_outputs: int | None, auto_class: str | None
) -> tuple[Adaptation, list[Finding]]:
    """Freeze the model and put adapters into it, in place; heads and new tokens stay trained."""
    part = adapted_part(built.module)
    found: list[Finding] = []
    if not is_adapted(built.module):
        whole = part is built.module
        kept = find_kept(part, num_outputs if whole else None, built.fresh if whole else ())
        rows = _token_rows(part, built.added_tokens) if whole else {}
        if rows:
            message = f"The rows of {len(built.added_tokens)} new tokens are trained in full."
            found.append(NEW_TOKENS_TRAINED.finding(message))
        targets = find_targets(part, settings.targets, kept)
        task_type = TASK_TYPES.get(auto_class or "") if whole else None
        prepare_quantized(part)
        clear = ends_are_clear(part, kept)
        config = _make_config(settings, in_short(part, targets), task_type)
        config.modules_to_save = list(kept) if kept and clear else None
        config.trainable_token_indices = rows or None
        inject(part, config, () if clear else kept)
    has = adapter_config(part)
    asked = (settings.r, settings.dora, settings.rslora)
    if settings.r and (has.r, has.use_dora, has.use_rslora) != asked:
        message = f"The model has LoRA adapters of rank {has.r}; lora.r asks for {settings.r}."
        raise OTHER_ADAPTERS.error(message)
    fuse_adapters(part, ADAPTER)
    return _describe(built.module, has), found


def _make_config(settings: Lora, targets: list[str] | str, task_type: str | None) -> Any:
    from peft import LoraConfig

    alpha: Any = settings.alpha if settings.alpha is not None else 2 * settings.r
    return LoraConfig(
        r=settings.r,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        task_type=task_type,
    )


def adapter_config(part: Any) -> Any:
    """The LoraConfig of the adapters in a module."""
    return part.peft_config[ADAPTER]


def kept_modules(module: nn.Module) -> tuple[str, ...]:
    """Names of the modules that are trained in full beside the adapters."""
    from peft.utils.other import ModulesToSaveWrapper

    return tuple(n for n, m in module.named_modules() if isinstance(m, ModulesToSaveWrapper))


def _describe(module: nn.Module, config: Any) -> Adaptation:
    from peft.tuners.lora import LoraLayer

    trained = trainable_names(module)
    return Adaptation(
        r=config.r,
        alpha=float(config.lora_alpha),
        targets=tuple(n for n, m in module.named_modules() if isinstance(m, LoraLayer)),
        kept=kept_modules(module),
        trained=trained,
        not_in_every_batch=frozenset(name for name in trained if ".trainable_tokens_" in name),
    )


def inject(part: nn.Module, config: Any, kept: Sequence[str] = ()) -> None:
    """Put the layers of a LoraConfig into the module, in place.

    `kept` are modules to train in full whose names would mean more to peft than they do here.
    """
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer
    from peft.utils.other import ModulesToSaveWrapper
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as the layout of Conv1D, which peft sets right
        try:
            inject_adapter_in_model(config, part, adapter_name=ADAPTER)
        except ValueError as error:
            raise NO_LORA_TARGET.error(f"peft refuses these layers: {error}"[:300]) from error
    for name in kept:
        parent, _, last = name.rpartition(".")
        wrapper: Any = ModulesToSaveWrapper(part.get_submodule(name), ADAPTER)
        wrapper.set_adapter(ADAPTER, inference_mode=config.inference_mode)
        setattr(part.get_submodule(parent), last, wrapper)
    for layer in list(part.modules()):
        if isinstance(layer, LoraLayer) and isinstance(layer.get_base_layer(), _ConvNd):
            for name in (
                "kernel_size",
                "stride",
                "padding",
                "dilation",
            ):  # some models read them to pad
                setattr(layer, name, getattr(layer.get_base_layer(), name))
        if isinstance(layer, nn.TransformerEncoderLayer):
            # its fast path reads weights past the adapters; any hook turns that path off
            layer.register_forward_hook(lambda *_: None)


def adapted_part(module: nn.Module) -> nn.Module:
    """Where the adapters are: in the body of a FeatureModel, else in the whole module."""
    from surefit.models.feature_model_files import is_feature_model

    return module.body if is_feature_model(module) else module  # type: ignore[return-value]


def is_adapted(module: nn.Module) -> bool:
    """Whether adapters were put into the module."""
    return ADAPTER in getattr(adapted_part(module), "peft_config", {})


def trainable_names(module: nn.Module) -> frozenset[str]:
    """The weights that are meant to be trained, by what they are and not by requires_grad."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import ModulesToSaveWrapper

    part = adapted_part(module)
    meant = {id(p) for p in module.parameters()} - {id(p) for p in part.parameters()}
    for layer in part.modules():
        if isinstance(layer, BaseTunerLayer | ModulesToSaveWrapper):
            for attribute in layer.adapter_layer_names:
                held = getattr(layer, attribute, None)
                if held is not None:
                    meant |= {id(parameter) for parameter in held.parameters()}
    return frozenset(name for name, p in module.named_parameters() if id(p) in meant)


def _token_rows(part: nn.Module, added: range) -> dict[str, list[int]]:
    """The rows of new tokens, in the embeddings and in the output where that is a layer apart."""
    if not len(added):
        return {}
    names = {layer: name for name, layer in part.named_modules()}
    embedding: nn.Module = part.get_input_embeddings()  # type: ignore[operator]
    rows = {names[embedding]: list(added)}
    output = output_embedding(part)
    if output is not None and not shares_weights(part, output):
        rows[names[output]] = list(added)
    return rows
