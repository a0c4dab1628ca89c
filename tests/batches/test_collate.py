"""The collator against exact tensors and a slow reference, and the faults it names."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import surefit
from collating import BATCH_DTYPES, NUMPY_DTYPES, PAD, TOKENIZER, as_lists, numbered
from surefit import Collator, Field
from surefit.batches.collator import CollateError


def test_every_known_column_is_padded_with_its_own_value() -> None:
    row = {
        "input_ids": [5, 6, 7],
        "attention_mask": [1, 1, 1],
        "token_type_ids": [0, 1, 1],
        "position_ids": [0, 1, 2],
        "special_tokens_mask": [1, 0, 0],
        "labels": [-100, 6, 7],
        "decoder_input_ids": [3, 4],
        "decoder_attention_mask": [1, 1],
    }
    short = {name: value[:1] for name, value in row.items()}
    assert as_lists(Collator(TOKENIZER)([row, short])) == {
        "input_ids": [[5, 6, 7], [5, PAD, PAD]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[0, 1, 1], [0, 0, 0]],
        "position_ids": [[0, 1, 2], [0, 0, 0]],
        "special_tokens_mask": [[1, 0, 0], [1, 1, 1]],
        "labels": [[-100, 6, 7], [-100, -100, -100]],
        "decoder_input_ids": [[3, 4], [3, PAD]],
        "decoder_attention_mask": [[1, 1], [1, 0]],
    }


def test_features_lead_when_there_are_no_ids() -> None:
    embeds = [torch.ones(2, 3), torch.ones(1, 3)]
    rows = [{"inputs_embeds": value, "labels": i} for i, value in enumerate(embeds)]
    batch = Collator()(rows)
    assert batch["inputs_embeds"].tolist() == [[[1.0] * 3] * 2, [[1.0] * 3, [0.0] * 3]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [0, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_unknown_columns_are_padded_along_the_sequence_or_by_themselves(side: Any) -> None:
    rows = [
        {"input_ids": [5, 6, 7], "along": [[1], [2], [3]], "own": [1] * 4, "fixed": [1, 2]},
        {"input_ids": [8], "along": [[4]], "own": [2] * 6, "fixed": [3, 4]},
    ]
    right = {
        "input_ids": [[5, 6, 7, PAD], [8, PAD, PAD, PAD]],
        "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "along": [[[1], [2], [3], [0]], [[4], [0], [0], [0]]],
        "own": [[1, 1, 1, 1, 0, 0], [2] * 6],
        "fixed": [[1, 2], [3, 4]],
    }
    left = {
        **right,
        "input_ids": [[PAD, 5, 6, 7], [PAD, PAD, PAD, 8]],
        "attention_mask": [[0, 1, 1, 1], [0, 0, 0, 1]],
        "along": [[[0], [1], [2], [3]], [[0], [0], [0], [4]]],
    }
    batch = Collator(TOKENIZER, pad_to_multiple_of=4, padding_side=side)(rows)
    assert as_lists(batch) == (left if side == "left" else right)


@pytest.mark.parametrize("dtype", BATCH_DTYPES)
def test_a_batch_has_the_dtype_of_its_rows_or_a_wider_signed_one(dtype: str) -> None:
    batch = Collator()([{"x": numbered([2], dtype)}, {"x": numbered([1], dtype)}])
    assert batch["x"].dtype == BATCH_DTYPES[dtype]


@pytest.mark.parametrize(
    ("labels", "expected", "dtype"),
    [
        ([3, 0], [3, 0], torch.int64),
        ([np.uint8(3), np.uint8(0)], [3, 0], torch.int64),
        ([torch.tensor(3, dtype=torch.int32), torch.tensor(0)], [3, 0], torch.int64),
        ([True, False], [True, False], torch.bool),
        ([0.5, 1], [0.5, 1.0], torch.float32),
        ([np.float64(0.5), np.float64(1)], [0.5, 1.0], torch.float64),
        ([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], [[1, 0, 1], [0, 0, 1]], torch.float32),
        ([[0.5, 0.5], [1.5]], [[0.5, 0.5], [1.5, 0]], torch.float32),
        ([[[1, 2], [3, 4]], [[5, 6]]], [[[1, 2], [3, 4]], [[5, 6], [-100, -100]]], torch.int64),
        (["good", "bad"], ["good", "bad"], None),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("name", ["label", "labels"])
def test_labels_of_every_kind(name: str, labels: list[Any], expected: Any, dtype: Any) -> None:
    ids = [[5, 6], [7]]
    rows = [{"input_ids": i, name: label} for i, label in zip(ids, labels, strict=True)]
    batch = Collator(TOKENIZER)(rows)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert as_lists(batch)["labels"] == expected
    assert getattr(batch["labels"], "dtype", None) == dtype


@pytest.mark.parametrize(
    "texts",
    [
        ["a", ""],
        [b"a", b"b"],
        [["a", "b"], ["c"]],
        [[], ["c"]],
        [[[], ["a"]], [["b"]]],
        [np.array(["a", "b"]), np.array(["c"])],
        [np.array(["a", "b"], object), np.array(["c"], object)],
    ],
    ids=str,
)
def test_text_is_listed(texts: list[Any]) -> None:
    batch = Collator()([{"input_ids": [1], "words": text} for text in texts])
    assert batch["words"] == texts
    assert as_lists(Collator()([{"words": text} for text in texts])) == {"words": texts}


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        ([[[1, 2], [3]], [[4]]], [[[1, 2], [3, 0]], [[4, 0], [0, 0]]], torch.int64),
        ([[[1, 2], []], [[3], [4]]], [[[1, 2], [0, 0]], [[3, 0], [4, 0]]], torch.int64),
        ([[[1, 2]], []], [[[1, 2]], [[0, 0]]], torch.int64),
        (
            [[[[1], [2, 3]], []], []],
            [[[[1, 0], [2, 3]], [[0, 0]] * 2], [[[0, 0]] * 2] * 2],
            torch.int64,
        ),
        ([[[0.5], [1, 2]], [[3]]], [[[0.5, 0], [1, 2]], [[3, 0], [0, 0]]], torch.float32),
        ([np.array([np.array([1, 2]), np.array([3])], object)], [[[1, 2], [3, 0]]], torch.int64),
        ([[torch.tensor([1, 2]), torch.tensor([3])]], [[[1, 2], [3, 0]]], torch.int64),
        ([[], []], [[], []], torch.float32),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, list) else "",
)
def test_nested_ragged_lists(values: list[Any], expected: Any, dtype: Any) -> None:
    batch = Collator()([{"boxes": value} for value in values])
    assert batch["boxes"].tolist() == expected
    assert batch["boxes"].dtype == dtype


def test_rows_without_tokens_keep_the_dtype_of_ids() -> None:
    batch = Collator(TOKENIZER)([{"input_ids": [], "labels": []}, {"input_ids": [], "labels": []}])
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    for tensor in batch.values():
        assert (tensor.dtype, tensor.shape) == (torch.int64, (2, 0))
    batch = Collator(TOKENIZER, pad_to_multiple_of=2)([{"input_ids": []}, {"input_ids": [5]}])
    assert as_lists(batch) == {
        "input_ids": [[PAD, PAD], [5, PAD]],
        "attention_mask": [[0, 0], [1, 0]],
    }


def test_several_sequences_in_a_row_are_padded_alike() -> None:
    """Multiple choice: two axes, so no column is aligned and no mask is added."""
    rows = [
        {"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [1]], "label": 1},
        {"input_ids": [[4], [5]], "attention_mask": [[1], [1]], "label": 0},
    ]
    for options in ({}, {"pad_to_multiple_of": 4, "padding_side": "left"}):
        assert as_lists(Collator(**options)(rows)) == {
            "input_ids": [[[1, 2], [3, 0]], [[4, 0], [5, 0]]],
            "attention_mask": [[[1, 1], [1, 0]], [[1, 0], [1, 0]]],
            "labels": [1, 0],
        }
    only_ids = [{"input_ids": row["input_ids"]} for row in rows]
    assert set(Collator()(only_ids)) == {"input_ids"}


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        ("float32", "bfloat16", torch.float32),
        ("float16", "int64", torch.float16),
        ("uint64", "int64", torch.int64),
        ("int8", "int32", torch.int32),
        (">f4", ">f4", torch.float32),
    ],
)
def test_rows_of_two_dtypes_promote_as_in_torch(first: str, second: str, dtype: Any) -> None:
    batch = Collator()([{"x": numbered([2], first)}, {"x": numbered([1], second)}])
    assert batch["x"].dtype == dtype
    assert batch["x"].tolist() == [[1, 2], [1, 0]]


def test_a_field_decides_the_dtype_also_of_bfloat16() -> None:
    rows = [{"x": torch.tensor([1.5], dtype=torch.bfloat16)}]
    batch = Collator(fields={"x": Field(("time",), "float32")})(rows)
    assert batch["x"].dtype == torch.float32


def test_fields_give_labels_a_length_of_their_own() -> None:
    fields = {"labels": Field(("target_time",), "int64", -100)}
    rows = [{"input_ids": [1, 2, 3], "labels": [4]}, {"input_ids": [1], "labels": [5, 6]}]
    batch = Collator(TOKENIZER, fields)(rows)
    assert batch["labels"].tolist() == [[4, -100], [5, 6]]


@pytest.mark.parametrize(
    ("tokenizer", "pad"),
    [
        (None, 0),
        (SimpleNamespace(pad_token_id=0, eos_token_id=2), 0),
        (SimpleNamespace(pad_token_id=None, eos_token_id=2), 2),
        (SimpleNamespace(pad_token_id=None, eos_token_id=None), 0),
    ],
)
def test_mask_and_labels_go_by_length_though_the_pad_id_is_in_the_text(
    tokenizer: Any, pad: int
) -> None:
    rows = [{"input_ids": [pad, 5, pad], "labels": [pad, 5, pad]}]
    rows.append({"input_ids": [5, pad], "labels": [5, pad]})
    assert as_lists(Collator(tokenizer)(rows)) == {
        "input_ids": [[pad, 5, pad], [5, pad, pad]],
        "labels": [[pad, 5, pad], [5, pad, -100]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
    }


def test_nothing_in_the_rows_is_changed_or_shared() -> None:
    ids = np.array([1, 2])
    rows = [{"input_ids": ids, "label": 1, "note": ["a"], "boxes": [[1], [2, 3]]}]
    before = copy.deepcopy(rows)
    batch = Collator()(rows)
    for name in ("input_ids", "labels", "boxes"):
        batch[name].fill_(7)
    assert rows[0].keys() == before[0].keys()
    assert rows[0]["input_ids"] is ids
    assert ids.tolist() == [1, 2]
    assert {**rows[0], "input_ids": 0} == {**before[0], "input_ids": 0}


# A slow, obvious reference: every position of the batch is looked up in its row, one by one.

Axes = Mapping[str, tuple[str, ...]]


def is_time(axis: str) -> bool:
    return axis in ("time", "target_time")


def reference_sizes(rows: Sequence[Mapping[str, Any]], axes: Axes, multiple: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for row in rows:
        for name, names in axes.items():
            for axis, size in zip(names, np.shape(row[name]), strict=True):
                sizes[axis] = max(sizes.get(axis, 0), size)
    for axis in sizes:
        while is_time(axis) and sizes[axis] % multiple:
            sizes[axis] += 1
    return sizes


def reference_row(value: Any, shape: Sequence[int], pad: Any, moved: int) -> Any:
    def look_up(index: tuple[int, ...]) -> Any:
        index = (index[0] - moved, *index[1:]) if index else index
        inside = all(0 <= i < size for i, size in zip(index, value.shape, strict=True))
        return value[index].item() if inside else pad

    def build(index: tuple[int, ...]) -> Any:
        if len(index) == len(shape):
            return look_up(index)
        return [build((*index, i)) for i in range(shape[len(index)])]

    return build(())


def reference_batch(
    rows: Sequence[Mapping[str, Any]],
    axes: Axes,
    pads: Mapping[str, Any],
    multiple: int,
    side: str,
) -> dict[str, Any]:
    sizes = reference_sizes(rows, axes, multiple)
    batch: dict[str, Any] = {name: [] for name in axes}
    for row, name in itertools.product(rows, axes):
        shape = [sizes[axis] for axis in axes[name]]
        in_time = bool(axes[name]) and is_time(axes[name][0])
        moved = shape[0] - len(row[name]) if in_time and side == "left" else 0
        batch[name].append(reference_row(row[name], shape, pads[name], moved))
    return batch


sides = st.sampled_from(["left", "right"])
multiples = st.sampled_from([1, 2, 3, 8])
small = st.integers(0, 3)


@st.composite
def fielded_batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Field]]:
    """Rows of several ragged columns of any rank, and a Field for each of them."""
    fields = {}
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
        names = st.sampled_from(["time", "target_time", "width", f"{name}.own"])
        axes = tuple(draw(st.lists(names, max_size=3, unique=True)))
        pad = draw(st.sampled_from([0, 1, 7]))
        dtype = draw(st.sampled_from(NUMPY_DTYPES))
        fields[name] = Field(axes, dtype, bool(pad) if dtype == "bool" else pad)
    rows = [
        {name: numbered([draw(small) for _ in f.axes], f.dtype) for name, f in fields.items()}
        for _ in range(draw(st.integers(1, 4)))
    ]
    return rows, fields


@settings(deadline=None, max_examples=300, database=None)
@given(fielded_batches(), multiples, sides)
def test_columns_with_fields_match_the_reference(
    made: tuple[list[dict[str, Any]], dict[str, Field]], multiple: int, side: Any
) -> None:
    rows, fields = made
    batch = Collator(fields=fields, pad_to_multiple_of=multiple, padding_side=side)(rows)
    axes = {name: field.axes for name, field in fields.items()}
    pads = {name: field.pad for name, field in fields.items()}
    assert as_lists(batch) == reference_batch(rows, axes, pads, multiple, side)
    assert {name: str(tensor.numpy().dtype) for name, tensor in batch.items()} == {
        name: field.dtype for name, field in fields.items()
    }


# Faults: named with row and column, before any tensor is made.


def ids_and(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2, 3], name: value} for value in values]


MISALIGNED = [
    (ids_and("labels", [1, 2, 3], [1, 2]), "row 1: column 'labels' has length 2, but 'input_ids'"),
    (ids_and("attention_mask", [1] * 4), "row 0: column 'attention_mask' has length 4"),
    (ids_and("tags", [1, 2, 3], [1] * 3, [1] * 5), "row 2: column 'tags' has length 5"),
    (
        [{"inputs_embeds": np.ones((2, 3)), "attention_mask": [1]}],
        "row 0: column 'attention_mask' has length 1, but 'inputs_embeds', .* has length 2",
    ),
    (
        [{"decoder_input_ids": [1, 2], "decoder_attention_mask": [1]}],
        "row 0: column 'decoder_attention_mask' has length 1, but 'decoder_input_ids'",
    ),
    (
        [{"inputs_embeds": np.ones((2, width))} for width in (3, 3, 4)],
        r"row 2: 'inputs_embeds' has feature size \[4\], but row 0 has \[3\]",
    ),
]


@pytest.mark.parametrize(("rows", "message"), MISALIGNED)
def test_misaligned_columns_are_named_with_the_row(rows: list[Any], message: str) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        Collator(TOKENIZER)(rows)
    assert caught.value.fix
    assert isinstance(caught.value, surefit.SurefitError)


@pytest.mark.parametrize(("rows", "message"), MISALIGNED)
def test_faults_come_before_any_tensor(rows: list[Any], message: str) -> None:
    """These empty arrays need no memory, but padded to one shape no memory could hold them."""
    shapes = itertools.cycle([(10**9, 0), (0, 10**9)])
    rows = [{"vast": np.empty(next(shapes)), **row} for row in [*rows, rows[0]]]
    with pytest.raises(CollateError, match=message):
        Collator(TOKENIZER)(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row, found none"),
        ([[1, 2]], "row 0: expected a mapping of columns, found list"),
        ([{"a": 1}, {}], "row 1: column 'a' is missing, but other rows have it"),
        ([{}, {"a": 1}], "row 0: column 'a' is missing, but other rows have it"),
        ([{"a": 1}, {"a": None}], r"row 1: column 'a' is empty \(None\)"),
        ([{"a": "x"}, {"a": None}], r"row 1: column 'a' is empty \(None\)"),
        ([{"a": [1]}, {"a": [1, None]}], "row 1: column 'a' .* neither text nor an array"),
        ([{"a": [[1], 2]}], "row 0: column 'a' .* neither text nor an array of numbers"),
        ([{"a": [1]}, {"a": ["x"]}], r"row 1: column 'a' .*: \['x'\]"),
        ([{"a": {"b": 1}}], "row 0: column 'a' holds a dict"),
        ([{"a": np.array(["2020"], "datetime64[Y]")}], "row 0: column 'a' holds a ndarray"),
        ([{"a": [1]}, {"a": 2}], r"row 1: column 'a' has shape \[\], but row 0 has \[1\]"),
        ([{"a": [1]}, {"a": [[2]]}], r"row 1: column 'a' has shape \[1, 1\], but row 0 has \[1\]"),
        ([{"a": 1}, {"a": 2**63}], "row 1: column 'a' holds 9223372036854775808, more than int64"),
        ([{"input_ids": 1}], "'input_ids' is the single number 1; expected a sequence"),
        ({"input_ids": [1, 2]}, "row 0: expected a mapping of columns, found str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_make_no_batch_are_named(rows: Any, message: str) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        Collator()(rows)
    assert caught.value.fix


def test_a_field_of_another_rank_is_refused() -> None:
    with pytest.raises(CollateError, match=r"column 'a' has shape \[2\]; .* axes \['x', 'y'\]"):
        Collator(fields={"a": Field(("x", "y"))})([{"a": [1, 2]}])


def test_an_unknown_side_is_refused() -> None:
    with pytest.raises(CollateError, match="padding_side is 'middle'"):
        Collator(padding_side="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("axes", [(16,), "time", 16])
def test_axes_that_are_no_names_are_refused_with_what_an_axis_is(axes: Any) -> None:
    with pytest.raises(surefit.UsageError, match="expected names, one per axis of a row"):
        Field(axes, "float32")
