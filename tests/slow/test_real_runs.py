"""The runs on real data that `bench/real_runs.py` lists, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from real_run_list import RUNS, RealRun
from real_runs import OTHER_SEED, execute

pytestmark = pytest.mark.slow

CHEAP = tuple(run for run in RUNS if run.name.startswith(("bike-sharing", "basic-motions")))
"""Those that are also repeated here; `bench/real_runs.py --again` repeats all."""


@pytest.mark.parametrize("run", [run for run in RUNS if run.tested], ids=lambda run: run.name)
def test_run_reaches_its_goals(run: RealRun, tmp_path: Path, shared: Path) -> None:
    result = execute(run, tmp_path)
    assert result["ok"], result["goals"]


@pytest.mark.parametrize("run", CHEAP, ids=lambda run: run.name)
def test_run_holds_with_other_names_and_another_seed(
    run: RealRun, tmp_path: Path, shared: Path
) -> None:
    result = execute(run, tmp_path, seed=OTHER_SEED, renamed=True)
    assert result["ok"], result["goals"]
