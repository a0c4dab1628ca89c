"""custom: columns of numbers as they are, and a module of the user's own with a `loss_fn`."""

from __future__ import annotations

from surefit.inputs import own_columns
from surefit.targets import own_outputs
from surefit.targets.task_spec import Figures, Reads, TaskSpec

SPEC = TaskSpec(
    name="custom",
    summary="a module of your own with a loss_fn, on columns of numbers as they are",
    reads=Reads(
        whole_rows=True,
        own_fields=own_columns.own_fields,
        columns_read=lambda encoder, names: (),
    ),
    targets=(),
    fields=own_columns.fields_of,
    fit=own_columns.fit,
    encode=own_columns.encode,
    count_targets=lambda columns: 1,
    loss=own_outputs.loss,
    decode=own_outputs.decode,
    figures=Figures(reads_outputs=True),
)
