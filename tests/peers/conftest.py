"""Fixtures of the tests of processes that watch each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store on this machine, where processes would meet."""
    from torch.distributed import TCPStore

    made = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(made.port))
    return made
