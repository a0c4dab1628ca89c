"""Rows of a Dataset that are drawn anew whenever they are read, as random transforms do.

Python's, NumPy's and torch's global generators are seeded from (seed, epoch, row) before a row is
read, so that what it draws is reproducible and a run can be resumed. Each reading draws something
else, so encoded values are not stored but for one reading, with which everything is planned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.data_rules import USER_DATA_CODE_FAILED, WRONG_TYPE
from surefit.data.python.rows_to_arrow import SHOWN, as_arrow, python_value
from surefit.data.table import Source, Table
from surefit.errors import FindingError, describe_error
from surefit.findings import rule

NOT_REPRODUCIBLE = rule(
    "SF125",
    "warning",
    "rows that no seed reproduces",
    why=(
        "Two readings of a row differ although Python's, NumPy's and torch's global generators "
        "were seeded alike. Another run sees other rows, and a resumed run is not the same as an "
        "uninterrupted one."
    ),
    fix=(
        "Draw from the global generators (random, numpy.random, torch) instead of a generator of "
        "the Dataset's own. To resume such a run: --set accept=[SF403]."
    ),
    accept="The rows are trained on as they come.",
)

ONE_READING = (0, 0)
"""The seed and the epoch of the reading that everything is planned with."""
TRIED_ROWS, MOST_TRIED = 16, 256
"""Rows that are read several times to see whether they are random; more where something is drawn
from a global generator and no row differs yet."""

Item = Callable[[int], Any]


@dataclass(frozen=True)
class LiveRows:
    """How the rows of a Table are read anew."""

    item: Item
    """A row number to an item of the user's."""
    name: str
    schema: pa.Schema
    """The columns of the Table as it was read first."""
    reproducible: bool
    row_seconds: float
    """How long reading a row took on average."""
    files: tuple[str, ...] = ()
    """Columns of file paths, as a Table has them."""

    def table(self, number: int, seed: int, epoch: int) -> Table:
        """Return one row, as a Table of its own; training epochs count from 1."""
        seed_generators(seed, epoch, number)
        try:
            item = self.item(number)
        except Exception as error:
            place = f"row {number}, epoch {epoch}: {self.name}[{number}]"
            raise code_failed(place, error, number) from error
        row = as_named(item, self.schema.names, number)
        arrow = as_arrow(row, self.schema, number)
        return Table(arrow, (Source(SHOWN, 0),), "", files=self.files)


def code_failed(place: str, error: Exception, row: int) -> FindingError:
    """Return the error about the user's own code that raised one while a row was read."""
    return USER_DATA_CODE_FAILED.error(f"{place} raised {describe_error(error)[:200]}", row=row)


def as_named(item: Any, names: Sequence[str], number: int) -> dict[str, Any]:
    """Return an item as a row with the columns of the first one."""
    if isinstance(item, Mapping):
        return dict(item)
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) != len(names):
        message = (
            f"row {number} has {len(values)} values; expected {len(names)} as in earlier rows."
        )
        raise WRONG_TYPE.error(message, row=number)
    return dict(zip(names, values, strict=True))


def seed_generators(*key: int) -> None:
    """Seed Python's, NumPy's and torch's generators of this process by several numbers."""
    _seed(int(np.random.SeedSequence(key).generate_state(1)[0]))


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


@contextmanager
def kept_randomness(seed: int | None = None) -> Iterator[None]:
    """Put the global generators back into their state afterwards; with a seed, seed them first."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.default_generator.get_state()
    try:
        if seed is not None:
            _seed(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)


def find_randomness(item: Item, num_rows: int) -> tuple[bool, bool]:
    """Return whether rows differ between readings, and whether equal seeds give equal rows.

    Some rows are read several times.
    """
    differs = drawn = False
    with kept_randomness():
        for count, number in enumerate(_spread(num_rows, MOST_TRIED)):
            if count >= TRIED_ROWS and (differs or not drawn):
                break
            first = _read(item, number, 0)
            drawn = drawn or _has_drawn(number, 0)
            if count < TRIED_ROWS and not equal_values(first, _read(item, number, 0)):
                return True, False
            differs = differs or not equal_values(first, _read(item, number, 1))
    return differs, True


def _spread(num_rows: int, most: int) -> list[int]:
    """Row numbers from all parts of the data, in an order whose beginning is spread as well."""
    count = min(num_rows, most)
    chosen = np.linspace(0, num_rows - 1, count).astype(np.int64)
    order = np.argsort(np.arange(count) * 0.618034 % 1.0, kind="stable")
    return [int(number) for number in chosen[order]]


def _read(item: Item, number: int, seed: int) -> Any:
    seed_generators(seed, 0, number)
    return item(number)


def _has_drawn(number: int, seed: int) -> bool:
    """Return whether a global generator is no longer as it was seeded for this row."""
    import torch

    now, generator = (random.getstate(), _numpy_place()), torch.default_generator
    torch_now = generator.get_state()
    seed_generators(seed, 0, number)
    return now != (random.getstate(), _numpy_place()) or not torch.equal(
        torch_now, generator.get_state()
    )


def _numpy_place() -> int:
    """Return how far NumPy's global generator has advanced."""
    state: Any = np.random.get_state()
    return int(state[2])


def equal_values(left: Any, right: Any) -> bool:
    """Return whether two items hold the same values.

    >>> equal_values({"x": [1, float("nan")]}, {"x": [1, float("nan")]}), equal_values((1,), (2,))
    (True, False)
    """
    left, right = python_value(left), python_value(right)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return bool(np.array_equal(left, right, equal_nan=np.asarray(left).dtype.kind == "f"))
    if isinstance(left, dict) and isinstance(right, dict):
        same_keys = left.keys() == right.keys()
        return same_keys and all(equal_values(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(equal_values(a, b) for a, b in pairs)
    return bool(left == right or (left != left and right != right))
