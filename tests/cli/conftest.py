"""Fixtures of the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_input import write_good_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good data and a good module."""
    monkeypatch.chdir(tmp_path)
    write_good_data(tmp_path)
    return tmp_path
