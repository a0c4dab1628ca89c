"""Hostile data files: every opener, containers that expand, special files, names."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from reliability.hostile_case import ANY, CANARY, Case, Content, canary_beside, inspects

TEXTS = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".conll", ".ts")
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\r\x08\x7f"
GOOD = [{"prompt": f"question {n}", "completion": f"answer {n}"} for n in range(20)]
EVIL = f"open({CANARY!r}, 'w')\n"
"""Python that makes the canary file."""


def data_cases() -> list[Case]:
    """All cases of data files; test_fuzzing.py damages good ones, test_bounds.py nests JSON."""
    return [*texts(), *arrays(), *bombs(), *special(), *names(), *code()]


def texts() -> Iterator[Case]:
    """Lines and cells that no reader should hold, and text that is none."""
    for ending in TEXTS:
        file = f"data{ending}"
        yield inspects(f"NUL bytes {ending}", file, b"a,b\n1,\x002\n" * 50, ANY)
        yield inspects(f"one long line {ending}", file, long_line)
        escaped = f'{{"a{ESCAPES}": "{ESCAPES}"}}\n' * 4
        yield inspects(f"terminal codes {ending}", file, escaped, ANY)
    wide = ",".join(f"c{n}" for n in range(200_000))
    yield inspects("200,000 columns csv", "wide.csv", f"{wide}\n{wide}\n")
    yield inspects("twin names csv", "twin.csv", "a,a\n1,2\n")
    yield inspects("UTF-16 cut csv", "u.csv", "a,b\n1,2\n".encode("utf-16")[:-1], ANY)
    yield inspects("UTF-32 csv", "u32.csv", "a,b\n1,2\n".encode("utf-32"), ANY)
    yield inspects("lone surrogates jsonl", "s.jsonl", '{"text": "\\ud800"}\n' * 9, ANY)
    yield inspects("U+2028 in text jsonl", "ls.jsonl", '{"text": "a\u2028b"}\n' * 9, ANY)
    yield inspects("sentence without end conll", "long.conll", "word TAG\n" * 3_000_000)
    header = "@problemName x\n@univariate true\n@classLabel true a b\n@data\n"
    yield inspects("ts with words", "w.ts", header + "1,zwei,3:a\n")
    yield inspects("ts with nan label", "n.ts", header + "1,2,3:\n" * 3, ANY)


def long_line(path: Path) -> None:
    """A gigabyte in one line: a sparse file."""
    with path.open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(1 << 30)


def npy(header: str, version: int = 1) -> bytes:
    """An npy file of a header of our own and no values."""
    raw = header.encode()
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw


def npy_of(shape: str, kind: str = "<f4") -> bytes:
    """An npy file that announces a shape and a type."""
    return npy(f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n")


def zipped(**members: bytes) -> bytes:
    """An archive of arrays."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return made.getvalue()


def arrays() -> Iterator[Case]:
    """Arrays whose header announces what the file does not have."""
    for name, shape in {
        "a terabyte": "(1000000, 1000000)",
        "2**62 rows": f"({2**62},)",
        "2**70 rows": f"({2**70},)",
        "negative": "(-1, 4)",
        "many axes": "(" + "1," * 100 + ")",
        "no tuple": "5",
        "floats": "(1.5, 2)",
    }.items():
        yield inspects(f"npy of {name}", "x.npy", npy_of(shape))
        yield inspects(f"npz of {name}", "x.npz", zipped(x=npy_of(shape)))
    for kind in ("O", "V8", "<M8[s]", "<c16", "[('a','<f4')]", "nonsense", "<U999999999"):
        yield inspects(f"npy of dtype {kind}", "x.npy", npy_of("(3,)", kind) + bytes(64))
    yield inspects("npy with code", "x.npy", npy("__import__('os').system('touch canary')"))
    yield inspects("npy 4 GB header", "x.npy", npy("{", 2)[:8] + struct.pack("<I", 2**32 - 1))
    yield inspects("npy deep header", "x.npy", npy("(" * 5000))
    for count, size in ((2**31, 4), (1, 4294967295)):
        raw = struct.pack(">II", count, size)
        yield inspects(f"idx of {count}×{size}", "x.idx", b"\0\0\x0d\x02" + raw)
    yield inspects("idx of 255 axes", "x.idx", b"\0\0\x08\xff" + b"\xff" * 1020)
    for name, head in {
        "2**63": struct.pack("<Q", 2**63),
        "100 MB": struct.pack("<Q", 100_000_000),
        "deep": safetensors_header('{"x":' * 9000),
        "overlap": safetensors_header(tensor([0, 8]) + "," + tensor([4, 12], "y"), 12),
        "too large": safetensors_header(tensor([0, 4 * 10**15], shape=[10**15])),
        "negative": safetensors_header(tensor([0, -4])),
        "dtype": safetensors_header('"x":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}', 4),
    }.items():
        yield inspects(f"safetensors header {name}", "x.safetensors", head)
    footer = b"\xff" * 64 + struct.pack("<I", 0x7FFFFFFF) + b"PAR1"
    yield inspects("parquet footer of 2 GB", "x.parquet", b"PAR1" + footer)
    message = b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f"
    yield inspects("arrow message of 2 GB", "x.arrow", message)


