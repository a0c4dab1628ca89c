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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from reliability.hostile_case import ANY, Case, Scene, inspects

Write = Callable[[Path], object]
TEXTS = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".conll", ".ts")
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\r\x08\x7f"
GOOD = [{"prompt": f"question {n}", "completion": f"answer {n}"} for n in range(20)]


class Canary:
    """An object whose unpickling would make the canary file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def content(data: bytes | str) -> Write:
    """Writes these bytes."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return lambda path: path.write_bytes(raw)


def lines(rows: Sequence[Any]) -> Write:
    """Writes JSON lines."""
    return content("".join(json.dumps(row) + "\n" for row in rows))


def data_cases() -> list[Case]:
    """All cases of data files; test_fuzzing.py damages good ones, test_bounds.py nests JSON."""
    return [*texts(), *arrays(), *bombs(), *special(), *names(), *code()]


def texts() -> Iterator[Case]:
    """Lines and cells that no reader should hold, and text that is none."""
    for ending in TEXTS:
        yield inspects(f"NUL bytes {ending}", f"data{ending}", content(b"a,b\n1,\x002\n" * 50), ANY)
        yield inspects(f"one long line {ending}", f"data{ending}", long_line)
        escaped = content(f'{{"a{ESCAPES}": "{ESCAPES}"}}\n' * 4)
        yield inspects(f"terminal codes {ending}", f"data{ending}", escaped, ANY)
    wide = ",".join(f"c{n}" for n in range(200_000))
    yield inspects("200,000 columns csv", "wide.csv", content(f"{wide}\n{wide}\n"))
    yield inspects("twin names csv", "twin.csv", content("a,a\n1,2\n"))
    yield inspects("UTF-16 cut csv", "u.csv", content("a,b\n1,2\n".encode("utf-16")[:-1]), ANY)
    yield inspects("UTF-32 csv", "u32.csv", content("a,b\n1,2\n".encode("utf-32")), ANY)
    yield inspects("lone surrogates jsonl", "s.jsonl", content('{"text": "\\ud800"}\n' * 9), ANY)
    yield inspects("U+2028 in text jsonl", "ls.jsonl", content('{"text": "a\u2028b"}\n' * 9), ANY)
    yield inspects("sentence without end conll", "long.conll", content("word TAG\n" * 3_000_000))
    header = "@problemName x\n@univariate true\n@classLabel true a b\n@data\n"
    yield inspects("ts with words", "w.ts", content(header + "1,zwei,3:a\n"))
    yield inspects("ts with nan label", "n.ts", content(header + "1,2,3:\n" * 3), ANY)


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


