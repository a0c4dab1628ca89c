"""Dates and times as people write them."""

from __future__ import annotations

import re
from datetime import datetime

ORDERS = ("ymd", "mdy", "dmy")
"""The possible orders of year, month and day; the first that fits a whole column is used."""

_DATE = re.compile(
    r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})"
    r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?: ?([AaPp])[Mm])?)?"
)
_CENTURY_TURNS = 69
"""Two-digit years from 69 on are 19xx, as in POSIX."""


def read_date(text: str, order: str) -> datetime | None:
    """The date in a text, with its numbers in the given order; None if it is not a date.

    ISO dates are `ymd`. With dots, the year has four digits and the month is never first.

    >>> read_date("1/13/11", "mdy"), read_date("1/13/11", "dmy")
    (datetime.datetime(2011, 1, 13, 0, 0), None)
    >>> read_date("13.1.2011 2:30 PM", "dmy")
    datetime.datetime(2011, 1, 13, 14, 30)
    """
    if order == "ymd" and text[4:5] == "-":
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    first, mark, second, third, hour, minute, seconds, half = match.groups()
    numbers = dict(zip(order, (first, second, third), strict=True))
    year = _year(numbers["y"], four_digits=order == "ymd" or mark == ".")
    if year is None or (mark == "." and order == "mdy"):
        return None
    hours = int(hour or 0)
    if half is not None:
        hours = hours % 12 + (12 if half in "Pp" else 0)
    month, day = int(numbers["m"]), int(numbers["d"])
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
