"""What all tests share: a cache of their own, and the shared data where it is there."""

from __future__ import annotations

from collections import Counter
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line per kind of tests/faults: how many cases came out as they should."""
    done = {"passed": Counter[str](), "failed": Counter[str]()}
    for outcome, kinds in done.items():
        for report in terminalreporter.stats.get(outcome, []):
            kinds.update(v for k, v in getattr(report, "user_properties", ()) if k == "faults")
    every = done["passed"] + done["failed"]
    if every:
        terminalreporter.section("faults caught, healthy data passed")
    for kind, total in every.items():
        terminalreporter.write_line(f"{kind:12}{done['passed'][kind]:>4} of {total}")
