"""tabular-classification: one class per row of numbers, categories and dates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.label_columns import is_continuous
from surefit.data.table import Table
from surefit.encode.encoded_row import Encoding, encoded
from surefit.encode.encoder import Encoder
from surefit.tasks import tabular
from surefit.tasks.baselines import judge_classes
from surefit.tasks.class_task import class_task
from surefit.tasks.classes import class_id, fit_classes, label_field
from surefit.tasks.task_spec import Head


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes, and how the columns are read, in one pass over the rows."""
    gathered = tabular.Gathered(encoder)

    def seen() -> Iterator[Mapping[str, Any]]:
        for row in rows:
            gathered.add(row)
            yield row

    classes = fit_classes(seen(), encoder)
    return {**classes, **gathered.fitted()}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The row's vector, and the class."""
    targets = {}
    if "label" in encoder.roles:
        targets["labels"] = class_id(row, encoder)
    return encoded({"features": tabular.encode_columns(row, encoder), **targets})


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a class, and the table has input columns."""
    return tabular.has_columns(table, roles) and not is_continuous(table, roles["label"])


SPEC = class_task(
    name="tabular-classification",
    summary="one class, or several, per row of numbers, categories and dates",
    needs=(("label",),),
    takes=takes,
    whole_rows=True,
    columns_read=tabular.columns_read,
    fields={"features": tabular.FIELD, "labels": Field((), "int64")},
    fields_of=lambda encoder: {"features": tabular.FIELD, "labels": label_field(encoder)},
    encode=encode,
    fit=fit,
    judge=judge_classes,
    head=Head(size=lambda encoder: len(encoder.classes)),
)
