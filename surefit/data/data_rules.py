"""Rules that several data formats and checks share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from surefit.errors import FindingError
from surefit.findings import rule

NO_DATA = rule(
    "SF101",
    "error",
    "no data",
    why="There are no rows to train on.",
    fix="Check the path, and the filter or script that wrote the file.",
)

CORRUPT_FILE = rule(
    "SF102",
    "error",
    "corrupt line or file",
    why="A line that cannot be read is lost data, or the sign of a damaged file.",
    fix="Correct or delete the named line; write or download a damaged file again.",
)

MIXED_TYPES = rule(
    "SF103",
    "error",
    "mixed types in a column",
    why="A column must have one type; torch would fail on another one during training.",
    fix="Write every value of the column in one type.",
)

PICKLED_DATA = rule(
    "SF104",
    "error",
    "pickled data",
    why="Loading a pickle runs the code inside it, and data must never run code.",
    fix="Save numeric arrays; for ragged rows, flat values and offsets.",
)

NOT_UTF8 = rule(
    "SF105",
    "error",
    "text is not UTF-8",
    why="Text in the wrong encoding trains the model on noise.",
    fix="Convert the file to UTF-8, or set read.encoding to its encoding.",
)

FILES_DO_NOT_MATCH = rule(
    "SF106",
    "error",
    "files or columns that do not match",
    why="Files are read as one table if they have the same columns, or the same number of rows.",
    fix="Pass files with the same columns, or arrays with the same number of rows.",
)

DIFFERENT_COLUMNS = rule(
    "SF107",
    "warning",
    "files with different columns",
    why="A row has no value in a column that its file lacks; if the task needs it, it is dropped.",
    fix="Pass files with the same columns.",
    accept="A row has no value in the columns that its file lacks.",
    covered_by=("SF106", "SF140", "SF141"),
)


UNREADABLE_MEDIA = rule(
    "SF250",
    "error",
    "unreadable image or audio",
    why="A damaged or missing file is lost data, and would stop the run during training. A small "
    "image file can decompress to more pixels than fit into memory.",
    fix="Replace or remove the named file, or set on_bad_file=skip.",
)


def unequal_rows(counts: Mapping[str, int]) -> str:
    """Return the message about columns with different numbers of rows.

    >>> unequal_rows({"x": 3, "y": 2})
    'columns have different numbers of rows: x has 3, y has 2.'
    """
    shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
    return f"columns have different numbers of rows: {shown[:160]}."


USER_DATA_CODE_FAILED = rule(
    "SF120",
    "error",
    "your own Dataset, DataLoader, collate_fn or task failed",
    why="Code of your own raised an exception on a row.",
    fix="Correct it for the named row: dataset[row] must work for every row.",
)

MISALIGNED_COLUMNS = rule(
    "SF201",
    "error",
    "misaligned columns",
    why="Columns that describe the same sequence must have the same length in every row.",
    fix="Recompute the shorter column from the same tokens.",
)

MISSING_COLUMN = rule(
    "SF202",
    "error",
    "missing column",
    why="The task needs this column.",
    fix="Name the column with columns.<role>, or pass data that has it.",
)

NOT_FINITE = rule(
    "SF207",
    "error",
    "values that are not finite",
    why="One NaN or infinity makes the loss NaN, and then every weight.",
    fix="Replace or remove the named values.",
)

WRONG_SHAPE = rule(
    "SF208",
    "error",
    "wrong shape",
    why="The model expects axes of fixed order and size.",
    fix=(
        "Save the array as [rows, sequence length, feature size], or set features.steps or "
        "features.width."
    ),
)

DTYPE_CONVERTED = rule(
    "SF209",
    "fixed",
    "dtype converted",
    why="The model computes in float32 and would fail on other types.",
    fix="Nothing to do.",
)

WRONG_TYPE = rule(
    "SF213",
    "error",
    "wrong type of value",
    why="The values do not have the type that the role of the column needs.",
    fix="Name another column with columns.<role>, or convert the values.",
)

ROWS_RESHAPED = rule(
    "SF420",
    "fixed",
    "rows converted to the shape that models read",
    why="Rows are [sequence length, feature size], with one shape and type in all files. Ids are "
    "categories: as numbers, id 8 would be twice id 4.",
    fix="Save the array in this shape to avoid this note.",
)


EXPANDS_TOO_MUCH = rule(
    "SF843",
    "error",
    "file that expands too much",
    why="A small compressed file can unpack to more than the disk has; usual data compresses less.",
    fix="Check where the file is from. If it is meant to be so, unpack it and pass the result.",
)

ALLOWED_BYTES = 4 << 30
"""What any file may unpack to, and beyond that so many times its own size:"""
ALLOWED_RATIO = 200


def check_expansion(source: str | Path, num_bytes: int) -> None:
    """Refuse a file that takes up so many bytes once it is unpacked."""
    if num_bytes <= ALLOWED_BYTES:
        return
    size = os.path.getsize(source) if os.path.isfile(source) else num_bytes
    if num_bytes > ALLOWED_RATIO * size:
        raise EXPANDS_TOO_MUCH.error(
            f"{Path(source).name} has {size:,} bytes and unpacks to more than {num_bytes:,}.",
            file=str(source),
        )


TOO_MANY_COLUMNS = rule(
    "SF110",
    "error",
    "too many columns",
    why="A table has a name and a type for every column; so many columns are one array.",
    fix="Save the numbers as one array (.npy), and the other columns in a separate file.",
)

MAX_COLUMNS = 10_000


def too_many_columns(file: str, count: int, line: int | None = None) -> FindingError:
    """Return the error about a table with too many columns."""
    message = f"{Path(file).name} has {count} columns; surefit reads up to {MAX_COLUMNS}."
    return TOO_MANY_COLUMNS.error(message, file=file, line=line)
