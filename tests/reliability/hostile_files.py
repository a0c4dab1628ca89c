"""Every file of a run, a model, an adapter, a processor and data folders, in every hostile form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from reliability.hostile_case import ANY, Case, Content, put
from reliability.hostile_data import GOOD, class_folders
from safetensors.numpy import save_file

HUGE_BYTES = 1 << 31
RUN = "../out/run"
RUN_COMMANDS = (
    ["train", "--resume", RUN, "--epochs", "2"],
    ["evaluate", RUN],
    ["predict", RUN, "--text", "hello"],
    ["export", RUN, "../out/exported"],
    ["verify", RUN],
    ["report", RUN],
)


def wrong_type(path: Path) -> None:
    """Give every value of a JSON or YAML file another type; other files become a picture."""
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("\n".join(json.dumps(_flipped(json.loads(line))) for line in lines))
    elif path.suffix == ".yaml":
        path.write_text("".join(f"{line.partition(':')[0]}: [{{}}]\n" for line in _keys(path)))
    else:
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))


def _keys(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line[:1].isalpha()]


def _flipped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _flipped(each) for key, each in value.items()} if value else []
    if isinstance(value, list):
        return {str(n): _flipped(each) for n, each in enumerate(value[:9])}
    return [value] if isinstance(value, str) else "x"


def huge(path: Path) -> None:
    """Two gigabytes that take no room."""
    with path.open("r+b") as file:
        file.truncate(HUGE_BYTES)


def link(path: Path) -> None:
    """Put the file into the victim's folder, and a link to it in its place."""
    root = next(each for each in path.parents if each.name == "work").parent
    target = root / "victim" / path.name
    shutil.move(path, target)
    path.symlink_to(target)


def device(path: Path) -> None:
    """Put an endless device in place of the file."""
    path.unlink()
    path.symlink_to("/dev/zero")


def nonsense(path: Path) -> None:
    """Keep the beginning of the file, and put noise behind it."""
    noise = np.random.default_rng(0).bytes(4096)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3] + noise)


FORMS: dict[str, Callable[[Path], object]] = {
    "of a wrong type": wrong_type,
    "huge": huge,
    "empty": lambda path: path.write_bytes(b""),
    "a link": link,
    "a device": device,
    "nonsense": nonsense,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\xfa" + path.read_bytes()[3:]),
}
LAST = "checkpoints/step-00000003"
FILES_OF_RUN = (
    *("config.yaml", "plan.json", "events.jsonl", "digests.json", f"{LAST}/state.json"),
    *(f"{LAST}/index.json", f"{LAST}/digests.json"),
    *(f"{LAST}/{part}-00001-of-00001.safetensors" for part in ("model", "optimizer")),
)
FILES_OF_MODEL = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "model.safetensors"),
)
FILES_OF_ADAPTER = (
    *("adapter_config.json", "adapter_model.safetensors", "base.json", "encoder.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)
FILES_OF_VISION = ("preprocessor_config.json", "config.json", "encoder.json")


def file_cases() -> list[Case]:
    """All files in all forms."""
    return [*_trained(), *_data()]


def _trained() -> Iterator[Case]:
    commands = cycle(RUN_COMMANDS)
    picture, check = "pictures/cat/1.png", ["check", "--data", "rows.jsonl", "--model"]
    vision = [["predict", "vision", "--data", picture], ["evaluate", "vision"]]
    tuned = [["predict", "adapter", "--text", "hello"], [*check, "adapter/model"]]
    groups: list[tuple[str, str, tuple[str, ...], Any]] = [
        ("run", "", FILES_OF_RUN, commands),
        ("run", "model/", FILES_OF_MODEL, cycle([[*check, f"{RUN}/model"], RUN_COMMANDS[2]])),
        ("adapter", "model/", FILES_OF_ADAPTER, cycle(tuned)),
        ("vision", "model/", FILES_OF_VISION, cycle(vision)),
    ]
    for run, inside, files, turn in groups:
        for file in files:
            for form, make in FORMS.items():
                command, place = next(turn), RUN if run == "run" else run
                placed: dict[str, Content] = {"rows.jsonl": GOOD, f"{place}/{inside}{file}": make}
                if run == "vision":
                    placed |= class_folders()
                shown = file.replace(LAST, "LAST")
                name = f"{inside.strip('/') or 'run'} of {run}: {shown} {form}, {command[0]}"
                yield Case(name, command, placed, ANY, run=place)


def _array(path: Path) -> None:
    np.save(path, np.arange(40, dtype=np.float32).reshape(10, 4))


GOOD_FILES: dict[str, Content] = {
    "x.jsonl": GOOD,
    "x.json": json.dumps(GOOD),
    "x.csv": "a,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(20)),
    "x.txt": "a text\n" * 20,
    "x.conll": "word TAG\n\n" * 20,
    "x.ts": "@problemName x\n@univariate true\n@classLabel true a b\n@data\n" + "1,2,3:a\n" * 9,
    "x.npy": _array,
    "x.npz": lambda path: np.savez(path, x=np.zeros((9, 2)), y=np.arange(9)),
    "x.safetensors": lambda path: save_file({"x": np.zeros((9, 2))}, path),
    "x.parquet": lambda path: pq.write_table(pa.table({"text": ["a text"] * 20}), path),
    "x.arrow": lambda path: feather.write_feather(pa.table({"text": ["a"] * 20}), str(path)),
}


def _data() -> Iterator[Case]:
    for file, good in GOOD_FILES.items():
        for form, make in FORMS.items():
            inspect = ["inspect", file]
            yield Case(f"data {file} {form}", inspect, {file: _made(good, make)}, ANY)
    for folder, file in (("pictures", "pictures/cat/1.png"), ("shards", "shards/b.jsonl")):
        for form, make in FORMS.items():
            placed: dict[str, Content] = {"shards/a.jsonl": GOOD, "shards/b.jsonl": GOOD}
            placed |= class_folders()
            placed[file] = _made(placed[file], make)
            yield Case(f"{file} in a folder {form}", ["inspect", folder], placed, ANY)


def _made(good: Content, make: Callable[[Path], object]) -> Content:
    def write(path: Path) -> None:
        put(path, good, path)
        make(path)

    return write