def tensor(offsets: list[int], name: str = "x", shape: Sequence[int] = (2,)) -> str:
    about = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
    return f'"{name}":{json.dumps(about)}'


def safetensors_header(inside: str, num_bytes: int = 0) -> bytes:
    text = ("{" + inside + "}").encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


def bombs() -> Iterator[Case]:
    """Small files that expand."""
    line = gzip.compress(b"x" * (1 << 20)) * 2048
    for ending in (".jsonl", ".json", ".csv", ".txt", ".ts", ".conll"):
        yield inspects(f"gzip of a 2 GB line {ending}", f"bomb{ending}.gz", line)
    yield inspects("gzip of a 2 GB line idx", "bomb-idx3-ubyte.gz", line)
    yield inspects("gzip in gzip", "g.jsonl.gz", gzip.compress(gzip.compress(b"x" * 999)))
    yield inspects("xz as jsonl", "x.jsonl", lzma.compress(b'{"a": 1}\n' * 9))
    yield inspects("zip of 20 GB npz", "bomb.npz", npz_bomb)
    yield inspects("zip slip npz", "slip.npz", zip_slip, ANY)
    yield inspects("parquet of one value 10**9 times", "bomb.parquet", parquet_bomb, ANY)
    bomb = {**class_folders(), "pictures/cat/9.png": png(60_000, 60_000)}
    yield Case("image bomb", checked("pictures"), bomb)
    yield Case("image of 2 GB in a table", checked("images.parquet"), {"images.parquet": images})


def checked(data: str) -> list[str]:
    """The check of images."""
    return ["check", "--data", data, "--model", "tiny:resnet"]


def npz_bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy_of(f"({4 * 10**8},)", "<f8"))
        for _ in range(64):  # the rest is announced only
            file.write(bytes(1 << 20))


def zip_slip(path: Path) -> None:
    values = io.BytesIO()
    np.save(values, np.zeros((4, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../../../escaped.npy", "/tmp/escaped.npy", "ok.npy"):
            archive.writestr(name, values.getvalue())


def parquet_bomb(path: Path) -> None:
    """One text of a megabyte, repeated by a dictionary."""
    indices = pa.array(np.zeros(200_000, np.int32))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"text": column}), path)


def png(width: int, height: int) -> bytes:
    """A PNG that announces a size, with nothing in it."""
    made = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        made += struct.pack(">I", len(data)) + kind + data
        made += struct.pack(">I", zlib.crc32(kind + data))
    return made


def images(path: Path) -> None:
    """A table of images of two gigabytes each."""
    held = [{"bytes": png(50_000, 50_000), "path": None}] * 12
    pq.write_table(pa.table({"image": held, "label": [0, 1] * 6}), path)


def shaded(shade: int) -> Content:
    """An image of one shade."""
    return lambda path: Image.new("RGB", (8, 8), (shade,) * 3).save(path)


def class_folders() -> dict[str, Content]:
    """Images of two classes."""
    shades = {"cat": 20, "dog": 0}
    return {
        f"pictures/{label}/{n}.png": shaded(40 * n + first)
        for label, first in shades.items()
        for n in range(4)
    }


