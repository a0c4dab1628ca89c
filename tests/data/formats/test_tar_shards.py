"""WebDataset tar shards: rows by key, columns by extension; nothing unpacked, nothing lost."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from surefit.data.cell_files import unwrapped
from surefit.data.formats.tar_shards import MOST_EXTENSIONS
from surefit.data.open_data import open_table
from surefit.errors import FindingError
from tar_files import tar_of


def picture(level: int, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (level, 0, 0)).save(buffer, form)
    return buffer.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def opened(tmp_path: Path, content: bytes, name: str = "shard.tar") -> Any:
    (tmp_path / name).write_bytes(content)
    return open_table(tmp_path / name)


def fault(tmp_path: Path, content: bytes) -> Any:
    with pytest.raises(FindingError) as caught:
        opened(tmp_path, content)
    return caught.value.findings[0]


def codes(table: Any) -> list[str]:
    return [found.code for found in table.findings]


def test_members_of_a_key_are_a_row(tmp_path: Path) -> None:
    members = [
        ("a/0.jpg", picture(0, "JPEG")),
        ("a/0.cls", b"3\n"),
        ("a/0.txt", "grün".encode()),
        ("a/0.json", json.dumps({"split": "x", "text": "other"}).encode()),
        ("a/1.png", picture(1)),
        ("a/1.cls", b"4"),
        ("a/1.txt", b"blue"),
        ("a/1.json", b'{"split": "y", "text": "more"}'),
    ]
    table = opened(tmp_path, tar_of(members))
    assert table.columns == ("image", "label", "text", "split", "json.text")
    assert table.arrow["label"].to_pylist() == [3, 4]
    assert table.arrow["text"].to_pylist() == ["grün", "blue"]
    assert table.arrow["json.text"].to_pylist() == ["other", "more"]
    assert [unwrapped(row["image"]) for row in table.rows()] == [members[0][1], members[4][1]]
    assert codes(table) == [""]
    assert "cls → label" in table.findings[0].message


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_and_gzip_are_the_same_rows(tmp_path: Path, form: int) -> None:
    members = [(f"{'d' * 60}/{'k' * 60}{k}.wav", bytes([k]) * 700) for k in range(3)]
    content = tar_of(members, form=form)
    table = opened(tmp_path, content)
    packed = opened(tmp_path, gzip.compress(content), "packed.tar.gz")
    for each in (table, packed, opened(tmp_path, gzip.compress(content), "packed.tgz")):
        assert [unwrapped(row["audio"]) for row in each.rows()] == [m[1] for m in members]


def test_keys_may_be_apart_and_have_dots(tmp_path: Path) -> None:
    apart = [("0.txt", b"a"), ("1.txt", b"b"), ("0.cls", b"yes"), ("1.cls", b"1")]
    table = opened(tmp_path, tar_of(apart))
    assert table.arrow["label"].to_pylist() == ["yes", "1"]  # names, and so all of them are
    dots = [("0.left.png", picture(0)), ("0.right.png", picture(1)), ("0.cls", b"0")]
    assert opened(tmp_path, tar_of(dots)).columns == ("left.png", "right.png", "label")
    many = [(f"v1.{k}.txt", b"text") for k in range(MOST_EXTENSIONS + 1)]
    table = opened(tmp_path, tar_of(many))
    assert table.num_rows == len(many)
    assert "at the last dot" in table.findings[0].message
    both = [("0.jpg", picture(0, "JPEG")), ("0.png", picture(0))]  # a photo and its mask
    assert opened(tmp_path, tar_of(both)).columns == ("jpg", "png")


def test_arrays_keep_their_type_and_axes(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(3, 2) + k for k in range(3)]
    table = opened(tmp_path, tar_of([(f"{k}.npy", npy(a)) for k, a in enumerate(arrays)]))
    assert table.row(2)["features"].dtype == np.float32
    np.testing.assert_array_equal(table.row(2)["features"], arrays[2])


def test_folders_are_classes_if_nothing_else_is(tmp_path: Path) -> None:
    members = [(f"{name}/{k}.png", picture(k)) for name in ("cat", "dog") for k in range(2)]
    table = opened(tmp_path, tar_of(members))
    assert table.arrow["label"].to_pylist() == ["cat", "cat", "dog", "dog"]
    labelled = opened(tmp_path, tar_of([*members, *[(f"cat/{k}.cls", b"1") for k in range(2)]]))
    assert labelled.arrow["label"].to_pylist() == [1, 1, None, None]


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    def header(name: str, kind: bytes) -> tarfile.TarInfo:
        made = tarfile.TarInfo(name)
        made.type, made.linkname = kind, "/etc/passwd"
        return made

    evil = b"cos\nsystem\n(S'touch evil'\ntR."
    members = [
        ("0.txt", b"good"),
        ("0.pyd", evil),
        ("0.pth", evil),
        ("0.mp4", b"film"),
        ("README", b"about"),
        ("/etc/1.txt", b"absolute"),
        ("../2.txt", b"outside"),
        ("a/../../3.txt", b"outside"),
        (".hidden.txt", b"mac"),
    ]
    others = [
        header("4.txt", tarfile.SYMTYPE),
        header("5.txt", tarfile.LNKTYPE),
        header("6.txt", tarfile.CHRTYPE),
        header("7.txt", tarfile.FIFOTYPE),
        header("8.txt", b"K"[:0] or b"V"),
    ]
    table = opened(tmp_path, tar_of(members, *others))
    assert table.arrow.to_pylist() == [{"text": "good"}]
    said = " ".join(f.message for f in table.findings if f.code == "SF182")
    for what in ("pickles", "'mp4'", "extension", "lead out", "links", "devices", "unknown type"):
        assert what in said
    assert "2 not read (pickles), the first is '0.pyd'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["shard.tar"]


GOOD = tar_of([(f"{k}.txt", b"text" * 300) for k in range(4)])


@pytest.mark.parametrize(
    "content",
    [
        GOOD[:2100],  # in a member
        GOOD[: 512 * 4],  # after a member, without the end
        GOOD[: 512 * 4] + b"junk" * 400 + GOOD[512 * 4 :],
        GOOD + GOOD,  # cat a.tar b.tar
        b"",
        b"\0" * 10240 + b"x" * 512,
        gzip.compress(GOOD)[:-20],
        b"<html>not a tar</html>" * 100,
    ],
)
def test_a_damaged_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    assert fault(tmp_path, content).code in ("SF102", "SF101")


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("0.txt")
    header.size = 1 << 45
    assert fault(tmp_path, header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096).code == "SF102"
    name = tarfile.TarInfo("long")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    assert "header" in fault(tmp_path, name.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096).message


def test_members_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    pickled = npy(np.array([{}], dtype=object), allow_pickle=True)
    for name, content, code in (
        ("1.npy", pickled, "SF104"),
        ("1.npy", npy(np.ones(3))[:-4], "SF102"),
        ("1.json", b"{oops", "SF102"),
        ("1.txt", b"\xff\xfe\xfa", "SF105"),
    ):
        extension = name.partition(".")[2]
        good = {"npy": npy(np.ones(3)), "json": b"{}", "txt": b"text"}[extension]
        found = fault(tmp_path, tar_of([(f"0.{extension}", good), (name, content)]))
        assert (found.code, found.where["row"]) == (code, 1)
        assert name in found.message
