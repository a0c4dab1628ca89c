"""LoRA adapters in a model: inserted in place, merged into its weights, or left out for a while."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from surefit.config import Lora
from surefit.findings import Finding, note, rule
from surefit.models.feature_model import FeatureModel
from surefit.models.lora_targets import (
    NO_LORA_TARGET,
    find_fully_trained,
    find_matrices,
    find_targets,
    shares_weights,
    shorten_names,
    suffixes_are_unique,
)
from surefit.models.model_source import Built, ModelSource
from surefit.models.quantize import import_peft, prepare_quantized
from surefit.models.sharding import is_sharded, reshard, sample_shard
from surefit.processes import gather
from surefit.speed.choose_head import find_output_embedding
from surefit.speed.fused_lora import fuse_adapters

OTHER_ADAPTERS = rule(
    "SF323",
    "error",
    "the model already has other adapters",
    why="Adapters that are trained further keep their rank, layers and the modules beside them.",
    fix="Leave the setting out, or use adapter=stack (new adapters on top) or adapter=merge.",
)

ADAPTER = "default"
SAMPLED = 1024
"""Values of each frozen weight that the digest of a base model covers."""
TASK_TYPES = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
}
"""peft's task type by the Auto class of the task; peft has none for the others."""


@dataclass(frozen=True)
class Adaptation:
    """The adapted layers, the modules trained in full, and the names of all trained weights.

    `not_in_every_batch` are trained weights that get no gradient from some batches.
    """

    r: int
    alpha: float
    targets: tuple[str, ...]
    fully_trained: tuple[str, ...]
    trained: frozenset[str]
    not_in_every_batch: frozenset[str] = frozenset()

    def as_dict(self) -> dict[str, Any]:
        """Return the adaptation as plan.json stores it."""
        ends = dict.fromkeys(name.rpartition(".")[2] for name in self.targets)
        return {
            "r": self.r,
            "alpha": self.alpha,
            "layers": len(self.targets),
            "targets": list(ends),
            "trained_in_full": list(self.fully_trained),
        }


@dataclass(frozen=True)
class Beneath:
    """Adapters that are merged below the new ones in memory, and saved side by side with them."""

    tensors: dict[str, torch.Tensor]
    """Their matrices by peft's names in files, scaled."""
    kept: tuple[str, ...]
    """Modules that were trained in full with them."""
    fingerprint: str | None
    """The digest of the base model without them."""


def beneath_of(part: nn.Module) -> Beneath | None:
    """Return the adapters below those of a module, if there are any."""
    found: Beneath | None = getattr(part, "beneath", None)
    return found


def scale_of(part: nn.Module, layer: str) -> float:
    """Return what the product of a layer's two matrices is multiplied by."""
    return float(part.get_submodule(layer).scaling[ADAPTER])  # type: ignore[index]


def adapt(
    built: Built, settings: Lora, num_outputs: int | None, auto_class: str | None
) -> tuple[Adaptation, list[Finding]]:
    """Freeze the model and insert adapters, in place; heads and new tokens are trained in full."""
    import_peft()
    part = adapted_part(built.module)
    found: list[Finding] = []
    if not is_adapted(built.module):
        whole = part is built.module
        outputs, new = (num_outputs, built.newly_initialized) if whole else (None, ())
        beneath = beneath_of(part)
        wanted = settings.modules_to_save + (() if beneath is None else beneath.kept)
        if beneath is not None and settings.dora:
            raise OTHER_ADAPTERS.error("DoRA adapters cannot be stacked on others.")
        full = find_fully_trained(part, outputs, new, wanted)
        _refuse_quantized(part, full)
        rows = _token_rows(part, built.added_tokens) if whole else {}
        if rows:
            message = f"The embeddings of {len(built.added_tokens)} tokens are trained in full."
            found.append(note(message))
        targets = find_targets(part, settings.targets, full)
        task_type = TASK_TYPES.get(auto_class or "") if whole else None
        prepare_quantized(part)
        unique = suffixes_are_unique(part, full)
        config = _make_config(settings, shorten_names(part, targets), task_type)
        config.modules_to_save = list(full) if full and unique else None
        config.trainable_token_indices = rows or None
        insert_adapters(part, config, () if unique else full)
    else:
        _refuse_others(part, built, settings)
    has = adapter_config(part)
    fuse_adapters(part, ADAPTER)
    return _describe(built.module, has), found


