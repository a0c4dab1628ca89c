"""A finished run computes as its training did: device, precision, compiled layers, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from surefit.checks.machine import usable_precision
from surefit.kernels.aligned_weights import align_weights
from surefit.kernels.compiling import compile_layers
from surefit.kernels.numerics import deterministic_algorithms
from surefit.models.frozen_precision import frozen_as_trained
from surefit.models.lora_files import has_named_base
from surefit.training.engine import make_accelerator

if TYPE_CHECKING:
    from torch import nn

    from surefit.run.run_folder import Run


@contextmanager
def training_numerics(run: Run, module: nn.Module, exactly: bool = False) -> Iterator[str]:
    """Let the run's module compute as in training while the block runs; gives the precision.

    The precision is that of the run, or float32 if this machine cannot compute in it. With
    `exactly`, results are those of training to the bit: weights are aligned as in training, and
    layers are compiled if training compiled them.
    """
    import torch

    plan = run.plan
    precision = usable_precision(plan.get("precision", run.config.precision))
    if exactly and not has_named_base(run.model_path):
        align_weights(module)
    if exactly and plan.get("choices", {}).get("compile", {}).get("compiled"):
        compile_layers(module)
    frozen = plan.get("choices", {}).get("frozen") if exactly and precision != "fp32" else None
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(frozen or "")
    with deterministic_algorithms(run.config.deterministic), frozen_as_trained(module, dtype):
        if precision == "fp32" and not torch.accelerator.is_available():
            yield precision
            return
        accelerator = make_accelerator(precision)
        prepared = "_original_forward" in vars(module)  # a module that was trained in this process
        accelerator.prepare_model(module, evaluation_mode=True)
        try:
            yield precision
        finally:
            if not prepared:
                accelerator.unwrap_model(module, keep_fp32_wrapper=False)
