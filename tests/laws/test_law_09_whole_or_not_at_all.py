"""Law 9: a file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import surefit
from builders import MeanPool
from http_server import serve
from surefit.core import files
from surefit.data import remote_data
from surefit.data.open_data import open_table
from surefit.errors import FindingError


class PowerCutError(Exception):
    """Stands for a process that dies while it writes."""


@pytest.fixture
def power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise PowerCutError

    monkeypatch.setattr(os, "fsync", die)


@pytest.mark.usefixtures("power_cut")
def test_old_file_survives_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(PowerCutError):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("power_cut")
def test_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), files.new_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with files.new_folder(tmp_path / "model", sealed=True) as folder:
            (folder / content).write_text(content)
    assert {path.name for path in tmp_path.rglob("*")} == {"model", "two", "digests.json"}


def test_checkpoint_that_was_cut_off_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefit.run import checkpoints
    from surefit.run.choose_checkpoint import latest_checkpoint

    def die(*_: object, **__: object) -> None:
        raise PowerCutError

    monkeypatch.setattr(checkpoints, "write_about", die)  # the weights are written by then
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    module = MeanPool()
    import torch

    optimizer = torch.optim.AdamW(module.parameters())
    with pytest.raises(PowerCutError):
        checkpoints.save_checkpoint(folder, module, optimizer, {}, checkpoints.State(step=3))
    assert latest_checkpoint(folder) is None


def test_a_flipped_bit_is_seen_when_a_checkpoint_is_read(tmp_path: Path) -> None:
    import torch

    from surefit.run import checkpoints
    from surefit.run.choose_checkpoint import choose_checkpoint

    module = MeanPool()
    optimizer = torch.optim.AdamW(module.parameters())
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, module, optimizer, {}, checkpoints.State(step=step))
    weights = tmp_path / "step-00000002" / "model-00001-of-00001.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    chosen = choose_checkpoint(tmp_path)
    assert chosen.path == tmp_path / "step-00000001"
    assert str(weights) in chosen.notices[0]
    with pytest.raises(surefit.RunFailedError, match="is damaged"):
        checkpoints.load_checkpoint(weights.parent, module)


def test_half_a_download_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_data, "PAUSES_SECONDS", ())
    rows = b'{"text": "a whole line"}\n' * 80
    with serve({"rows.jsonl": rows}, cut=len(rows) // 2, etags="none") as site:
        with pytest.raises(FindingError, match="ends after"):  # at the end of a line
            open_table(f"{site.url}/rows.jsonl")
        assert not list((tmp_path / "cache").rglob("rows.jsonl"))
