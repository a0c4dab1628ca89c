"""What of a table's row is its input."""

from __future__ import annotations

import pyarrow as pa
import pytest

from surefit.data.table import Source, Table
from surefit.plan.split_data import row_parts
from surefit.tasks.find_task import find_task
from surefit.user_code import NamedCode


@pytest.mark.parametrize(
    ("values", "is_input"),
    [
        (["a-1", "a-2", "a-3"], False),
        ([7, 8, 9], False),
        (["01.02.2024", "02.02.2024", "03.02.2024"], True),
        (["2024-02-01 10:00", "2024-02-01 11:00", "2024-02-01 12:00"], True),
    ],
)
def test_ids_are_no_inputs_and_moments_are(values: list[object], is_input: bool) -> None:
    table = Table(
        pa.table({"first": values, "size": [1.0, 1.0, 2.0], "label": [1.5, 2.5, 3.5]}),
        (Source("f", 0),),
        "key",
    )
    parts = row_parts(table, find_task("regression", NamedCode()), {"label": "label"})
    assert ("first" in parts.columns) == is_input
