"""Of a remote folder, the files are downloaded that a local folder's would be read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from builders import feature_rows, sentiment_rows
from http_server import serve
from surefit.data.open_data import open_table, validation_of
from surefit.data.remote.remote_copy import reading_once
from surefit.errors import FindingError

BIG = b"\0" * 1000


def lines(first: int, last: int) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in sentiment_rows(50)[first:last]).encode()


def picture(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (level, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def array(rows: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


CLASSES = {
    f"{part}/{name}/{k}.png": picture(40 * k)
    for part in ("train", "val", "test")
    for name in ("cat", "dog")
    for k in range(3)
}
FOLDERS: dict[str, tuple[dict[str, bytes], set[str]]] = {
    "other formats": (
        {"a.jsonl": lines(0, 20), "b.jsonl": lines(20, 40), "model.bin": BIG, "info.json": b"{}"},
        {"a.jsonl", "b.jsonl"},
    ),
    "splits by name": (
        {
            "train-0.jsonl": lines(0, 20),
            "test-0.jsonl": lines(20, 30),
            "val-0.jsonl": lines(30, 40),
        },
        {"train-0.jsonl", "val-0.jsonl"},
    ),
    "splits by folder": (
        {"train/0.jsonl": lines(0, 20), "test/0.jsonl": lines(20, 30), "raw.bin": BIG},
        {"train/0.jsonl"},
    ),
    "class folders in splits": (
        {**CLASSES, "weights.pth": BIG, "train/labels.md": b"# names"},
        {name for name in CLASSES if not name.startswith("test")},
    ),
    "arrays with labels": (
        {
            "features.npy": array(np.ones((6, 4), "float32")),
            "labels.npy": array(np.arange(6) % 2),
            "scaler.pkl": BIG,
        },
        {"features.npy", "labels.npy"},
    ),
    "unknown endings": (
        {"a.rst": lines(0, 20), "b.rst": lines(20, 40), "c.bin": BIG},
        {"a.rst", "b.rst", "c.bin"},  # what is text shows when it is read
    ),
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def both(data: str) -> tuple[Any, Any]:
    """The training and the validation table of a command."""
    with reading_once():
        table = open_table(data)
        found = validation_of([data])
        return table, open_table(found, part="validation") if found else None


def is_left(found: Any) -> bool:
    return bool(found.code == "SF874")


@pytest.mark.parametrize("name", FOLDERS)
def test_only_what_is_read_is_downloaded(name: str, tmp_path: Path) -> None:
    files, expected = FOLDERS[name]
    local, local_validation = both(str(write(tmp_path / "here" / "d", files)))
    with serve({f"d/{path}": content for path, content in files.items()}) as site:
        remote, validation = both(f"{site.url}/d/")
        assert {path.removeprefix("/d/") for path in site.gets()} == expected
        both(f"{site.url}/d/")
        assert len(site.gets()) == len(expected)  # and once
    assert remote.num_rows == local.num_rows
    assert remote.key == local.key
    assert (validation and validation.num_rows) == (local_validation and local_validation.num_rows)
    left = len(files) - len(expected)
    notes = [found.message for found in remote.findings if found.code == "SF874"]
    assert [note.startswith(f"{left} of {len(files)} files") for note in notes] == [True] * bool(
        left
    )
    others = [found.code for found in remote.findings if not is_left(found)]
    assert others == [found.code for found in local.findings]


def test_the_test_part_is_downloaded_when_it_is_asked_for(tmp_path: Path) -> None:
    files, _ = FOLDERS["splits by name"]
    with serve({f"d/{path}": content for path, content in files.items()}) as site:
        assert open_table(f"{site.url}/d/").num_rows == 20
        assert open_table(f"{site.url}/d/", part="test").num_rows == 10
        assert open_table(f"{site.url}/d/", part="validation").num_rows == 10
        assert sorted(site.gets()) == ["/d/test-0.jsonl", "/d/train-0.jsonl", "/d/val-0.jsonl"]
        site.files["d/test-0.jsonl"] = lines(40, 44)
        again = open_table(f"{site.url}/d/")
        assert "SF179" not in [found.code for found in again.findings]  # what is read is the same


def test_images_that_a_table_names_are_downloaded(memory: Any) -> None:
    names = [f"images/{k}.png" for k in range(4)]
    table = "file_name,label\n" + "".join(f"{n},{k % 2}\n" for k, n in enumerate(names[:3]))
    memory.pipe({f"/b/{name}": picture(50 * k) for k, name in enumerate(names)})
    memory.pipe({"/b/metadata.csv": table.encode(), "/b/model.bin": BIG})
    opened = open_table("memory://b/")
    folder = Path(opened.sources[0].file).parent
    assert sorted(p.name for p in (folder / "images").iterdir()) == ["0.png", "1.png", "2.png"]
    assert all(path.stat().st_size > 0 for path in (folder / "images").iterdir())


def test_faults_of_names_are_found_before_anything_is_downloaded(memory: Any) -> None:
    files = {"d/a.csv": b"text,label\na,b\n", "d/b.jsonl": lines(0, 4)}
    with serve(files) as site, pytest.raises(FindingError, match="several formats") as caught:
        open_table(f"{site.url}/d/")
    assert site.url in str(caught.value)
    assert site.gets() == []


def test_a_dataset_folder_is_downloaded_whole(tmp_path: Path, memory: Any) -> None:
    from datasets import Dataset

    Dataset(pa.table({"text": ["a", "b"], "label": [0, 1]})).save_to_disk(tmp_path / "d")
    memory.pipe({f"/b/{p.name}": p.read_bytes() for p in (tmp_path / "d").iterdir()})
    assert open_table("memory://b/").num_rows == 2


def test_rows_of_features(memory: Any) -> None:
    memory.pipe({"/b/x.npy": array(np.stack([r["features"][:2] for r in feature_rows(5)]))})
    assert open_table("memory://b/").num_rows == 5
