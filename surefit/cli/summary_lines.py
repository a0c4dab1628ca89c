"""The lines that summarize a plan before training, and each evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from surefit.cli.terminal import as_line
from surefit.gigabytes import show_gb, show_size
from surefit.progress import show_seconds
from surefit.run.events import Outcome, best_baseline

if TYPE_CHECKING:
    from surefit.checks.ledger import Ledger
    from surefit.memory.predict_peak import Fit
    from surefit.models.module_outputs import OutputChoice
    from surefit.pipeline.open_pipeline import Choices
    from surefit.pipeline.pipeline import Job
    from surefit.plan.disk import DiskUse, Rehearsal
    from surefit.plan.plan import ModelChoice, Plan

NAMES = {"loss": "eval loss"}
"""Metrics that another figure of the line could be mistaken for."""
NO_BASELINES: Mapping[str, Mapping[str, Any]] = {}
SHOWN_SAMPLES = 3
SHOWN_CLASSES = 8
SHOWN_NOTES = 5
WIDTH = 100


Lines = list[tuple[str, str]]


def plan_blocks(plan: Plan, verbose: bool = False) -> Iterator[tuple[str, Lines]]:
    """Yield what will be trained on what, as far as the plan got, in blocks under their titles.

    What is the same in every run, and all notes, are shown if `verbose`.
    """
    yield "Data", [*_data_lines(plan)]
    yield "Model", [*_model_lines(plan, plan.model)] if plan.model is not None else []
    yield "Batches", [*_batch_lines(plan, verbose)]
    costs = fit_lines(plan.fit)
    if plan.disk is not None and (verbose or not plan.disk.fits):
        costs.append(("disk", _disk_line(plan.disk)))
    if plan.rehearsal is not None and (verbose or plan.rehearsal.left_out):
        costs.append(("rehearsal", _rehearsal_line(plan.rehearsal)))
    yield "Memory and time", costs
    shown = len(plan.notes) if verbose else SHOWN_NOTES
    notes = [("note", text) for text in plan.notes[:shown]]
    if more := plan.notes[shown:]:
        text = f"{len(more)} more: --verbose, or `notes` in --json and plan.json"
        notes.append(("note", text))
    yield "Notes", notes


def _data_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    from surefit.data.several_columns import base_role
    from surefit.targets.task_spec import describe_unused

    if plan.task is not None:
        named = ((base_role(role, column), column) for role, column in plan.roles.items())
        roles = ", ".join(f"{role} = {column}" for role, column in named)
        yield "task", f"{plan.task.name}{f' ({roles})' if roles else ''}"
        unused = describe_unused(plan.columns, plan.config.ignore)
        if unused:
            yield "columns not used: ", unused
    if plan.ledger is not None:
        yield from _row_lines(plan, plan.ledger)
    for name, figures in plan.baselines.items():
        yield "baseline", f"{name}: {describe_baseline(figures)}"


def _batch_lines(plan: Plan, verbose: bool) -> Iterator[tuple[str, str]]:
    if plan.job is None or plan.ledger is None:
        return
    yield from _step_lines(plan.job, plan.ledger.unit)
    yield from _process_lines(plan)
    if plan.choices.rows is not None:
        yield "speed", _speed_line(plan.choices, plan.job.batches.padding_free, verbose)


def describe_class_loss(loss: Mapping[str, Any]) -> str:
    """Return class weights and label smoothing, as a plan has them.

    >>> describe_class_loss({"class_weights": {"ham": 0.5, "spam": 5}, "label_smoothing": 0.1})
    'class weights ham 0.5, spam 5; label smoothing 0.1'
    """
    weights = [f"{name} {weight:.4g}" for name, weight in (loss["class_weights"] or {}).items()]
    more = f" … ({len(weights)} classes)" if len(weights) > SHOWN_CLASSES else ""
    shown = [f"class weights {', '.join(weights[:SHOWN_CLASSES])}{more}"] if weights else []
    smooths = loss["label_smoothing"]
    return "; ".join([*shown, *([f"label smoothing {smooths:g}"] if smooths else [])])


def describe_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the metrics that were asked for, with the code of one's own and their directions."""
    parts = []
    for name, about in metrics.items():
        notes = [about["function"]] if about["function"] else []
        notes += [f"{about['better']} is better"] if about["better"] else []
        notes += ["keeps all predictions"] if about["keeps_predictions"] else []
        parts.append(f"{name} ({', '.join(notes)})" if notes else name)
    return ", ".join(parts)


