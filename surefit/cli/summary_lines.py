"""The lines a user reads: a plan before training, an evaluation after each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from surefit.memory.gigabytes import show_gb

if TYPE_CHECKING:
    from surefit.checks.ledger import Ledger
    from surefit.memory.predict_peak import Fit
    from surefit.pipeline.job import Job
    from surefit.plan.plan import ModelChoice, Plan

NAMES = {"loss": "eval loss", "token_f1": "Average F1 Score"}
"""Metrics that have a better known name."""
SHOWN_SAMPLES = 3
WIDTH = 100


def plan_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """What will be trained on what, as far as it was decided."""
    if plan.task is not None:
        roles = ", ".join(f"{role} = {column}" for role, column in plan.roles.items())
        yield "task", f"{plan.task.name}{f' ({roles})' if roles else ''}"
    if plan.model is not None:
        yield from _model_lines(plan, plan.model)
    if plan.ledger is not None:
        yield from _row_lines(plan, plan.ledger)
    if plan.job is not None:
        yield from _step_lines(plan.job)
    if "head" in plan.choices:
        yield "speed", _speed_line(plan.choices)
    yield from fit_lines(plan.fit)


def _model_lines(plan: Plan, model: ModelChoice) -> Iterator[tuple[str, str]]:
    from surefit.checks.machine import device_name

    counted = plan.as_dict()["model"]
    whole, trained = counted["parameters"], counted["trainable_parameters"]
    yield "model", f"{counted['name']}: {whole:,} parameters"
    yield "trained", f"{trained:,} parameters ({trained / max(whole, 1):.2%}), lr {model.lr:g}"
    if counted["lora"] is not None:
        yield "lora", _lora_line(counted["lora"])
    if model.source.code is not None:
        yield "code", f"{model.source.code} is run for the model"
    yield "device", device_name()


def _lora_line(lora: Mapping[str, Any]) -> str:
    targets, kept = lora["targets"], lora["trained_in_full"]
    shown = ", ".join(targets[:8]) + (" …" if len(targets) > 8 else "")
    whole = ", ".join(kept[:4]) + (" …" if len(kept) > 4 else "")
    in_full = f"; trained in full: {whole}" if kept else ""
    return f"r {lora['r']}, alpha {lora['alpha']:g} on {lora['layers']} layers ({shown}){in_full}"


def _row_lines(plan: Plan, ledger: Ledger) -> Iterator[tuple[str, str]]:
    dropped = ledger.rows - ledger.used_rows
    yield (
        "rows",
        f"{ledger.rows:,}: {ledger.train_rows:,} to train on, {ledger.eval_rows:,} to "
        f"evaluate on, {dropped:,} dropped, {ledger.truncated_rows:,} truncated",
    )
    factor = plan.config.augmentation_factor
    if factor > 1:
        yield (
            "views",
            f"{ledger.train_rows:,} training rows × {factor} = {ledger.train_views:,} after "
            f"augmentation; the {ledger.eval_rows:,} to evaluate on stay as they are",
        )
    labels = plan.task.fields.get("labels") if plan.task is not None else None
    share = ""
    if labels is not None and labels.rank == 1:  # tokens are what is learned
        share = f" ({ledger.trained_tokens / max(ledger.tokens, 1):.1%})"
    yield (
        "tokens",
        f"{ledger.tokens:,} an epoch; {ledger.trained_tokens:,} targets to learn{share}",
    )


def _step_lines(job: Job) -> Iterator[tuple[str, str]]:
    batches = job.batches
    rows, length = batches.longest()
    share, by_chance = batches.padding_share(), batches.random_padding_share()
    otherwise = f" ({by_chance:.1%} in random batches)" if by_chance > share else ""
    yield (
        "batches",
        f"{batches.num_micro_batches():,} an epoch, the longest {rows} × {length}, "
        f"{share:.1%} padding{otherwise}",
    )
    yield "steps", f"{batches.num_steps(0):,} an epoch, {job.num_steps:,} in all"


def _speed_line(choices: Mapping[str, Any]) -> str:
    """What was chosen by trying it on the model."""
    head = choices["head"]
    logits = "at every token" if head["positions"] == "all" else "at learned tokens only"
    chunk = f", {head['chunk']} at a time" if "chunk" in head else ""
    compiled = "compiled" if choices["compile"]["compiled"] else "not compiled"
    why = choices["compile"]["why"]
    return f"logits {logits}{chunk}; rows {choices['rows']}; {compiled} ({why})"


def evaluation_lines(
    event: Mapping[str, Any], num_epochs: int | None, losses: Sequence[float]
) -> Iterator[Text]:
    """One evaluation: its figures after the mean loss of the steps before it, and samples."""
    epoch, step = event["epoch"], event["step"]
    parts = [f"epoch {epoch}{f'/{num_epochs}' if num_epochs else ''}", f"step {step}"]
    if step == 0:
        parts = ["before training"]
    if losses:
        parts.append(f"loss {sum(losses) / len(losses):.4f}")
    parts += [
        f"{NAMES.get(name, name)} {_figure(value)}"
        for name, value in event["metrics"].items()
        if isinstance(value, int | float)
    ]
    yield Text("  ".join(parts), style="bold")
    for sample in event.get("samples", ())[:SHOWN_SAMPLES]:
        for name, text in (
            ("question", sample["prompt"]),
            ("expected", sample["expected"]),
            ("got", sample["got"]),
        ):
            if text is not None:
                yield Text(f"    {name:<10}{_one_line(text)}", style="dim")


def _figure(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH // 2]} … {line[-WIDTH // 2 :]}"


def fit_lines(fit: Fit | None) -> list[tuple[str, str]]:
    """Peak and time, as far as they are known."""
    lines = []
    if fit is not None and fit.peak_bytes is not None:
        measured = f", measured {show_gb(fit.measured_bytes)}" if fit.measured_bytes else ""
        lines.append(
            (
                "memory",
                f"peak {show_gb(fit.peak_bytes)}{measured}; limit {fit.limit}",
            )
        )
    if fit is not None and fit.total_seconds is not None:
        lines.append(
            (
                "time",
                f"about {show_seconds(fit.total_seconds)} in all, {fit.step_seconds:.2g} s for "
                "the longest step",
            )
        )
    return lines


def show_seconds(seconds: float) -> str:
    """A span of time in words.

    >>> show_seconds(7384), show_seconds(75), show_seconds(3.2)
    ('2 h 3 min', '1 min 15 s', '3 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
