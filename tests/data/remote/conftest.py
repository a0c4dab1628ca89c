"""Fixtures of the tests of remote data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from surefit.data.remote import remote_files


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_files, "PAUSES_SECONDS", (0.01,) * 3)


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()
