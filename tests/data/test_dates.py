"""Dates as they are commonly written; the order of their numbers is that of the whole column."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import surefit
from surefit.data.dates import ORDERS, read_date


@pytest.mark.parametrize(
    ("text", "order", "date"),
    [
        ("2011-01-02", "ymd", datetime(2011, 1, 2)),
        ("2011-01-02T03:04:05", "ymd", datetime(2011, 1, 2, 3, 4, 5)),
        ("2011/1/2", "ymd", datetime(2011, 1, 2)),
        ("1/2/11", "mdy", datetime(2011, 1, 2)),
        ("1/2/11", "dmy", datetime(2011, 2, 1)),
        ("1/2/1969 12:05 am", "mdy", datetime(1969, 1, 2, 0, 5)),
        ("31-12-99", "dmy", datetime(1999, 12, 31)),
        ("2.1.2011 15:00", "dmy", datetime(2011, 1, 2, 15)),
    ],
)
def test_date_is_read(text: str, order: str, date: datetime) -> None:
    assert read_date(text, order) == date


@pytest.mark.parametrize("text", ["13/13/11", "1.2.11", "1/2", "1/2-11", "3/4/5", "", "2011", "a"])
def test_other_text_is_no_date(text: str) -> None:
    assert [read_date(text, order) for order in ORDERS] == [None] * len(ORDERS)


@pytest.mark.parametrize(("form", "order"), [("{m}/{d}/11", "mdy"), ("{d}/{m}/11", "dmy")])
def test_column_decides_the_order(form: str, order: str) -> None:
    days = [(n % 12 + 1, n % 28 + 1) for n in range(60)]
    rows: list[dict[str, Any]] = [{"when": form.format(m=m, d=d), "y": float(m)} for m, d in days]
    plan = surefit.check(data=rows, model="tiny:mlp", task="regression", columns={"label": "y"})
    assert plan.job is not None
    parts = plan.job.pipeline.encoder.fitted["columns"]
    months = [part for part in parts if part["part"] == "month" and part["kind"] == "category"]
    assert [(part["order"], part["values"]) for part in months] == [(order, list(range(1, 13)))]
