"""Arrow files (IPC, as a file or a stream), memory-mapped, and folders that `datasets` saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from surefit.config import Reading
from surefit.core.foreign import check_names, first_line, read_json
from surefit.data.arrow_types import in_cache, is_plain, plain_schema
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.data.data_rules import CORRUPT_FILE, NO_DATA
from surefit.data.formats.opened import Opened, bad_file
from surefit.data.official_splits import Splits, named_splits
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError, UsageError

T = TypeVar("T")
_MAGIC = b"ARROW1"


def open_arrow(path: Path, reading: Reading) -> Opened:
    """The rows of an `.arrow` file, memory-mapped; a compressed file is unpacked into the cache."""
    key = file_fingerprint(path)
    if path.stat().st_size == 0:
        raise _unreadable(path, "it is empty")
    buffer = pa.memory_map(str(path)).read_buffer()
    try:
        schema = _reader(buffer).schema
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, str(error)) from None
    if is_plain(schema, str(path)) and _is_mapped(buffer, next(_batches(path, buffer), None)):
        checked = fingerprint("checked", key)  # when the file is opened for the first time
        open_entry("tables", checked, lambda _: [*map(len, _checked_batches(path, buffer))], str)
        table = pa.Table.from_batches(_batches(path, buffer), schema)
        return Opened(pa.Table.from_arrays(table.columns, schema=plain_schema(schema, str(path))))
    return Opened(in_cache(key, schema, str(path), lambda: _checked_batches(path, buffer)))


def _reader(buffer: pa.Buffer) -> Any:
    source = pa.BufferReader(buffer)
    is_file = buffer.slice(0, len(_MAGIC)).to_pybytes() == _MAGIC
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def _batches(path: Path, buffer: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Record batches one by one."""
    first = number = 0
    try:
        reader = _reader(buffer)
        while True:
            if isinstance(reader, pa.ipc.RecordBatchStreamReader):
                batch = reader.read_next_batch()
            elif number < reader.num_record_batches:
                batch = reader.get_batch(number)
            else:
                return
            yield batch
            number, first = number + 1, first + len(batch)
    except StopIteration:
        return
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, str(error), number, first) from None


def _checked_batches(path: Path, buffer: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Record batches with valid offsets and text: reading invalid ones may crash the process."""
    first = 0
    for number, batch in enumerate(_batches(path, buffer)):
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise _unreadable(path, str(error), number, first) from None
        yield batch
        first += len(batch)


def _is_mapped(buffer: pa.Buffer, batch: pa.RecordBatch | None) -> bool:
    """Return whether a batch is memory-mapped rather than unpacked into memory."""
    if batch is None:
        return True
    parts = [part for column in batch.columns for part in column.buffers() if part is not None]
    low, high = buffer.address, buffer.address + buffer.size
    return all(low <= part.address <= high for part in parts if part.size)


def _unreadable(path: Path, error: str, batch: int = 0, row: int | None = None) -> FindingError:
    at = f", record batch {batch} (from row {row})" if row is not None else ""
    line = error.splitlines()[0][:160] if error else "it ends too early"
    return bad_file(path, f"{at} is not readable as Arrow: {line}", row=row)


@dataclass(frozen=True)
class SavedSplits:
    """What dataset_dict.json of `DatasetDict.save_to_disk` holds."""

    splits: list[str]


@dataclass(frozen=True)
class SavedFile:
    """A file of a dataset, relative to its folder."""

    filename: str

    def __post_init__(self) -> None:
        check_names([Path(self.filename).name])


@dataclass(frozen=True)
class SavedState:
    """What state.json of `Dataset.save_to_disk` holds."""

    _data_files: list[SavedFile]


def is_dataset_folder(path: Path) -> bool:
    """Return whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote the folder."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def dataset_splits(path: Path) -> Splits | None:
    """Return the folders of the splits in a `DatasetDict` folder; None for a single dataset."""
    if not (path / "dataset_dict.json").is_file():
        return None
    names = _read(path / "dataset_dict.json", SavedSplits).splits
    splits = named_splits({name: (path / name,) for name in names})
    if splits is None:
        message = f"{path} has the splits {names}; expected one called train."
        fix = "Pass the folder of one split, such as --data FOLDER/test."
        raise NO_DATA.error(message, fix=fix, file=str(path))
    return splits


def dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that `Dataset.save_to_disk` wrote, in order."""
    files = _read(folder / "state.json", SavedState)._data_files
    paths = [folder / Path(file.filename).name for file in files]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        message = f"{folder / 'state.json'} names {missing.name}, which does not exist."
        raise CORRUPT_FILE.error(message, fix="Save or copy the dataset again.", file=str(missing))
    if not paths:
        raise NO_DATA.error(f"{folder} is a dataset without rows.", file=str(folder))
    return paths


def _read(path: Path, kind: type[T]) -> T:
    try:
        return read_json(path, kind)
    except UsageError as error:
        fix = "Save the dataset again."
        raise CORRUPT_FILE.error(error.message, fix=fix, file=str(path)) from None


def open_parquet(path: Path, reading: Reading) -> Opened:
    """Yield the rows of a `.parquet` file; only a few pages of it are in memory at a time."""
    import pyarrow.parquet

    shown = str(path)
    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f" is not a readable Parquet file: {first_line(error)}"
        raise bad_file(path, what, "Write or download it again.") from None

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for group in range(file.num_row_groups):
            try:
                for batch in file.iter_batches(CHUNK_ROWS, row_groups=[group], use_threads=False):
                    batch.validate(full=True)  # texts that are not UTF-8 fail much later
                    yield batch
            except (pa.ArrowException, OSError, ValueError) as error:
                what = f", row group {group} (of {file.num_row_groups}, from row {first}) cannot be"
                fix = "Write or download the file again."
                raise bad_file(path, f"{what} read: {first_line(error)}", fix, row=first) from None
            first += file.metadata.row_group(group).num_rows

    with file:
        return Opened(in_cache(file_fingerprint(path), file.schema_arrow, shown, batches))