def bound_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a long path does not fit into a socket's address
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def special() -> Iterator[Case]:
    """Pipes, sockets, devices, loops and folders where files are expected."""
    kinds: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "socket": bound_socket,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path.name),
        "folder": Path.mkdir,
    }
    for kind, make in kinds.items():
        for name in ("x.jsonl", "x.npy", "noending", "x.parquet"):
            yield inspects(f"{kind} as {name}", name, make)
    rows = [{"image": f"{n}.png" if n else "bad.png", "label": n % 2} for n in range(20)]
    column: dict[str, Content] = {f"{n}.png": shaded(10 * n) for n in range(20)}
    features: Content = lambda path: np.save(path, np.zeros((8, 4), np.float32))  # noqa: E731
    for kind in ("pipe", "device", "loop", "socket"):
        make, pictures = kinds[kind], ["inspect", "pictures"]
        inside = {**class_folders(), "pictures/cat/bad.png": make}
        yield Case(f"{kind} among class folders", pictures, inside, ANY)
        inside = {**class_folders(), "pictures/fish": make}
        yield Case(f"{kind} as class folder", pictures, inside, ANY)
        shards: dict[str, Content] = {"shards/a.jsonl": GOOD, "shards/b.jsonl": make}
        yield Case(f"{kind} among shards", ["inspect", "shards"], shards, ANY)
        named = {**column, "bad.png": make, "rows.jsonl": rows}
        yield Case(f"{kind} named in an image column", checked("rows.jsonl"), named)
        pair: dict[str, Content] = {"X_train.npy": features, "y_train.npy": make}
        yield Case(f"{kind} as labels beside an array", ["inspect", "X_train.npy"], pair, ANY)


def names() -> Iterator[Case]:
    """File names that are codes, options, not text, or too long."""
    for shown, name in {
        "terminal codes": f"{ESCAPES}.jsonl",
        "newline": "a\nerror: spoofed\nb.jsonl",
        "not UTF-8": os.fsdecode(b"\xff\xfe.jsonl"),
        "markup": "[bold red]x.jsonl",
        "percent": "%s%n{0}.jsonl",
        "quotes": "'\"`$(touch canary)`.jsonl",
        "spaces": "  .jsonl",
    }.items():
        yield inspects(f"name of {shown}", name, GOOD, (0,))
        yield inspects(f"name of {shown}, damaged", name, b"{", (1, 2))
    for shown, path in {
        "long": "x" * 5000,
        "NUL": "a\0b.jsonl",
        "empty": "",
        "proc": "/proc/self/mem",
        "stdin": "/dev/stdin",
        "url": "http://127.0.0.1:1/x.jsonl",
        "parent": "../../../../../../etc",
    }.items():
        yield Case(f"path {shown}", ["inspect", path])


class Canary:
    """An object whose unpickling would make the canary file."""

    def __init__(self, path: Path) -> None:
        self.path = canary_beside(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def save_pickle(path: Path) -> None:
    """A file with a canary inside, in the way of its ending."""
    value = Canary(path)
    if path.suffix == ".npy":
        np.save(path, np.array([value], dtype=object), allow_pickle=True)
    elif path.suffix == ".npz":
        np.savez(path, x=np.array([value], dtype=object))
    elif path.suffix in (".pt", ".bin"):
        torch.save({"x": value}, path)
    else:
        path.write_bytes(pickle.dumps(value))


def save_legacy(path: Path) -> None:
    torch.save({"x": Canary(path)}, path, _use_new_zipfile_serialization=False)


def code() -> Iterator[Case]:
    """Data and folders that bring code."""
    for ending in (".npy", ".npz", ".pt", ".pkl", ".arrow", ".parquet", ".safetensors", ".json"):
        yield Case(f"pickle as {ending}", ["inspect", f"x{ending}"], {f"x{ending}": save_pickle})
    yield Case("legacy pickle .pt", ["inspect", "x.pt"], {"x.pt": save_legacy})
    modules = ("sitecustomize", "json", "torch", "data", "yaml", "conftest", "surefit_plugin")
    lying = {**{f"set/{name}.py": EVIL for name in modules}, "set/data.jsonl": GOOD}
    yield Case("python files among data", ["inspect", "set"], lying, (0,))
    script: dict[str, Content] = {
        "dataset/dataset.py": EVIL,
        "dataset/dataset_infos.json": '{"default": {"builder_name": "dataset"}}',
        "dataset/dataset_info.json": "[" * 5000,
        "dataset/state.json": '{"_data_files": [{"filename": "../../../etc/passwd"}]}',
    }
    yield Case("dataset folder with a script", ["inspect", "dataset"], script)
