"""One step under a magnifying glass: does it wait for the device, what does it launch?"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from surefit.selftest.outcome import Figures, NotApplicableError, require
from surefit.selftest.small_runs import settings_for

MOST_GRAPHS = 4
"""Compiled graphs of one layer type with varying lengths: a first one, and dynamic ones."""


class _Step:
    """Forward and backward of the largest micro-batch of a small plan, by what trains it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        import surefit
        from surefit.checks.machine import resolve_precision
        from surefit.models.optimizer import make_optimizer
        from surefit.training.engine import make_accelerator, make_engine

        plan: Any = surefit.check(**settings_for(folder, **changes))
        self.job, module = plan.job, plan.job.pipeline.module
        accelerator = make_accelerator(plan.config.precision)
        optimizer = make_optimizer(module, plan.model.lr, plan.config.weight_decay)
        self.engine = make_engine(accelerator, module, optimizer, frozen=self.job.frozen_dtype)
        module.train()
        self.batch = self.job.batch(self.job.batches.worst_rows(self.job.epochs))
        self.computes: Figures = {
            "precision": resolve_precision(plan.config.precision),
            "padding_free": bool(self.job.batches.padding_free),
            "attention": plan.choices.get("attention", "no varlen kernel"),
        }
        self.run()  # loads kernels

    def run(self) -> None:
        from surefit.models.call import compute_losses

        pipeline, engine = self.job.pipeline, self.engine
        total, _, _ = compute_losses(pipeline.call, pipeline.loss, engine.model, self.batch)
        engine.accelerator.backward(total)
        engine.model.zero_grad()


def count_syncs(device: str, folder: Path) -> Figures:
    """Forward and backward must not wait for the device."""
    import torch

    if device != "cuda":
        raise NotApplicableError("only CUDA reports where the host waits for the device")
    step = _Step(folder)
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            step.run()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    waits = [f"{Path(w.filename).name}:{w.lineno}" for w in seen if "synchroniz" in str(w.message)]
    figures: Figures = {"waits": waits, **step.computes}
    require(not waits, f"the host waited {len(waits)} times for the device", figures)
    return figures


def count_launches(device: str, folder: Path) -> Figures:
    """How many operations, and on CUDA kernels, one forward and backward consists of."""
    from torch.profiler import ProfilerActivity, profile

    step = _Step(folder)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as profiled:
        step.run()
    events = profiled.events() or []
    figures: Figures = {
        "operations": sum(event.name.startswith("aten::") for event in events),
        "launches": sum("LaunchKernel" in event.name for event in events),
        **step.computes,
    }
    require(figures["operations"] > 0, "the profiler saw no operation", figures)
    require(device != "cuda" or figures["launches"] > 0, "nothing ran on the device", figures)
    return figures


def compile_varying_rows(device: str, folder: Path) -> Figures:
    """A compiled model trains on rows of varying length without compiling again and again."""
    if device != "cuda":
        raise NotApplicableError("compiling takes minutes on this device and gains nothing")
    from torch._dynamo.utils import counters

    import surefit

    run: Any = surefit.train(**settings_for(folder, compile="on", padding_free="off"))
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    figures = {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    require(0 < figures["graphs"] <= MOST_GRAPHS, "layers were compiled too often", figures)
    require(figures["last_loss"] < figures["first_loss"], "the loss did not fall", figures)
    return figures
