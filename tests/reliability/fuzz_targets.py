"""What is fuzzed: a good input of each parser, and the function that reads it as commands do."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import struct
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from reliability.hostile_files import LAST
from reliability.hostile_runs import make_run
from safetensors.numpy import save

import surefit
from surefit import cli
from surefit.config import config_yaml, make_config, parse_setting, read_yaml
from surefit.core.foreign import content_of
from surefit.data.cache import release_entries
from surefit.data.official_splits import card_splits
from surefit.data.open_data import open_table
from surefit.data.remote_url import clean_url, is_url, with_access
from surefit.explainer import explain
from surefit.report.page import render
from surefit.run.choose_checkpoint import choose_checkpoint, latest_state
from surefit.run.run_folder import open_run
from surefit.run.verify_run import verify_files
from tar_files import tar_of

Form = Literal["bytes", "json", "jsonl", "yaml"]
ROWS = [{"text": f"row {n}", "label": n % 3, "x": [n, 2.5], "m": {"k": None}} for n in range(8)]
CHATS = [
    {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": f"hello {n}"},
            {"role": "assistant", "content": "hi", "tool_calls": [{"name": "f", "arguments": {}}]},
        ],
        "tools": json.dumps([{"type": "function", "function": {"name": "f"}}]),
    }
    for n in range(6)
]
VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)


@dataclass(frozen=True, eq=False)
class Target:
    """A parser: the good input, how it is changed, and what reads it."""

    name: str
    good: bytes
    form: Form
    read: Callable[[bytes], object]
    folder: Path


def _saved(write: Callable[[io.BytesIO], object]) -> bytes:
    made = io.BytesIO()
    write(made)
    return made.getvalue()


def _arrow(made: io.BytesIO) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)


def _wave(made: io.BytesIO) -> None:
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.arange(800, dtype="<i2").tobytes())


def _lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


PICTURE = _saved(lambda made: Image.new("RGB", (8, 8), (20, 40, 60)).save(made, "png"))
TAR = tar_of(
    (name, content)
    for n in range(4)
    for name, content in ((f"{n}.png", PICTURE), (f"{n}.cls", b"1"), (f"{n}.json", b'{"a": 1}'))
)
GOOD: dict[str, tuple[Form, bytes]] = {
    ".jsonl": ("jsonl", _lines(ROWS)),
    ".json": ("json", json.dumps({"data": ROWS, "version": 1}).encode()),
    ".csv": ("bytes", b'a,b,c\n1,"two, or\nthree",x\n2,,\xc3\xa9\n3,4,5\n'),
    ".tsv": ("bytes", b"a\tb\n1\t2\n3\t4\n"),
    ".txt": ("bytes", b"__label__a one\n__label__b two\n__label__a three\n__label__b four\n"),
    ".conll": ("bytes", b"-DOCSTART- O\n\nBerlin B-LOC\nis O\n\nRome B-LOC\n"),
    ".conllu": (
        "bytes",
        b"# text = a b\n1\ta\ta\tX\t_\n2\tb\tb\tX\t_\n\n",
    ),
    ".ts": (
        "bytes",
        b"@univariate true\n@classLabel true a b\n@data\n1,2,3:a\n4,5,6:b\n",
    ),
    ".npy": ("bytes", _saved(lambda made: np.save(made, VALUES))),
    ".npz": ("bytes", _saved(lambda made: np.savez(made, x=VALUES, y=np.arange(6)))),
    ".parquet": ("bytes", _saved(lambda made: pq.write_table(pa.Table.from_pylist(ROWS), made))),
    ".arrow": ("bytes", _saved(_arrow)),
    ".safetensors": ("bytes", save({"x": VALUES, "y": np.arange(6)})),
    ".pt": ("bytes", _saved(lambda made: torch.save({"x": torch.tensor(VALUES)}, made))),
    ".idx": ("bytes", b"\0\0\x08\x03" + struct.pack(">III", 6, 2, 2) + bytes(range(24))),
    ".tar": ("bytes", TAR),
    ".tgz": ("bytes", gzip.compress(TAR)),
    ".csv.gz": ("bytes", gzip.compress(b"a,b\n1,2\n3,4\n")),
}
"""A small file of each format, by the ending that chooses its opener."""
COCO = {
    "images": [{"id": 1, "file_name": "1.png", "height": 8, "width": 8}],
    "categories": [{"id": 3, "name": "cat"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 4, 4]}],
}
CARD = b"""---
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: en/a.jsonl
  - {split: test, path: ["en/b.jsonl", "en/*.jsonl"]}
