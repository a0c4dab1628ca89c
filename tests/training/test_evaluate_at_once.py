"""`evaluate` of the run that `train` has just returned."""

from __future__ import annotations

from pathlib import Path

import surefit
from builders import sentiment_rows, write_jsonl


def test_the_returned_run_evaluates_its_validation_rows_again(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(40))
    run = surefit.train(
        data=str(data), model="tiny:bert", max_steps=2, output=str(tmp_path / "run")
    )
    trained = [event["metrics"] for event in run.history if event["event"] == "eval"][-1]
    assert surefit.evaluate(run) == trained
