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
    Case("SF101 empty jsonl", ""),
    Case("SF101 empty csv", {"a.csv": ""}),
    Case("SF101 csv with a header alone", {"a.csv": "prompt,completion\n"}),
    Case("SF101 empty json", {"a.json": ""}),
    Case("SF101 empty gzip", {"a.jsonl.gz": gzip.compress(b"")}),
    Case("SF101 array without rows", {"a.npy": np.zeros((0, 3, 4))}),
    Case("SF102 file of no bytes", {"a.npy": b""}),
    Case("SF101 archive without members", {"a.npz": empty_zip()}),
    Case("SF101 folder without files", {"d/x/keep.me": b""}, data="d"),
    Case("SF102 line cut short", with_line(5, '{"prompt": "a"'), line=6),
    Case("SF102 line that is a list", with_line(3, '["a", "b"]'), line=4),
    Case("SF102 lists nested without end", with_line(3, nested(5000)), line=4),
    Case("SF102 json cut short", {"a.json": json.dumps(echo_rows(20))[:-9]}),
    Case("SF115 json that holds no rows", {"a.json": '{"version": 1, "data": {"x": 2}}'}),
    Case("SF102 row with a cell too many", {"a.csv": CSV + "a,b,c\n"}, line=32),
    Case("SF102 quote that is never closed", {"a.csv": CSV + '"a b,good\nb,bad\n'}),
    Case("SF102 two columns of one name", {"a.csv": CSV.replace("text,label", "text,text")}),
    for_bert("SF105 bytes of zero in a table", {"a.csv": CSV + "a\0b,good\n"}),
    Case("SF217 wrong delimiter", {"a.csv": CSV}, options="--set read.delimiter=';'"),
    Case("SF102 gzip cut short", {"a.jsonl.gz": gzip.compress(GOOD.encode())[:-20]}),
    Case("SF102 array cut short", {"a.npy": npy(ARRAY)[:-100]}),
    Case("SF102 parquet cut short", {"a.parquet": parquet()[:-50]}),
    Case("SF102 safetensors cut short", {"a.safetensors": b"\x40\0\0\0\0\0\0\0{}"}),
    Case("SF102 torch file of noise", {"a.pt": b"no torch at all"}),
    Case("SF102 IDX file cut short", {"a-idx3-ubyte": IDX + b"\0" * 99}),
    Case("SF104 pickled array", {"a.npy": npy(OBJECTS)}),
    Case("SF104 pickled member of an archive", {"a.npz": npz(features=OBJECTS)}),
    Case("SF104 pickle named as torch file", {"a.pt": pickle.dumps([1, {"a": 2}])}),
    for_bert(
        "SF111 text in Windows-1252", {"a.csv": (CSV + "café – naïve,good\n").encode("cp1252")}
    ),
    for_bert("SF105 text in no encoding", {"a.csv": CSV.encode() + b"\x81\x8d\xff\xfe,good\n"}),
    for_bert("SF105 text in UTF-16 without a mark", {"a.csv": CSV.encode("utf-16-le")}),
    Case(
        "SF273 a row that is not UTF-8",
        GOOD.encode() + b'{"prompt": "\xff\xfe a", "completion": "b"}\n',
        row=20,
    ),
    Case(
        "SF103 number among texts",
        with_line(7, '{"prompt": "a", "completion": 3}'),
        row=7,
        column="completion",
    ),
    Case(
        "SF103 lists of mixed types",
        [{"input_ids": [5, 6], "labels": [5, 6]}] * 9
        + [{"input_ids": [5, "six"], "labels": [5, 6]}],
        row=9,
        column="input_ids",
    ),
    Case(
        "SF106 files without a common column",
        {"a.jsonl": echo_rows(9), "b.jsonl": [{"x": 1}]},
        data="a.jsonl b.jsonl",
    ),
    Case(
        "SF107 files with different columns",
        {
            "a.jsonl": echo_rows(20),
            "b.jsonl": [{**row, "note": "x"} for row in echo_rows(9, seed=1)],
        },
        data="a.jsonl b.jsonl",
    ),
    Case(
        "SF106 arrays of different lengths",
        {"a.npz": {"features": ARRAY, "label": np.arange(29) % 3}},
    ),
    Case(
        "SF117 texts of different lengths",
        {"a.txt": "one two\n" * 30, "b.txt": "un deux\n" * 29},
        data="a.txt b.txt",
    ),
    Case("SF110 too many columns", [{f"x{n}": 1 for n in range(20_000)}]),
    Case(
        "SF102 one file of many is damaged",
        {"d/a.npy": ARRAY, "d/b.npy": npy(ARRAY)[:-100]},
        data="d",
    ),
    for_bert(
        "SF430 a damaged file is to be skipped",
        {
            "d/a.npz": {"features": ARRAY, "label": np.arange(30) % 3},
            "d/b.npz": npz(features=ARRAY, label=np.arange(30) % 3)[:-100],
        },
        "--set on_bad_file=skip",
        data="d",
    ),
    Case(
        "SF439 an empty file among others",
        {"d/a.jsonl": echo_rows(30), "d/b.jsonl": b"", "d/c.jsonl": echo_rows(30, seed=1)},
        data="d",
    ),
    Case(
        "SF102 number too large to keep",
        with_line(3, f'{{"prompt": "a", "completion": "b", "x": {2**70}}}'),
        line=4,
    ),
    Case(
        "SF102 half a character", with_line(3, '{"prompt": "\\ud800", "completion": "b"}'), line=4
    ),
    Case("SF101 rows without columns", "{}\n{}\n"),
    Case("SF208 array of a single value", {"a.npy": np.array(3.0)}),
    Case(
        "SF213 array of complex numbers",
        {"a.npz": {"features": ARRAY + 1j, "label": np.arange(30) % 3}},
    ),
    Case(
        "SF213 array of texts in three axes",
        {"a.npz": {"features": np.array([[["a", "b"]]] * 30), "label": np.arange(30) % 3}},
    ),
    Case(
        "SF202 array of texts in two axes",
        {"a.npz": {"features": np.array([["a", "b"]] * 30), "label": np.arange(30) % 3}},
    ),
    Case("SF106 folder of several kinds", {"d/a.jsonl": GOOD, "d/b.csv": CSV}, data="d"),
    Case("SF101 folder of other files", {"d/readme.md": "# hi"}, data="d"),
    Case(
        "SF182 tar file with pickles and films",
        {"a.tar": tar_of([*TEXTS, ("000.pyd", b"cos\nsystem\n."), ("000.mp4", b"film")])},
        model="tiny:bert",
        also=(" → ",),
    ),
    Case(
        "SF182 tar file with a link to another file",
        {"a.tar": tar_of(TEXTS, link("900.txt", "/etc/passwd"))},
        model="tiny:bert",
    ),
    Case(
        "SF183 tar file with a member twice",
        {"a.tar": tar_of([*TEXTS, ("004.txt", b"another")])},
        model="tiny:bert",
        row=4,
    ),
    Case("SF102 tar file that is cut off", {"a.tar": tar_of(TEXTS)[:9000]}, model="tiny:bert"),
]
