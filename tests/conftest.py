"""What all tests share: a cache of their own, and the shared data where it is there."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from pathlib import Path
from zlib import crc32

# Processes of tests share the cores, so each computes with one thread; idle threads do not spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from surefit.checks import half_precision_trial
from surefit.data.cache import release_entries

SHARED = Path(__file__).resolve().parents[2] / "shared"
SEED = 12345
"""Not a plan's own seed, or a test could get the weights that a plan makes by accident."""
TRY_PRECISION = half_precision_trial._run

# How long an example takes is a matter of the machine, and which ones are drawn a matter of luck.
quick = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("any", derandomize=True, database=None, **quick)
settings.load_profile("any")

# A shell that starts the tests in the background makes them and all their children ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def seed_all() -> None:
    """Random numbers that do not depend on what ran before."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle N` runs the tests in a random order; `--sample N` a fixed sample of them."""
    parser.addoption("--shuffle", type=int, default=None, help="seed of a random order")
    parser.addoption("--sample", type=int, default=None, help="most tests that are run")


@pytest.hookimpl(trylast=True)  # after those of other tiers are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle if asked to: no test may depend on what ran before it. Keep a sample of them."""
    if (size := config.getoption("--sample")) is not None:
        kept = {*sorted(items, key=lambda item: crc32(item.nodeid.encode()))[:size]}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Only the package has doctests; test files, and what they import, are not searched for any."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_collection_finish() -> None:
    """What is there now is not garbage: a collection looks at what the tests themselves make."""
    gc.collect()
    gc.freeze()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Modules of torch that a file makes when it is imported are always the same."""
    if isinstance(collector, pytest.Module):
        seed_all()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test begins with the same random numbers, in whatever order they run."""
    seed_all()


@pytest.fixture(autouse=True)
def quick_plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans without what costs most of their time, unless that is the subject of the test.

    Tests of `rate_trial` try the learning rate, however slow the machine is.
    Slow tests, and those of `true_memory`, count the memory of this process and its heap.
    """
    marks = {mark.name for mark in request.node.iter_markers()}
    monkeypatch.setattr(half_precision_trial, "_run", _try_precision)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # no test pulls the plug
    # On a slow machine, stages would report their progress between the lines that are compared.
    monkeypatch.setattr("surefit.cli.display.PLAIN_SECONDS", float("inf"))
    if "rate_trial" in marks:
        monkeypatch.setattr("surefit.plan.rate_test.FREE_SECONDS", 120.0)
    else:
        monkeypatch.setattr("surefit.plan.rate_test.check_rate", lambda *_: (False, []))
    if not marks & {"slow", "true_memory"}:
        for place in ("predict_peak", "process_memory"):  # each looks at all objects there are
            monkeypatch.setattr(f"surefit.memory.{place}.free_memory", lambda: None)
        monkeypatch.setattr("surefit.memory.predict_peak.counted_bytes", _sum_sizes)


def _sum_sizes(spans: Iterable[tuple[int, int]]) -> int:
    return sum(size for _, size in spans)


def _try_precision(command: list[str], tried: dict[str, str | None] = {}) -> str | None:  # noqa: B006
    """What this CPU computes is tried once per process, not once per test."""
    precision = command[-1]
    if command != half_precision_trial.trial_command(precision):
        return TRY_PRECISION(command)
    if precision not in tried:
        tried[precision] = TRY_PRECISION(command)
    return tried[precision]


@pytest.fixture(scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders, one after the other; `mktemp` lists all earlier ones to find a free name."""
    root = tmp_path_factory.mktemp("own")
    return (root / str(number) for number in count())


@pytest.fixture(autouse=True)
def cache(own_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder for each test, and no record of earlier runs."""
    place = next(own_folders)
    folder = place / "cache"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SUREFIT_CACHE", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    yield folder
    release_entries()


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
