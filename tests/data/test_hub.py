"""A hub that cannot be reached is asked once, and earlier downloads still serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from surefit.data.hub import model_place
from surefit.errors import UsageError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were asked for, at a hub that is not there."""
    names: list[str] = []

    def refuse(self: Any, name: str, **more: Any) -> None:
        names.append(name)
        raise ConnectionError("no route to it")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    return names


def test_unreachable_hub_is_one_message(asked: list[str]) -> None:
    with pytest.raises(UsageError, match=r"hub could not be reached \(no route to it\)"):
        model_place("nobody/has-this-model")
    assert asked == ["nobody/has-this-model"]


def test_earlier_download_serves(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path))
    assert model_place("nobody/has-this-model") == str(tmp_path)


def test_local_folder_is_not_asked_for(asked: list[str], tmp_path: Path) -> None:
    assert model_place(str(tmp_path)) == str(tmp_path)
    assert asked == []
