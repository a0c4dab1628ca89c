"""docs/reliability.md shows the figures that were measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path


def test_the_page_has_the_tables_of_the_results() -> None:
    path = Path(__file__).with_name("page.py")
    spec = importlib.util.spec_from_file_location("reliability_page", path)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    results = json.loads(page.RESULTS.read_text("utf-8"))
    assert page.render(page.PAGE.read_text("utf-8"), results) == page.PAGE.read_text("utf-8")