def _model_lines(plan: Plan, model: ModelChoice) -> Iterator[tuple[str, str]]:
    from surefit.checks.machine import device_name

    counted = plan.as_dict()["model"]
    whole, trained = counted["parameters"], counted["trainable_parameters"]
    yield "model", f"{counted['name']}: {whole:,} parameters"
    yield "trainable", f"{trained:,} parameters ({trained / max(whole, 1):.2%}), lr {model.lr:g}"
    yield from pattern_lines(counted)
    if counted["lora"] is not None:
        yield "lora", _lora_line(counted["lora"])
    output = plan.choices.output
    if output is not None and output.used not in (None, "logits") and len(output.returned) > 1:
        yield "output", describe_output(output)
    if model.source.code is not None:
        yield "code", f"the model runs {model.source.code}"
    about = plan.as_dict()
    if about["loss"] is not None:
        yield "loss", describe_class_loss(about["loss"])
    if about["metrics"]:
        yield "metrics", describe_metrics(about["metrics"])
    planned = plan.request.device
    on = f"planned for {planned}" if planned is not None else device_name()
    yield "device", f"{on}, precision {plan.precision}"


def describe_output(output: OutputChoice) -> str:
    """Return which output of a module is used, as the choices of a plan have it.

    >>> from surefit.models.module_outputs import OutputChoice
    >>> describe_output(OutputChoice("asked", {"0": [8], "1": [2]}, 1))
    '1 [2] is used, as outputs says; not used: 0 [8]'
    """
    shapes, used = output.returned, str(output.used)
    others = ", ".join(f"{key} {shape}" for key, shape in shapes.items() if key != used)
    how = {"asked": "as outputs says", "name": "by its name", "size": "by its size"}[output.by]
    return f"{used} {shapes[used]} is used, {how}; not used: {others}"


