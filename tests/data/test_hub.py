"""Names that may be meant for the hub; a hub that cannot be reached is asked once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import serve_hub
from huggingface_hub import constants

from builders import sentiment_rows, write_jsonl
from surefit.data.hub import may_be_hub_id, model_place
from surefit.data.open_data import open_table
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


def test_files_of_a_dataset_by_their_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = tmp_path / "hub" / "owner" / "rows"
    folder.mkdir(parents=True)
    write_jsonl(folder / "train.jsonl", sentiment_rows(20))
    write_jsonl(folder / "test.jsonl", sentiment_rows(5))
    with serve_hub(tmp_path / "hub") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        table = open_table("hf://datasets/owner/rows/")
        assert table.num_rows == 20
        open_table("hf://datasets/owner/rows/")
        assert sorted(hub.downloaded) == ["test.jsonl", "train.jsonl"]


def test_what_may_be_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("imdb", "stanfordnlp/imdb", "owner/name-1.0_x"):
        assert may_be_hub_id(Path(name)), name
    for name in ("a.jsonl", "/abs/name", "../x", "a/b/c", "data/train", "owner/x.csv", "a b"):
        assert not may_be_hub_id(Path(name)), name


def test_hub_data_set_is_opened_as_the_files_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "d.parquet")
    real, asked = datasets.load_dataset, []

    def load_dataset(name: str, split: str) -> datasets.Dataset:
        asked.append((name, split))
        file, cache = str(tmp_path / "d.parquet"), str(tmp_path / "cache")
        return real("parquet", data_files=file, split=split, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = list(open_table("owner/name").rows())
    assert asked == [("owner/name", "train")]
    assert rows == [{"text": "a", "label": 0}, {"text": "b", "label": 1}]


def test_name_that_nobody_knows_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(time, "sleep", pytest.fail)  # which is what trying again begins with
    with pytest.raises(UsageError, match="There is no file or folder owner/nothing, and the hub"):
        open_table("owner/nothing")