dataset_info: {features: [{name: text, dtype: string}]}
---
# A card
"""
URLS = (
    *("https://user:secret@host:80/a/rows.jsonl?id=1&token=abc#x", "s3://bucket/a/b/*.parquet"),
    *("hf://datasets/owner/name@main/x.jsonl", "http://[::1]:8080/%2e%2e/x?X-Amz-Signature=1"),
)
LOG = b"""Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: expected sequence of length 434 at dim 1 (got 512)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""
MODEL_FILES: dict[str, dict[str, Form]] = {
    "run": {
        "config.json": "json",
        "generation_config.json": "json",
        "tokenizer_config.json": "json",
        "tokenizer.json": "json",
        "chat_template.jinja": "bytes",
        "encoder.json": "json",
        "model.safetensors": "bytes",
    },
    "adapter": {"adapter_config.json": "json", "base.json": "json", "encoder.json": "json"},
    "vision": {"config.json": "json", "preprocessor_config.json": "json", "encoder.json": "json"},
}
RUN_FILES: dict[str, Form] = {
    "config.yaml": "yaml",
    "plan.json": "json",
    "digests.json": "json",
    "events.jsonl": "jsonl",
    "LAST/state.json": "json",
    "LAST/index.json": "json",
    "LAST/digests.json": "json",
}


def make_targets(folder: Path) -> list[Target]:
    """Train three small runs in the folder, and return all targets."""
    for name in ("SUREFIT_CACHE", "XDG_STATE_HOME"):
        os.environ[name] = str(folder / "cache" / name)
    os.environ["HF_HUB_OFFLINE"] = "1"
    trained = make_run(folder / "trained")
    return [*parsers(folder), *_models(folder, trained), *_runs(folder, trained)]


def parsers(folder: Path) -> list[Target]:
    """Return the targets that need no trained run."""
    return [*_data(folder), *_texts(folder), *_folders(folder)]


def read_data(path: Path) -> None:
    """Open data, and read its first rows."""
    try:
        table = open_table(str(path))
        for row in range(min(table.num_rows, 20)):
            table.row(row)
    finally:
        release_entries()


def command(*arguments: str) -> None:
    """Run a command of surefit in this process; its errors are raised."""
    try:
        cli.run([*arguments, "--debug"])
    finally:
        release_entries()


def _data(folder: Path) -> Iterator[Target]:
    place = folder / "data"
    place.mkdir()

    def reader(path: Path) -> Callable[[bytes], None]:
        def read(content: bytes) -> None:
            path.write_bytes(content)
            read_data(path)

        return read

    for ending, (form, good) in GOOD.items():
        yield Target(f"data{ending}", good, form, reader(place / f"data{ending}"), folder)
    for name in ("png", "wav"):
        for label in "ab":
            (place / name / label).mkdir(parents=True)
            content = PICTURE if name == "png" else _saved(_wave)
            (place / name / label / f"1.{name}").write_bytes(content)

    def inspect(name: str) -> Callable[[bytes], None]:
        def read(content: bytes) -> None:
            (place / name / "a" / f"1.{name}").write_bytes(content)
            command("inspect", str(place / name), "--row", "0", "--model", "tiny:resnet")

        return read

    yield Target("image.png", PICTURE, "bytes", inspect("png"), folder)


def _texts(folder: Path) -> Iterator[Target]:
    place = folder / "texts"
    place.mkdir()
    good = make_config({"data": "x.jsonl", "model": "tiny:llama", "freeze": ["a.*"]})

    def config(content: bytes) -> None:
        (place / "run.yaml").write_bytes(content)
        make_config(read_yaml(place / "run.yaml"))

    def url(content: bytes) -> None:
        text = content.decode(errors="surrogateescape")
        if is_url(text):
            with_access(clean_url(text))

    def setting(content: bytes) -> None:
        make_config(dict([parse_setting(content.decode(errors="surrogateescape"))]))

    yield Target("run.yaml", config_yaml(good).encode(), "yaml", config, folder)
    for number, each in enumerate(URLS):
        yield Target(f"URL {number}", each.encode(), "bytes", url, folder)
    for each in ("lora={r: 8, targets: [a]}", "read.label_from=(\\d)_.*", "split.fraction=0.1"):
        yield Target(f"--set {each[:10]}", each.encode(), "bytes", setting, folder)
    yield Target("log", LOG, "bytes", lambda raw: explain(raw.decode(errors="replace")), folder)


