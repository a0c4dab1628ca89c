"""What `accelerate launch` was asked for, against what surefit does with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import lru_cache

from surefit.errors import UsageError

PREFIX = "ACCELERATE_"
"""How the environment variables of `accelerate launch` begin."""
HARMLESS = ("USE_CPU", "USE_MPS_DEVICE", "USE_XPU")
"""Devices, which surefit finds by itself."""
ENGINES = {
    "USE_DEEPSPEED": "DeepSpeed",
    "USE_MEGATRON_LM": "Megatron-LM",
    "USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""What accelerate can train with, by the end of its variable."""
ON = ("true", "1", "yes", "on")
USE_FSDP = f"{PREFIX}USE_FSDP"
FSDP_SETTINGS = {
    "FSDP_SHARDING_STRATEGY": (("1", "full_shard"), "Set fsdp_sharding_strategy to FULL_SHARD"),
    "FSDP_RESHARD_AFTER_FORWARD": (
        (*ON, "full_shard"),
        "Set fsdp_reshard_after_forward to true",
    ),
    "FSDP_OFFLOAD_PARAMS": (("false",), "Set fsdp_offload_params to false"),
    "FSDP_ACTIVATION_CHECKPOINTING": (
        ("false",),
        "Set fsdp_activation_checkpointing to false, and say it to surefit: "
        "--set checkpointing=true",
    ),
    "FSDP_IGNORED_MODULES": (("",), "Leave fsdp_ignored_modules out"),
}
"""Settings of accelerate's FSDP that change what is computed or held where: the values that mean
what `parallel: fsdp` does, and what to do about others. The rest is about speed, units or files."""


@lru_cache(maxsize=1)
def launched_parallel() -> str | None:
    """`fsdp` if this process was launched with it, else None; asked of the environment once."""
    return take_fsdp(os.environ)


def take_fsdp(environment: MutableMapping[str, str]) -> str | None:
    """Take FSDP out of the environment, so that neither accelerate nor transformers act on it.

    >>> given = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
    >>> take_fsdp(given), given["ACCELERATE_USE_FSDP"]
    ('fsdp', 'false')
    """
    if environment.get(USE_FSDP, "").strip().lower() not in ON:
        return None
    for name, (same, fix) in FSDP_SETTINGS.items():
        value = environment.get(name, same[0]).strip()
        if value.lower() not in same:
            raise UsageError(
                f"accelerate launch was asked for {name.lower()} {value}, which is not what "
                "surefit does with parallel=fsdp.",
                f"{fix}; or launch with surefit train --processes N --set parallel=fsdp.",
            )
    environment[USE_FSDP] = "false"
    return "fsdp"


def check_launcher(precision: str, environment: Mapping[str, str] | None = None) -> None:
    """Refuse what `accelerate launch` was asked for and would not happen.

    >>> check_launcher("fp32", {"ACCELERATE_USE_DEEPSPEED": "true"})
    Traceback (most recent call last):
    ...
    surefit.errors.UsageError: accelerate launch was asked for DeepSpeed, with which surefit does \
not train.
    """
    given = os.environ if environment is None else environment
    asked = {
        name.removeprefix(PREFIX): value.strip().lower()
        for name, value in given.items()
        if name.startswith(PREFIX)
    }
    # Of several processes on CPUs it starts one, and leaves the others to mpirun.
    if asked and given.get("MASTER_ADDR") and "WORLD_SIZE" not in given:
        raise UsageError(
            "accelerate launch was asked for several processes on CPUs, but has not said how many, "
            "so that each would train alone.",
            "Launch with surefit train --processes N, or with torchrun.",
        )
    for name, value in sorted(asked.items()):
        if name.startswith("USE_") and name not in HARMLESS and value in ON:
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
