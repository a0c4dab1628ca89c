"""Every operation of our own against the plain one, on the device, in every precision it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from surefit.selftest.outcome import Figures, require


def compare_operations(device: str, folder: Path) -> Figures:
    """Fused LoRA, sparse head, varlen attention, clipping and tied gradients are the plain ones."""
    from surefit.checks.compare_operations import OPERATIONS, compare

    found = [
        compare(name, device, dtype) for name in OPERATIONS for dtype in (None, *_halves(device))
    ]
    figures: Figures = {
        f"{each.operation}, {each.dtype}": f"{each.largest:.1e} of {each.allowed:.0e}"
        for each in found
    }
    wrong = [f"{each.operation} in {each.dtype} at {each.at}" for each in found if not each.ok]
    require(not wrong, f"other results than the plain operation: {', '.join(wrong)}", figures)
    return figures


def _halves(device: str) -> list[Any]:
    """The half precisions that this device computes in."""
    import torch

    from surefit.checks.half_precision_trial import why_not

    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if device != "cpu":
        return list(halves.values())
    return [dtype for name, dtype in halves.items() if why_not(name) is None]
