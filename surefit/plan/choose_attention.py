"""Chooses how padding-free batches attend on the device that trains, or padding if that is faster.

A CPU calls SDPA per row. Another device uses a varlen kernel that is proved on it. Without one,
SDPA per row starts so many operations that padding may be faster: both are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.encode.store import Store
from surefit.errors import describe_error
from surefit.kernels.preserve_state import preserved_state
from surefit.kernels.varlen_attention import restore_attention, use_varlen_attention
from surefit.kernels.varlen_kernels import BY_ROW, Attention, Shape, choose_kernel
from surefit.memory.device_clock import device_seconds
from surefit.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    import torch

TIMED_ROWS = 16
TIMED_PASSES = 3
"""The first one also loads kernels; the fastest counts."""


def choose_attention(
    padded: Pipeline,
    varlen: Pipeline,
    train: Store,
    layers: Sequence[tuple[Shape, Attention]],
    dtype: torch.dtype | None,
) -> tuple[str | None, dict[str, str]]:
    """Why rows are padded after all, or None; and the kernel, as the plan stores it."""
    device = training_device()
    if device.type == "cpu":
        return None, {}
    kernel, why = choose_kernel(layers, device, dtype)
    if kernel != BY_ROW:
        use_varlen_attention(varlen.module, kernel)
        return None, {"attention": kernel}
    refused = why_padding_is_faster(padded, varlen, train, device, dtype)
    if refused is not None:
        restore_attention(varlen.module)
        refused = f"{refused} ({why})"
    return refused, {}


def training_device() -> torch.device:
    """The device that a run on this machine is trained on."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def why_padding_is_faster(
    padded: Pipeline, varlen: Pipeline, train: Store, device: torch.device, dtype: Any
) -> str | None:
    """Time a micro-batch in both layouts on the device; None where padding is slower."""
    module = padded.module
    home = padded.device
    rows = np.arange(min(TIMED_ROWS, len(train)))
    try:
        if home != device:
            module.to(device)
        with preserved_state(module):
            with_padding, without = (
                fastest_pass(each, each.batch(train, rows), dtype) for each in (padded, varlen)
            )
    except Exception as error:  # the device may be too small, or lack an operation
        return f"padding-free batches could not be timed on {device.type}: {describe_error(error)}"
    finally:
        if home != device:
            module.to(home)
    if without <= with_padding:
        return None
    return (
        f"{len(rows)} rows take {with_padding * 1000:.0f} ms padded and {without * 1000:.0f} ms "
        f"padding-free on {device.type}"
    )


def fastest_pass(pipeline: Pipeline, batch: Any, dtype: Any) -> float:
    """Seconds of a forward and backward pass."""
    import torch

    kind = torch.device(pipeline.device).type
    trained = [weight for weight in pipeline.module.parameters() if weight.requires_grad]
    seconds = []
    for _ in range(TIMED_PASSES):
        began = device_seconds()
        with torch.autocast(kind, dtype, enabled=dtype is not None):
            loss = pipeline.loss(pipeline.outputs(batch), batch)[0]
        torch.autograd.grad(loss, trained, allow_unused=True)
        seconds.append(device_seconds() - began)
    return min(seconds)
