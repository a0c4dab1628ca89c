"""Parquet to Arrow: converted once into the cache, by row groups, then memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.arrow_types import in_cache
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.file_identity import file_fingerprint
from surefit.data.formats.opened import Opened
from surefit.data.table import CHUNK_ROWS


def open_parquet(path: Path, reading: Reading) -> Opened:
    """The rows of a `.parquet` file; only a few pages of it are in memory at a time."""
    import pyarrow.parquet

    shown = str(path)
    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        message = f"{path.name} is not a readable Parquet file: {_short(error)}"
        raise CORRUPT_FILE.error(message, fix="Write or download it again.", file=shown) from None

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for group in range(file.num_row_groups):
            try:
                yield from file.iter_batches(CHUNK_ROWS, row_groups=[group], use_threads=False)
            except (pa.ArrowException, OSError) as error:
                message = (
                    f"{path.name}, row group {group} (of {file.num_row_groups}, from row "
                    f"{first}) cannot be read: {_short(error)}"
                )
                fix = "Write or download the file again."
                raise CORRUPT_FILE.error(message, fix=fix, file=shown, row=first) from None
            first += file.metadata.row_group(group).num_rows

    with file:
        return Opened(in_cache(file_fingerprint(path), file.schema_arrow, shown, batches))


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
