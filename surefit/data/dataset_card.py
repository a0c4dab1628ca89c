"""Folders in the layout of hub datasets: README.md, or the names of folders, part configs.

The front matter of README.md lists the files of each config by split:

    configs:
    - config_name: en
      data_files:
      - split: train
        path: data/en/train-*.parquet

Without it, each folder with data is a config. `FOLDER:CONFIG` and `HUB_ID:CONFIG` name one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefit.core.foreign import content_of, parse_yaml
from surefit.data.data_rules import CORRUPT_FILE, NO_DATA
from surefit.data.official_splits import Splits, find_splits, named_splits
from surefit.errors import UsageError

CARD = "README.md"
_FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(\n|\Z)", re.S)
_MAX_CHARACTERS = 1 << 20
SHOWN = 10

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
