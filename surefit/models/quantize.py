"""QLoRA: loads the frozen weights in 4 bits, with bitsandbytes, on CUDA or a CPU."""

from __future__ import annotations

import copy
import importlib.util
import math
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn


FOUR_BITS = "4bit"
"""The value of lora.quantize."""


def is_quantized(part: nn.Module) -> bool:
    """Whether a transformers model has its weights in 4 bits."""
    return bool(getattr(part, "is_loaded_in_4bit", False))


def quantization(bits: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load weights in 4 bits; raises if that is impossible."""
    import torch

    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"lora.quantize={bits} needs the package bitsandbytes, which is not installed.",
            "Install it (pip install 'surefit[4bit]'), or leave out lora.quantize.",
        )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is not None and device.type != "cuda":
        raise UsageError(
            f"lora.quantize={bits} needs CUDA or a CPU; this machine trains on {device.type}.",
            "Leave out lora.quantize; LoRA on unquantized weights works on any device.",
        )
    from transformers import BitsAndBytesConfig

    computes_in = torch.float32
    if device is not None:
        real = torch.cuda.is_bf16_supported(including_emulation=False)
        computes_in = torch.bfloat16 if real else torch.float16
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=computes_in,
    )
    place = "cpu" if device is None else torch.cuda.current_device()
    return {"quantization_config": config, "device_map": {"": place}}


def prepare_quantized(part: nn.Module) -> None:
    """Cast norms and embeddings of a 4-bit model to float32, as QLoRA does."""
    if not is_quantized(part):
        return
    from peft import prepare_model_for_kbit_training

    prepare_model_for_kbit_training(part, use_gradient_checkpointing=False)
    for layer in part.modules():
        # Else a CPU with bf16 instructions repacks the weights in the first evaluation, computes
        # in bf16 there, and some of these CPUs cannot.
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def num_weights(parameter: nn.Parameter) -> int:
    """How many weights a parameter has; a quantized one packs several into a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else math.prod(state.shape)


def quantization_tensors(module: nn.Module) -> list[torch.Tensor]:
    """The scales and tables of 4-bit weights, which are neither parameters nor buffers."""
    states = [getattr(parameter, "quant_state", None) for parameter in module.parameters()]
    return [tensor for state in states if state is not None for tensor in _tensors_of(state)]


def _tensors_of(state: Any) -> list[torch.Tensor]:
    own = [t for t in (state.absmax, state.code, state.offset) if t is not None]
    return own if state.state2 is None else [*own, *_tensors_of(state.state2)]


def quantized_on_meta(weight: Any) -> tuple[Any, Any]:
    """A 4-bit weight on the meta device, and its scales and tables there."""
    import torch

    state = _state_on_meta(weight.quant_state)
    made = type(weight)(
        torch.empty_like(weight.data, device="meta"),
        quant_state=state,
        blocksize=weight.blocksize,
        compress_statistics=weight.compress_statistics,
        quant_type=weight.quant_type,
        quant_storage=weight.quant_storage,
        bnb_quantized=True,
    )
    return made, state


def _state_on_meta(state: Any) -> Any:
    import torch

    made = copy.copy(state)
    for name in ("absmax", "code", "offset"):
        tensor = getattr(state, name)
        if tensor is not None:
            setattr(made, name, torch.empty_like(tensor, device="meta"))
    if state.state2 is not None:
        made.state2 = _state_on_meta(state.state2)
    return made
