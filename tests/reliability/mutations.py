"""Good files, and strategies that damage them: bytes for files, values for JSON."""

from __future__ import annotations

import copy
import io
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import strategies as st
from safetensors.numpy import save

ROWS = [{"text": f"row {n}", "label": n % 3, "x": [n, 2.5], "m": {"k": None}} for n in range(8)]
VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)


def _saved(write: Callable[[io.BytesIO], object]) -> bytes:
    made = io.BytesIO()
    write(made)
    return made.getvalue()


def _arrow(made: io.BytesIO) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)


GOOD: dict[str, bytes] = {
    ".jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    ".json": json.dumps({"data": ROWS, "version": 1}).encode(),
    ".csv": b'a,b,c\n1,"two, or\nthree",x\n2,,\xc3\xa9\n3,4,5\n',
    ".tsv": b"a\tb\n1\t2\n3\t4\n",
    ".txt": b"__label__a one\n__label__b two\n__label__a three\n__label__b four\n",
    ".conll": b"-DOCSTART- O\n\nBerlin B-LOC\nis O\n\nRome B-LOC\n",
    ".ts": b"@problemName x\n@univariate true\n@classLabel true a b\n@data\n1,2,3:a\n4,5,6:b\n",
    ".npy": _saved(lambda made: np.save(made, VALUES)),
    ".npz": _saved(lambda made: np.savez(made, x=VALUES, y=np.arange(6))),
    ".parquet": _saved(lambda made: pq.write_table(pa.Table.from_pylist(ROWS), made)),
    ".arrow": _saved(_arrow),
    ".safetensors": save({"x": VALUES, "y": np.arange(6)}),
    ".pt": _saved(lambda made: torch.save({"x": torch.tensor(VALUES)}, made)),
    ".idx": b"\0\0\x08\x03" + struct.pack(">III", 6, 2, 2) + bytes(range(24)),
}
"""A small file of each format, by the ending that chooses its opener."""

PIECES = (
    *(b"\0", b"\n", b"\r", b'"', b",", b"[", b"{", b"}", b"]", b":", b"\\", b"-", b"\x1b[2J"),
    *(b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"9" * 30, b"1e999"),
    *(b"NaN", b"null", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"[" * 200),
)
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1.5, 1e308, "", "x", "\x1b[2J\n", "__class__", "../../x", "os:f"),
    *([], [[]], [None], {}, {"": {}}, {"step": "x"}),
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """The bytes after one to four changes: cut, overwritten, repeated, or with a piece inside."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        kind = draw(st.sampled_from(("cut", "set", "drop", "repeat", "insert")))
        if kind == "cut":
            del data[at:]
        elif kind == "set":
            data[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
        elif kind == "drop":
            del data[at:end]
        elif kind == "repeat":
            data[at:at] = data[at:end] * draw(st.integers(1, 20))
        else:
            data[at:at] = draw(st.sampled_from(PIECES))
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, good: Any) -> Any:
    """The JSON value with some parts replaced, removed or renamed."""
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        value = _alter(draw, value)
    return value


def _alter(draw: st.DrawFn, value: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or draw(st.integers(0, 3)) == 0:
        return copy.deepcopy(draw(st.sampled_from(ODD)))  # which is changed further
    keys = sorted(value) if isinstance(value, dict) else range(len(value))
    key = draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(("inside", "inside", "drop", "rename")))
    if kind == "inside" or isinstance(value, list):
        value[key] = _alter(draw, value[key])
    elif kind == "drop":
        del value[key]
    else:
        value[draw(st.sampled_from(("", "step", "\x1b[2J", "format_version")))] = value.pop(key)
    return value
