"""`surefit demo` needs nothing, learns visibly, and can be run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_demo_learns_to_answer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surefit", "demo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "runs" / "demo" / "events.jsonl").read_text().splitlines()
    evals = [event for event in map(json.loads, lines) if event["event"] == "eval"]
    assert evals[0]["metrics"]["token_f1"] < 0.1
    assert evals[-1]["metrics"]["token_f1"] > 0.8
    assert "Validation rows" in done.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
