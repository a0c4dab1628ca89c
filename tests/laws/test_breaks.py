"""The one-line changes that break the laws follow the code; `breaks.py` itself applies them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import surefit

BREAKS = Path(__file__).parent / "breaks.py"


def test_each_line_is_there_once() -> None:
    spec = importlib.util.spec_from_file_location("law_breaks", BREAKS)
    assert spec is not None
    assert spec.loader is not None
    breaks = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = breaks
    spec.loader.exec_module(breaks)
    package = Path(surefit.__file__).parent
    wrong = [
        (change.file, change.line)
        for change in breaks.BREAKS
        if (package / change.file).read_text(encoding="utf-8").count(change.line) != 1
    ]
    assert wrong == []
    root = Path(__file__).parents[2]
    unknown = [
        change.test
        for change in breaks.BREAKS
        if f"def {change.test.partition('[')[0]}(" not in change.test_file(root).read_text()
    ]
    assert unknown == []
    assert {change.law for change in breaks.BREAKS} == {*range(1, 14)}
