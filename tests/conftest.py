"""What all tests share: a cache of their own, and the shared data where it is there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from surefit.data.cache_use import release_leases

SHARED = Path(__file__).resolve().parents[2] / "shared"
SEED = 12345
"""Not a plan's own seed, or a test could get the weights that a plan makes by accident."""

# How long an example takes is a matter of the machine.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


def seed_all() -> None:
    """Random numbers that do not depend on what ran before."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle N` runs the tests in a random order; `--share S` runs a fixed sample of them."""
    parser.addoption("--shuffle", type=int, default=None, help="seed of a random order")
    parser.addoption("--share", type=float, default=1.0, help="share of the tests that are run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle if asked to: no test may depend on what ran before it. Keep a share of them."""
    share = config.getoption("--share")
    left_out = [item for item in items if crc32(item.nodeid.encode()) >= share * 2**32]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Modules of torch that a file makes when it is imported are always the same."""
    if isinstance(collector, pytest.Module):
        seed_all()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test begins with the same random numbers, in whatever order they run."""
    seed_all()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate is tested however slow the machine is at the moment."""
    monkeypatch.setattr("surefit.plan.rate_test.FREE_SECONDS", 120.0)


@pytest.fixture(autouse=True)
def cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An empty cache folder for each test, and no record of earlier runs."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SUREFIT_CACHE", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    yield folder
    release_leases()


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
    wanting = [report.nodeid for report in skipped if "shared" in reason_of(report)]
    if SHARED.is_dir() and wanting:
        reporter.write_line(f"skipped though the shared folder is there: {', '.join(wanting)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, without the path of its file."""
    longrepr = report.longrepr
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


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
