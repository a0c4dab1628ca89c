"""QLoRA: loads the frozen weights in 4 bits, with bitsandbytes, on CUDA or a CPU."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from typing import Any

import torch
from torch import nn

from surefit.errors import UsageError
from surefit.speed.precision import lower_dtype, resolve_precision

BYTES_SHARE = 0.15
"""Bytes of 4-bit weights with their scales, as a share of those in float32; rounded up."""
FOUR_BITS = "4bit"
"""The value of lora.quantize."""


def is_quantized(part: nn.Module) -> bool:
    """Return whether a transformers model has its weights in 4 bits."""
    return bool(getattr(part, "is_loaded_in_4bit", False))


def import_peft() -> None:
    """Import peft, with bitsandbytes only if a 4-bit model has imported it already.

    peft imports bitsandbytes wherever it is installed, which takes seconds, and remembers whether
    it is there; call this before peft is used, so that it looks again for each model.
    """
    is_used = sys.modules.get("bitsandbytes") is not None
    if not is_used:
        sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    try:
        from peft import import_utils

        for found in (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available):
            found.cache_clear()
            found()
    finally:
        if not is_used:
            del sys.modules["bitsandbytes"]


def quantization(bits: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load weights in 4 bits; raises if that is impossible."""
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

    computes_in = lower_dtype(resolve_precision("auto")) or torch.float32
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
    """Return how many weights a parameter has; a quantized one packs several into a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else math.prod(state.shape)


def quantization_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the scales and tables of 4-bit weights, which are neither parameters nor buffers."""
    states = [getattr(parameter, "quant_state", None) for parameter in module.parameters()]
    return [tensor for state in states if state is not None for tensor in _tensors_of(state)]


def _tensors_of(state: Any) -> list[torch.Tensor]:
    own = [t for t in (state.absmax, state.code, state.offset) if t is not None]
    return own if state.state2 is None else [*own, *_tensors_of(state.state2)]


def quantized_on_meta(weight: Any) -> tuple[Any, Any]:
    """Return a 4-bit weight on the meta device, and its scales and tables there."""
    state = _state_on_meta(weight.quant_state)
    return _packed_weight(type(weight), torch.empty_like(weight.data, device="meta"), state), state


def _packed_weight(kind: Any, packed: torch.Tensor, state: Any) -> Any:
    return kind(
        packed,
        quant_state=state,
        blocksize=state.blocksize,
        compress_statistics=state.state2 is not None,
        quant_type=state.quant_type,
        quant_storage=packed.dtype,
        bnb_quantized=True,
    )


def quantize_on_meta(model: Any, config: Any) -> None:
    """Give a model on the meta device the 4-bit layers that its trained weights would have."""
    from bitsandbytes.functional import quantize_4bit
    from bitsandbytes.nn import Linear4bit
    from transformers.quantizers.auto import AutoHfQuantizer

    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    quantizer.preprocess_model(model=model, dtype=torch.float32, device_map=None)
    _, small = quantize_4bit(torch.zeros(64, 64), compress_statistics=True, quant_type="nf4")
    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            layer.weight = _empty_weight(layer.weight, small)
    model.is_loaded_in_4bit = True


def _empty_weight(weight: Any, small: Any) -> Any:
    """Return a 4-bit weight without values, with the state of a small one in its own sizes."""
    state = _state_on_meta(small)
    blocks = math.ceil(weight.numel() / state.blocksize)
    outer = math.ceil(blocks / state.state2.blocksize)
    state.shape, state.offset = weight.shape, small.offset  # a number that is read to be saved
    state.absmax = torch.empty(blocks, dtype=small.absmax.dtype, device="meta")
    state.state2.absmax = torch.empty(outer, dtype=small.state2.absmax.dtype, device="meta")
    packed = torch.empty(math.ceil(weight.numel() / 2), 1, dtype=torch.uint8, device="meta")
    return _packed_weight(type(weight), packed, state)


def _state_on_meta(state: Any) -> Any:
    made = copy.copy(state)
    made.state2 = copy.copy(state.state2)
    made.to("meta")
    return made
