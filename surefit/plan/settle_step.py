"""Planning with a user's own `training_step`: what it excludes, its optimizers, its first batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from surefit.checks.probes.first_batch import OUTPUT_NOT_FINITE
from surefit.config import RunConfig
from surefit.errors import UsageError, describe_error
from surefit.findings import Finding, note, rule
from surefit.models.learning_rate import Schedule
from surefit.models.named_modules import NamedModules, Part, parse_parts
from surefit.models.optimizer import OptimizerSettings, find_kind
from surefit.models.transformers_models import MODEL_FAILED
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.step import drop_gradients
from surefit.plan.draft import Draft
from surefit.processes import num_processes
from surefit.request import Request
from surefit.speed.numerics import preserved_state
from surefit.targets.own_loss import OwnLossError

UNTRAINED_IN_STEP = rule(
    "SF329",
    "warning",
    "weights without a gradient in a training_step",
    why="The loss that is yielded for their optimizer does not depend on them in the first step, "
    "so they stay as they are.",
    fix="Use them in that loss, or freeze them with requires_grad_(False).",
    accept="The weights stay as they are in such steps.",
)

RATE = 1e-3
"""The learning rate of modules of one's own, if none is given."""
SHOWN = 5


def has_step(d: Draft) -> bool:
    """Return whether the user brings a training_step."""
    return d.objects.training_step is not None


def check_step(d: Draft) -> tuple[Request, list[Finding]]:
    """Refuse what a training_step cannot be combined with; it computes in float32 unless it has an
    autocast of its own."""
    config = d.config
    if d.objects.model is None or isinstance(d.objects.model, str):
        raise UsageError(
            "training_step needs modules that are passed from Python.",
            "Pass model={'g': G(), 'd': D()}, or one module.",
        )
    if d.task.reads.own_fields is None:
        raise UsageError(
            f"The task is {d.task.name}, which has one forward pass and one loss; a training_step "
            "reads columns of numbers as they are.",
            "Leave the task out, or pass a loss_fn.",
        )
    refused = {
        "several processes": (d.request.processes or num_processes()) > 1,
        f"grad_accum={config.grad_accum}": config.grad_accum != 1,
        f"precision={config.precision}": config.precision not in ("auto", "fp32"),
        "lora": bool(config.lora.r),
        "freeze": bool(config.freeze),
        "lr_by": bool(config.lr_by),
        "ema": config.ema is not None,
        "neftune": config.neftune is not None,
    }
    reason = next((name for name, is_asked in refused.items() if is_asked), None)
    if reason is not None:
        raise UsageError(
            f"A training_step cannot be combined with {reason}: each of its losses is one backward "
            "pass over the batch and one step of its optimizer.",
            "Leave it out; freeze weights with requires_grad_(False), cast with torch.autocast in "
            "the step.",
        )
    by = "loss_fn" if d.loss_fn is not None else "the losses of training_step, without backward"
    message = f"Each loss that training_step yields is one step of its optimizer. Evaluation: {by}."
    config = config.model_copy(update={"precision": "fp32"})
    return replace(d.request, config=config), [note(message)]


def parts_of_step(config: RunConfig, given: Any, modules: Any) -> Mapping[str, Part]:
    """Return the optimizers of a training_step, by name."""
    assert isinstance(modules, NamedModules)
    kind = find_kind(config.optimizer)
    settings = OptimizerSettings(config.lr or RATE, config.weight_decay, kind=kind)
    usual = Part("", (), settings, Schedule.of(config), config.clip)
    return parse_parts(given, modules, usual)


def probe_step(d: Draft) -> list[Finding]:
    """Run the first batch through the step, with each backward pass and without the optimizers."""
    pipeline = d.pipeline
    own, modules = pipeline.loss, pipeline.module
    assert isinstance(own, OwnStep)
    assert isinstance(modules, NamedModules)
    batch = pipeline.batch(d.train, d.batches.step_rows(0, 0)[: d.batches.batch_size])
    pipeline.call.clock.step = 1
    try:
        with preserved_state(modules):
            modules.train()
            terms = own.dry_run(modules, batch)
        found = _check_gradients(own, modules, terms.parts)
    except OwnLossError as error:
        raise MODEL_FAILED.error(error.message, fix=error.fix) from error
    except Exception as error:
        columns = ", ".join(f"{n} {list(v.shape)}" for n, v in batch.items() if hasattr(v, "shape"))
        fix = "Repair the step; modules are taken by name: modules['g'](batch['x'])."
        message = f"training_step raised {describe_error(error)} (batch: {columns})"
        raise MODEL_FAILED.error(message, fix=fix) from error
    finally:
        drop_gradients(modules)
    wrong = next((n for n, (total, _) in terms.parts.items() if not total.isfinite()), None)
    if wrong is not None:
        message = f"The loss yielded for {wrong!r} is not finite before the first step."
        raise OUTPUT_NOT_FINITE.error(message)
    return found


def _check_gradients(own: OwnStep, modules: NamedModules, yielded: Iterable[str]) -> list[Finding]:
    """Return the weights of the optimizers that took a step, and got no gradient."""
    weights = {id(weight): name for name, weight in modules.named_parameters()}
    lost = [
        weights[id(weight)]
        for name in yielded
        for weight in own.weights_of(name, modules)
        if weight.grad is None
    ]
    if not lost:
        return []
    shown = ", ".join(lost[:SHOWN]) + (" …" if len(lost) > SHOWN else "")
    return [UNTRAINED_IN_STEP.finding(f"{len(lost)} weights get no gradient: {shown}.")]
