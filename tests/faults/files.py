"""Faults of files: empty, damaged, wrongly encoded, pickled, not belonging together."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from builders import echo_rows, sentiment_rows
from faults.case import Case, for_bert
from tar_files import tar_of

LINES = [json.dumps(row) + "\n" for row in echo_rows(20)]
GOOD = "".join(LINES)
CSV = "text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in sentiment_rows(30))
ARRAY = np.random.default_rng(0).normal(size=(30, 5, 4)).astype(np.float32)


def with_line(place: int, line: str) -> str:
    """The good lines, with another one at `place`."""
    return "".join([*LINES[:place], line + "\n", *LINES[place + 1 :]])


def npy(array: Any) -> bytes:
    """The bytes of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    """The bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def parquet() -> bytes:
    """The bytes of a parquet file with the good rows."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(echo_rows(20)), buffer)
    return buffer.getvalue()


def empty_zip() -> bytes:
    """An archive without members."""
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    """The header of a symbolic link."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname = tarfile.SYMTYPE, target
    return header


TEXTS = [
    (f"{number:03}.{extension}", row[column].encode())
    for number, row in enumerate(sentiment_rows(30))
    for extension, column in (("txt", "text"), ("cls", "label"))
]
"""The members of a tar file of texts with their classes."""


def nested(depth: int) -> str:
    """A JSON row with lists in lists."""
    return '{"prompt": ' + "[" * depth + "1" + "]" * depth + ', "completion": "a"}'


OBJECTS = np.array([{"a": 1}, None], dtype=object)
IDX = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (30, 8, 8))

CASES = [
    Case("empty jsonl", "SF101", "", process=True),
    Case("empty csv", "SF101", {"a.csv": ""}, process=True),
    Case("csv with a header alone", "SF101", {"a.csv": "prompt,completion\n"}),
    Case("empty json", "SF101", {"a.json": ""}),
    Case("empty gzip", "SF101", {"a.jsonl.gz": gzip.compress(b"")}),
    Case("array without rows", "SF101", {"a.npy": np.zeros((0, 3, 4))}),
    Case("file of no bytes", "SF102", {"a.npy": b""}),
    Case("archive without members", "SF101", {"a.npz": empty_zip()}),
    Case("folder without files", "SF101", {"d/x/keep.me": b""}, data="d"),
    Case("line cut short", "SF102", with_line(5, '{"prompt": "a"'), line=6, process=True),
    Case("line that is a list", "SF102", with_line(3, '["a", "b"]'), line=4),
    Case("lists nested without end", "SF102", with_line(3, nested(5000)), line=4),
    Case("json cut short", "SF102", {"a.json": json.dumps(echo_rows(20))[:-9]}),
    Case("json that holds no rows", "SF115", {"a.json": '{"version": 1, "data": {"x": 2}}'}),
    Case("row with a cell too many", "SF102", {"a.csv": CSV + "a,b,c\n"}, line=32, process=True),
    Case("quote that is never closed", "SF102", {"a.csv": CSV + '"a b,good\nb,bad\n'}),
    Case("two columns of one name", "SF102", {"a.csv": CSV.replace("text,label", "text,text")}),
    for_bert("bytes of zero in a table", "SF105", {"a.csv": CSV + "a\0b,good\n"}),
    Case("wrong delimiter", "SF217", {"a.csv": CSV}, options="--set read.delimiter=';'"),
    Case("gzip cut short", "SF102", {"a.jsonl.gz": gzip.compress(GOOD.encode())[:-20]}),
    Case("array cut short", "SF102", {"a.npy": npy(ARRAY)[:-100]}, process=True),
    Case("parquet cut short", "SF102", {"a.parquet": parquet()[:-50]}, process=True),
    Case("safetensors cut short", "SF102", {"a.safetensors": b"\x40\0\0\0\0\0\0\0{}"}),
    Case("torch file of noise", "SF102", {"a.pt": b"no torch at all"}),
    Case("IDX file cut short", "SF102", {"a-idx3-ubyte": IDX + b"\0" * 99}),
    Case("pickled array", "SF104", {"a.npy": npy(OBJECTS)}, process=True),
    Case("pickled member of an archive", "SF104", {"a.npz": npz(features=OBJECTS)}),
    Case("pickle named as torch file", "SF104", {"a.pt": pickle.dumps([1, {"a": 2}])}),
    for_bert(
        "text in Windows-1252", "SF111", {"a.csv": (CSV + "café – naïve,good\n").encode("cp1252")}
    ),
    for_bert("text in no encoding", "SF105", {"a.csv": CSV.encode() + b"\x81\x8d\xff\xfe,good\n"}),
    for_bert("text in UTF-16 without a mark", "SF105", {"a.csv": CSV.encode("utf-16-le")}),
    Case(
        "a row that is not UTF-8",
        "SF273",
        GOOD.encode() + b'{"prompt": "\xff\xfe a", "completion": "b"}\n',
        row=20,
    ),
    Case(
        "number among texts",
        "SF103",
        with_line(7, '{"prompt": "a", "completion": 3}'),
        row=7,
        column="completion",
        process=True,
    ),
    Case(
        "lists of mixed types",
        "SF103",
        [{"input_ids": [5, 6], "labels": [5, 6]}] * 9
        + [{"input_ids": [5, "six"], "labels": [5, 6]}],
        row=9,
        column="input_ids",
    ),
    Case(
        "files without a common column",
        "SF106",
        {"a.jsonl": echo_rows(9), "b.jsonl": [{"x": 1}]},
        data="a.jsonl b.jsonl",
    ),
    Case(
        "files with different columns",
        "SF107",
        {
            "a.jsonl": echo_rows(20),
            "b.jsonl": [{**row, "note": "x"} for row in echo_rows(9, seed=1)],
        },
        data="a.jsonl b.jsonl",
    ),
    Case(
        "arrays of different lengths",
        "SF106",
        {"a.npz": {"features": ARRAY, "label": np.arange(29) % 3}},
    ),
    Case(
        "texts of different lengths",
        "SF117",
        {"a.txt": "one two\n" * 30, "b.txt": "un deux\n" * 29},
        data="a.txt b.txt",
    ),
    Case("too many columns", "SF110", [{f"x{n}": 1 for n in range(20_000)}]),
    Case(
        "one file of many is damaged",
        "SF102",
        {"d/a.npy": ARRAY, "d/b.npy": npy(ARRAY)[:-100]},
        data="d",
    ),
    for_bert(
        "a damaged file is to be skipped",
        "SF430",
        {
            "d/a.npz": {"features": ARRAY, "label": np.arange(30) % 3},
            "d/b.npz": npz(features=ARRAY, label=np.arange(30) % 3)[:-100],
        },
        "--set on_bad_file=skip",
        data="d",
    ),
    Case(
        "an empty file among others",
        "SF439",
        {"d/a.jsonl": echo_rows(30), "d/b.jsonl": b"", "d/c.jsonl": echo_rows(30, seed=1)},
        data="d",
    ),
    Case(
        "number too large to keep",
        "SF102",
        with_line(3, f'{{"prompt": "a", "completion": "b", "x": {2**70}}}'),
        line=4,
    ),
    Case(
        "half a character",
        "SF102",
        with_line(3, '{"prompt": "\\ud800", "completion": "b"}'),
        line=4,
    ),
    Case("rows without columns", "SF101", "{}\n{}\n"),
    Case("array of a single value", "SF208", {"a.npy": np.array(3.0)}),
    Case(
        "array of complex numbers",
        "SF213",
        {"a.npz": {"features": ARRAY + 1j, "label": np.arange(30) % 3}},
    ),
    Case(
        "array of texts in three axes",
        "SF213",
        {"a.npz": {"features": np.array([[["a", "b"]]] * 30), "label": np.arange(30) % 3}},
    ),
    Case(
        "array of texts in two axes",
        "SF202",
        {"a.npz": {"features": np.array([["a", "b"]] * 30), "label": np.arange(30) % 3}},
    ),
    Case("folder of several kinds", "SF106", {"d/a.jsonl": GOOD, "d/b.csv": CSV}, data="d"),
    Case("folder of other files", "SF101", {"d/readme.md": "# hi"}, data="d"),
    Case(
        "tar file with pickles and films",
        "SF182",
        {"a.tar": tar_of([*TEXTS, ("000.pyd", b"cos\nsystem\n."), ("000.mp4", b"film")])},
        model="tiny:bert",
        also=(" → ",),
    ),
    Case(
        "tar file with a link to another file",
        "SF182",
        {"a.tar": tar_of(TEXTS, link("900.txt", "/etc/passwd"))},
        model="tiny:bert",
    ),
    Case(
        "tar file with a member twice",
        "SF183",
        {"a.tar": tar_of([*TEXTS, ("004.txt", b"another")])},
        model="tiny:bert",
        row=4,
    ),
    Case("tar file that is cut off", "SF102", {"a.tar": tar_of(TEXTS)[:9000]}, model="tiny:bert"),
]
