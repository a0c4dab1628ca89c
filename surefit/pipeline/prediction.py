"""Predictions for rows, by the Encoder that was saved with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from surefit.batches.loading import to_batch
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.table import Table
from surefit.encode.casting import cast_columns
from surefit.encode.encoded_row import Encoded, RowFaultError, Skip
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import relaid
from surefit.encode.images.image_files import with_files
from surefit.encode.text.batch_tokenizing import finished
from surefit.models.call import Call, match_arguments
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.models.quiet_transformers import quiet_transformers
from surefit.tasks.task_spec import TaskSpec

if TYPE_CHECKING:
    from torch import nn

CHUNK_ROWS = 256

_OPTIONAL = ("mask", "labels", "input", "tools")


def predict_table(
    module: nn.Module,
    encoder: Encoder,
    task: TaskSpec,
    table: Table,
    batch_size: int = 16,
    max_new_tokens: int = 64,
    collate_fn: Callable[..., Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """One dict per row, in the order of the rows; a row that cannot be read says why.

    Columns with the targets (labels, answers) are neither needed nor looked at.
    """
    encoder = reading_inputs(encoder, task)
    table = _only_column(encoder, table)
    _check_columns(encoder, table)
    encoder, _ = relaid(encoder, table)
    table = with_files(table, encoder.roles)
    module.eval()
    chunk: list[dict[str, Any]] = []
    first = 0
    for raw in table.rows():
        chunk.append(raw)
        if len(chunk) == CHUNK_ROWS:
            yield from _predict_chunk(
                module, encoder, task, table, chunk, first, batch_size, max_new_tokens, collate_fn
            )
            first, chunk = first + len(chunk), []
    yield from _predict_chunk(
        module, encoder, task, table, chunk, first, batch_size, max_new_tokens, collate_fn
    )


def reading_inputs(encoder: Encoder, task: TaskSpec) -> Encoder:
    """The encoder without the roles that are to be predicted."""
    roles = {role: column for role, column in encoder.roles.items() if role not in task.targets}
    return replace(encoder, roles=roles, settings={**encoder.settings, "predicting": True})


def _only_column(encoder: Encoder, table: Table) -> Table:
    """The table; where it has one column only and one is read, that column under its name."""
    read = [column for role, column in encoder.roles.items() if role not in _OPTIONAL]
    if len(table.columns) != 1 or len(read) != 1 or encoder.whole_rows:
        return table
    return replace(table, arrow=table.arrow.rename_columns(read))


def _check_columns(encoder: Encoder, table: Table) -> None:
    for role, column in encoder.roles.items():
        if column not in table.columns and role not in _OPTIONAL:
            raise MISSING_COLUMN.error(
                f"{table.sources[0].file} has no column {column!r} (the {role}); it has "
                f"{', '.join(table.columns)}.",
                fix=f"Rename the column that holds the {role} to {column!r}.",
                column=column,
            )


def _predict_chunk(
    module: nn.Module,
    encoder: Encoder,
    task: TaskSpec,
    table: Table,
    rows: list[dict[str, Any]],
    first: int,
    batch_size: int,
    max_new_tokens: int,
    collate_fn: Callable[..., Any] | None,
) -> Iterator[dict[str, Any]]:
    fields = task.fields_for(encoder)
    made: dict[int, dict[str, Any]] = {}
    ready: list[tuple[int, Mapping[str, Any]]] = []
    for place, raw in enumerate(rows, start=first):
        encoded = _encode(raw, encoder, task, table, place)
        if isinstance(encoded, Skip):
            made[place] = {"prediction": None, "skipped": encoded.reason}
            continue
        known = {name: spec for name, spec in fields.items() if name in encoded}
        ready.append((place, cast_columns(encoded, known)))
    ready.sort(key=lambda pair: -max((len(v) for v in pair[1].values() if v.ndim), default=1))
    for start in range(0, len(ready), batch_size):
        places, columns = zip(*ready[start : start + batch_size], strict=True)
        predictions = _predict_batch(
            module, encoder, task, list(columns), fields, max_new_tokens, collate_fn
        )
        made.update(zip(places, predictions, strict=True))
    for place in sorted(made):
        yield {"row": place, **made[place]}


def _encode(
    raw: Mapping[str, Any], encoder: Encoder, task: TaskSpec, table: Table, place: int
) -> Mapping[str, Any] | Skip:
    try:
        encoded = finished(task.encode(encoder.read(raw), encoder), encoder.tokenizer)
    except RowFaultError as fault:
        where = table.where(place)
        message = f"row {where['row']}: {fault.message}"
        raise fault.rule.error(message, where, fix=fault.fix, column=fault.column) from None
    if isinstance(encoded, Skip):
        return encoded
    columns = encoded.columns if isinstance(encoded, Encoded) else encoded
    return {**columns, **{name: raw[name] for name in encoder.extras}}


def _predict_batch(
    module: nn.Module,
    encoder: Encoder,
    task: TaskSpec,
    rows: list[Mapping[str, Any]],
    fields: Mapping[str, Any],
    max_new_tokens: int,
    collate_fn: Callable[..., Any] | None,
) -> list[dict[str, Any]]:
    import torch

    with torch.no_grad(), quiet_transformers():
        if task.generate is not None:
            samples = task.generate.answer(module, rows, encoder, max_new_tokens)
            return [
                {"prediction": sample.got, "prompt": asdict(sample)["prompt"]} for sample in samples
            ]
        if task.decode is None:
            raise UNSUITABLE_MODEL.error(f"The task {task.name} says not how to read predictions.")
        batch = to_batch(rows, fields, collate_fn, _device(module))
        outputs = _call(module, batch)(module, batch)
        return task.decode(outputs, batch, encoder)


def _call(module: nn.Module, batch: Mapping[str, Any]) -> Call:
    return match_arguments(module, list(batch))[0]


def _device(module: nn.Module) -> Any:
    parameter = next(module.parameters(), None)
    return parameter.device if parameter is not None else "cpu"
