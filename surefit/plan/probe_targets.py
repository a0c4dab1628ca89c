"""Which columns are targets, what the model does with them, and whether they reach its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.branches import FIRST, LENGTHS, PROMPT, is_branched
from surefit.batches.field import IGNORE_INDEX
from surefit.checks.probes.model_probes import check_choice, run_probe
from surefit.checks.probes.outputs import check_scores
from surefit.checks.probes.targets import (
    TARGET_REACHES_OUTPUTS,
    TargetPasses,
    check_targets,
)
from surefit.errors import SurefitError, describe_error
from surefit.findings import Finding
from surefit.inputs.store import Store
from surefit.models.call import (
    FORWARD_NEEDS_LABELS,
    TargetUse,
    has_module_loss,
    is_transformers,
)
from surefit.pipeline.evaluation import as_metric
from surefit.pipeline.open_pipeline import Choices
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.build_model import Built
from surefit.plan.draft import Draft
from surefit.plan.probe_model import expected_outputs, probe_rows
from surefit.speed.numerics import preserved_state

DECODER_INPUTS = ("decoder_input_ids", "decoder_attention_mask")
"""Made from the target, and inputs all the same: earlier tokens."""
READ_ROWS = 8
"""Rows that are read with and without their targets."""
KNOWN_ROWS, KNOWN_VALUES = 256, 1_000_000
"""Rows and values that other targets are taken from, at most."""

OWN_ROWS, OWN_VALUES = 256, 1_000_000
"""Rows and values of a batch that a module of the user's own is probed with, at most."""

Row = Mapping[str, Any]


def choose_target_use(d: Draft) -> tuple[Choices, list[Finding]]:
    """Return columns that prediction lacks, and how forward is called without them, as a choice."""
    pipeline, train = d.pipeline, d.train
    absent, found = _read_without_targets(d.built, train)
    if found:
        return Choices(), found
    rows = probe_rows(pipeline, train)
    batch, other = _collate(pipeline, rows), _collate(pipeline, _changed(rows, train, absent))
    columns = tuple(name for name in batch if name in absent or not _same(batch[name], other[name]))
    columns = tuple(name for name in columns if name not in DECODER_INPUTS)
    if _is_teacher_forced(pipeline):
        columns = tuple(name for name in columns if name != "labels")
    given = {a: c for a, c in pipeline.call.arguments.items() if c in columns}
    if not given:
        forced = _is_teacher_forced(pipeline)
        return Choices(targets=TargetUse(columns) if forced else None), []
    own_loss = has_module_loss(d.first.outputs) or pipeline.counts_in_loss
    use = TargetUse(columns, _is_required(pipeline, given), own_loss)
    use, found = _try_without(pipeline, batch, use)
    return Choices(targets=use), found


def probe_targets(pipeline: Pipeline, train: Store) -> list[Finding]:
    """Return whether other targets change the outputs, where forward receives any."""
    call, steps = pipeline.call, None
    given = {a: c for a, c in call.arguments.items() if c in call.targets.columns}
    if call.auxiliary is not None:  # it passes labels on
        given["labels"] = "labels"
    rows, columns = probe_rows(pipeline, train), {*call.targets.columns, "labels"}
    if _is_teacher_forced(pipeline) and "labels" in call.arguments.values():
        steps = min(len(row["labels"]) for row in rows) // 2
        given = {a: c for a, c in call.arguments.items() if c == "labels"}
    elif not given and "decoder_input_ids" in call.arguments.values():  # each one step later
        columns = {"decoder_input_ids"}
        steps = min(len(row["decoder_input_ids"]) for row in rows) // 2
        given = {a: c for a, c in call.arguments.items() if c in columns}
    if not given:
        return []
    if steps is None and not is_transformers(pipeline.module):  # it may treat some rows apart
        rows = probe_rows(pipeline, train, _rows_all_over(rows, train))
    keep = 0 if steps is None else steps + ("decoder_input_ids" in columns)
    changed = _changed(rows, train, columns, keep)
    batches = _collate(pipeline, rows), _collate(pipeline, changed)
    passes = TargetPasses(pipeline.module, call, *batches, given, steps)
    return run_probe("targets", pipeline.module, lambda: check_targets(passes))


