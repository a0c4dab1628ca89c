"""Fields, and columns that are misaligned."""

from __future__ import annotations

import pytest

from surefit import Field
from surefit.batches.field import Misalignment, find_misalignment, well_known_fields

FIELDS = well_known_fields(pad_token_id=7)


def test_only_ids_are_padded_with_the_pad_token() -> None:
    assert {name for name, field in FIELDS.items() if field.pad == 7} == {
        "input_ids",
        "decoder_input_ids",
    }
    assert FIELDS["labels"] == Field(("time",), "int64", -100, "input_ids")


def test_a_misaligned_column_is_found_and_says_so() -> None:
    fault = find_misalignment({"input_ids": 512, "labels": 434}, FIELDS, row=17)
    assert fault == Misalignment(17, "labels", 434, "input_ids", 512)
    assert str(fault) == (
        "row 17: column 'labels' has length 434, "
        "but 'input_ids', which it is aligned with, has length 512"
    )


@pytest.mark.parametrize(
    "lengths",
    [
        {"input_ids": 3, "labels": 3},
        {"labels": 3},
        {"input_ids": 3},
        {"input_ids": 3, "decoder_input_ids": 5, "decoder_attention_mask": 5},
    ],
)
def test_aligned_or_absent_columns_are_no_fault(lengths: dict[str, int]) -> None:
    assert find_misalignment(lengths, FIELDS, row=0) is None
