"""Converts rows of any kind to arrays: dicts, BatchEncodings and Arrow rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefit.batches.collate import Array, pad_stack
from surefit.errors import SurefitError

# torch has few operations for unsigned types; the next wider signed type holds every value.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


class CollateError(SurefitError, ValueError):
    """Rows that cannot be batched; the message names the row and the column."""


def as_rows(features: Any) -> list[dict[str, Any]]:
    if hasattr(features, "to_pylist"):  # a pyarrow Table or RecordBatch
        features = features.to_pylist()
    if isinstance(features, Mapping):
        features = _rows_of_columns(features)
    rows = [_as_row(row, place) for place, row in enumerate(features)]
    if not rows:
        raise CollateError(
            "Expected at least one row, found none.", "Pass a list with at least one row."
        )
    return rows


def _rows_of_columns(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    sizes = {name: len(v) if hasattr(v, "__len__") else None for name, v in columns.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        raise CollateError(
            f"Expected columns with one value per row, found columns of the lengths {sizes}.",
            "Give all columns the same number of values; put a single row in a list: [row].",
        )
    num_rows = next(iter(sizes.values()), 0) or 0
    return [{name: column[row] for name, column in columns.items()} for row in range(num_rows)]


def _as_row(row: Any, place: int) -> dict[str, Any]:
    if hasattr(row, "num_rows"):  # one-row Arrow slices
        if row.num_rows != 1:
            raise CollateError(
                f"row {place}: expected a table of one row, found one of {row.num_rows}.",
                "Pass the whole table, or slices of one row each.",
            )
        row = row.to_pylist()[0]
    if hasattr(row, "as_py"):  # a pyarrow StructScalar
        row = row.as_py()
    if not isinstance(row, Mapping):
        raise CollateError(
            f"row {place}: expected a mapping of columns, found {type(row).__name__}.",
            "Let the dataset return dicts, such as {'input_ids': …, 'labels': …}.",
        )
    values = {
        name: value.as_py() if hasattr(value, "as_py") else value for name, value in row.items()
    }
    if "label" in values and "labels" not in values:  # the name models take
        values["labels"] = values.pop("label")
    return values


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    for place, row in enumerate(rows):
        for name in names:
            if row.get(name) is None:
                held = "is empty (None)" if name in row else "is missing, but other rows have it"
                raise CollateError(
                    f"row {place}: column {name!r} {held}.",
                    "Give every row a value, or remove the column from all rows.",
                )
    return {name: [row[name] for row in rows] for name in names}


def is_text(values: Sequence[Any]) -> bool:
    """Whether a column holds text, or lists of text, which a tensor cannot hold."""
    leaf = _first_leaf(values)
    return isinstance(leaf, str | bytes) or (
        isinstance(leaf, np.ndarray) and leaf.dtype.kind in "US"
    )


def _first_leaf(values: Any) -> Any:
    for value in values:
        nested = isinstance(value, list | tuple) or _is_object_array(value)
        leaf = _first_leaf(value) if nested else value
        if leaf is not None:  # an empty list holds none
            return leaf
    return None


def _is_object_array(value: Any) -> bool:
    """Whether this is an array of arrays, as pandas and NumPy represent ragged rows."""
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0


def as_arrays(name: str, values: Sequence[Any]) -> list[Array]:
    arrays = _with_equal_rank([_as_array(name, row, value) for row, value in enumerate(values)])
    dtype = _common_dtype(arrays)
    for row, array in enumerate(arrays):
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise CollateError(
                f"row {row}: column {name!r} holds {array.max()}, more than int64 can hold.",
                "Convert the values to smaller numbers or to text, or remove the column.",
            )
    return [array.astype(dtype, copy=False) for array in arrays]


def _with_equal_rank(arrays: Sequence[Array]) -> list[Array]:
    """Give empty arrays as many axes as the others have: `[]` does not show how many."""
    rank = max(array.ndim for array in arrays)
    return [
        array if array.size else array.reshape(array.shape + (0,) * (rank - array.ndim))
        for array in arrays
    ]


def _common_dtype(arrays: Sequence[Array]) -> np.dtype[Any]:
    """The common dtype as in torch: integers take the precision of the floats beside them.

    >>> _common_dtype([np.array([1]), np.array([0.5], "float32"), np.array([])])
    dtype('float32')
    """
    dtypes = [array.dtype for array in arrays if array.size] or [arrays[0].dtype]
    dtypes = [np.dtype(_WIDER.get(dtype.name, dtype)) for dtype in dtypes]
    return np.result_type(*([dtype for dtype in dtypes if dtype.kind in "fc"] or dtypes))


def _as_array(name: str, row: int, value: Any) -> Array:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    if isinstance(value, np.ndarray | np.generic) and not _is_object_array(value):
        array = np.asarray(value)
    else:
        try:
            array = _pad_nested(value) if _is_ragged(value) else np.asarray(value)
        except ValueError:  # lists beside numbers
            array = np.empty(0, object)
        if array.dtype == np.float64:
            # torch reads Python floats as float32.
            array = array.astype(np.float32)
    if array.dtype.kind not in "biufc":
        raise CollateError(
            f"row {row}: column {name!r} holds a {type(value).__name__} that is neither text nor "
            f"an array of numbers: {str(value)[:60]}",
            "Convert the values to numbers, or remove the column.",
        )
    return array


def _pad_nested(value: Any) -> Array:
    """A list of lists of different lengths as one array, padded with 0.

    >>> _pad_nested([[1, 2], [3]]).tolist()
    [[1, 2], [3, 0]]
    """
    parts = _with_equal_rank(
        [_pad_nested(part) if _is_ragged(part) else np.asarray(part) for part in value]
    )
    shape = np.max([part.shape for part in parts], axis=0)
    return pad_stack(parts, shape, _common_dtype(parts), 0)


def _is_ragged(value: Any) -> bool:
    if _is_object_array(value):
        return True
    try:
        np.asarray(value)
    except ValueError:
        return True
    return False