def _refuse_others(part: nn.Module, built: Built, settings: Lora) -> None:
    """Refuse settings that the model's own adapters contradict, and new weights beside them."""
    has = adapter_config(part)
    known = {
        "r": has.r,
        "alpha": has.lora_alpha,
        "dropout": has.lora_dropout,
        "rslora": has.use_rslora,
        "dora": has.use_dora,
    }
    asked = settings.model_dump(exclude_defaults=True, exclude={"quantize"})
    for name, value in asked.items():
        if known.get(name, ()) != value:
            is_known = f"have {name}={known[name]}" if name in known else "stay on their layers"
            message = f"The adapters of the model {is_known}; lora.{name} is {value}."
            raise OTHER_ADAPTERS.error(message)
    rows = has.trainable_token_indices or ()
    trained = {
        row for each in (rows.values() if isinstance(rows, dict) else [rows]) for row in each
    }
    kept = tuple(f"{name}." for name in fully_trained_modules(part))
    new = [name for name in built.newly_initialized if not name.startswith(kept)]
    if new or not trained.issuperset(built.added_tokens):
        what = new[0] if new else f"the embeddings of {len(built.added_tokens)} tokens"
        raise OTHER_ADAPTERS.error(f"{what} would be new, and the model's adapters train them not.")


def _refuse_quantized(part: nn.Module, full: Sequence[str]) -> None:
    """Refuse modules that are to be trained in full, and whose weights have 4 bits."""
    for name in full:
        if any(not p.is_floating_point() for p in part.get_submodule(name).parameters()):
            raise NO_LORA_TARGET.error(
                f"{name} is to be trained in full, and lora.quantize keeps its weights in 4 bits.",
                fix="Leave out lora.quantize, or the module in lora.modules_to_save.",
            )


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
    """Return the LoraConfig of the adapters in a module."""
    return part.peft_config[ADAPTER]


def fully_trained_modules(module: nn.Module) -> tuple[str, ...]:
    """Return names of the modules that are trained in full, besides the adapters."""
    from peft.utils.other import ModulesToSaveWrapper

    return tuple(n for n, m in module.named_modules() if isinstance(m, ModulesToSaveWrapper))


def _describe(module: nn.Module, config: Any) -> Adaptation:
    from peft.tuners.lora import LoraLayer

    trained = trainable_names(module)
    return Adaptation(
        r=config.r,
        alpha=float(config.lora_alpha),
        targets=tuple(n for n, m in module.named_modules() if isinstance(m, LoraLayer)),
        fully_trained=fully_trained_modules(module),
        trained=trained,
        not_in_every_batch=frozenset(name for name in trained if ".trainable_tokens_" in name),
    )


def insert_adapters(part: nn.Module, config: Any, fully_trained: Sequence[str] = ()) -> None:
    """Insert the adapters of a LoraConfig into the module, in place.

    `fully_trained` are modules that peft's `modules_to_save` cannot name, because it matches the
    end of a name and other modules end alike.
    """
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer
    from peft.utils.other import ModulesToSaveWrapper

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as one about Conv1D, which peft corrects itself
        try:
            inject_adapter_in_model(config, part, adapter_name=ADAPTER)
        except ValueError as error:
            raise NO_LORA_TARGET.error(f"peft refuses these layers: {error}"[:300]) from error
    for name in fully_trained:
        parent, _, last = name.rpartition(".")
        wrapper: Any = ModulesToSaveWrapper(part.get_submodule(name), ADAPTER)
        wrapper.set_adapter(ADAPTER, inference_mode=config.inference_mode)
        setattr(part.get_submodule(parent), last, wrapper)
    for layer in list(part.modules()):
        if isinstance(layer, LoraLayer) and isinstance(layer.get_base_layer(), _ConvNd):
            for name in ("kernel_size", "stride", "padding", "dilation"):  # some models read them
                setattr(layer, name, getattr(layer.get_base_layer(), name))
        if isinstance(layer, nn.TransformerEncoderLayer):
            # its fast path ignores the adapters; any hook disables that path
            layer.register_forward_hook(lambda *_: None)


def adapted_part(module: nn.Module) -> nn.Module:
    """Return where the adapters are: in the body of a FeatureModel, else in the whole module."""
    return module.body if isinstance(module, FeatureModel) else module


def is_adapted(module: nn.Module) -> bool:
    """Return whether the module has adapters."""
    return ADAPTER in getattr(adapted_part(module), "peft_config", {})


def trainable_names(module: nn.Module) -> frozenset[str]:
    """Return the weights to train, by the layers they belong to and not by requires_grad."""
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


def _token_rows(part: nn.Module, added: Sequence[int]) -> dict[str, list[int]]:
    """Return the rows of new tokens in the input embedding, and in an untied output embedding."""
    if not len(added):
        return {}
    names = {layer: name for name, layer in part.named_modules()}
    embedding: nn.Module = part.get_input_embeddings()  # type: ignore[operator]
    rows = {names[embedding]: list(added)}
    output = find_output_embedding(part)
    if output is not None and not shares_weights(part, output):
        rows[names[output]] = list(added)
    return rows


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """Replace the adapted layers by their base layers inside the block."""
    swapped = list(_swap(module, _base_of))
    try:
        yield
    finally:
        for parent, name, layer in swapped:
            setattr(parent, name, layer)