def pattern_lines(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is frozen and which learning rates are set by patterns, of a plan's `model`."""
    frozen = model.get("frozen")
    if frozen is not None:
        moving = frozen["moving_batch_norms"]
        still = f"; the statistics of {moving} batch norms still change" if moving else ""
        yield (
            "frozen",
            f"{frozen['parameters']:,} parameters in {frozen['tensors']} tensors "
            f"({', '.join(frozen['patterns'])}){still}",
        )
    for pattern, rate in model.get("lr_by", {}).items():
        yield f"lr of {pattern}", f"{rate['lr']:g} for {rate['parameters']:,} parameters"


def _lora_line(lora: Mapping[str, Any]) -> str:
    targets, kept = lora["targets"], lora["trained_in_full"]
    shown = ", ".join(targets[:8]) + (" …" if len(targets) > 8 else "")
    whole = ", ".join(kept[:4]) + (" …" if len(kept) > 4 else "")
    in_full = f"; trained in full: {whole}" if kept else ""
    return f"r {lora['r']}, alpha {lora['alpha']:g} on {lora['layers']} layers ({shown}){in_full}"


def _row_lines(plan: Plan, ledger: Ledger) -> Iterator[tuple[str, str]]:
    dropped = ledger.rows - ledger.used_rows
    split = f", {ledger.split_rows:,} split into blocks" if ledger.split_rows else ""
    yield (
        "rows",
        f"{ledger.rows:,}: {ledger.train_rows:,} training, {ledger.eval_rows:,} validation, "
        f"{dropped:,} dropped, {ledger.truncated_rows:,} truncated{split}",
    )
    yield from ((f"source {name}", ledger.of_source(name)) for name in ledger.sources)
    factor = plan.config.augmentation_factor
    if factor > 1:
        yield (
            "augmented",
            f"{ledger.train_rows:,} training rows × {factor} = {ledger.train_views:,} after "
            "augmentation; the validation set is not augmented",
        )
    augment = plan.as_dict()["augment"]
    if augment is not None:
        yield "augmented", f"{describe_changes(augment)}; the validation set is not augmented"
    yield "per epoch", ledger.per_epoch


def describe_changes(augment: Mapping[str, Any]) -> str:
    """Return the changes of training rows, as a plan has them.

    >>> describe_changes({"changes": {"flip": 0.5, "rotate": 10.0}, "function": "blur"})
    'flip 0.5, rotate 10, blur, anew in each epoch'
    """
    named = [f"{name} {strength:g}" for name, strength in augment["changes"].items()]
    own = [augment["function"]] if augment["function"] else []
    return f"{', '.join([*named, *own])}, anew in each epoch"


def _step_lines(job: Job, unit: str) -> Iterator[tuple[str, str]]:
    batches = job.batches
    rows, length = batches.longest()
    size = f"up to {rows} rows"
    if unit != "rows":
        share, by_chance = batches.padding_share(), batches.random_padding_share()
        otherwise = f" ({by_chance:.1%} in random batches)" if by_chance > share else ""
        size += f" × {length} {unit}, {share:.1%} padding{otherwise}"
    about = "about " if batches.is_sampled and batches.max_tokens is not None else ""
    size += " (estimated)" if batches.is_sampled else ""
    yield "batches", f"{about}{batches.num_micro_batches():,} per epoch, {size}"
    in_all = f"{batches.steps_per_epoch:,} per epoch, {job.num_steps:,} in total"
    blocks = f", blocks of {batches.block_rows} rows" if batches.block_rows > 1 else ""
    yield "steps", f"{in_all}; order: {batches.chosen_order}{blocks}"


def _process_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield how processes share a step."""
    shared = plan.processes_dict()
    if not shared:
        return
    holds = "a shard of the model (fsdp)" if shared["parallel"] == "fsdp" else "the whole model"
    waiting = f"{shared['imbalance']:.1%} of their time is waiting for the slowest"
    yield "processes", f"{shared['count']}, each with {holds}; {waiting}"


def _speed_line(choices: Choices, padding_free: bool, verbose: bool) -> str:
    """Return what was chosen by trying it on the model."""
    loss = ""
    head, compiling = choices.head, choices.compile
    if head is not None:
        places = "every token" if head.positions == "all" else "labelled tokens only"
        chunk = f", in chunks of {head.chunk}" if head.chunk is not None else ""
        why = f" ({head.reason})" if head.reason else ""
        loss = f"loss computed at {places}{chunk}{why}; "
    layout = "padding-free batches" if padding_free else "padded batches"
    if choices.shared_prompts:
        layout += ", in which both answers share their prompt"
    if choices.rows_reason:
        layout += f" ({choices.rows_reason})"
    if choices.attention is not None:
        layout += f" by {choices.attention}"
    if choices.frozen is not None:
        layout += f"; frozen matrices in {choices.frozen}"
    assert compiling is not None
    compiled = f"; {'' if compiling.compiled else 'not '}compiled ({compiling.why})"
    return f"{loss}{layout}{compiled if verbose or compiling.compiled else ''}"


def evaluation_lines(
    event: Mapping[str, Any],
    num_epochs: int | None,
    losses: Sequence[float],
    baselines: Mapping[str, Mapping[str, Any]] = NO_BASELINES,
) -> Iterator[Text]:
    """Yield one evaluation: the mean loss of the steps before it, the metrics, and samples.

    Beside a metric stands the figure of the best baseline.
    """
    epoch, step = event["epoch"], event["step"]
    parts = [f"epoch {epoch}{f'/{num_epochs}' if num_epochs else ''}", f"step {step}"]
    if step == 0:
        parts = ["before training"]
    if losses:
        parts.append(f"loss {sum(losses) / len(losses):.4f}")
    for name, value in event["metrics"].items():
        if isinstance(value, int | float):
            beside = beside_figure(name, baselines)
            parts.append(f"{NAMES.get(name, name)} {show_figure(value)}{beside}")
    yield as_line("  ".join(parts), style="bold")
    for sample in event.get("samples", ())[:SHOWN_SAMPLES]:
        for name, text in (
            ("prompt", sample["prompt"]),
            ("expected", sample["expected"]),
            ("cut off" if sample.get("cut_off") else "generated", sample["got"]),
        ):
            if text is not None:
                yield as_line(f"    {name:<11}{_one_line(text)}", style="dim")


def beside_figure(metric: str, baselines: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the best baseline's figure of a metric in brackets; empty where there is none.

    >>> beside_figure("accuracy", {"majority class": {"accuracy": 0.87}})
    ' (majority class 0.8700)'
    """
    best = best_baseline(metric, baselines)
    return f" ({best[0]} {show_figure(best[1])})" if best is not None else ""


def outcome_lines(found: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table of metrics: before training if that was measured, after, the best baseline.

    >>> [*outcome_lines([Outcome("loss", 1.5, 0.5, 0.75, "mean")])][-1]
    'loss            1.5000 → 0.5      0.7500 (mean)'
    """
    has_before = any(each.before is not None for each in found)
    has_baseline = any(each.baseline is not None for each in found)
    rows = [("metric", "before → after" if has_before else "after", "best baseline")]
    for each in found:
        before = f"{show_figure(each.before)} → " if each.before is not None else ""
        known = each.baseline is not None
        base = f"{show_figure(each.baseline or 0.0)} ({each.baseline_name})" if known else ""
        rows.append((each.metric, f"{before}{each.after:.6g}", base))
    width = max(len(row[1]) for row in rows) + 4
    for name, figures, base in rows if found else ():
        yield result_line(name, f"{figures:<{width}}{base if has_baseline else ''}").rstrip()


def describe_baseline(figures: Mapping[str, Any]) -> str:
    """Return a baseline's figures, the column it reads first.

    >>> describe_baseline({"column": "hour", "rmse": 12.5})
    "'hour', rmse 12.5000"
    """
    shown = [repr(figures["column"])] if "column" in figures else []
    numbers = ((name, value) for name, value in figures.items() if isinstance(value, float))
    shown += [f"{name} {show_figure(value)}" for name, value in numbers]
    return ", ".join([*shown, *([figures["note"]] if "note" in figures else [])])


def result_line(name: str, text: Any) -> str:
    """Return one figure of a result, as commands print it on stdout.

    >>> result_line("roc_auc_bin_error", 0.5)
    'roc_auc_bin_error 0.5'
    """
    return f"{name:<15} {text}"


def show_figure(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH // 2]} … {line[-WIDTH // 2 :]}"


def fit_lines(fit: Fit | None) -> list[tuple[str, str]]:
    """Return the memory peak and the duration, as far as they are known."""
    lines = []
    if fit is not None and fit.peak_bytes is not None:
        measured = f", measured {show_gb(fit.measured_bytes)}" if fit.measured_bytes else ""
        each = " in each process" if "gathers" in fit.parts else ""
        peak = f"peak {show_gb(fit.peak_bytes)}{each}{measured}"
        lines.append(("memory", f"{peak}; limit {fit.limit}"))
    if fit is not None and fit.total_seconds is not None:
        lines.append(
            (
                "time",
                f"about {show_seconds(fit.total_seconds)} in total, {fit.step_seconds:.2g} s for "
                "the longest step",
            )
        )
    return lines


def _disk_line(disk: DiskUse) -> str:
    """Return what the run writes and where, and the largest part of it."""
    kept, model = show_size(disk.parts["checkpoints"]), show_size(disk.parts["model"])
    return (
        f"up to {show_size(disk.predicted_bytes)} to write (checkpoints {kept}, model {model}), "
        f"{show_size(disk.free_bytes)} free"
    )


def _rehearsal_line(rehearsal: Rehearsal) -> str:
    """Return what is tried before the first step, and what is not."""
    left_out = "; ".join(f"{phase} ({why})" for phase, why in rehearsal.left_out.items())
    size = "at true size" if rehearsal.true_size else "on one batch"
    done = f"{', '.join(rehearsal.phases)} before step 1, {size}" if rehearsal.phases else "none"
    return f"{done}; left out: {left_out}" if left_out else done
