"""Whether a run fits on the disk: refused before the first step, with the options that would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.data.cache import cache_folder, use_cache
from surefit.disk_space import free_bytes, on_other_disk
from surefit.findings import Finding, accept_findings, rule
from surefit.gigabytes import show_size
from surefit.models.lora import is_adapted
from surefit.models.lora_files import base_name
from surefit.plan.choose_rehearsal import choose_rehearsal
from surefit.plan.plan import Plan
from surefit.plan.predict_disk import (
    DiskUse,
    Saving,
    num_saves,
    predict_disk,
    spread_checkpoints,
)

if TYPE_CHECKING:
    from torch import nn

DOES_NOT_FIT_ON_DISK = rule(
    "SF860",
    "error",
    "does not fit on the disk",
    why="The run would stop hours later, when a checkpoint or the model cannot be written.",
    fix="Free some space, set keep=1, train with LoRA, or choose an --output on another disk.",
    accept="The run starts. If the disk fills, it stops with the last checkpoint intact.",
)

TIGHT_ON_DISK = rule(
    "SF861",
    "warning",
    "hardly fits on the disk",
    why="Anything else that is written to the same disk while the run trains could fill it.",
    fix="Free some space, set keep=1, or choose an --output on another disk.",
    accept="The run starts.",
)

NOT_ON_THIS_DISK = rule(
    "SF449",
    "warning",
    "does not fit on the disk of this machine",
    why="The plan is for another machine (--device), whose disk is not known here.",
    fix="See that the machine that trains has this much space, or set keep=1.",
)

TIGHT_SHARE = 0.9
"""A run that takes more than this share of what is free is reported."""
ADVISED_RANK = 8


def fit_on_disk(plan: Plan, folder: Path) -> Plan:
    """The plan with what it writes to `folder` and rehearses; the finding that it does not fit."""
    if plan.job is None or plan.model is None:
        return plan
    config, source = plan.config, plan.model.source
    saving = Saving.of(config, plan.job)
    with use_cache(config.cache):
        use = predict_disk(plan.job, source, saving, folder)
        rehearsal = choose_rehearsal(
            plan.job,
            plan.fit,
            use,
            whole=config.rehearse,
            evaluates_first=config.eval_at_start and not config.rehearse,
            divided=saving.gathers,
        )
        plan = replace(plan, rehearsal=rehearsal)
        if use.predicted_bytes <= TIGHT_SHARE * use.free_bytes:
            return replace(plan, disk=use)
        use = replace(use, advice=tuple(_advise(plan, use)))
    plan = replace(plan, disk=use)
    found = _describe(use, elsewhere=plan.request.device is not None)
    return plan.found(accept_findings([found], config.accept))


def _describe(use: DiskUse, elsewhere: bool) -> Finding:
    parts = {name: size for name, size in use.parts.items() if size}
    listed = ", ".join(
        f"{name.replace('_', ' ')} {show_size(size)}" for name, size in parts.items()
    )
    existing = f", of which {show_size(use.existing_bytes)} exist" if use.existing_bytes else ""
    message = (
        f"The run writes up to {show_size(use.predicted_bytes)} to {use.folder}, where "
        f"{show_size(use.free_bytes)} are free ({listed}{existing})."
    )
    if elsewhere:
        return NOT_ON_THIS_DISK.finding(message)
    broken = DOES_NOT_FIT_ON_DISK if not use.fits else TIGHT_ON_DISK
    return broken.finding(message, fix=_suggest(use))


def _suggest(use: DiskUse) -> str:
    fitting = [option for option in use.advice if option["fits"]]
    if not fitting:
        return "Free some space, or choose an --output on a larger disk; no option tried fits."
    return f"Free some space; or set {'; or '.join(map(_show, fitting[:4]))}."


def _show(option: Mapping[str, Any]) -> str:
    settings = " and ".join(f"{key}={value}" for key, value in option["set"].items())
    return f"{settings} ({show_size(option['predicted_bytes'])})"


def _advise(plan: Plan, use: DiskUse) -> Iterator[dict[str, Any]]:
    """Options that write less, or elsewhere, with what they would write."""
    limit = use.free_bytes * TIGHT_SHARE
    for setting, parts in _smaller(plan, use):
        size = max(sum(parts.values()) - use.existing_bytes, 0)
        if size < use.predicted_bytes:
            yield {"set": setting, "predicted_bytes": size, "fits": size <= limit}
    places = [Path.cwd() / "runs", Path.home() / "runs", cache_folder().parent / "runs"]
    for place in on_other_disk(use.folder, places):
        size = sum(use.parts.values())
        fits = size <= TIGHT_SHARE * free_bytes(place)
        if fits and not use.existing_bytes:
            setting = {"output": str(place / use.folder.name)}
            yield {"set": setting, "predicted_bytes": size, "fits": fits}
            return


def _smaller(plan: Plan, use: DiskUse) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """Settings, and the parts of a run with them."""
    job, config = plan.job, plan.config
    assert job is not None
    assert plan.model is not None
    saving = Saving.of(config, job)
    saves, module = num_saves(job, saving), job.pipeline.module
    one = use.parts["checkpoints"] // max(use.num_kept, 1)
    rest = {k: v for k, v in use.parts.items() if k not in ("checkpoints", "temporary")}
    fewer = replace(saving, keep=1)
    if config.keep > 1:
        yield {"keep": 1}, spread_checkpoints(rest, one, saves, job, fewer)
    if is_adapted(module) or use.existing_bytes:
        return
    adapters = _adapter_bytes(module)
    if adapters:
        held = 0 if base_name(plan.model.source) is not None else rest["model"]
        rest = {**rest, "model": held + adapters}
        yield {"lora_r": ADVISED_RANK}, spread_checkpoints(rest, 3 * adapters, saves, job, saving)


def _adapter_bytes(module: nn.Module) -> int:
    """Adapters of a small rank on all linear layers, with room for what is trained in full."""
    from torch import nn

    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return sum(5 * ADVISED_RANK * (part.in_features + part.out_features) for part in layers)