def _folders(folder: Path) -> Iterator[Target]:
    """Folders of data that a file describes."""
    places = {name: folder / "folders" / name for name in ("card", "saved", "coco", "yolo")}
    for place in places.values():
        place.mkdir(parents=True)
    (places["card"] / "en").mkdir()
    for name in "ab":
        (places["card"] / "en" / f"{name}.jsonl").write_bytes(_lines(ROWS))
    (places["saved"] / "data-00000-of-00001.arrow").write_bytes(_saved(_arrow))
    (places["coco"] / "1.png").write_bytes(PICTURE)
    for part in ("images", "labels"):
        (places["yolo"] / part).mkdir()
    (places["yolo"] / "images" / "1.png").write_bytes(PICTURE)
    (places["yolo"] / "labels" / "1.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    (places["yolo"] / "data.yaml").write_text("names: {0: cat}\n")

    def inside(kind: str, name: str, opened: str = ".") -> Callable[[bytes], None]:
        def read(content: bytes) -> None:
            (places[kind] / name).write_bytes(content)
            if kind == "card":
                card_splits(places[kind], None)
            read_data(places[kind] / opened)

        return read

    state = json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}).encode()
    yield Target("dataset card", CARD, "bytes", inside("card", "README.md"), folder)
    yield Target("state.json of a Dataset", state, "json", inside("saved", "state.json"), folder)
    coco = json.dumps(COCO).encode()
    yield Target("COCO", coco, "json", inside("coco", "coco.json", "coco.json"), folder)
    label = b"0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.2 0.2\n"
    yield Target("YOLO label", label, "bytes", inside("yolo", "labels/1.txt"), folder)
    yield Target("YOLO names", b"names: {0: cat}\n", "yaml", inside("yolo", "data.yaml"), folder)


def _replaced(path: Path, read: Callable[[], object]) -> Callable[[bytes], None]:
    """Put each content at the path of a good file, and read; the folder is that of one fork."""

    def run(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read()
        finally:
            release_entries()

    return run


def _models(folder: Path, trained: Path) -> Iterator[Target]:
    for run, files in MODEL_FILES.items():
        data = str(trained / "pictures") if run == "vision" else [{"text": "hello"}]
        for name, form in files.items():
            place = folder / "models" / f"{run}-{name}"
            shutil.copytree(trained / run, place)

            def predict(place: Path = place, data: Any = data) -> None:
                more = {} if isinstance(data, str) else {"generate": {"max_new_tokens": 2}}
                surefit.predict(place, data, quiet=True, **more)

            path = place / "model" / name
            read = _replaced(path, predict)
            yield Target(f"{run}: model/{name}", path.read_bytes(), form, read, folder)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        place = folder / "models" / f"check-{name}"
        shutil.copytree(trained / "run" / "model", place)

        def check(place: Path = place) -> None:
            command("check", "--data", str(trained / "rows.jsonl"), "--model", str(place))

        read = _replaced(place / name, check)
        yield Target(f"check: {name}", (place / name).read_bytes(), "json", read, folder)
    for kind in ("jsonl", "template"):
        place = folder / "models" / f"chat-{kind}"
        shutil.copytree(trained / "run" / "model", place)
        (place / "rows.jsonl").write_bytes(_lines(CHATS))

        def show(place: Path = place) -> None:
            command("inspect", str(place / "rows.jsonl"), "--row", "0", "--model", str(place))

        name = "rows.jsonl" if kind == "jsonl" else "chat_template.jinja"
        good = (place / name).read_bytes()
        form: Form = "jsonl" if kind == "jsonl" else "bytes"
        yield Target(f"chat: {name}", good, form, _replaced(place / name, show), folder)


def read_run(folder: Path) -> None:
    """Read all that does not need the model's weights."""
    run = open_run(folder)
    for each in (run.config, run.objects, run.finished, run.metrics, run.epochs, run.examples):
        assert each is not None
    for part in (run.choices, run.task, run.spans(3), run.code):
        assert part is not None
    latest_state(run.checkpoints)
    choose_checkpoint(run.checkpoints)
    verify_files(run)
    with content_of(run.path):
        assert render(run)


def run_reader(folder: Path, run: Path, name: str, form: Form) -> Target:
    """Return the target that reads a copy of a run, one file of which is damaged."""
    place = folder / "runs" / name.replace("/", "-")
    shutil.copytree(run, place)
    read = _replaced(place / name, lambda: read_run(place))
    return Target(f"run: {name}", (place / name).read_bytes(), form, read, folder)


def _runs(folder: Path, trained: Path) -> Iterator[Target]:
    for name, form in RUN_FILES.items():
        target = run_reader(folder, trained / "run", name.replace("LAST", LAST), form)
        yield replace(target, name=f"run: {name}")

        def resume(content: bytes, name: str = name) -> None:
            again = folder / "runs" / f"{Path(name).name}-again"
            shutil.rmtree(again, ignore_errors=True)
            shutil.copytree(trained / "run", again)
            (again / name.replace("LAST", LAST)).write_bytes(content)
            command("train", "--resume", str(again), "--epochs", "2", "--quiet")

        yield replace(target, name=f"resume: {name}", read=resume)
