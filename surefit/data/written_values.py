"""Numbers, dates and times as people write them in text files."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, time

INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
"""What is read as a number. Digits after a leading zero are a code, such as a postal code."""

_CODE = re.compile(r"[+-]?0\d+(\.\d+)?")
_OTHER_NOTATION = re.compile(
    r"[+\-−]?\s?[$€£¥₹]?\s?\d+([.,'’_\s]\d+)*\s?[%$€£¥₹]?",
)
MISSING_MARKERS = frozenset(
    (
        *("n/a", "na", "nan", "-nan", "null", "none", "nil", "<na>", "#n/a", "#na"),
        *("-", "--", "–", "—", "?", ".", "#value!", "#div/0!", "#ref!"),
    )
)
"""What people, spreadsheets, R and pandas write for a missing value, in lower case."""


def read_number(text: str) -> float | None:
    """The number in a text; None if it is not a number.

    >>> read_number("12.5"), read_number("12,5"), read_number("007")
    (12.5, None, None)
    """
    text = text.strip()
    return float(text) if NUMBER.fullmatch(text) else None


def is_code(text: str) -> bool:
    """Whether a text is digits with a leading zero, which conversion to a number would lose."""
    return _CODE.fullmatch(text) is not None


def is_almost_number(text: str) -> bool:
    """Whether a text is a number in another notation, or a marker for a missing value.

    >>> [is_almost_number(text) for text in ("12,5", "1 234", "€5", "15%", "n/a", "12 kg")]
    [True, True, True, True, True, False]
    """
    return text.casefold() in MISSING_MARKERS or _OTHER_NOTATION.fullmatch(text) is not None


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
    """The date in a text, with its numbers in the given order; None if it is not a date.

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
    """The time of day in a text; None if it is not one.

    >>> read_time("2:30 pm"), read_time("half past two")
    (datetime.time(14, 30), None)
    """
    match = _TIME.fullmatch(text)
    at = None if match is None else _at(2000, 1, 1, [*match.groups()])
    return None if at is None else at.time()


def is_date(text: str) -> bool:
    """Whether a text is a date or a time of day, in any order."""
    return read_time(text) is not None or any(read_date(text, order) for order in ORDERS)


def are_dates(texts: Collection[str]) -> bool:
    """Whether all texts are dates in one order, or all of them times of day."""
    in_order = any(all(read_date(text, order) for text in texts) for order in ORDERS)
    return in_order or all(read_time(text) is not None for text in texts)


def _read_named(text: str) -> datetime | None:
    """A date with the name of its month."""
    if match := _DAY_FIRST.fullmatch(text):
        day, name, digits, *clock = match.groups()
    elif match := _MONTH_FIRST.fullmatch(text):
        name, day, digits, *clock = match.groups()
    else:
        return None
    year = _year(digits, four_digits=False)
    return None if year is None else _at(year, 1 + _MONTHS.index(name[:3].lower()), int(day), clock)


def _at(year: int, month: int, day: int, clock: list[str | None]) -> datetime | None:
    """The date and time; `clock` has hour, minute, seconds and the half of the day."""
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
