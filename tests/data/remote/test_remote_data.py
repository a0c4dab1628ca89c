"""Data at URLs is read like local files, once per version, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from builders import sentiment_rows
from http_server import serve
from surefit.data.cache_contents import list_entries
from surefit.data.cache_use import release_leases
from surefit.data.open_data import open_table, validation_of
from surefit.data.remote import download, http_files
from surefit.data.remote.remote_copy import reading_once
from surefit.errors import FindingError, UsageError
from surefit.shown_places import as_shown

ROWS = sentiment_rows(40)


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


def codes(table: Any) -> list[str]:
    return [found.code for found in table.findings]


SHARDS = {f"d/train-{k:02}.jsonl": lines(ROWS[10 * k : 10 * k + 10]) for k in range(4)}
FORMATS = {
    "rows.jsonl": lines(ROWS),
    "rows.jsonl.gz": gzip.compress(lines(ROWS)),
    "rows.csv": b"text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in ROWS).encode(),
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
        for data in (*names, f"{site.url}/d/", f"{site.url}/d"):
            assert open_table(data).num_rows == 40, data
        # what one URL copied, the others did not read again
        assert len(site.gets()) == len(set(site.gets()))
        with pytest.raises(UsageError, match="No file matches"):
            open_table(f"{site.url}/d/other-*.jsonl")
        with pytest.raises(UsageError, match="No file is at"):
            open_table(f"{site.url}/d/other.jsonl")


def test_memory_and_file_urls(memory: Any, tmp_path: Path) -> None:
    memory.pipe({f"/bucket/{name}": content for name, content in SHARDS.items()})
    for data in ("memory://bucket/d/train-*.jsonl", "memory://bucket/d", "memory://bucket/d/"):
        table = open_table(data)
        assert table.num_rows == 40
    assert open_table("memory://bucket/d/train-01.jsonl").num_rows == 10
    (tmp_path / "a b.jsonl").write_bytes(lines(ROWS))
    assert open_table(f"file://{tmp_path}/a%20b.jsonl").num_rows == 40
    assert not (tmp_path / "cache" / "remote" / "a b.jsonl").exists()


def test_a_store_that_has_etags(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Store(type(memory)):  # type: ignore[misc]
        """In memory, with the names and versions that s3fs gives."""

        protocol = "s3"
        opened: ClassVar[list[str]] = []

        def info(self, path: str, **options: Any) -> Any:
            about = super().info(path, **options)
            if about["type"] == "file":
                about["ETag"] = '"' + hashlib.md5(self.store[about["name"]].getvalue()).hexdigest()
            return about

        def _open(self, path: str, *rest: Any, **options: Any) -> Any:
            self.opened.append(path)
            return super()._open(path, *rest, **options)

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.replace("s3://", "memory://"))

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: Store)
    memory.pipe({f"/bucket/{name}": content for name, content in SHARDS.items()})
    first = open_table("s3://bucket/d/train-*.jsonl")
    assert (first.num_rows, len(Store.opened)) == (40, 4)
    assert first.where(12)["file"] != "s3://bucket/d/train-01.jsonl"  # the path; findings show it
    assert as_shown(str(first.where(12)["file"])) == "s3://bucket/d/train-01.jsonl"
    assert open_table("s3://bucket/d/").key == first.key  # another URL of the same files
    assert len(Store.opened) == 4
    memory.pipe("/bucket/d/train-00.jsonl", lines(ROWS[:3]))
    assert codes(open_table("s3://bucket/d/train-*.jsonl")) == ["SF179"]
    assert len(Store.opened) == 5


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


def test_class_folders_splits_and_manifests() -> None:
    folders = {f"f/{name}/{k}.png": picture(k) for name in ("cat", "dog") for k in range(3)}
    manifest = "image,label\n" + "".join(f"img/{k}.png,{k % 2}\n" for k in range(4))
    named = {"m/train.csv": manifest.encode(), **{f"m/img/{k}.png": picture(k) for k in range(4)}}
    split = {"s/train.jsonl": lines(ROWS[:30]), "s/validation.jsonl": lines(ROWS[30:])}
    with serve({**folders, **named, **split}) as site:
        table = open_table(f"{site.url}/f/")
        assert table.arrow["label"].to_pylist() == ["cat"] * 3 + ["dog"] * 3
        assert Path(table.row(5)["image"]).read_bytes() == picture(2)
        table = open_table(f"{site.url}/m/train.csv")
        named_table = type(table)(table.arrow, table.sources, table.key, files=("image",))
        assert Path(named_table.row(3)["image"]).read_bytes() == picture(3)
        with reading_once():
            assert open_table(f"{site.url}/s/").num_rows == 30
            validation = validation_of([f"{site.url}/s/"])
            assert open_table(validation, part="validation").num_rows == 10


def test_arrays_bring_the_labels_beside_them() -> None:
    def npy(array: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()

    arrays = {"X.npy": npy(np.ones((6, 3, 2), np.float32)), "y.npy": npy(np.arange(6))}
    with serve({f"a/{name}": content for name, content in arrays.items()}) as site:
        table = open_table(f"{site.url}/a/X.npy")
        assert table.columns == ("features", "label")


def test_the_same_etag_is_not_read_again_and_a_change_is_reported() -> None:
    with serve(SHARDS) as site:
        url = f"{site.url}/d/train-*.jsonl"
        first = open_table(url)
        assert len(site.gets()) == 4
        assert open_table(url).key == first.key
        assert len(site.gets()) == 4
        site.files["/d/train-02.jsonl"] = lines(ROWS[:10])
        changed = open_table(url)
        assert site.gets()[4:] == ["/d/train-02.jsonl"]  # the others are linked
        assert changed.key != first.key
        assert codes(changed) == ["SF179"]
        assert "1 changed: train-02.jsonl" in changed.findings[0].message
        assert codes(open_table(url)) == []  # it is said once


@pytest.mark.parametrize("etags", ["weak", "none"])
def test_without_a_strong_etag_the_content_decides(etags: str) -> None:
    with serve({"d/rows.jsonl": lines(ROWS)}, etags=etags, lengths=False) as site:
        url = f"{site.url}/d/rows.jsonl"
        first = open_table(url)
        assert open_table(url).key == first.key
        assert codes(open_table(url)) == []
        assert len(site.gets()) == 3
        assert len([entry for entry in list_entries() if entry.kind == "remote"]) == 1
        swapped = [{**ROWS[0], "label": "good" if ROWS[0]["label"] == "bad" else "bad"}, *ROWS[1:]]
        site.files["/d/rows.jsonl"] = lines(swapped)
        assert codes(open_table(url)) == ["SF179"]


def test_a_change_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve({"d/rows.jsonl": lines(ROWS)}) as site:
        real = http_files._headers

        def look(url: str) -> Any:
            found = real(url)
            if len(site.asked) == 1:
                site.files["/d/rows.jsonl"] = lines(ROWS[:7])
            return found

        monkeypatch.setattr(http_files, "_headers", look)
        assert open_table(f"{site.url}/d/rows.jsonl").num_rows == 7


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


def test_transient_errors_are_tried_again() -> None:
    with serve(SHARDS, failures=3) as site:
        assert open_table(f"{site.url}/d/train-*.jsonl").num_rows == 40


def test_a_cut_file_is_resumed_where_it_ended() -> None:
    content = lines(ROWS)
    with serve({"d/rows.jsonl": content}, cut=1000, cuts=1) as site:
        assert open_table(f"{site.url}/d/rows.jsonl").num_rows == 40
        ranges = [asked for method, _, asked in site.asked if method == "GET"]
        assert ranges == ["", "bytes=1000-"]


@pytest.mark.parametrize(
    ("habits", "message"),
    [
        ({"cut": 100, "etags": "none"}, "ends after 100 of"),
        ({"endless": True}, "more than the 1,048,576 bytes"),
        ({"failures": 99}, "503"),
        ({"password": "x"}, "401"),
        ({"redirects": {"/d/rows.jsonl": "/d/rows.jsonl"}}, "30[12]"),
        ({"redirects": {"/d/rows.jsonl": "file:///etc/passwd"}}, "302"),
    ],
)
def test_servers_that_misbehave_are_refused(
    habits: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(download, "UNKNOWN_BYTES", 1 << 20)
    with (
        serve({"d/rows.jsonl": lines(ROWS)}, **habits) as site,
        pytest.raises(FindingError, match=message) as caught,
    ):
        open_table(f"{site.url}/d/rows.jsonl")
    assert caught.value.findings[0].code == "SF168"
    assert not list((tmp_path / "cache").rglob("rows.jsonl"))


def test_a_web_page_is_not_data_but_html_in_text_is() -> None:
    page = b"<!DOCTYPE html><html>please log in</html>"
    types = {"/rows.parquet": "text/html; charset=utf-8"}
    with serve({"rows.parquet": page, "rows.txt": b"<html>\nsome text\n"}, types=types) as site:
        with pytest.raises(FindingError, match="web page in place of the file"):
            open_table(f"{site.url}/rows.parquet")
        assert open_table(f"{site.url}/rows.txt").num_rows == 2


@pytest.mark.parametrize(
    "url", ["data/rows", "data/rows/", "download?id=7", "download/?id=7", "get.php?id=7", ""]
)
def test_a_file_is_read_whatever_its_url_looks_like(url: str) -> None:
    path = url.partition("?")[0]
    names = {f"/{path}": "my rows.jsonl"}
    with serve({path: lines(ROWS), "other/x.jsonl": lines(ROWS[:9])}, names=names) as site:
        table = open_table(f"{site.url}/{url}")
        assert table.columns == ("text", "label")
        assert table.num_rows == 40
        assert open_table(f"{site.url}/other").num_rows == 9  # no file: the folder
        site.names.clear()
        site.files[f"/{path}"] = b"one line\nanother line\n"
        assert open_table(f"{site.url}/{url}").num_rows == 2


def test_a_url_without_ending_that_is_nothing_or_a_page() -> None:
    page = b"<!DOCTYPE html><html>please log in</html>"
    with serve({"in": page, "d/x.jsonl": lines(ROWS)}, types={"/in": "text/html"}) as site:
        for name in ("in", "nothing", "d/nothing", "nothing/"):
            with pytest.raises(UsageError, match="No file is at"):
                open_table(f"{site.url}/{name}")
        site.redirects["/d"] = "/d/"  # as servers do
        assert open_table(f"{site.url}/d").num_rows == 40
        site.names["/e"], site.files["/e"] = "../../e.jsonl", lines(ROWS)
        assert open_table(f"{site.url}/e").num_rows == 40  # the name leaves no folder


def test_credentials_are_used_and_never_shown(tmp_path: Path) -> None:
    with serve({"d/rows.jsonl": lines(ROWS) + b"{oops\n"}, password="s3cr3t-word") as site:
        url = f"{site.url}/d/rows.jsonl?token=t0ken-value&v=1"
        with pytest.raises(FindingError) as caught:
            open_table(url.replace("http://", "http://me:s3cr3t-word@"))
        assert caught.value.findings[0].code == "SF102"  # it was read
    written = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    shown = (str(caught.value) + repr(caught.value.findings)).encode()
    for text in [shown, *written]:
        assert b"s3cr3t" not in text
        assert b"t0ken" not in text


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::http://127.0.0.1:9/x.jsonl",
        "zip://x.jsonl::http://127.0.0.1:9/x.zip",
        "reference://x",
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


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UsageError) as caught:
        open_table("s3://bucket/x.jsonl")
    assert caught.value.fix == "Install it: pip install s3fs"


def test_names_that_leave_the_folder_are_refused(memory: Any) -> None:
    memory.pipe("/b/d/ok.jsonl", lines(ROWS))
    memory.store["/b/d/../../../evil.jsonl"] = memory.store["/b/d/ok.jsonl"]
    with pytest.raises((FindingError, UsageError), match=r"not a name|No file"):
        open_table("memory://b/d/*/*/*/*")
    memory.store.clear()


def test_the_limit_of_the_cache(memory: Any) -> None:
    memory.pipe("/b/rows.jsonl", lines(ROWS))
    with reading_once(limit_gb=1e-7), pytest.raises(FindingError, match="cache_limit_gb"):
        open_table("memory://b/rows.jsonl")
    open_table("memory://b/rows.jsonl")
    release_leases()
    memory.pipe("/b/others.jsonl", lines(ROWS[:9]))
    with reading_once(limit_gb=5e-6):  # room for one of them
        open_table("memory://b/others.jsonl")
    assert len([entry for entry in list_entries() if entry.kind == "remote"]) == 1


def test_a_damaged_copy_is_read_again() -> None:
    with serve({"d/rows.jsonl": lines(ROWS)}) as site:
        url = f"{site.url}/d/rows.jsonl"
        first = open_table(url)
        copy = Path(first.sources[0].file)
        copy.write_bytes(copy.read_bytes().replace(b"good", b"evil", 1))
        assert open_table(url).arrow.equals(first.arrow)
        assert len(site.gets()) == 2
