"""The collator against exact tensors, a slow obvious reference, and the loaders it drops into."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    BatchEncoding,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import surefit
from surefit import Collator, Field
from surefit.batches.python_rows import CollateError

PAD = 9
TOKENIZER = SimpleNamespace(pad_token_id=PAD)

# What a batch holds of rows of each dtype: torch computes little with wide unsigned numbers.
BATCH_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
NUMPY_DTYPES = [name for name in BATCH_DTYPES if name != "bfloat16"]

properties = settings(deadline=None, max_examples=300, database=None)


def as_lists(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v.tolist() if torch.is_tensor(v) else v for name, v in batch.items()}


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


def numbered(shape: Sequence[int], dtype: str) -> Any:
    """An array whose values encode their positions, exact in every dtype."""
    numbers = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 100 + 1)
    if dtype == "bfloat16":
        return torch.from_numpy(numbers).to(torch.bfloat16)
    return np.asarray(numbers % 3 == 1 if dtype == "bool" else numbers, dtype)


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


@properties
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


@st.composite
def unknown_batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], Axes]:
    """Rows of `input_ids` and unknown columns: aligned with it, of other lengths, and fixed."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    axes: dict[str, tuple[str, ...]] = {"input_ids": ("time",)}
    rows: list[dict[str, Any]] = [{"input_ids": numbered([n], "int64")} for n in lengths]
    kinds = st.lists(st.sampled_from(["along", "own", "fixed"]), max_size=3, unique=True)
    for kind in draw(kinds):
        dtype = draw(st.sampled_from(list(BATCH_DTYPES)))
        rank = draw(st.integers(0 if kind == "fixed" else 1, 3))
        first = "time" if kind == "along" else f"{kind}.0"
        name = f"{kind}.{dtype}"
        axes[name] = (first, *(f"{kind}.{axis}" for axis in range(1, rank)))[:rank]
        shape = [draw(st.integers(6, 8)) for _ in range(rank)]
        for row, length in zip(rows, lengths, strict=True):
            if kind == "along":
                shape = [length, *(draw(small) for _ in range(1, rank))]
            elif kind == "own":
                shape = [draw(st.integers(6, 9)), *(draw(small) for _ in range(1, rank))]
            row[name] = numbered(shape, dtype)
    return rows, axes


FORMS: dict[str, Callable[[Any], Any]] = {
    "array": lambda value: value,
    "tensor": lambda value: value if torch.is_tensor(value) else torch.from_numpy(value),
    "read-only": lambda value: value if torch.is_tensor(value) else read_only(value),
}


def read_only(value: Any) -> Any:
    value = np.array(value)
    value.setflags(write=False)
    return value


@properties
@given(unknown_batches(), multiples, sides, st.sampled_from(list(FORMS)))
def test_unknown_columns_match_the_reference(
    made: tuple[list[dict[str, Any]], Axes], multiple: int, side: Any, form: str
) -> None:
    rows, axes = made
    given_rows = [{name: FORMS[form](value) for name, value in row.items()} for row in rows]
    before = copy.deepcopy(given_rows)
    batch = Collator(TOKENIZER, pad_to_multiple_of=multiple, padding_side=side)(given_rows)
    pads = {name: PAD if name == "input_ids" else 0 for name in axes}
    expected = reference_batch(rows, axes, pads, multiple, side)
    mask_rows = [{"mask": np.ones(len(row["input_ids"]), int)} for row in rows]
    masks = reference_batch(mask_rows, {"mask": ("time",)}, {"mask": 0}, multiple, side)
    assert as_lists(batch) == {**expected, "attention_mask": masks["mask"]}
    for name in axes:
        dtype = "int64" if name == "input_ids" else name.split(".")[1]
        assert batch[name].dtype == BATCH_DTYPES[dtype]
    for row, same in zip(given_rows, before, strict=True):
        assert list(row) == list(same)
        assert all(np.array_equal(as_numpy(row[n]), as_numpy(same[n])) for n in row)


def as_numpy(value: Any) -> Any:
    return value.float().numpy() if torch.is_tensor(value) else np.asarray(value)


# Exact tensors.


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


def test_left_and_to_a_multiple() -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8], "labels": [8]}]
    batch = Collator(TOKENIZER, pad_to_multiple_of=4, padding_side="left")(rows)
    assert as_lists(batch) == {
        "input_ids": [[PAD, 5, 6, 7], [PAD, PAD, PAD, 8]],
        "labels": [[-100, 5, 6, 7], [-100, -100, -100, 8]],
        "attention_mask": [[0, 1, 1, 1], [0, 0, 0, 1]],
    }


