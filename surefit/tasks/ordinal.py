"""ordinal: one of several ordered classes per text, image, recording, row of features or table."""

from __future__ import annotations

from surefit.inputs.table.table_input import columns_read
from surefit.inputs.text.text_reading import misread
from surefit.targets.ranks import RANKS
from surefit.targets.task_spec import Reads
from surefit.tasks.regression import FILE_ROLES, INPUTS
from surefit.tasks.row_task import READS_TEXT, row_task

SPEC = row_task(
    "ordinal",
    INPUTS,
    RANKS,
    summary="one of three or more ordered classes (label_order) per image, recording, text, row of "
    "features, or row of numbers, categories and dates",
    roles=FILE_ROLES,
    reads=Reads(None, misread, by_name=True, whole_rows=True, columns_read=columns_read),
    **READS_TEXT,
)
