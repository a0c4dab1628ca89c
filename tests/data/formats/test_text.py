"""Bytes to text: UTF-8, Windows-1252, UTF-16 and gzip; what is no text is named by its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from opening import fault_of, notes_of, rows_of, written
from surefit.config import Reading
from surefit.data.formats.text_decoding import CHUNK_BYTES, TextFile
from surefit.errors import UsageError

ENDINGS = {
    "txt": "{}\n",
    "csv": "text\n{}\n",
    "tsv": "text\tn\n{}\t1\n",
    "jsonl": '{{"text": "{}"}}\n',
    "json": '[{{"text": "{}"}}]\n',
}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_western_text_is_read_with_a_note(tmp_path: Path, ending: str, packed: str) -> None:
    raw = ENDINGS[ending].format("a café’s menu").encode("cp1252")
    path = written(tmp_path / f"a.{ending}{packed}", raw)
    assert rows_of(path)[-1]["text"] == "a café’s menu"
    (message,) = [message for code, message in notes_of(path) if code == "SF111"]
    line = 2 if ending in ("csv", "tsv") else 1
    assert message.startswith(f"a.{ending}{packed}, line {line}: byte 0xe9 is not UTF-8")


def test_named_encoding_is_taken_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "café".encode("latin-1"))
    assert rows_of(path, encoding="latin-1") == [{"text": "café"}]
    found = fault_of(path, encoding="utf-8")
    assert (found.code, found.where["line"]) == ("SF105", 1)
    with pytest.raises(UsageError, match="which Python does not know"):
        rows_of(path, encoding="klingon")


NO_TEXT = {
    "a zero byte": (b"fine\nzero\x00byte\n", 2, "byte 0x00 at position 4 is not text"),
    "UTF-8, then other bytes": ("één\n".encode() + b"\n\xe9 word\n", 3, "is not UTF-8"),
    "Windows-1252, then UTF-8": (b"caf\xe9 au lait\n" + "één deux\n".encode(), 2, "nor, as line 1"),
    "Cyrillic in another encoding": ("fine\nПривет, мир".encode("cp1251"), 2, "is not UTF-8"),
    "control characters": (b"fine\n\xe9\x01\x02\n", 2, "is not UTF-8"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_bytes_that_are_no_text_are_named(tmp_path: Path, name: str) -> None:
    raw, line, message = NO_TEXT[name]
    found = fault_of(written(tmp_path / "a.txt", raw))
    assert (found.code, found.where["line"]) == ("SF105", line)
    assert message in found.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_characters(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path / "a.csv", "text,label\nčaj,1\n".encode(encoding))
    named = {} if encoding == "utf-16" else {"encoding": encoding}
    assert rows_of(path, **named) == [{"text": "čaj", "label": 1}]


def test_wide_characters_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\ntwo".encode("utf-16")[:-1])
    assert fault_of(path).where["line"] == 2


def test_chunks_do_not_cut_characters(tmp_path: Path) -> None:
    text = "x" * (CHUNK_BYTES - 1) + "\n€€ and on"
    path = written(tmp_path / "a.txt", text)
    for cut in range(4):
        path.write_bytes(b"y" * cut + text.encode())
        assert "".join(TextFile(path, Reading()).chunks()) == "y" * cut + text
    assert [line for _, line in TextFile(path, Reading()).lines()][1] == "€€ and on"


@pytest.mark.parametrize("ending", [*ENDINGS, "conll", "ts", "de"])
def test_truncated_and_empty_gzip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}.gz"
    packed = gzip.compress(bytes(range(32, 127)) * 50)
    path.write_bytes(packed[:-12])
    found = fault_of(path)
    assert (found.code, found.where["file"]) == ("SF102", str(path))
    assert "damaged gzip" in found.message
    for empty in (b"", gzip.compress(b"")):
        path.write_bytes(empty)
        assert fault_of(path).code == "SF101"
