"""The collator against a slow, obvious reference, on drawn batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collating import BATCH_DTYPES, NUMPY_DTYPES, PAD, TOKENIZER, as_lists, numbered
from surefit import Collator, Field

properties = settings(deadline=None, max_examples=300, database=None)

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