def arrays() -> Iterator[Case]:
    """Arrays whose header announces what the file does not have."""
    shapes = {
        "a terabyte": "(1000000, 1000000)",
        "2**62 rows": f"({2**62},)",
        "2**70 rows": f"({2**70},)",
        "negative": "(-1, 4)",
        "many axes": "(" + "1," * 100 + ")",
        "no tuple": "5",
        "floats": "(1.5, 2)",
    }
    for name, shape in shapes.items():
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
        yield inspects(f"npy of {name}", "x.npy", content(npy(header)))
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr("x.npy", npy(header))
        yield inspects(f"npz of {name}", "x.npz", content(zipped.getvalue()))
    for kind in ("O", "V8", "<M8[s]", "<c16", "[('a','<f4')]", "nonsense", "<U999999999"):
        header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': (3,), }}\n"
        yield inspects(f"npy of dtype {kind}", "x.npy", content(npy(header) + bytes(64)))
    yield inspects(
        "npy with code", "x.npy", content(npy("__import__('os').system('touch canary')"))
    )
    yield inspects(
        "npy 4 GB header", "x.npy", content(npy("{", 2)[:8] + struct.pack("<I", 2**32 - 1))
    )
    yield inspects("npy deep header", "x.npy", content(npy("(" * 5000)))
    for count, shape in ((2**31, "4"), (1, "4294967295")):
        raw = struct.pack(">I", count) + struct.pack(">I", int(shape))
        yield inspects(f"idx of {count}×{shape}", "x.idx", content(b"\0\0\x0d\x02" + raw))
    yield inspects("idx of 255 axes", "x.idx", content(b"\0\0\x08\xff" + b"\xff" * 1020))
    for name, head in (
        ("2**63", struct.pack("<Q", 2**63)),
        ("100 MB", struct.pack("<Q", 100_000_000)),
        ("deep", b"%s" % safetensors_header('{"x":' * 9000)),
        ("overlap", safetensors_header(tensor([0, 8]) + "," + tensor([4, 12], "y"), 12)),
        ("too large", safetensors_header(tensor([0, 4 * 10**15], shape=[10**15]))),
        ("negative", safetensors_header(tensor([0, -4]))),
        ("dtype", safetensors_header('"x":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}', 4)),
    ):
        yield inspects(f"safetensors header {name}", "x.safetensors", content(head))
    footer = b"\xff" * 64 + struct.pack("<I", 0x7FFFFFFF) + b"PAR1"
    yield inspects("parquet footer of 2 GB", "x.parquet", content(b"PAR1" + footer))
    yield inspects(
        "arrow message of 2 GB", "x.arrow", content(b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f")
    )


def tensor(offsets: list[int], name: str = "x", shape: Sequence[int] = (2,)) -> str:
    about = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
    return f'"{name}":{json.dumps(about)}'


def safetensors_header(inside: str, num_bytes: int = 0) -> bytes:
    text = ("{" + inside + "}").encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


def bombs() -> Iterator[Case]:
    """Small files that expand."""
    for ending in (".jsonl", ".json", ".csv", ".txt", ".ts", ".conll"):
        yield inspects(f"gzip of a 2 GB line {ending}", f"bomb{ending}.gz", gzip_line)
    yield inspects("gzip of a 2 GB line idx", "bomb-idx3-ubyte.gz", gzip_line)
    yield inspects("gzip in gzip", "g.jsonl.gz", content(gzip.compress(gzip.compress(b"x" * 999))))
    yield inspects("xz as jsonl", "x.jsonl", content(lzma.compress(b'{"a": 1}\n' * 9)))
    yield inspects("zip of 20 GB npz", "bomb.npz", npz_bomb)
    yield inspects("zip slip npz", "slip.npz", zip_slip, ANY)
    yield inspects("parquet of one value 10**9 times", "bomb.parquet", parquet_bomb, ANY)
    yield Case("image bomb", image_bomb)
    yield Case("image of 2 GB in a table", image_table_bomb)


def gzip_line(path: Path) -> None:
    path.write_bytes(gzip.compress(b"x" * (1 << 20)) * 2048)


def npz_bomb(path: Path) -> None:
    rows = 4 * 10**8
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows},), }}\n"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy(header))
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
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def image_bomb(scene: Scene) -> Sequence[str]:
    for label in ("cat", "dog"):
        folder = scene.work / "pictures" / label
        folder.mkdir(parents=True)
        for n in range(4):
            Image.new("RGB", (8, 8)).save(folder / f"{n}.png")
    (scene.work / "pictures" / "cat" / "9.png").write_bytes(png(60_000, 60_000))
    return ["check", "--data", "pictures", "--model", "tiny:resnet"]


def image_table_bomb(scene: Scene) -> Sequence[str]:
    images = [{"bytes": png(50_000, 50_000), "path": None}] * 12
    table = pa.table({"image": images, "label": [0, 1] * 6})
    pq.write_table(table, scene.work / "images.parquet")
    return ["check", "--data", "images.parquet", "--model", "tiny:resnet"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


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
    kinds: dict[str, Write] = {
        "pipe": fifo,
        "socket": bound_socket,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path.name),
        "folder": Path.mkdir,
    }
    for kind, write in kinds.items():
        for name in ("x.jsonl", "x.npy", "noending", "x.parquet"):
            yield inspects(f"{kind} as {name}", name, write)
    for kind in ("pipe", "device", "loop", "socket"):
        yield Case(f"{kind} among class folders", among(kinds[kind], "cat/bad.png"), ANY)
        yield Case(f"{kind} as class folder", among(kinds[kind], "fish"), ANY)
        yield Case(f"{kind} among shards", shards_with(kinds[kind]), ANY)
        yield Case(f"{kind} named in an image column", image_column(kinds[kind]))
        yield Case(f"{kind} as labels beside an array", labels_with(kinds[kind]), ANY)


