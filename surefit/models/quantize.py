"""QLoRA: loads the frozen weights in 4 bits; needs CUDA and bitsandbytes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def quantization(bits: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load weights in 4 bits; raises if that is impossible."""
    import torch

    missing = []
    if not torch.cuda.is_available():
        missing.append("a CUDA device")
    if importlib.util.find_spec("bitsandbytes") is None:
        missing.append("the package bitsandbytes")
    if missing:
        raise UsageError(
            f"lora.quantize={bits} needs {' and '.join(missing)}; this machine does not have it.",
            "Leave out lora.quantize; LoRA on unquantized weights works on any device.",
        )
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16,
    )
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def prepare_quantized(part: nn.Module) -> None:
    """Cast norms and embeddings of a 4-bit model to float32, as QLoRA does."""
    if getattr(part, "is_loaded_in_4bit", False):
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(part, use_gradient_checkpointing=False)
