"""Items of a Dataset and batches of a DataLoader, split into rows with named columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np

from surefit.data.data_rules import (
    MISALIGNED_COLUMNS,
    WRONG_TYPE,
    unequal_rows,
)
from surefit.data.python.live_rows import (
    NOT_REPRODUCIBLE,
    ONE_READING,
    Item,
    LiveRows,
    as_named,
    code_failed,
    find_randomness,
    kept_randomness,
    seed_generators,
)
from surefit.data.python.rows_to_arrow import open_rows, python_value
from surefit.data.python.streams import open_stream
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule

Row = dict[str, Any]

REPEATING_SAMPLER = rule(
    "SF126",
    "warning",
    "rows that a sampler draws several times",
    why="surefit makes its own batches: the rows of one draw are read once and are the data of all "
    "epochs. Those that were not drawn are not trained on, and copies stay in one set.",
    fix="Pass the Dataset instead of the DataLoader. To weigh rare classes: --set "
    "loss.class_weights=balanced.",
    accept="One draw is the data.",
)


def open_items(data: Any) -> Table:
    """A Table of `data[0]`, `data[1]` and so on: dicts, tuples such as (x, y), or single values."""
    name = type(data).__name__
    try:
        num_rows = len(data)
    except TypeError:
        raise UsageError(
            f"data is a {name} without a length; expected an object with __len__ and __getitem__.",
            "Add __len__ to the Dataset, or pass list(dataset) if it fits into memory.",
        ) from None
    rows = name_columns(_items(data, num_rows))
    if isinstance(data, list | tuple):
        return open_rows(rows)
    live = _open_live(data.__getitem__, num_rows, name)
    if live is not None:
        return live
    message = f"The {num_rows} rows of the {name} were read once and copied into the cache."
    with kept_randomness(0):
        return open_rows(rows, [note(message)])


def open_loader(loader: Any) -> Table:
    """Yield a Table of the rows of a DataLoader's batches, in the loader's order."""
    import torch.utils.data

    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return open_stream(loader, name_columns, lambda: _unbatched(loader))
    with kept_randomness(0):
        numbers = _numbers(loader)
    found = _check_sampler(loader, numbers)
    live = _open_live(_through(loader, numbers), len(numbers), "DataLoader.dataset")
    if live is not None:
        return replace(live, findings=(*live.findings, *found))
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in name_columns(_unbatched(loader)):
            count += 1
            yield row

    with kept_randomness(0):
        table = open_rows(counted())
    message = (
        f"{count} of the DataLoader's {len(loader.dataset)} rows were read once, in its order, and "
        "copied into the cache. surefit makes its own batches of them."
    )
    return Table(table.arrow, table.sources, table.key, (note(message), *found))


def _check_sampler(loader: Any, numbers: Sequence[Any]) -> list[Finding]:
    """Return what is lost of a sampler that draws rows several times."""
    if len(distinct := {*map(str, numbers)}) == len(numbers):
        return []
    sampler = getattr(loader.batch_sampler, "sampler", loader.batch_sampler or loader.sampler)
    message = (
        f"The {type(sampler).__name__} of the DataLoader draws {len(distinct):,} of "
        f"{len(loader.dataset):,} rows, some of them several times: {len(numbers):,} rows, which "
        "are not drawn anew."
    )
    return [REPEATING_SAMPLER.finding(message)]


def _open_live(item: Item, num_rows: int, name: str) -> Table | None:
    """Yield a Table of rows that are random, by one reading; None where they are not."""
    try:
        is_random, is_reproducible = find_randomness(item, num_rows)
    except Exception:  # which reading in order names with its row
        return None
    if not is_random:
        return None
    seconds = 0.0

    def read() -> Iterator[Any]:
        nonlocal seconds
        for number in range(num_rows):
            seed_generators(*ONE_READING, number)
            began = time.perf_counter()
            try:
                made = item(number)
            except Exception as error:
                raise code_failed(f"row {number}: {name}[{number}]", error, number) from error
            seconds += time.perf_counter() - began
            yield made

    message = (
        f"The rows of the {name} are drawn anew whenever they are read: training rows in each "
        "epoch, seeded by seed, epoch and row; validation rows once. Tokens, memory and time are "
        "those of one reading."
    )
    notes = [note(message)]
    if not is_reproducible:
        message = f"Two readings of a row of the {name} differ in spite of equal random seeds."
        notes.append(NOT_REPRODUCIBLE.finding(message))
    with kept_randomness():
        table = open_rows(name_columns(read()), notes)
    schema, row_seconds = table.arrow.schema, seconds / max(num_rows, 1)
    named = partial(_named_item, item)
    live = LiveRows(named, name, schema, is_reproducible, row_seconds)
    return replace(table, live=live)


def _named_item(item: Item, number: int) -> Any:
    return _named_inputs(item(number))


def _numbers(loader: Any) -> list[Any]:
    """Return the indices that a loader reads, in its order; its generators stay as they are."""
    own = (loader.generator, getattr(loader.sampler, "generator", None))
    states = [(generator, generator.get_state()) for generator in own if generator is not None]
    try:
        if loader.batch_sampler is None:
            return list(loader.sampler)
        return [number for batch in loader.batch_sampler for number in batch]
    finally:
        for generator, state in states:
            generator.set_state(state)


def _through(loader: Any, numbers: Sequence[Any]) -> Item:
    """Return how a row of a loader is read alone: through its Dataset and its collate_fn."""

    def item(place: int) -> Any:
        read = loader.dataset[numbers[place]]
        if loader.batch_sampler is None:
            return loader.collate_fn(read)
        return next(iter(_split(loader.collate_fn([read]), 0, place)))

    return item


def as_written(collate_fn: Callable[..., Any] | None, data: Any) -> Callable[..., Any] | None:
    """Return a user's `collate_fn` that gets rows as tuples, where the rows of the data are tuples.

    Other rows are dicts, by the names of the columns.
    """
    is_items = hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data) > 0
    is_table = isinstance(data, Mapping | str) or hasattr(data, "iloc")
    if collate_fn is None or not is_items or is_table:
        return collate_fn
    with kept_randomness():
        first = data[0]
    if not isinstance(first, tuple) or _named_inputs(first) is not first:
        return collate_fn

    @wraps(collate_fn)
    def collate(rows: Sequence[Mapping[str, Any]]) -> Any:
        return collate_fn([tuple(row.values()) for row in rows])

    return collate


def open_iterable(data: Any) -> Table:
    """Return a Table of the first rows of an object that can only be iterated."""
    return open_stream(data, name_columns)


def _items(data: Any, num_rows: int) -> Iterator[Any]:
    for place in range(num_rows):
        try:
            yield data[place]
        except Exception as error:
            raise code_failed(
                f"row {place}: {type(data).__name__}[{place}]", error, place
            ) from error


def _unbatched(loader: Any) -> Iterator[Any]:
    batches = iter(loader)
    num_batches = first = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            where = f"batch {num_batches} (from row {first}): the DataLoader"
            raise code_failed(where, error, first) from error
        is_row = loader.batch_sampler is None  # batch_size=None yields single rows
        items = [batch] if is_row else list(_split(batch, num_batches, first))
        yield from items
        num_batches, first = num_batches + 1, first + len(items)


def _split(batch: Any, number: int, first: int) -> Iterator[Any]:
    """Yield the rows of one batch: a dict of columns, a tuple of columns, or one column."""
    batch = _named_inputs(batch, batched=True)
    if isinstance(batch, Mapping):
        columns = dict(batch)
    elif isinstance(batch, tuple | list) and not _is_column(batch):
        columns = dict(enumerate(batch))
    else:
        yield from batch
        return
    sizes: dict[str, int] = {}
    for name, column in columns.items():
        single = not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0
        if single or isinstance(column, str | bytes | Mapping):
            what = f"holds a {type(column).__name__} under {name!r}; expected one value per row."
            raise WRONG_TYPE.error(f"batch {number} (from row {first}) {what}", row=first)
        sizes[str(name)] = len(column)
    if len(set(sizes.values())) > 1:
        message = f"batch {number} (from row {first}): {unequal_rows(sizes)}"
        raise MISALIGNED_COLUMNS.error(message, row=first)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True)) if isinstance(batch, Mapping) else values


def _is_column(batch: Sequence[Any]) -> bool:
    """Return whether a list is one column of text or numbers rather than several columns."""
    return bool(batch) and all(isinstance(value, str | int | float) for value in batch)


def name_columns(items: Iterator[Any]) -> Iterator[Row]:
    """Items as rows; the first item decides the kind of all of them and the column names."""
    names: list[str] | None = None
    kind = ""
    for place, item in enumerate(map(_named_inputs, items)):
        found = _kind(item)
        kind = kind or found
        if found != kind:
            message = (
                f"row {place} is a {type(item).__name__}; expected a {kind} as in earlier rows."
            )
            raise WRONG_TYPE.error(message, row=place)
        if names is None and found != "dict":
            names = _names(list(item) if found == "tuple" else [item])
        yield as_named(item, names or (), place)


def _named_inputs(item: Any, batched: bool = False) -> Any:
    """`((input, input), label)` and `({name: input, …}, label)` with a name for each value.

    Other rows, or batches, stay as they are.
    """
    if not isinstance(item, tuple | list) or len(item) != 2:
        return item
    inputs, label = item
    if isinstance(inputs, Mapping) and "label" not in inputs:
        return {**inputs, "label": label}
    several = isinstance(inputs, tuple | list) and len(inputs) > 1
    if not several or not all(np.ndim(_plain(value)) > batched for value in inputs):
        return item
    if not isinstance(inputs, tuple) and not batched:
        return item  # one array, as nested lists; a DataLoader makes lists of tuples
    names = [f"{UNNAMED}{number}" for number in range(len(inputs))]
    names[0] = _input_name(inputs[0][0] if batched else inputs[0])
    return {**dict(zip(names, inputs, strict=True)), "label": label}


def _kind(item: Any) -> str:
    if isinstance(item, Mapping):
        return "dict"
    return "tuple" if isinstance(item, tuple | list) else "single value"


UNNAMED = "column_"


def is_unnamed(column: str) -> bool:
    """Return whether a column got its name here: a further value of rows that are tuples."""
    return column.startswith(UNNAMED) and column.removeprefix(UNNAMED).isdigit()


def _names(values: Sequence[Any]) -> list[str]:
    """The column names of tuples: (input, label), (input, label, more) or (input, input, label)."""
    names = [f"{UNNAMED}{number}" for number in range(len(values))]
    label = 1
    if len(values) > 2 and np.ndim(_plain(values[1])) and not np.ndim(_plain(values[-1])):
        label = len(values) - 1
    if values:
        names[0] = _input_name(values[0])
    if len(values) > 1:
        names[label] = "label"
    return names


def _plain(value: Any) -> Any:
    value = python_value(value)
    return 0 if isinstance(value, str | bytes | Mapping) else value


def _input_name(value: Any) -> str:
    """Return the column name of an item's first value: text, image or features."""
    value = python_value(value)
    if isinstance(value, str):
        return "text"
    if isinstance(value, np.ndarray):
        is_bytes = value.dtype == np.uint8 and value.ndim in (2, 3)
        is_planes = value.dtype.kind == "f" and value.ndim == 3 and value.shape[0] in (1, 3)
        if is_bytes or is_planes:
            return "image"
    return "features"
