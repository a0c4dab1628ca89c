"""Python objects passed in as data to a Table: one opener per kind of object."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.arrow_types import class_names, in_cache, is_plain, plain_schema, to_plain
from surefit.data.cache import fingerprint, hash_bytes
from surefit.data.data_rules import FILES_DO_NOT_MATCH, WRONG_SHAPE, WRONG_TYPE, unequal_rows
from surefit.data.formats.numpy_files import arrays_to_arrow
from surefit.data.official_splits import Splits, named_splits
from surefit.data.python import torch_data
from surefit.data.python.rows_to_arrow import SHOWN, open_rows, python_value
from surefit.data.python.torch_data import open_items
from surefit.data.table import CHUNK_ROWS, Source, Table, take_rows
from surefit.errors import UsageError


def open_pandas(data: Any) -> Table:
    """Return a pandas DataFrame; its index is not a column."""
    data = data.rename(columns=str)
    try:
        return open_arrow_table(pa.Table.from_pandas(data, preserve_index=False))
    except (pa.ArrowException, ValueError):  # cells of several types, or arrays
        blanks = data.isna()
        pairs = {name: zip(data[name], blanks[name], strict=True) for name in data.columns}
        return open_columns({n: [None if b else v for v, b in each] for n, each in pairs.items()})


def open_polars(data: Any) -> Table:
    """Return a polars DataFrame."""
    if type(data).__name__ == "LazyFrame":
        raise UsageError(
            "data is a polars LazyFrame, which is not computed yet.", "Pass .collect()."
        )
    if any(str(kind) == "Object" for kind in data.dtypes):
        return open_rows(data.iter_rows(named=True))
    return open_arrow_table(data.to_arrow())


def open_arrow_table(data: pa.Table) -> Table:
    """Return a pyarrow Table; columns of other types are converted."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    schema = plain_schema(data.schema, SHOWN)
    if not is_plain(data.schema, SHOWN):
        named = class_names(data.schema)
        data = pa.Table.from_batches(
            [to_plain(b, schema, named) for b in data.to_batches()], schema
        )
    table = pa.Table.from_arrays(data.columns, schema=schema)
    return Table(table, (Source(SHOWN, 0),), hash_table(table))


def hash_table(table: pa.Table) -> str:
    """Return a key of a table's content, read batch by batch."""
    batches = table.to_batches(max_chunksize=CHUNK_ROWS)
    return fingerprint(str(table.schema), [hash_bytes(batch.serialize()) for batch in batches])


def open_dataset_dict(data: Any) -> Table:
    """Return the training split of a `datasets.DatasetDict`."""
    splits = dict_splits(data)
    table = open_dataset(data[splits.parts["train"][0].name])
    notes = (splits.note("The DatasetDict"),) if len(data) > 1 else ()
    return Table(table.arrow, table.sources, table.key, (*table.findings, *notes))


def dict_splits(data: Any) -> Splits:
    """Return which splits of a `datasets.DatasetDict` are which part."""
    splits = named_splits({name: (Path(name),) for name in data})
    if splits is None:
        raise UsageError(f"The DatasetDict has {list(data)}, but no train.", "Pass one split.")
    return splits


def open_dataset(data: Any) -> Table:
    """A `datasets.Dataset`: its Arrow table in place; selected rows are copied into the cache."""
    if data.format["type"] == "custom":  # a transform of the user's makes the rows
        return open_items(data)
    table, indices = data.data.table, data._indices
    if indices is None and is_plain(table.schema, SHOWN):
        return open_arrow_table(table)
    key = fingerprint(hash_table(table), None if indices is None else hash_table(indices.table))

    def batches() -> Iterator[pa.RecordBatch]:
        if indices is None:
            yield from table.to_batches(max_chunksize=CHUNK_ROWS)
            return
        parts = table.to_batches()
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        for order in indices.table.to_batches(max_chunksize=CHUNK_ROWS):
            chosen = order.column(0).to_numpy().astype(np.int64)
            yield from take_rows(parts, ends, chosen).to_batches()

    return Table(in_cache(key, table.schema, SHOWN, batches), (Source(SHOWN, 0),), key)