def _rows_all_over(rows: Sequence[Row], train: Store) -> Any:
    """As many rows of the training set as a small batch holds."""
    per_row = max(sum(np.size(value) for value in row.values()) for row in rows)
    count = min(OWN_ROWS, max(2, OWN_VALUES // max(per_row, 1)))
    return np.unique(np.linspace(0, len(train) - 1, count).astype(int))


def _is_teacher_forced(pipeline: Pipeline) -> bool:
    """Return whether forward makes the decoder's inputs from the labels itself."""
    read = {*pipeline.call.arguments.values()}
    return "decoder_input_ids" in pipeline.fields and "decoder_input_ids" not in read


def _read_without_targets(built: Built, train: Store) -> tuple[set[str], list[Finding]]:
    """The columns that rows without targets lack; an error where forward reads one that changes."""
    pipeline, absent = built.pipeline, {"labels"}
    read = {c: a for a, c in pipeline.call.arguments.items()}
    for place in range(min(READ_ROWS, len(train))):
        if train.copy[place]:
            continue
        try:
            raw = built.table.row(int(train.source_row[place]))
            usual, without = pipeline.encode_row(raw), pipeline.for_prediction.encode_row(raw)
        except Exception:  # prediction reports it
            continue
        absent |= {*usual[0].columns} - {*without[0].columns} - {*DECODER_INPUTS, PROMPT, FIRST}
        several = is_branched(usual[0].columns) or LENGTHS in usual[0].columns
        is_same = len(usual) == len(without) and not several
        if pipeline.task.generate is not None or not is_same:
            continue  # earlier tokens of a text are inputs
        for name, value in without[0].columns.items():
            if name in read and not _equal(value, usual[0].columns[name]):
                message = (
                    f"The column {name!r}, which forward's argument {read[name]!r} receives, is "
                    "computed from the target: without its target, a row gets another value."
                )
                fix = "Compute the column from the inputs of the row alone."
                return absent, [TARGET_REACHES_OUTPUTS.finding(message, column=name, fix=fix)]
    return absent, []


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _collate(pipeline: Pipeline, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a batch; a collate_fn that draws random numbers draws the same ones each time."""
    import random

    import torch

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            return pipeline.collate(rows)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _changed(rows: Sequence[Row], train: Store, columns: set[str], keep: int = 0) -> Sequence[Row]:
    """Return the rows with other targets that are valid, too; `keep` steps of sequences stay."""
    made = [dict(row) for row in rows]
    for name in columns & {*rows[0]}:
        values = [np.ravel(row[name]) for row in rows]
        for place in range(min(KNOWN_ROWS, len(train)) if name in train.fields else 0):
            if sum(map(len, values)) < KNOWN_VALUES:
                values.append(np.ravel(train.value(name, place)))
        known = np.unique(np.concatenate(values))
        known = known[np.isfinite(known) & (known != IGNORE_INDEX)]
        for row in made:
            row[name] = _other_values(np.asarray(row[name]), known, keep)
    return made


def _other_values(value: Any, known: Any, keep: int) -> Any:
    """Each value replaced by the next known one; a single known number has one more beside it."""
    if len(known) < 2 and value.dtype.kind != "f":
        return value
    place = np.searchsorted(known, value).clip(0, max(len(known) - 1, 0))
    other = known[(place + 1) % len(known)] if len(known) > 1 else value + 1
    other = np.where(np.isfinite(value) & (value != IGNORE_INDEX), other, value)
    if keep and value.ndim:
        other[:keep] = value[:keep]
    return other.astype(value.dtype)


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return True


def _is_required(pipeline: Pipeline, arguments: Mapping[str, str]) -> bool:
    """Return whether forward has no default for an argument that receives a target."""
    named = inspect.signature(pipeline.module.forward).parameters
    return any(a in named and named[a].default is inspect.Parameter.empty for a in arguments)


def _try_without(
    pipeline: Pipeline, batch: Mapping[str, Any], use: TargetUse
) -> tuple[TargetUse, list[Finding]]:
    """Call the model without the targets of a batch; an error if evaluation could not."""
    import torch

    found: list[Finding] = []
    with preserved_state(pipeline.module), torch.no_grad():
        try:
            outputs = _predicted(pipeline, batch, use)
        except SurefitError:
            raise
        except Exception as error:
            name, columns = type(pipeline.module).__name__, ", ".join(use.columns)
            failed = f"{name}.forward fails without {columns}: {describe_error(error)}"[:300]
            use = replace(use, required=True)
            try:
                outputs = _predicted(pipeline, batch, use)
            except Exception:
                raise FORWARD_NEEDS_LABELS.error(failed) from error
            found.append(FORWARD_NEEDS_LABELS.finding(failed))
        scored = not use.own_loss or _is_scored(pipeline, outputs, batch)
        if use.own_loss and scored and outputs.logits is not None:
            raw, call = getattr(outputs, "raw", outputs), pipeline.call
            found += check_choice(call.reads.pick(raw), {})
    return replace(use, scored=scored), found


def _predicted(pipeline: Pipeline, batch: Mapping[str, Any], use: TargetUse) -> Any:
    return replace(pipeline, call=replace(pipeline.call, targets=use)).predicted(batch)


def _is_scored(pipeline: Pipeline, outputs: Any, batch: Mapping[str, Any]) -> bool:
    """Return whether metrics can be computed from these outputs."""
    if pipeline.call.by_lists:
        return True
    if getattr(outputs, "logits", None) is None:
        return False
    try:
        if check_scores(outputs.logits, batch, expected_outputs(pipeline)):  # more than it needs
            return False
        for metric in pipeline.task.metrics.values():
            as_metric(metric, pipeline.encoder).sums(outputs, batch)
    except Exception:  # outputs of another kind, such as embeddings
        return False
    return True
