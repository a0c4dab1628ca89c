"""A folder that not all processes share is refused before anything is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefit.errors import FindingError
from surefit.training import common_folder
from surefit.training.common_folder import check_common_folder
from surefit.training.verify_step import _differences, _not_to_the_bit, has_dropout


def test_a_folder_that_another_host_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(value: Any) -> list[Any]:
        return [value, (False, "node-2")] if isinstance(value, tuple) else [value, value]

    monkeypatch.setattr(common_folder, "gather", gather)
    with pytest.raises(FindingError) as caught:
        check_common_folder(tmp_path / "runs" / "new")
    assert [found.code for found in caught.value.findings] == ["SF873"]
    assert "Process 1 of host node-2 cannot read it" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_all_see_is_left_as_it_was(tmp_path: Path) -> None:
    check_common_folder(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_never_shows_up_is_waited_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_folder, "SECONDS", 0.2)
    assert not common_folder._can_read(tmp_path / "missing")


def test_dropout_is_said_to_prevent_the_comparison() -> None:
    assert has_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    assert not has_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    config = torch.nn.Linear(1, 1)
    config.config = _Config()
    assert has_dropout(config)
    assert _not_to_the_bit(3, 2, True, "events.jsonl").code == "SF872"
    assert _not_to_the_bit(3, 2, False, "events.jsonl").code == "SF871"


class _Config:
    def to_dict(self) -> dict[str, Any]:
        return {"model": {"attention_dropout": 0.1}, "hidden_dropout": 0.0}


def test_losses_of_several_processes_are_compared_up_to_rounding() -> None:
    stored = {"step": 1, "loss": 2.0, "tokens": 7}
    close, far = {**stored, "loss": 2.000001}, {**stored, "loss": 2.001}
    assert _differences(stored, close, exact=True, drops=False)
    assert not _differences(stored, close, exact=False, drops=False)
    assert _differences(stored, far, exact=False, drops=False)
    assert not _differences(stored, far, exact=False, drops=True)
    assert _differences(stored, {**stored, "tokens": 8}, exact=False, drops=True)
