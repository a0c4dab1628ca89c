"""regression: one number, or several, per image, recording, text, row of features or table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from surefit.config import joint_parts
from surefit.data.cell_files import AUDIO, IMAGES, FileKind
from surefit.data.column_types import list_axes
from surefit.data.roles import Role, get_role
from surefit.data.table import Table
from surefit.inputs.audio.audio_input import AUDIO_INPUT
from surefit.inputs.features.feature_sequences import FEATURES
from surefit.inputs.image.image_reading import IMAGE
from surefit.inputs.table.table_input import TABLE, columns_read
from surefit.inputs.text.text_reading import IDS, TEXT, misread
from surefit.targets.row_target import NUMBERS
from surefit.targets.task_spec import Reads
from surefit.tasks.row_task import READS_TEXT, row_task


def _names_files(kind: FileKind) -> Role:
    """Return the role for files of one kind: a text under its name must name such a file."""

    def holds(values: Any) -> bool:
        texts = [value for value in values if isinstance(value, str)]
        return not texts or any(kind.has(text) for text in texts)

    return replace(get_role(kind.role), holds=holds)


FILE_ROLES = (_names_files(IMAGES), _names_files(AUDIO))
"""Roles of a task that also reads tables, of which the path of a file may be one column."""
INPUTS = (IMAGE, AUDIO_INPUT, TEXT, IDS, FEATURES, replace(TABLE, model=TEXT.model))


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether the label is a continuous number, and the table has inputs."""
    label = roles["label"]
    if (
        "features" in roles
        and not joint_parts(label)
        and not pa.types.is_floating(list_axes(table.column_type(label))[1])
        and label.lower() not in get_role("label").names
    ):
        return False  # the numbers of rows, rather than amounts
    given = next((each for each in INPUTS if each.role in roles), INPUTS[-1])
    numbers = table.profile(label)
    is_amount = numbers.is_continuous if given.role == "features" else given.holds_amounts(numbers)
    return is_amount and given.takes(table, roles)


SPEC = row_task(
    "regression",
    INPUTS,
    NUMBERS,
    summary="one number, or several, per image, recording, text, row of features, or row of "
    "numbers, categories and dates",
    roles=FILE_ROLES,
    reads=Reads(takes, misread, exact_targets=False, whole_rows=True, columns_read=columns_read),
    **READS_TEXT,
)
