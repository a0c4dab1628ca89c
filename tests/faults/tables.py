"""Columns of tables: blanks, dates and text with many values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from faults.case import Case, for_mlp

TO_PRICE = "--task regression --set columns.label=price"


def day(number: int) -> date:
    return date(2020, 1, 1) + timedelta(days=13 * number)


def table(count: int = 80, **more: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Sizes and prices with further columns, each a function of the row's number."""
    return [
        {
            "size": (7 * n) % 31 / 4,
            **{name: make(n) for name, make in more.items()},
            "price": (7 * n) % 31 + n % 3 + 0.5,
        }
        for n in range(count)
    ]


def case(title: str, rows: list[dict[str, Any]], **more: Any) -> Case:
    more = {"options": TO_PRICE, **more}
    return for_mlp(title, rows, **more)


CASES = [
    case(
        "SF268 dates with a cell that is none",
        table(when=lambda n: "soon" if n == 17 else day(n).isoformat()),
        row=17,
        column="when",
        also=("Columns not used",),
    ),
    case(
        "SF268 dates of two orders of day and month",
        table(when=lambda n: ("1/31/2020", "31/1/2020")[n % 2] if n < 4 else f"{day(n):%m/%d/%Y}"),
        row=1,
        column="when",
        also=("Columns not used",),
    ),
    case(
        "text of which some values are rare",
        table(120, city=lambda n: f"city {n % 8}"),
        options=f"{TO_PRICE} --set table.max_categories=4",
        column="city",
        note="most frequent ones",
    ),
    case(
        "blanks in three columns",
        table(
            age=lambda n: None if n % 4 == 1 else n % 9,
            colour=lambda n: ("red", "blue", " ")[n % 3],
            when=lambda n: None if n % 5 == 2 else day(n).isoformat(),
        ),
        column="colour",
        note="blanks in ",
    ),
    for_mlp(
        "SF267 blanks in validation rows alone",
        {
            "a.jsonl": table(age=lambda n: n % 9),
            "b.jsonl": table(20, age=lambda n: None if n == 6 else n % 9),
        },
        f"{TO_PRICE} --eval-data b.jsonl",
        row=6,
        column="age",
    ),
    case(
        "SF268 dates in two formats",
        table(when=lambda n: f"{day(n):%d.%m.%Y}" if n == 3 else day(n).isoformat()),
        row=3,
        column="when",
    ),
    case(
        "SF268 dates without a day above 12",
        table(when=lambda n: f"{n % 12 + 1}/{n % 7 + 1}/{2000 + n % 20}"),
        row=7,
        column="when",
    ),
]

HEALTHY = [
    case(
        "dates and times in one format each",
        table(
            us=lambda n: f"{day(n):%m/%d/%Y}",
            named=lambda n: f"{day(n):%d %b %Y}",
            zoned=lambda n: f"{day(n).isoformat()}T0{n % 10}:30:00Z",
            clock=lambda n: f"{n % 24}:{n % 60:02}",
        ),
    ),
    case(
        "codes that look like dates at times",
        table(code=lambda n: "3/4/2020" if n % 3 else f"part {n % 5}"),
    ),
    case("first of the month as month and day alike", table(when=lambda n: "1/1/2020")),
]