def open_columns(data: Mapping[str, Any]) -> Table:
    """Return a dict of columns: lists, or arrays in any layout that `.npz` files may have."""
    columns = {str(name): python_value(value) for name, value in data.items()}
    for name, value in columns.items():
        if not hasattr(value, "__len__") or isinstance(value, str | bytes | Mapping):
            what = f"column {name!r} is a {type(value).__name__}; expected one value per row."
            raise WRONG_TYPE.error(f"data is a dict whose {what}", column=name)
    if columns and all(isinstance(value, np.ndarray) for value in columns.values()):
        return open_arrow_table(arrays_to_arrow(columns, SHOWN))
    sizes = {name: len(value) for name, value in columns.items()}
    if len(set(sizes.values())) > 1:
        raise FILES_DO_NOT_MATCH.error(f"data: {unequal_rows(sizes)}")
    return open_rows(
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    )


OPENERS: dict[str, Callable[[Any], Table]] = {
    "pandas.DataFrame": open_pandas,
    "polars.DataFrame": open_polars,
    "polars.LazyFrame": open_polars,
    "pyarrow.Table": open_arrow_table,
    "pyarrow.RecordBatch": open_arrow_table,
    "datasets.Dataset": open_dataset,
    "datasets.DatasetDict": open_dataset_dict,
    "datasets.IterableDataset": torch_data.open_iterable,
}
"""Classes of other libraries, which are not imported for this, and what opens each."""


def open_object(data: Any) -> Table:
    """Return a Table of data that is in memory, or of an object that creates its rows on access."""
    for kind in type(data).__mro__:
        opener = OPENERS.get(f"{kind.__module__.split('.')[0]}.{kind.__name__}")
        if opener is not None:
            return opener(data)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.utils.data.DataLoader):
        return torch_data.open_loader(data)
    if _is_stream(data):
        return torch_data.open_iterable(data)
    if isinstance(data, np.ndarray) or (torch is not None and isinstance(data, torch.Tensor)):
        return _open_array(data)
    if isinstance(data, Mapping):
        return open_columns(data)
    if _are_inputs_and_labels(data):
        return open_columns(dict(zip(("features", "label"), data, strict=True)))
    is_frame = type(data).__module__.split(".")[0] in {name.split(".")[0] for name in OPENERS}
    is_items = hasattr(data, "__getitem__") and not isinstance(data, str | bytes | type)
    is_dataset = torch is not None and isinstance(data, torch.utils.data.Dataset)
    if is_dataset or (is_items and hasattr(data, "__len__") and not is_frame):
        return torch_data.open_items(data)
    raise UsageError(
        f"data is a {type(data).__name__}; expected a path, several paths, a list of dicts, a dict "
        "of columns, an array, a torch Dataset or DataLoader, a generator function, or one of "
        f"{', '.join(OPENERS)}.",
        "Pass data='train.jsonl' or data=[{'text': …, 'label': …}, …].",
    )


def _is_stream(data: Any) -> bool:
    """Whether an object can only be iterated: an IterableDataset, a generator or its function."""
    torch = sys.modules.get("torch")
    is_iterable = torch is not None and isinstance(data, torch.utils.data.IterableDataset)
    resumes = hasattr(data, "load_state_dict") and not hasattr(data, "forward")
    saves = resumes and isinstance(data, Iterable) and not hasattr(data, "__getitem__")
    return is_iterable or isinstance(data, Iterator) or inspect.isgeneratorfunction(data) or saves


def _are_inputs_and_labels(data: Any) -> bool:
    """Return whether a tuple is (X, y), the columns of all rows, and not two rows.

    Two rows of features may differ in their first axis, not in the number of axes or in the others.
    """
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    shapes = [tuple(part.shape) if hasattr(part, "dtype") else () for part in data]
    if () in shapes:  # not an array, or a single value
        return False
    (rows, *inputs), (labels, *targets) = shapes
    return len(inputs) > 0 and (
        len(inputs) != len(targets) or (rows == labels and inputs != targets)
    )


def _open_array(data: Any) -> Table:
    """Return an array or a tensor as the column `features`."""
    if getattr(data, "ndim", 0) == 0:
        raise WRONG_SHAPE.error("data is an array of a single value; expected rows.")
    if getattr(data.dtype, "kind", "f") not in "biuf":
        message = f"data is an array of {data.dtype} values; expected numbers."
        raise WRONG_TYPE.error(message, fix="Pass a list of dicts, or arrays of numbers.")
    return open_columns({"features": data})