def among(write: Write, place: str) -> Callable[[Scene], Sequence[str]]:
    def prepare(scene: Scene) -> Sequence[str]:
        for label in ("cat", "dog"):
            (scene.work / "pictures" / label).mkdir(parents=True)
            for n in range(4):
                shade = 40 * n + (20 if label == "cat" else 0)
                Image.new("RGB", (8, 8), (shade,) * 3).save(
                    scene.work / "pictures" / label / f"{n}.png"
                )
        write(scene.work / "pictures" / place)
        return ["inspect", "pictures"]

    return prepare


def shards_with(write: Write) -> Callable[[Scene], Sequence[str]]:
    def prepare(scene: Scene) -> Sequence[str]:
        (scene.work / "shards").mkdir()
        lines(GOOD)(scene.work / "shards" / "a.jsonl")
        write(scene.work / "shards" / "b.jsonl")
        return ["inspect", "shards"]

    return prepare


def image_column(write: Write) -> Callable[[Scene], Sequence[str]]:
    def prepare(scene: Scene) -> Sequence[str]:
        write(scene.work / "bad.png")
        for n in range(20):
            Image.new("RGB", (8, 8), (10 * n,) * 3).save(scene.work / f"{n}.png")
        rows = [{"image": f"{n}.png" if n else "bad.png", "label": n % 2} for n in range(20)]
        lines(rows)(scene.work / "rows.jsonl")
        return ["check", "--data", "rows.jsonl", "--model", "tiny:resnet"]

    return prepare


def labels_with(write: Write) -> Callable[[Scene], Sequence[str]]:
    def prepare(scene: Scene) -> Sequence[str]:
        np.save(scene.work / "X_train.npy", np.zeros((8, 4), np.float32))
        write(scene.work / "y_train.npy")
        return ["inspect", "X_train.npy"]

    return prepare


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
        yield inspects(f"name of {shown}", name, lines(GOOD), (0,))
        yield inspects(f"name of {shown}, damaged", name, content(b"{"), (1, 2))
    for shown, path in {
        "long": "x" * 5000,
        "NUL": "a\0b.jsonl",
        "empty": "",
        "proc": "/proc/self/mem",
        "stdin": "/dev/stdin",
        "url": "http://127.0.0.1:1/x.jsonl",
        "parent": "../../../../../../etc",
    }.items():
        yield Case(f"path {shown}", lambda scene, path=path: ["inspect", path])


def code() -> Iterator[Case]:
    """Data and folders that bring code."""

    def pickled(ending: str) -> Callable[[Scene], Sequence[str]]:
        def prepare(scene: Scene) -> Sequence[str]:
            value = Canary(scene.canary)
            path = scene.work / f"x{ending}"
            if ending == ".npy":
                np.save(path, np.array([value], dtype=object), allow_pickle=True)
            elif ending == ".npz":
                np.savez(path, x=np.array([value], dtype=object))
            elif ending == ".pt":
                torch.save({"x": value}, path)
            else:
                path.write_bytes(pickle.dumps(value))
            return ["inspect", path.name]

        return prepare

    for ending in (".npy", ".npz", ".pt", ".pkl", ".arrow", ".parquet", ".safetensors", ".json"):
        yield Case(f"pickle as {ending}", pickled(ending))

    def legacy(scene: Scene) -> Sequence[str]:
        torch.save(
            {"x": Canary(scene.canary)}, scene.work / "x.pt", _use_new_zipfile_serialization=False
        )
        return ["inspect", "x.pt"]

    def lying_around(scene: Scene) -> Sequence[str]:
        bad = f"open({str(scene.canary)!r}, 'w')\n"
        for name in (
            "sitecustomize",
            "json",
            "torch",
            "data",
            "yaml",
            "conftest",
            "surefit_plugin",
        ):
            (scene.work / "set").mkdir(exist_ok=True)
            (scene.work / "set" / f"{name}.py").write_text(bad)
        lines(GOOD)(scene.work / "set" / "data.jsonl")
        return ["inspect", "set"]

    def hub_script(scene: Scene) -> Sequence[str]:
        folder = scene.work / "dataset"
        folder.mkdir()
        (folder / "dataset.py").write_text(f"open({str(scene.canary)!r}, 'w')\n")
        (folder / "dataset_infos.json").write_text('{"default": {"builder_name": "dataset"}}')
        (folder / "dataset_info.json").write_text("[" * 5000)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "../../../etc/passwd"}]}')
        return ["inspect", "dataset"]

    yield Case("legacy pickle .pt", legacy)
    yield Case("python files among data", lying_around, (0,))
    yield Case("dataset folder with a script", hub_script)
