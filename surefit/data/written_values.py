"""Numbers, dates, times and missing values as people write them in text files.

Which texts stand for missing values depends on the column:

- In columns of numbers and of dates, every marker is a missing value.
- In columns of categories and classes, `none`, `nil`, `missing` and `unknown` are values, and so is
  a marker that looks like the other values: `NA` beside `DE` and `FR`, or `-` beside `+`.
- Prompts and answers are missing where they are `nan` or `<NA>`, which pandas writes as text.
- Other texts stay as they are.

`read.missing` replaces the markers, and then they are missing values in the column of classes, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import Reading
from surefit.data.column_types import is_text
from surefit.findings import Finding, note

if TYPE_CHECKING:
    from surefit.data.table import Table

INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
"""What is read as a number. Digits after a leading zero are a code, such as a postal code."""

_CODE = re.compile(r"[+-]?0\d+(\.\d+)?")
_OTHER_NOTATION = re.compile(
    r"[+\-−]?\s?[$€£¥₹]?\s?\d+([.,'’_\s]\d+)*\s?[%$€£¥₹]?",
)
MISSING_MARKERS = frozenset(
    (
        *("n/a", "na", "nan", "-nan", "null", "none", "nil", "<na>", "#n/a", "#na", "nat"),
        *("n.a.", "n.a", "(null)", "\\n", "missing", "unknown", "#n/a n/a"),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#value!", "#div/0!", "#ref!", "#num!"),
        *("-", "--", "–", "—", "?", "."),
    )
)
"""What people, spreadsheets, SQL, R and pandas write for a missing value, in lower case."""


def read_number(text: str) -> float | None:
    """Return the number in a text; None if it is not a number.

    >>> read_number("12.5"), read_number("12,5"), read_number("007")
    (12.5, None, None)
    """
    text = text.strip()
    return float(text) if NUMBER.fullmatch(text) else None


def is_code(text: str) -> bool:
    """Whether a text is digits with a leading zero, which conversion to a number would lose."""
    return _CODE.fullmatch(text) is not None


def is_almost_number(text: str) -> bool:
    """Return whether a text is a number in another notation, or a marker for a missing value.

    >>> [is_almost_number(text) for text in ("12,5", "1 234", "€5", "15%", "n/a", "12 kg")]
    [True, True, True, True, True, False]
    """
    return text.casefold() in MISSING_MARKERS or _OTHER_NOTATION.fullmatch(text) is not None


DECIMALS = {"point": ".", "comma": ","}
"""What may be between whole number and fraction; the other one then groups thousands."""
_SIGNS, _SPACES = "$€£¥₹", " \u00a0\u202f"


def notation(name: str) -> str:
    """Return the pattern of numbers with this decimal mark, grouped thousands, currency or percent.

    >>> [bool(re.fullmatch(notation("comma"), text)) for text in ("1.234,5 €", "1.2.3", "1,5 kg")]
    [True, False, False]
    """
    decimal = DECIMALS[name]
    (group,) = {*DECIMALS.values()} - {decimal}
    space, sign = f"[{_SPACES}]?", f"[{_SIGNS}]?"
    whole = rf"(\d{{1,3}}([{group}'’_{_SPACES}]\d{{3}})+|\d+)"
    return rf"[-+−]?{space}{sign}{space}{whole}([{decimal}]\d+)?{space}[%{_SIGNS}]?"


def as_plain_numbers(cells: pa.Array, name: str) -> pa.Array:
    """Return cells with the numbers of a notation written as 1234.5; others stay as they are."""
    fits, decimal = pc.match_substring_regex(cells, f"^({notation(name)})$"), DECIMALS[name]
    bare = pc.replace_substring(
        pc.replace_substring_regex(cells, rf"[^\d{decimal}−-]", ""), "−", "-"
    )
    return pc.if_else(fits, pc.replace_substring(bare, decimal, "."), cells)


ORDERS = ("ymd", "mdy", "dmy", "ymd or mdy", "ymd or dmy", "time")
"""The possible orders of year, month and day, and times of day alone; the first that fits a whole
column is used."""

_CLOCK = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?(?: ?([AaPp])\.?[Mm]\.?)?"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_AT = rf"(?:(?:[ T]+|, ?){_CLOCK}{_ZONE})?"
_DATE = re.compile(rf"(\d{{1,4}})([-/.])(\d{{1,2}})\2(\d{{1,4}}){_AT}")
_DAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\.?,? +)?"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAME = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY_FIRST = re.compile(
    rf"{_DAY}(\d{{1,2}})(?:st|nd|rd|th)?[ -]+{_NAME}[ -]+(\d{{4}}|\d{{2}}),?{_AT}", re.IGNORECASE
)
_MONTH_FIRST = re.compile(
    rf"{_DAY}{_NAME}[ -]+(\d{{1,2}})(?:st|nd|rd|th)?,?[ -]+(\d{{4}}),?{_AT}", re.IGNORECASE
)
_TIME = re.compile(rf"{_CLOCK}{_ZONE}")
_CENTURY_TURNS = 69
"""Two-digit years from 69 on are 19xx, as in POSIX."""


def read_date(text: str, order: str) -> datetime | None:
    """Return the date in a text, with its numbers in the given order; None if it is not a date.

    ISO dates are `ymd`. With dots, the year has four digits and the month is never first. The name
    of a month, in English, may stand in any order. `ymd or dmy` takes either.

    >>> read_date("1/13/11", "mdy"), read_date("1/13/11", "dmy")
    (datetime.datetime(2011, 1, 13, 0, 0), None)
    >>> read_date("13.1.2011 2:30 PM", "dmy"), read_date("Jan 13, 2011", "ymd")
    (datetime.datetime(2011, 1, 13, 14, 30), datetime.datetime(2011, 1, 13, 0, 0))
    """
    if order == "time":
        return None
    if " or " in order:
        found = (read_date(text, each) for each in order.split(" or "))
        return next((at for at in found if at is not None), None)
    if order == "ymd" and text[4:5] == "-":
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    match = _DATE.fullmatch(text)
    if match is None:
        return _read_named(text)
    first, mark, second, third, *clock = match.groups()
    numbers = dict(zip(order, (first, second, third), strict=True))
    year = _year(numbers["y"], four_digits=order == "ymd" or mark == ".")
    if year is None or (mark == "." and order == "mdy"):
        return None
    return _at(year, int(numbers["m"]), int(numbers["d"]), clock)


def read_time(text: str) -> time | None:
    """Return the time of day in a text; None if it is not one.

    >>> read_time("2:30 pm"), read_time("half past two")
    (datetime.time(14, 30), None)
    """
    match = _TIME.fullmatch(text)
    at = None if match is None else _at(2000, 1, 1, [*match.groups()])
    return None if at is None else at.time()


def is_date(text: str) -> bool:
    """Return whether a text is a date or a time of day, in any order."""
    return read_time(text) is not None or any(read_date(text, order) for order in ORDERS)


def date_order(texts: Collection[str]) -> str | None:
    """Return the order of year, month and day in which all texts are dates.

    >>> date_order(["2024-01-31"]), date_order(["1/31/24"]), date_order(["10:30"])
    ('ymd', 'mdy', None)
    """
    named = [text.strip() for text in texts]
    fits = (order for order in ORDERS if all(read_date(text, order) for text in named))
    return next(fits, None) if named else None


def are_dates(texts: Collection[str]) -> bool:
    """Return whether all texts are dates in one order, or all of them times of day."""
    return date_order(texts) is not None or all(read_time(text) is not None for text in texts)


def _read_named(text: str) -> datetime | None:
    """Return a date with the name of its month."""
    if match := _DAY_FIRST.fullmatch(text):
        day, name, digits, *clock = match.groups()
    elif match := _MONTH_FIRST.fullmatch(text):
        name, day, digits, *clock = match.groups()
    else:
        return None
    year = _year(digits, four_digits=False)
    return None if year is None else _at(year, 1 + _MONTHS.index(name[:3].lower()), int(day), clock)


def _at(year: int, month: int, day: int, clock: list[str | None]) -> datetime | None:
    """Return the date and time; `clock` has hour, minute, seconds and the half of the day."""
    hour, minute, seconds, half = clock
    hours = int(hour or 0)
    if half is not None:
        hours = hours % 12 + (12 if half in "Pp" else 0)
    try:
        return datetime(year, month, day, hours, int(minute or 0), int(seconds or 0))
    except ValueError:
        return None


def _year(digits: str, four_digits: bool) -> int | None:
    if len(digits) == 4:
        return int(digits)
    if four_digits or len(digits) != 2:
        return None
    return int(digits) + (1900 if int(digits) >= _CENTURY_TURNS else 2000)


VALUES = frozenset(("none", "nil", "missing", "unknown"))
"""Markers that are common names of categories and classes."""
IN_TEXTS = ("nan", "<NA>")
"""What pandas writes for a missing text, as it is spelled."""
TEXT_ROLES = (*("prompt", "answer", "input", "system", "source", "target", "chosen", "rejected"),)
READ_WHOLE = ("text", "image", "audio", "features", "messages")
"""Roles of inputs beside which other columns are not read."""
LONGEST = 16
LOOKED_AT = 1000
SHOWN = 8


def markers_of(reading: Reading | None) -> frozenset[str]:
    """Return the markers in lower case: those of `read.missing`, else the usual ones."""
    if reading is None or reading.missing is None:
        return MISSING_MARKERS
    return frozenset(marker.strip().casefold() for marker in reading.missing)


def is_missing(value: Any, markers: Collection[str]) -> bool:
    """Return whether a value is a marker, in any case.

    >>> [is_missing(value, MISSING_MARKERS) for value in (" n/a", "NaN", "Nadia", 0)]
    [True, True, False, False]
    """
    return isinstance(value, str) and len(value) <= LONGEST and value.strip().casefold() in markers


def describe_missing(
    columns: Mapping[str, Mapping[str, int]], what: str, file: str | None = None
) -> Iterator[Finding]:
    """One finding for each marker, from the markers of each column with their numbers of cells."""
    for marker in sorted({marker for found in columns.values() for marker in found}):
        counts = {name: found[marker] for name, found in columns.items() if marker in found}
        names = [f"{name!r} {count:,}" for name, count in counts.items()]
        shown = ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
        column = f"{len(counts)} column{'s' * (len(counts) > 1)}"
        yield note(
            f"{marker!r} in {column} of {what} is read as missing: {shown}.",
            file=file,
            column=next(iter(counts)),
        )


def find_missing(
    table: Table, roles: Mapping[str, str], whole_rows: bool, reading: Reading
) -> tuple[dict[str, Any], list[Finding]]:
    """Return markers of each column as settings of the Encoder, and what is found in the table."""
    markers, label = markers_of(reading), roles.get("label")
    by_column: dict[str, list[str]] = {}
    found: dict[str, Counter[str]] = {}
    takes_columns = whole_rows and roles.keys().isdisjoint(READ_WHOLE)
    read = [name for name in table.columns if takes_columns and name not in roles.values()]
    for name in (*read, *([label] if label in table.columns else [])):
        kind = table.column_type(name)
        if not is_text(kind):
            scalar = not pa.types.is_nested(kind)
            by_column |= {name: sorted(markers)} if scalar and whole_rows else {}
            continue
        others = _other_values(table, name, markers)
        is_measured = all(read_number(v) is not None for v in others) or are_dates(others)
        certain = reading.missing is not None or is_measured
        usable = markers if certain else markers - VALUES
        counts = _count_markers(table, name, usable)
        if not certain and (len(others) < 2 or any(_is_class(text, others) for text in counts)):
            usable, counts = frozenset(), Counter()
        by_column[name] = sorted(map(str.casefold, counts)) if name == label else sorted(usable)
        found[name] = counts
    texts = {roles[role] for role in TEXT_ROLES if role in roles} & {*table.columns}
    in_texts = [text for text in IN_TEXTS if text.casefold() in markers]
    found_texts = {
        name: counts
        for name in sorted(texts)
        if is_text(table.column_type(name))
        and (counts := _count_markers(table, name, frozenset(in_texts), exactly=True))
    }
    settings = {"missing": {name: (*known,) for name, known in by_column.items() if known}}
    settings["missing_texts"] = {name: (*counts,) for name, counts in found_texts.items()}
    return settings, [
        *describe_missing({n: c for n, c in found.items() if c}, "text"),
        *describe_missing(found_texts, "prompts or answers"),
    ]


def _count_markers(
    table: Table, column: str, markers: Collection[str], exactly: bool = False
) -> Counter[str]:
    """Return how many cells each marker has, as it is written."""
    counts: Counter[str] = Counter()
    wanted = pa.array(sorted(markers), pa.string())
    for chunk in table.arrow[column].chunks:
        short = chunk.filter(pc.less_equal(pc.binary_length(chunk), LONGEST))
        cells = pc.utf8_trim_whitespace(short)
        texts = cells if exactly else pc.utf8_lower(cells)
        held = cells.filter(pc.is_in(texts.cast(pa.string()), value_set=wanted))
        counts.update(
            {each["values"]: each["counts"] for each in pc.value_counts(held).to_pylist()}
        )
    return counts


def _other_values(table: Table, column: str, markers: Collection[str]) -> list[str]:
    """Different values of a column that are neither blank nor a marker, from its first ones."""
    distinct: dict[str, None] = {}
    for chunk in table.arrow[column].chunks:
        for value in pc.unique(chunk).to_pylist():
            text = (value or "").strip()
            if text and not is_missing(text, markers):
                distinct[text] = None
        if len(distinct) >= LOOKED_AT:
            break
    return [*distinct][:LOOKED_AT]


def _is_class(marker: str, others: Iterable[str]) -> bool:
    """Whether most other classes look like the marker: signs, capitals, or codes of its length."""

    def form(text: str) -> tuple[bool, ...]:
        signs = not any(map(str.isalnum, text))
        return signs, text.isupper(), len(text) <= 5, text.isalpha() or signs

    alike = [
        form(other) == form(marker) and (marker.isupper() or len(other) == len(marker))
        for other in others
    ]
    return 2 * sum(alike) > len(alike)