def merge_adapters(module: nn.Module) -> nn.Module:
    """Merge the adapters into the weights and remove their layers, in place."""
    list(_swap(module, _merged))
    del adapted_part(module).peft_config
    return module


def _swap(
    module: nn.Module, replacement: Callable[[Any], nn.Module]
) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    for parent in list(module.modules()):
        if isinstance(parent, kinds):
            continue
        for name, layer in list(parent.named_children()):
            if isinstance(layer, kinds):
                setattr(parent, name, replacement(layer))
                yield parent, name, layer


def _base_of(layer: Any) -> nn.Module:
    base: nn.Module = (
        layer.original_module if hasattr(layer, "original_module") else layer.get_base_layer()
    )
    return base


def _merged(layer: Any) -> nn.Module:
    if hasattr(layer, "unload_and_optionally_merge_module"):
        plain: nn.Module = layer.unload_and_optionally_merge_module(True, True, None)
        return plain
    layer.merge(safe_merge=True)
    base: nn.Module = layer.get_base_layer()
    return base


def base_fingerprint(module: nn.Module) -> str | None:
    """Return a digest of the frozen weights, by which a changed base model is noticed.

    None where the weights are quantized.
    """
    from peft.utils.other import AuxiliaryTrainingWrapper

    part: Any = adapted_part(module)
    if "base_digest" in vars(part):  # of a base whose values were cast since it was read
        known: str | None = part.base_digest
        return known
    replaced = {
        id(parameter)
        for layer in part.modules()
        if isinstance(layer, AuxiliaryTrainingWrapper)
        for parameter in layer.parameters()
    }
    reshard(module)
    meant = trainable_names(part)
    samples: dict[str, bytes] = {}
    digest = hashlib.sha256()
    for name, parameter in sorted(part.named_parameters()):
        if name in meant or id(parameter) in replaced:
            continue
        if not parameter.is_floating_point():
            return None
        step = max(1, math.ceil(parameter.numel() / SAMPLED))
        sample = sample_shard(parameter.detach(), step).to("cpu", torch.float32)
        plain = f"{name.replace('.base_layer.', '.')} {list(parameter.shape)}"
        # As bytes: a tensor that is a view would be sent with all of the weights it is a view of.
        samples[plain] = sample.contiguous().numpy().tobytes()
    several = gather(samples) if is_sharded(module) else [samples]
    for plain in samples:
        digest.update(plain.encode())
        for each in several:
            digest.update(each[plain])
    return digest.hexdigest()[:32]


def may_lower(module: nn.Module, source: ModelSource) -> bool:
    """Whether the frozen matrices of a model may be cast: its base is read from its own files."""
    part = adapted_part(module)
    if not is_adapted(module) or source.base_name is None or beneath_of(part) is not None:
        return False
    config = adapter_config(part)  # DoRA reads the values of frozen weights
    return not config.use_dora and bool(frozen_matrices(module))


def lower_frozen(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Cast the frozen matrices of an adapted model to `dtype`, in place; None leaves them.

    Autocast casts each weight to the lower precision where it is multiplied by. A weight that is
    trained needs its float32 values; a frozen one does not: cast once, it gives the same products
    to the bit, takes 2 bytes instead of 4, and no copies of it are kept for the backward pass. Only
    matrices of plain linear layers are cast: autocast does not cast embeddings (also where the head
    is tied to them) and norms either. Adapters, saved and merged models keep their precision:
    therefore the base model must be one that is found by its name again.
    """
    if dtype is None:
        return
    part: Any = adapted_part(module)
    frozen = [p for p in frozen_matrices(module) if p.dtype == torch.float32]
    if frozen and not frozen[0].is_meta:
        part.base_digest = base_fingerprint(module)  # of the values in the files
    for parameter in frozen:
        parameter.data = parameter.data.to(dtype)


@contextmanager
def frozen_as_trained(module: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, an adapted model holds and computes its frozen matrices as trained."""
    if dtype is None or not is_adapted(module):
        yield
        return
    part: Any = adapted_part(module)
    fuse_adapters(part, ADAPTER)
    before = [(parameter, parameter.data) for parameter in frozen_matrices(module)]
    lower_frozen(module, dtype)
    try:
        yield
    finally:
        for parameter, values in before:
            parameter.data = values.to(parameter.device)


def frozen_matrices(module: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of plain linear layers that are not trained."""
    meant = trainable_names(module)
    trained = {id(p) for name, p in module.named_parameters() if p.requires_grad or name in meant}
    found = []
    for layer in find_matrices(adapted_part(module)):
        own = [*layer.parameters(recurse=False)]
        if trained.isdisjoint(map(id, own)):
            found += [parameter for parameter in own if parameter.is_floating_point()]
    return found
