"""Predictions for rows, by the Encoder that was saved with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.data.forecast_windows import shown_columns
from surefit.data.table import Table
from surefit.inputs.encoded_row import RowFaultError
from surefit.models.auxiliary_loss import without_router_logits
from surefit.models.call import refuse_without_targets
from surefit.models.transformers_models import UNSUITABLE_MODEL, quiet_transformers
from surefit.pipeline.row_groups import group_rows, row_chunks
from surefit.speed.compiling import not_compiled
from surefit.targets.generation import Sample, num_new_tokens
from surefit.targets.own_outputs import decode_by

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Pipeline

CHUNK_ROWS = 256
PROMPTS = ("messages", "prompt", "source", "text")
"""Roles of what is answered or continued."""

Row = Mapping[str, Any]


def predict(
    pipeline: Pipeline, table: Table, batch_size: int, max_new_tokens: int | None
) -> Iterator[dict[str, Any]]:
    """Yield one dict per row, in the order of the rows; a skipped row has its reason.

    Columns with the targets (labels, answers) are neither needed nor looked at.
    """
    new_tokens = num_new_tokens(pipeline.encoder, max_new_tokens)
    accepted = pipeline.accept(table)
    pipeline = replace(pipeline, encoder=accepted.encoder)
    pipeline.module.eval()
    first, chunk = 0, []
    for raw in accepted.table.rows():
        chunk.append(raw)
        if len(chunk) == CHUNK_ROWS:
            yield from _predict_chunk(pipeline, table, first, chunk, batch_size, new_tokens)
            first, chunk = first + len(chunk), []
    yield from _predict_chunk(pipeline, table, first, chunk, batch_size, new_tokens)


def _predict_chunk(
    pipeline: Pipeline,
    table: Table,
    first: int,
    raws: Sequence[Row],
    batch_size: int,
    max_new_tokens: int,
) -> Iterator[dict[str, Any]]:
    """Yield rows that are tokenized together, predicted in batches, the longest rows first."""
    made: dict[int, dict[str, Any]] = {}
    ready: list[tuple[int, Row]] = []
    for place, encoded in enumerate(pipeline.row_encoder.many(raws), start=first):
        try:
            ready.append((place, encoded()[0].columns))
        except RowFaultError as fault:
            if fault.reason:
                made[place] = {"prediction": None, "skipped": fault.reason}
                continue
            where = table.where(place)
            message = f"row {where['row']}: {fault.message}"
            raise fault.rule.error(message, where, fix=fault.fix, column=fault.column) from None
    generates = pipeline.task.generate is not None and pipeline.predict_fn is None
    together = pipeline.row_groups.generation if generates else pipeline.row_groups.forward
    groups = group_rows([columns for _, columns in ready], together, prompts=generates)
    longest = [max((len(v) for v in row.values() if v.ndim), default=1) for _, row in ready]
    for chosen in row_chunks(np.array(longest, np.int64), batch_size, None, groups):
        places, rows = zip(*(ready[number] for number in chosen.tolist()), strict=True)
        predictions = _predict_batch(pipeline, list(rows), max_new_tokens)
        for place, prediction in zip(places, predictions, strict=True):
            raw = raws[place - first]
            named = shown_columns(pipeline.encoder.settings.windows, raw)
            made[place] = {**named, **prediction, **_as_written(pipeline, raw, prediction)}
    for place in sorted(made):
        yield {"row": place, **made[place]}


def _as_written(pipeline: Pipeline, raw: Row, prediction: Row) -> dict[str, Any]:
    """Return the prompt as the user's row has it, in place of what the template makes of it."""
    roles = pipeline.encoder.roles
    column = next((roles[role] for role in PROMPTS if role in roles), None)
    if "prompt" not in prediction or column is None or raw.get(column) is None:
        return {}
    return {"prompt": raw[column]}


def _shown(sample: Sample) -> dict[str, Any]:
    """Return what is predicted for a row: an answer, or several."""
    answers = [answer.got for answer in sample.answers]
    several = {"predictions": answers} if len(answers) > 1 else {}
    marked = {"cut_off": True} if sample.cut_off else {}
    return {"prediction": sample.got, **several, **marked, "prompt": sample.prompt}


def _predict_batch(
    pipeline: Pipeline, rows: list[Row], max_new_tokens: int
) -> list[dict[str, Any]]:
    import torch

    task, encoder = pipeline.task, pipeline.encoder
    with torch.no_grad(), quiet_transformers(), without_router_logits(pipeline.module):
        own = pipeline.predict_fn
        if task.generate is not None and own is None:
            with not_compiled(pipeline.module):
                samples = task.generate.answer(pipeline.module, rows, encoder, max_new_tokens)
            return [_shown(sample) for sample in samples]
        if task.decode is None and own is None:
            raise UNSUITABLE_MODEL.error(
                f"The task {task.name} has no `decode`, so it cannot predict."
            )
        refuse_without_targets(pipeline.call, pipeline.module)
        batch = pipeline.collate(rows)
        outputs = pipeline.outputs(batch)
        if own is not None or task.reads.own_fields is not None:
            # Which axes are the rows and their padding is not known.
            shortest = min(rows, key=lambda row: sum(value.size for value in row.values()))
            counts = len(rows), 3 if len(rows) == 2 else 2
            other = pipeline.collate([shortest] * counts[1])
            again = pipeline.outputs(other)
            raws = [getattr(each, "raw", each) for each in (outputs, again)]
            outputs = SimpleNamespace(raw=raws[0], again=(other, raws[1]), counts=counts)
        if own is not None:
            return decode_by(own, outputs, batch, encoder)
        assert task.decode is not None
        return task.decode(outputs, batch, encoder)
