"""Data at URLs is read like local files, once per version, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from builders import sentiment_rows
from http_server import serve
from surefit.data import remote_data
from surefit.data.open_data import open_table, validation_of
from surefit.data.remote_data import reading_once
from surefit.errors import FindingError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_data, "PAUSES_SECONDS", (0.01,) * 3)


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


ROWS = sentiment_rows(40)
PAGE = b"<!DOCTYPE html><html>please log in</html>"


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def picture(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (level, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def array(rows: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


def codes(table: Any) -> list[str]:
    return [found.code for found in table.findings]


SHARDS = {f"d/train-{k:02}.jsonl": lines(ROWS[10 * k : 10 * k + 10]) for k in range(4)}
FORMATS = {
    "rows.jsonl.gz": gzip.compress(lines(ROWS)),
    "rows.parquet": parquet(ROWS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_those_of_local_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMATS[name])
    local = open_table(tmp_path / name)
    with serve({f"a b/{name}": FORMATS[name]}) as site:
        remote = open_table(f"{site.url}/a b/{name}")
    assert remote.arrow.equals(local.arrow)
    assert remote.key == local.key  # the identity is the content


def test_a_pattern_a_range_and_a_folder_are_shards() -> None:
    with serve({**SHARDS, "d/notes.md": b"# about"}) as site:
        names = (f"{site.url}/d/train-*.jsonl", f"{site.url}/d/train-{{00..03}}.jsonl")
        for data in (*names, f"{site.url}/d/"):
            assert open_table(data).num_rows == 40, data
        with pytest.raises(UsageError, match="No file matches"):
            open_table(f"{site.url}/d/other-*.jsonl")
        with pytest.raises(UsageError, match="No file is at"):
            open_table(f"{site.url}/d/other.jsonl")


def test_memory_and_file_urls(memory: Any, tmp_path: Path) -> None:
    memory.pipe({f"/bucket/{name}": content for name, content in SHARDS.items()})
    for data in ("memory://bucket/d/train-*.jsonl", "memory://bucket/d", "memory://bucket/d/"):
        assert open_table(data).num_rows == 40
    assert open_table("memory://bucket/d/train-01.jsonl").num_rows == 10
    (tmp_path / "a b.jsonl").write_bytes(lines(ROWS))
    assert open_table(f"file://{tmp_path}/a%20b.jsonl").num_rows == 40


def test_findings_name_the_url() -> None:
    broken = lines(ROWS[:3]) + b"{oops\n"
    with serve({"d/rows.jsonl": broken}) as site:
        with pytest.raises(FindingError) as caught:
            open_table(f"{site.url}/d/rows.jsonl")
        found = caught.value.findings[0]
        assert found.where["file"] == f"{site.url}/d/rows.jsonl"
        assert found.where["line"] == 4
        assert "cache" not in found.message
        site.files["/d/rows.jsonl"] = b""
        with pytest.raises(FindingError, match=f"{site.url}/d/rows.jsonl has no rows"):
            open_table(f"{site.url}/d/rows.jsonl")


def test_arrays_bring_the_labels_beside_them() -> None:
    arrays = {"a/X.npy": array(np.ones((6, 3, 2), "float32")), "a/y.npy": array(np.arange(6))}
    with serve(arrays) as site:
        assert open_table(f"{site.url}/a/X.npy").columns == ("features", "label")


def test_the_same_etag_is_not_read_again_and_a_change_is_reported() -> None:
    with serve(SHARDS) as site:
        url = f"{site.url}/d/train-*.jsonl"
        first = open_table(url)
        assert len(site.gets()) == 4
        assert open_table(url).key == first.key
        assert len(site.gets()) == 4
        site.files["/d/train-02.jsonl"] = lines(ROWS[:10])
        changed = open_table(url)
        assert site.gets()[4:] == ["/d/train-02.jsonl"]
        assert changed.key != first.key
        copy = Path(first.sources[1].file)
        copy.write_bytes(copy.read_bytes().replace(b"good", b"evil", 1))
        assert open_table(url).key == changed.key  # a damaged copy is read again
        assert site.gets()[5:] == ["/d/train-01.jsonl"]


@pytest.mark.parametrize("etags", ["weak", "none"])
def test_without_a_strong_etag_the_content_decides(etags: str) -> None:
    with serve({"d/rows.jsonl": lines(ROWS)}, etags=etags, lengths=False) as site:
        url = f"{site.url}/d/rows.jsonl"
        first = open_table(url)
        assert open_table(url).key == first.key
        swapped = [{**ROWS[0], "label": "good" if ROWS[0]["label"] == "bad" else "bad"}, *ROWS[1:]]
        site.files["/d/rows.jsonl"] = lines(swapped)
        assert open_table(url).key != first.key


def test_offline_uses_the_copy_and_says_so() -> None:
    with serve({"d/rows.jsonl": lines(ROWS)}) as site:
        url = f"{site.url}/d/rows.jsonl"
        first = open_table(url)
    again = open_table(url)  # the server is gone
    assert again.key == first.key
    assert codes(again) == ["SF169"]
    with pytest.raises(FindingError) as caught:
        open_table(url.replace("rows", "others"))
    assert caught.value.findings[0].code == "SF168"
    assert "cannot be reached" in caught.value.message


def test_files_of_two_versions_are_not_used_together() -> None:
    with serve(SHARDS) as site:
        url = f"{site.url}/d/train-*.jsonl"
        first = open_table(url)
        site.files["/d/train-00.jsonl"] = lines(ROWS[:5])
        site.files["/d/train-01.jsonl"] = PAGE
        again = open_table(url)
    assert again.key == first.key
    assert codes(again) == ["SF169"]


def test_errors_that_may_pass_are_tried_again() -> None:
    with serve(SHARDS, failures=1) as site:
        assert open_table(f"{site.url}/d/train-*.jsonl").num_rows == 40
    with serve({"d/rows.jsonl": lines(ROWS)}, cut=1000, cuts=1) as site:
        assert open_table(f"{site.url}/d/rows.jsonl").num_rows == 40


@pytest.mark.parametrize(
    ("habits", "message"),
    [
        ({"cut": 100, "etags": "none"}, "ends after 100 of"),
        ({"endless": True}, r"more than the 1\.0 MB"),
        ({"chunk_seconds": 5.0}, "cannot be reached: .*[Tt]imeout"),
        ({"chunk_seconds": 0.02, "chunk_bytes": 1}, r"brought only [1-9]\d bytes in 0\.3 seconds"),
        ({"said": "9000"}, r"received \d+ of 9000 bytes"),
        ({"said": "9" * 5000}, "cannot be re"),
        ({"status_line": "HTTP/1.1 404"}, "No file is at"),
        ({"status_line": "HTTP/1.1 500"}, "cannot be read: 500"),
        ({"status_line": "nonsense"}, "cannot be re"),
        ({"failures": 99}, "503"),
        ({"password": "x"}, "401"),
        ({"redirects": {"/d/rows.jsonl": "/d/rows.jsonl"}}, "cannot be read"),
        ({"redirects": {"/d/rows.jsonl": "file:///etc/passwd"}}, "cannot be read"),
    ],
)
def test_servers_that_misbehave_are_refused(
    habits: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote_data, "WAIT_SECONDS", 0.3 if "chunk_seconds" in habits else 60.0)
    with (
        reading_once(limit_gb=0.001),
        serve({"d/rows.jsonl": lines(ROWS)}, **habits) as site,
        pytest.raises((FindingError, UsageError), match=message) as caught,
    ):
        open_table(f"{site.url}/d/rows.jsonl")
    assert isinstance(caught.value, UsageError) or caught.value.findings[0].code == "SF168"
    assert f"{site.url}/d/rows.jsonl" in str(caught.value)
    assert not list((tmp_path / "cache").rglob("rows.jsonl"))


@pytest.mark.parametrize(
    ("grows", "pattern"),
    [("wide", ""), ("wide", "*/*.jsonl"), ("deep", ""), ("deep", "**/*.jsonl")],
)
@pytest.mark.parametrize("limit", ["LIST_BYTES", "LIST_SECONDS"])
def test_listings_without_end_are_refused(
    grows: str, limit: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_data, limit, {"LIST_BYTES": 20_000, "LIST_SECONDS": 0.0}[limit])
    shown: list[tuple[str, int, int]] = []
    with (
        reading_once(lambda *told: shown.append(told)),
        serve({"d/rows.jsonl": lines(ROWS)}, grows=grows) as site,
        pytest.raises(FindingError, match=f"{site.url}/d/.* lists files without end") as caught,
    ):
        open_table(f"{site.url}/d/{pattern}")
    assert caught.value.findings[0].code == "SF168"
    assert len(site.asked) < 500
    if (grows, limit) == ("deep", "LIST_BYTES"):
        assert ("looking at remote files", 2, 3) in shown


def test_a_slow_download_is_shown_and_small_files_are_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_data, "WAIT_SECONDS", 0.4)
    monkeypatch.setattr(remote_data, "THREADS", 1)
    files = {f"d/{k}.jsonl": lines(ROWS[k : k + 1]) for k in range(12)}
    shown: list[tuple[str, int, int]] = []
    with reading_once(lambda *told: shown.append(told)), serve(files, chunk_seconds=0.1) as site:
        assert open_table(f"{site.url}/d/").num_rows == 12  # in more than a second in all
    assert ("looking at remote files", 12, 12) in shown
    assert ("downloading, MB", 0, 1) in shown


def test_a_refused_download_ends() -> None:
    with serve({"rows.jsonl": lines(ROWS)}, endless=True) as site, reading_once(limit_gb=0.001):
        with pytest.raises(FindingError, match="more than the"):
            open_table(f"{site.url}/rows.jsonl")
        for _ in range(2400):  # the thread ends at its next block
            if not _writes_removed_files():
                return
            time.sleep(0.1)
    raise AssertionError("the download goes on")


def _writes_removed_files() -> bool:
    """Whether this process has a partial file open that was removed."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it may be closed by now
            place = os.readlink(f"/proc/self/fd/{fd}")
            if "parts" in place and place.endswith("(deleted)"):
                return True
    return False


