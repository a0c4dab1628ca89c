"""What `accelerate launch` was asked for, against what surefit does with it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from surefit.errors import UsageError

PREFIX = "ACCELERATE_"
"""How the environment variables of `accelerate launch` begin."""
HARMLESS = ("USE_CPU", "USE_MPS_DEVICE", "USE_XPU")
"""Devices, which surefit finds by itself."""
ENGINES = {
    "USE_DEEPSPEED": "DeepSpeed",
    "USE_FSDP": "FSDP",
    "USE_MEGATRON_LM": "Megatron-LM",
    "USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""What accelerate can train with, by the end of its variable."""


def check_launcher(precision: str, environment: Mapping[str, str] | None = None) -> None:
    """Refuse what `accelerate launch` was asked for and would not happen.

    >>> check_launcher("fp32", {"ACCELERATE_USE_FSDP": "true"})
    Traceback (most recent call last):
    ...
    surefit.errors.UsageError: accelerate launch was asked for FSDP, with which surefit does not \
train.
    """
    given = os.environ if environment is None else environment
    asked = {
        name.removeprefix(PREFIX): value.strip().lower()
        for name, value in given.items()
        if name.startswith(PREFIX)
    }
    for name, value in sorted(asked.items()):
        if name.startswith("USE_") and name not in HARMLESS and value in ("true", "1", "yes", "on"):
            raise UsageError(
                f"accelerate launch was asked for {ENGINES.get(name, name)}, with which surefit "
                "does not train.",
                "Leave it out of the command or of accelerate's config (accelerate config shows "
                "it), or launch with torchrun or surefit train --processes N.",
            )
    for name, means_nothing, setting in (
        ("MIXED_PRECISION", ("no", precision), "--set precision={}"),
        ("GRADIENT_ACCUMULATION_STEPS", ("1", "auto"), "--grad-accum {}"),
        ("DYNAMO_BACKEND", ("no",), "--set compile=on"),
        ("GRADIENT_CLIPPING", ("none",), "--set clip={}"),
    ):
        value = asked.get(name, means_nothing[0])
        if value not in means_nothing:
            option = name.lower()
            raise UsageError(
                f"accelerate launch was asked for {option} {value}, which surefit does not take "
                "from there.",
                f"Say it to surefit: {setting.format(value)}; and leave it out of accelerate's.",
            )
