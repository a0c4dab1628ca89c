"""Official splits: files and folders that are named for training, validation or test.

Of hub datasets, README.md or the names of folders part configs. Its front matter lists the files of
each config by split:

    configs:
    - config_name: en
      data_files:
      - split: train
        path: data/en/train-*.parquet

Without it, each folder with data is a config. `FOLDER:CONFIG` and `HUB_ID:CONFIG` name one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surefit.core.foreign import content_of, parse_yaml
from surefit.data.data_rules import CORRUPT_FILE, NO_DATA
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule

NO_TRAINING_PART = rule(
    "SF170",
    "error",
    "validation and test files without a training file",
    why="Training on a test set makes every later measurement on it worthless.",
    fix="Name the file to train on with --data.",
)

TEST_IN_TRAINING = rule(
    "SF171",
    "warning",
    "a test set in the training data",
    why="Rows that are trained on can no longer measure the model.",
    fix="Pass the training files only, and the validation file with --eval-data.",
    accept="The named files are trained on.",
)

Part = Literal["train", "validation", "test"]

_NAMES: dict[Part, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "eval", "evaluation"),
    "test": ("test", "testing", "t10k", "holdout", "heldout"),
}
_PART_OF: dict[str, Part] = {word: part for part, words in _NAMES.items() for word in words}
_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def part_of(name: str) -> Part | None:
    """Return the split that a file or folder name stands for; None without one, or with several.

    >>> [part_of(name) for name in ("GunPoint_TRAIN.ts", "val2017", "t10k-images-idx3", "data")]
    ['train', 'validation', 'test', None]
    """
    found = {part for word in _words(name) if (part := _part_of_word(word)) is not None}
    return found.pop() if len(found) == 1 else None


def _words(name: str) -> list[str]:
    """Return words of a file name in lower case, without numbers and the words of shard counts."""
    words: list[str] = []
    for word in re.findall(r"[^\W_]+", name):
        known = _part_of_word(word.lower()) is not None
        words += [word.lower()] if known else [part.lower() for part in _CAMEL.findall(word)]
    return [word for word in words if not word.isdecimal() and word != "of"]


def _part_of_word(word: str) -> Part | None:
    bare = word.rstrip("0123456789")
    after_axis = bare[1:] if bare[:1] in ("x", "y") else bare  # Xtrain, ytest
    return _PART_OF.get(word) or _PART_OF.get(bare) or _PART_OF.get(after_axis)


@dataclass(frozen=True)
class Splits:
    """The parts of an official split, and the entries that belong to none of them."""

    parts: Mapping[Part, tuple[Path, ...]]
    other: tuple[Path, ...] = ()

    def chosen(self, part: Part) -> tuple[Path, ...]:
        """Return entries of a part; validation and test stand in for each other, then training."""
        if part == "train" and "train" not in self.parts:
            first, second = self.parts["validation"][0], self.parts["test"][0]
            shown = f"{first.parent} has {first.name} and {second.name}, but nothing for training."
            fix = f"Pass what is to be trained on: --data {first}, for example."
            raise NO_TRAINING_PART.error(shown, fix=fix, file=str(first))
        order: tuple[Part, ...] = (part, "validation", "test", "train")
        return next(self.parts[each] for each in order if each in self.parts)

    @property
    def has_others(self) -> bool:
        """Whether anything but the training part is there."""
        return len(self.parts) > 1 or bool(self.other)

    def note(self, shown: str) -> Finding:
        """Return which entries are which part."""
        unused = (*self.parts.get("test", ()), *self.other)
        named = [f"{part}: {_listed(self.parts[part])}" for part in self.parts if part != "test"]
        named += [f"not used: {_listed(unused)}"] if unused else []
        return note(f"{shown} has official splits. {'; '.join(named)}.")


def _listed(paths: Sequence[Path]) -> str:
    names = [path.name for path in paths[:3]]
    return ", ".join(names) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def find_splits(entries: Iterable[Path]) -> Splits | None:
    """Return the official split of the files of a folder, by their names; None if there is none.

    Where no file is named for training, the unnamed ones are the training part, if a test file has
    the name of one of them, or no other name.
    """
    entries = sorted(entries)
    by_part: dict[Part | None, list[Path]] = {}
    for entry in entries:
        by_part.setdefault(part_of(entry.name), []).append(entry)
    named: dict[Part, tuple[Path, ...]] = {
        part: tuple(by_part[part]) for part in _NAMES if part in by_part
    }
    unnamed = by_part.get(None, [])
    if "train" in named:
        return Splits(named, tuple(unnamed)) if len(named) > 1 else None
    if not unnamed:
        return Splits(named) if len(named) > 1 else None
    kinds = {tuple(_words(_stem(entry))) for entry in unnamed} | {()}
    held = {
        part: tuple(
            path
            for path in paths
            if tuple(w for w in _words(_stem(path)) if _part_of_word(w) is None) in kinds
        )
        for part, paths in named.items()
    }
    held = {part: paths for part, paths in held.items() if paths}
    if not held:
        return None
    outside = {path for paths in held.values() for path in paths}
    return Splits({"train": tuple(e for e in entries if e not in outside), **held})


def folder_splits(path: Path) -> Splits | None:
    """Return the official split of a folder whose folders are all named for splits.

    A folder of one part alone, such as a test set that was downloaded alone, is simply the data.
    """
    folders = sorted(e for e in path.iterdir() if e.is_dir() and not e.name.startswith((".", "_")))
    by_part: dict[Part, tuple[Path, ...]] = {}
    for folder in folders:
        part = _part_of_word(folder.name.lower())
        if part is None:
            return None
        by_part[part] = (*by_part.get(part, ()), folder)
    if len(by_part) == 1 and "train" not in by_part:
        return Splits({"train": next(iter(by_part.values()))})
    return Splits({part: by_part[part] for part in _NAMES if part in by_part}) if by_part else None


def named_splits(splits: Mapping[str, tuple[Path, ...]]) -> Splits | None:
    """Splits that have names, as parts: the first of a kind; None if none is for training."""
    found: dict[Part, str] = {}
    for name in splits:
        part = part_of(name)
        if part is not None:
            found.setdefault(part, name)
    if "train" not in found:
        return None
    other = [path for name in splits if name not in found.values() for path in splits[name]]
    return Splits({part: splits[name] for part, name in found.items()}, tuple(other))


def check_named(paths: Sequence[Path]) -> list[Finding]:
    """Return a warning for files that are named for a test, and were given together with others."""
    tests = [path for path in paths if part_of(path.name) == "test"]
    if not tests or len(tests) == len(paths):
        return []
    others = [path for path in paths if path not in tests]
    message = (
        f"{_listed(tests)} {'is' if len(tests) == 1 else 'are'} named for a test set, and trained "
        f"on together with {_listed(others)}."
    )
    fix = f"Train on the others alone: {' '.join(f'--data {path}' for path in others[:3])}"
    fix += " …" if len(others) > 3 else f", with --eval-data {tests[0]} to measure on the test set."
    return [TEST_IN_TRAINING.finding(message, fix=fix, file=str(tests[0]))]


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem


def without_part(stem: str) -> str:
    """Return a name without the word that names its split.

    >>> without_part("X_train"), without_part("test-images"), without_part("train")
    ('X', 'images', 'train')
    """
    words = re.split(r"([^A-Za-z0-9]+)", stem)
    for place in range(0, len(words), 2):
        if len(words) > 1 and _part_of_word(words[place].lower()) is not None:
            at = max(0, place - 1)
            return "".join([*words[:at], *words[at + 2 :]])
    return stem


CARD = "README.md"
_FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(\n|\Z)", re.S)
_MAX_CHARACTERS = 1 << 20
SHOWN = 10
MOST_DEPTHS = 4
"""Parts `**` of a pattern: each multiplies how often a folder is looked at."""

Files = Mapping[str, list[str]]
"""The patterns of each split."""


def divide_name(path: Path) -> tuple[Path, str | None]:
    """Return a path or hub id, and the config after a colon.

    >>> divide_name(Path("owner/name:en")), divide_name(Path("owner/name"))
    ((PosixPath('owner/name'), 'en'), (PosixPath('owner/name'), None))
    """
    name, colon, config = path.name.rpartition(":")
    if path.exists() or not colon or not name or not config:
        return path, None
    return path.with_name(name), config


def card_splits(folder: Path, config: str | None) -> Splits | None:
    """Return splits of a config that the card of a folder describes; None without such a card."""
    configs, default = _read_configs(folder / CARD)
    if not configs:
        return None
    files = configs[choose_config(folder, [*configs], config, default)]
    with content_of(folder / CARD, "Correct data_files there, or name the files."):
        found = {split: _match(folder, patterns) for split, patterns in files.items()}
    if len(found) == 1:  # all files alike; their names may still mark splits
        paths = next(iter(found.values()))
        return find_splits(paths) or Splits({"train": paths})
    splits = named_splits(found)
    if splits is None:
        message = f"{folder / CARD} has the splits {', '.join(found)}; expected one called train."
        fix = "Pass the files to train on with --data."
        raise NO_DATA.error(message, fix=fix, file=str(folder))
    return splits


def choose_config(
    folder: Path, names: list[str], asked: str | None, default: str | None = None
) -> str:
    """Return the config that is asked for, the only one or the default; else they are listed."""
    if asked is None:
        usual = names[0] if len(names) == 1 else default or "default"
        if usual in names:
            return usual
    elif asked in names:
        return asked
    shown = ", ".join(names[:SHOWN]) + " …" * (len(names) > SHOWN)
    found = "several configs" if asked is None else f"no config {asked!r}, but"
    message = f"{folder} has {found}: {shown}."
    raise UsageError(message, f"Name one of them: --data {folder}:{names[0]}.")


def _front_matter(card: Path) -> Mapping[str, Any]:
    if not card.is_file():
        return {}
    with card.open(encoding="utf-8", errors="replace") as file:
        match = _FRONT_MATTER.match(file.read(_MAX_CHARACTERS))
    text = match.group(1) if match else ""
    try:
        value = parse_yaml(text, object, f"{card}: the front matter")
    except UsageError as error:
        if "configs" not in text:
            return {}
        fix = "Correct it, or name the files."
        raise CORRUPT_FILE.error(error.message, fix=fix, file=str(card)) from None
    return value if isinstance(value, Mapping) else {}


def _read_configs(card: Path) -> tuple[dict[str, Files], str | None]:
    """Return configs of a card that name their files, and the one that is marked as the default."""
    listed = _front_matter(card).get("configs")
    configs: dict[str, Files] = {}
    default = None
    for config in listed if isinstance(listed, list) else ():
        if not isinstance(config, Mapping):
            continue
        name = str(config.get("config_name", "default"))
        default = default or (name if config.get("default") is True else None)
        if "data_files" in config or "data_dir" in config:
            folder = str(config.get("data_dir") or "")
            files = config.get("data_files") or "*"
            configs[name] = {
                split: [f"{folder}/{path}".lstrip("/") if folder else path for path in paths]
                for split, paths in _by_split(files).items()
            }
    return configs, default


def _by_split(files: Any) -> Files:
    """Return the patterns of `data_files` by split: a text, a list of them, or by split."""
    if isinstance(files, Mapping):
        return {str(split): _texts(paths) for split, paths in files.items()}
    listed = files if isinstance(files, list) else [files]
    by_split: dict[str, list[str]] = {}
    for item in listed:
        named = item if isinstance(item, Mapping) else {"path": item}
        by_split.setdefault(str(named.get("split", "train")), []).extend(_texts(named.get("path")))
    return by_split


def _texts(value: Any) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each]


def _match(folder: Path, patterns: list[str]) -> tuple[Path, ...]:
    """Return files inside the folder that match; a pattern or a link that leads out is refused."""
    inside = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":  # the download cache of the hub: links to blobs
        inside.append(folder.resolve().parents[1] / "blobs")
    found: dict[Path, None] = {}
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise _leads_out(folder, pattern)
        if Path(pattern).parts.count("**") > MOST_DEPTHS:
            raise ValueError(f"{pattern[:80]!r} has more than {MOST_DEPTHS} parts **")
        for path in sorted(folder.glob(pattern)):
            if not path.is_file() or path.name.startswith(".") or path.name == CARD:
                continue
            if not any(path.resolve().is_relative_to(root) for root in inside):
                raise _leads_out(folder, str(path.relative_to(folder)))
            found[path] = None
    if not found:
        message = (
            f"{folder / CARD} names {', '.join(patterns)[:160]}; no file of that name is there."
        )
        fix = "Download the files, too (git lfs pull), or name the files to read with --data."
        raise NO_DATA.error(message, fix=fix, file=str(folder))
    return tuple(found)


def _leads_out(folder: Path, name: str) -> Exception:
    message = f"{folder / CARD} names {name[:160]}, which is outside of the folder; it is not read."
    fix = "Name the files to read with --data."
    return CORRUPT_FILE.error(message, fix=fix, file=str(folder / CARD))