def test_a_web_page_is_not_data_but_html_in_text_is() -> None:
    types = {"/rows.parquet": "text/html; charset=utf-8", "/in": "text/html"}
    files = {"rows.parquet": PAGE, "rows.txt": b"<html>\nsome text\n", "in": PAGE}
    with serve(files, types=types) as site:
        with pytest.raises(FindingError, match=r"web page in place of rows\.parquet"):
            open_table(f"{site.url}/rows.parquet")
        assert open_table(f"{site.url}/rows.txt").num_rows == 2
        with pytest.raises(FindingError, match="web page") as caught:
            open_table(f"{site.url}/in")
        assert "End the URL of a folder with a slash." in caught.value.fix
        for name in ("nothing", "nothing/"):
            with pytest.raises(UsageError, match="No file is at"):
                open_table(f"{site.url}/{name}")


@pytest.mark.parametrize("url", ["data/rows", "download?id=7", "get.php?id=7"])
def test_a_file_is_read_whatever_its_url_looks_like(url: str) -> None:
    with serve({url.partition("?")[0]: b"one line\nanother line\n"}) as site:
        assert open_table(f"{site.url}/{url}").num_rows == 2


def test_credentials_are_used_and_never_shown(tmp_path: Path) -> None:
    with serve({"d/rows.jsonl": lines(ROWS) + b"{oops\n"}, password="s3cr3t-word") as site:
        url = f"{site.url}/d/rows.jsonl?token=t0ken-value&v=1"
        with pytest.raises(FindingError) as caught:
            open_table(url.replace("http://", "http://me:s3cr3t-word@"))
        assert caught.value.findings[0].code == "SF102"  # it was read
        with pytest.raises(UsageError, match="No file is at") as missing:
            open_table(url.replace("http://", "http://me:s3cr3t-word@").replace("rows.", "no."))
    written = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    shown = (str(caught.value) + repr(caught.value.findings) + str(missing.value)).encode()
    for text in [shown, *written]:
        assert b"s3cr3t" not in text
        assert b"t0ken" not in text


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::http://127.0.0.1:9/x.jsonl",
        "zip://x.jsonl::http://127.0.0.1:9/x.zip",
        "ftp://host/x.jsonl",
        "local:///etc/passwd",
        "file://other-host/x.jsonl",
        "s3://key:secret@bucket/x.jsonl",
    ],
)
def test_protocols_that_are_not_allowed(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_table(url)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        open_table("s3://bucket/x.jsonl")
    assert caught.value.fix == "Install s3fs to access S3."


def test_names_that_leave_the_folder_are_refused(memory: Any) -> None:
    memory.pipe("/b/d/ok.jsonl", lines(ROWS))
    memory.store["/b/d/../../../evil.jsonl"] = memory.store["/b/d/ok.jsonl"]
    with pytest.raises((FindingError, UsageError), match=r"not a name|No file"):
        open_table("memory://b/d/*/*/*/*")


def test_the_limit_of_the_cache(memory: Any) -> None:
    memory.pipe("/b/rows.jsonl", lines(ROWS))
    with reading_once(limit_gb=1e-7), pytest.raises(FindingError, match="cache_limit_gb"):
        open_table("memory://b/rows.jsonl")


BIG = b"\0" * 1000
CARD = b"---\nconfigs:\n- config_name: default\n  data_files: two.jsonl\n---\n"
CLASSES = {
    f"{part}/{name}/{k}.png": picture(40 * k)
    for part in ("train", "val", "test")
    for name in ("cat", "dog")
    for k in range(3)
}
FOLDERS: dict[str, tuple[dict[str, bytes], set[str]]] = {
    "other formats": (
        {"a.jsonl": lines(ROWS[:20]), "b.jsonl": lines(ROWS[20:]), "model.bin": BIG, ".x": BIG},
        {"a.jsonl", "b.jsonl"},
    ),
    "splits by name": (
        {"train-0.jsonl": lines(ROWS[:20]), "val-0.jsonl": lines(ROWS[30:])},
        {"train-0.jsonl", "val-0.jsonl"},
    ),
    "class folders in splits": (
        {**CLASSES, "weights.bin": BIG, "train/labels.md": b"# names"},
        {*CLASSES},
    ),
    "arrays with labels": (
        {
            "features.npy": array(np.ones((6, 4), "float32")),
            "labels.npy": array(np.arange(6) % 2),
            "scaler.pkl": BIG,
        },
        {"features.npy", "labels.npy"},
    ),
    "a card that names the files": (
        {"README.md": CARD, "one.jsonl": lines(ROWS[:20]), "two.jsonl": lines(ROWS[20:])},
        {"README.md", "one.jsonl", "two.jsonl"},
    ),
    "a table that names images": (
        {"rows.csv": b"image,label\na/0.png,1\n", "a/0.png": picture(9), "x.bin": BIG},
        {"rows.csv", "a/0.png"},
    ),
    "unknown endings": (
        {"a.rst": lines(ROWS[:20]), "b.rst": lines(ROWS[20:]), "c.bin": BIG},
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


@pytest.mark.parametrize("name", FOLDERS)
def test_files_that_may_be_data_are_downloaded_once(name: str, tmp_path: Path) -> None:
    files, expected = FOLDERS[name]
    local, local_validation = both(str(write(tmp_path / "here" / "d", files)))
    with serve({f"d/{path}": content for path, content in files.items()}) as site:
        remote, validation = both(f"{site.url}/d/")
        assert {path.removeprefix("/d/") for path in site.gets()} == expected
        both(f"{site.url}/d/")
        assert len(site.gets()) == len(expected)
    assert remote.num_rows == local.num_rows
    assert remote.key == local.key
    assert (validation and validation.num_rows) == (local_validation and local_validation.num_rows)
    assert [found.code for found in remote.findings] == [found.code for found in local.findings]


def test_a_dataset_folder_is_downloaded_whole(tmp_path: Path, memory: Any) -> None:
    from datasets import Dataset

    Dataset(pa.table({"text": ["a", "b"], "label": [0, 1]})).save_to_disk(tmp_path / "d")
    memory.pipe({f"/b/{p.name}": p.read_bytes() for p in (tmp_path / "d").iterdir()})
    assert open_table("memory://b/").num_rows == 2
