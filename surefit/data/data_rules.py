"""Rules that several ways of opening and reading data share."""

from __future__ import annotations

from collections.abc import Mapping

from surefit.findings import rule

NO_DATA = rule(
    "SF101",
    "error",
    "no data",
    why="There is nothing to learn from.",
    fix="Check the path and the filter that wrote the file.",
)

CORRUPT_FILE = rule(
    "SF102",
    "error",
    "corrupt line or file",
    why="A line that cannot be read is either lost data or a damaged file.",
    fix="Repair or delete the named line.",
)

MIXED_TYPES = rule(
    "SF103",
    "error",
    "mixed types in a column",
    why="A column with two types has no single meaning, and torch would fail on it mid-run.",
    fix="Write every value of the column with one type.",
)

PICKLED_DATA = rule(
    "SF104",
    "error",
    "pickled data",
    why="Reading a pickle runs the code inside it; data must never run code.",
    fix="Save plain numeric arrays: flat values and offsets for ragged rows.",
)

NOT_UTF8 = rule(
    "SF105",
    "error",
    "text is not UTF-8",
    why="Wrongly decoded text trains the model on noise.",
    fix="Convert the file to UTF-8, or name its encoding with read.encoding.",
)

FILES_DO_NOT_MATCH = rule(
    "SF106",
    "error",
    "files that do not belong together",
    why="Rows can only be read together when every file has the same columns or the same rows.",
    fix="Give files with the same columns, or arrays with the same number of rows.",
)


def unequal_rows(counts: Mapping[str, int]) -> str:
    """What is wrong with columns that must have one number of rows, and do not.

    >>> unequal_rows({"x": 3, "y": 2})
    'columns have different numbers of rows: x has 3, y has 2.'
    """
    shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
    return f"columns have different numbers of rows: {shown[:160]}."


FILES_JOINED = rule(
    "SF116",
    "info",
    "files joined side by side",
    why="Their rows belong together by their order.",
    fix="Give one file, or files of another kind, if they were not meant to be joined.",
)

USER_DATA_CODE_FAILED = rule(
    "SF120",
    "error",
    "the data's own code fails",
    why="A Dataset, DataLoader or collate_fn given from Python raised on the data.",
    fix="Make the named row readable: dataset[row] must work for every row.",
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
    why="The task cannot be learned without it.",
    fix="Name the column with columns.<role>, or give data that has it.",
)

NOT_FINITE = rule(
    "SF207",
    "error",
    "values that are not finite",
    why="One NaN or infinity makes the loss, then every weight, NaN.",
    fix="Replace or drop the named values.",
)

WRONG_SHAPE = rule(
    "SF208",
    "error",
    "wrong shape",
    why="The model reads axes in a fixed order and width.",
    fix="Save the array as [rows, steps, width], or set features.steps or features.width.",
)

DTYPE_CONVERTED = rule(
    "SF209",
    "fixed",
    "dtype converted",
    why="The model computes in float32; other types fail inside torch.",
    fix="Nothing to do.",
)

WRONG_TYPE = rule(
    "SF213",
    "error",
    "wrong type of value",
    why="The column's values are not of the kind its role needs.",
    fix="Name another column with columns.<role>, or convert the values.",
)

STRAY_AXIS_DROPPED = rule(
    "SF423",
    "fixed",
    "stray axis dropped",
    why="An axis of length 1 is left over from a batch or a picture; rows are [steps, width].",
    fix="Save the array without it to be rid of this note.",
)
