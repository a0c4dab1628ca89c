"""What tests of bad input share: good data beside the bad, and how a check is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl, write_module
from surefit.cli import run

SFT = ["--data", "sft.jsonl", "--model", "tiny:llama"]
FEATURES = ["--data", "features.npz", "--model", "net:make"]


def write_good_data(folder: Path) -> None:
    """Data of three kinds and a module, none of them with a fault."""
    write_jsonl(folder / "sft.jsonl", echo_rows(20))
    write_jsonl(folder / "texts.jsonl", sentiment_rows(30))
    save_ragged(folder / "features.npz", feature_rows(30))
    write_module(folder, "net")


def without_bytecode(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def found_by_check(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", "--json", *options])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    plan = json.loads(captured.out)
    assert plan["ok"] is (code == 0)
    return code, plan
