"""Python objects passed in as data to a Table: one opener per kind of object."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from surefit.data.data_rules import WRONG_SHAPE, WRONG_TYPE
from surefit.data.python import dataframes, torch_data
from surefit.data.table import Table
from surefit.errors import UsageError

OPENERS: dict[str, Callable[[Any], Table]] = {
    "pandas.DataFrame": dataframes.open_pandas,
    "polars.DataFrame": dataframes.open_polars,
    "polars.LazyFrame": dataframes.open_polars,
    "pyarrow.Table": dataframes.open_arrow_table,
    "pyarrow.RecordBatch": dataframes.open_arrow_table,
    "datasets.Dataset": dataframes.open_dataset,
    "datasets.DatasetDict": dataframes.open_dataset_dict,
    "datasets.IterableDataset": torch_data.open_iterable,
}
"""Classes of other libraries, which are not imported for this, and what opens each."""


def open_object(data: Any) -> Table:
    """A Table of data that is in memory, or of an object that creates its rows on access."""
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
        return dataframes.open_columns(data)
    if _are_inputs_and_labels(data):
        return dataframes.open_columns(dict(zip(("features", "label"), data, strict=True)))
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
    """Whether a tuple is (X, y), the columns of all rows, and not two rows.

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
    """An array or a tensor as the column `features`."""
    if getattr(data, "ndim", 0) == 0:
        raise WRONG_SHAPE.error("data is an array of a single value; expected rows.")
    if getattr(data.dtype, "kind", "f") not in "biuf":
        message = f"data is an array of {data.dtype} values; expected numbers."
        raise WRONG_TYPE.error(message, fix="Pass a list of dicts, or arrays of numbers.")
    return dataframes.open_columns({"features": data})
