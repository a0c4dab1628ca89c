"""What all tests share: a cache of their own, and the shared data where it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SUREFIT_CACHE", str(folder))
    return folder


@pytest.fixture
def shared() -> Path:
    """The folder of real data and weights that lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the shared folder with real data is not beside the repository")
    return SHARED


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the shared folder is there and a test was skipped for want of it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    wanting = [report.nodeid for report in skipped if "shared" in str(report.longrepr)]
    if SHARED.is_dir() and wanting:
        print(f"\nskipped though the shared folder is there: {', '.join(wanting)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