def test_features_lead_when_there_are_no_ids() -> None:
    embeds = [torch.ones(2, 3), torch.ones(1, 3)]
    rows = [{"inputs_embeds": value, "labels": i} for i, value in enumerate(embeds)]
    batch = Collator()(rows)
    assert batch["inputs_embeds"].tolist() == [[[1.0] * 3] * 2, [[1.0] * 3, [0.0] * 3]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [0, 1]


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
        ({}, "at least one row, found none"),
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
        ({"input_ids": [1, 2]}, "'input_ids' is the single number 1; expected a sequence"),
        ({"a": [1, 2], "b": [1]}, "lengths {'a': 2, 'b': 1}"),
        ({"a": 1}, "lengths {'a': None}"),
        ([pa.table({"a": [1, 2]})], "row 0: expected a table of one row, found one of 2"),
        ([pa.table({"a": [1]}), pa.table({"a": [1]})[:0]], "row 1: .* found one of 0"),
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


# Whatever rows are made of.

PLAIN_ROWS = [
    {"input_ids": [5, 6, 7], "scores": [[0.5, 1.0]] * 3, "label": 1, "note": "long"},
    {"input_ids": [8], "scores": [[2.0, 2.5]], "label": 0, "note": "short"},
]
PLAIN_BATCH = {
    "input_ids": [[5, 6, 7], [8, PAD, PAD]],
    "attention_mask": [[1, 1, 1], [1, 0, 0]],
    "scores": [[[0.5, 1.0]] * 3, [[2.0, 2.5], [0, 0], [0, 0]]],
    "labels": [1, 0],
    "note": ["long", "short"],
}
TABLE = pa.Table.from_pylist(PLAIN_ROWS)


def with_values(change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    return [
        {name: v if isinstance(v, str) else change(v) for name, v in row.items()}
        for row in PLAIN_ROWS
    ]


@pytest.mark.parametrize(
    "features",
    [
        PLAIN_ROWS,
        tuple(PLAIN_ROWS),
        with_values(lambda v: tuple(v) if isinstance(v, list) else v),
        with_values(np.array),
        with_values(torch.tensor),
        [BatchEncoding(row) for row in PLAIN_ROWS],
        BatchEncoding({name: [row[name] for row in PLAIN_ROWS] for name in PLAIN_ROWS[0]}),
        {name: [row[name] for row in PLAIN_ROWS] for name in PLAIN_ROWS[0]},
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_pylist(),
        TABLE.to_struct_array().combine_chunks(),
        [TABLE.slice(i, 1) for i in range(2)],
        [TABLE.to_batches()[0].slice(i, 1) for i in range(2)],
        list(TABLE.to_struct_array()),
        [{name: TABLE[name][i] for name in TABLE.column_names} for i in range(2)],
    ],
    ids=lambda features: f"{type(features).__name__} of {type(next(iter(features))).__name__}",
)
def test_rows_of_every_make_give_one_batch(features: Any) -> None:
    assert as_lists(Collator(TOKENIZER)(features)) == PLAIN_BATCH


# The drop-in. All ways in which seeds 001 and 002 make labels.

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda ids: ids.copy(),
    "slice": lambda ids: ids[:],
    "deepcopy": copy.deepcopy,
    "list": list,
    "numpy": np.array,
    "json": lambda ids: json.loads(json.dumps(ids)),
}
MAKES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": dict,
    "BatchEncoding": BatchEncoding,
    "arrays": lambda row: {name: np.array(value) for name, value in row.items()},
    "tensors": lambda row: {name: torch.tensor(value) for name, value in row.items()},
    "Arrow": lambda row: pa.array([row])[0],
}
TEXTS = ["one two three four", "one", "two one", "three two one"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<eos>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4, "four": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>"
    )


def labelled(tokenizer: Any, way: str) -> list[BatchEncoding]:
    rows = [tokenizer(f"{text} <eos>", return_token_type_ids=False) for text in TEXTS]
    for row in rows:
        row["labels"] = WAYS[way](row["input_ids"])
    return rows


CAUSAL_BATCH = {
    "input_ids": [[2, 3, 4, 5, 0], [2, 0, 0, 0, 0], [3, 2, 0, 0, 0], [4, 3, 2, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]],
    "labels": [
        [2, 3, 4, 5, 0],
        [2, 0, -100, -100, -100],
        [3, 2, 0, -100, -100],
        [4, 3, 2, 0, -100],
    ],
}


def train_two_steps(tokenizer: Any, rows: Any, folder: Path) -> None:
    """With a rate of 0, the loss of both steps is that of the batch padded by hand."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=6,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    by_hand = {name: torch.tensor(column) for name, column in CAUSAL_BATCH.items()}
    expected = model(**by_hand).loss.item()
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        per_device_train_batch_size=len(TEXTS),
        learning_rate=0.0,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, data_collator=Collator(tokenizer), train_dataset=rows)
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-5)
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("way", WAYS)
def test_labels_made_any_way_train_where_the_stock_collator_fails(
    way: str, tokenizer: Any, tmp_path: Path
) -> None:
    rows = labelled(tokenizer, way)
    plain = [dict(row) for row in rows]
    stock = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    for same in (rows, plain):
        with pytest.raises(ValueError, match=r"[Uu]nable to create tensor|expected sequence"):
            stock([copy.deepcopy(row) for row in same])
        [batch] = DataLoader(same, batch_size=4, collate_fn=Collator(tokenizer))
        assert as_lists(batch) == CAUSAL_BATCH
    train_two_steps(tokenizer, plain, tmp_path)


@pytest.mark.parametrize("make", MAKES)
def test_rows_of_any_make_train(make: str, tokenizer: Any, tmp_path: Path) -> None:
    rows = [MAKES[make](dict(row)) for row in labelled(tokenizer, "list")]
    [batch] = DataLoader(rows, batch_size=4, collate_fn=Collator(tokenizer))
    assert as_lists(batch) == CAUSAL_BATCH
    train_two_steps(tokenizer, rows, tmp_path)


def test_a_collator_goes_to_worker_processes() -> None:
    collator = Collator(TOKENIZER, {"x": Field(("time",), "int64", 3)}, 2, "left")
    batch = pickle.loads(pickle.dumps(collator))([{"x": [1]}])
    assert batch["x"].tolist() == [[3, 1]]
