"""What the user passes as data to the files that are opened.

Patterns and ranges of names and URLs become paths; a folder becomes its shards, its class folders,
or the files of an official split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import chain, product
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.core.files import refuse_special
from surefit.data.cell_files import common_kind
from surefit.data.data_rules import FILES_DO_NOT_MATCH, NO_DATA
from surefit.data.formats import (
    arrow_files,
    class_folders,
    detection_folders,
)
from surefit.data.formats.file_rows import media_kind
from surefit.data.formats.opened import without_labels
from surefit.data.formats.text_decoding import is_text_file
from surefit.data.hub import hub_files, may_be_hub_id
from surefit.data.official_splits import (
    CARD,
    Part,
    Splits,
    card_splits,
    check_named,
    choose_config,
    divide_name,
    find_splits,
    folder_splits,
)
from surefit.data.remote_data import Copy, open_url
from surefit.data.remote_url import clean_url, is_url, protocol_of
from surefit.errors import UsageError
from surefit.findings import Finding

_ABOUT = re.compile(
    r"(readme|licen[cs]e|copying|copyright|notice|citation|changelog)\b.*|dataset_infos?\.json",
    re.I,
)
_WEAK = (".json", ".txt")
"""Endings that settings and notes next to the data also have."""
MOST_NAMES = 100_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Finder:
    """What is known of files: the endings of formats, and the ending that decides for a file."""

    endings: Collection[str]
    ending_of: Callable[[Path], str]
    part: Part = "train"
    """The part to take where a folder has official splits."""
    each_a_class: bool = False
    """Whether several text files are classes, so that they may have different endings."""

    def files_of(self, paths: Sequence[Path]) -> tuple[list[Path], list[Finding]]:
        """Return files to open, without label files that belong to others; and what was found."""
        listed = [self._files_of(path) for path in paths]
        files = [file for found, _ in listed for file in found]
        files = without_labels(files)
        named = check_named(paths) if self.part == "train" else []
        return files, [*named, *(note for _, notes in listed for note in notes)]

    def knows(self, file: Path) -> bool:
        """Return whether the ending of a file is that of a format."""
        return self.ending_of(file) in self.endings

    def _list(self, folder: Path) -> list[Path]:
        """Return the files with a known ending, sorted by name.

        `.json`, then `.txt`, then other text files are used only if there are no others.
        """
        files = sorted(
            file
            for file in folder.iterdir()
            if file.is_file() and not file.name.startswith(".") and not _ABOUT.fullmatch(file.name)
        )
        strong = [f for f in files if self.knows(f) and self.ending_of(f) not in _WEAK]
        weak = ([f for f in files if self.ending_of(f) == ending] for ending in _WEAK)
        return next(filter(None, (strong, *weak)), [f for f in files if is_text_file(f)])

    def splits_in(self, path: Path) -> Splits | None:
        """Return the official splits of a folder; None for files, and for folders without any."""
        path, config = divide_name(path)
        if not path.is_dir():
            return None
        if (described := card_splits(path, config)) is not None:
            return described
        boxed = detection_folders.annotated(path) if config is None else None
        if boxed is not None:
            return boxed if isinstance(boxed, Splits) else None
        path = self._config_folder(path, config)
        if arrow_files.is_dataset_folder(path):
            return arrow_files.dataset_splits(path)
        files = self._list(path)
        weak = ("", ".txt", ".json")
        known = any(self.knows(file) and self.ending_of(file) not in weak for file in files)
        return (None if known else folder_splits(path)) or find_splits(files)

    def _config_folder(self, folder: Path, config: str | None) -> Path:
        """The folder itself; if all files are in folders of it, the one of a config, or `data`."""
        files = self._list(folder)
        notes_alone = not any(map(self.knows, files)) and (not files or (folder / CARD).exists())
        if config is None and (
            not notes_alone
            or arrow_files.is_dataset_folder(folder)
            or _media_in(folder)
            or class_folders.kind_in(folder) is not None
            or class_folders.find_pair(folder) is not None
            or folder_splits(folder) is not None
        ):
            return folder
        inner = [
            each
            for each in sorted(folder.iterdir())
            if each.is_dir()
            and not each.name.startswith((".", "_"))
            and any(self.knows(file) for depth in ("*", "*/*") for file in each.glob(depth))
        ]
        if not inner and config is None:
            return folder
        default = "data" if any(each.name == "data" for each in inner) else None
        names = [each.name for each in inner]
        return self._config_folder(folder / choose_config(folder, names, config, default), None)

    def _files_of(self, path: Path) -> tuple[list[Path], list[Finding]]:
        """Return what to open for a path: the file, or the files of a folder in order."""
        folder, config = divide_name(path)
        if not folder.exists():
            if may_be_hub_id(folder):
                return hub_files(str(folder), config), []
            raise UsageError(f"There is no file or folder {path}.", "Check the path.")
        if config is not None and not folder.is_dir():
            raise UsageError(f"There is no file or folder {path}.", "Check the path.")
        if not folder.is_dir():
            refuse_special(path)
            return [path], []
        splits = self.splits_in(path)
        boxed = detection_folders.annotated(folder) if config is None else None
        if isinstance(boxed, list):
            return boxed, []
        if splits is None:
            return self._files_in(self._config_folder(folder, config)), []
        chosen = splits.chosen(self.part)
        notes = [splits.note(str(path))] if self.part == "train" and splits.has_others else []
        if not chosen[0].is_dir():
            return self._one_format(list(chosen)), notes
        inner = [self._files_of(folder) for folder in chosen]
        files = [file for found, _ in inner for file in found]
        return files, [*notes, *(note for _, found in inner for note in found)]

    def _files_in(self, folder: Path) -> list[Path]:
        """Return the files of a folder without splits; or the folder, if it has class folders."""
        if arrow_files.is_dataset_folder(folder):
            return arrow_files.dataset_files(folder)
        files = self._list(folder)
        media = _media_in(folder) if self._are_texts(files) else []
        kind = class_folders.kind_in(folder) if self._are_texts(files) else None
        beside = len(media) if kind and kind.decoded else len(files)
        if kind and beside < class_folders.num_files(folder):
            return [folder]
        if len(media) > len(files):  # texts may be notes beside them
            return media
        if files:
            return self._one_format(files)
        *most, last = self.endings
        message = f"The folder {folder} has no {', '.join(most)} or {last} file, no images and no"
        raise NO_DATA.error(f"{message} audio.", file=str(folder))

    def _one_format(self, files: list[Path]) -> list[Path]:
        odd = next((f for f in files if self.ending_of(f) != self.ending_of(files[0])), None)
        texts = self._are_texts(files)
        if odd is None or (self.each_a_class and texts):
            return files
        message = f"{odd.parent} has files of several formats: {files[0].name} and {odd.name}."
        fix = "Name the files to read, each with --data."
        fix += " If each is a class, add --task text-classification." if texts else ""
        raise FILES_DO_NOT_MATCH.error(message, fix=fix, file=str(odd))

    def _are_texts(self, files: Sequence[Path]) -> bool:
        """Return whether all files are lines of text, by their endings."""
        return all(self.ending_of(f) in (".txt", "") or not self.knows(f) for f in files)


def _media_in(folder: Path) -> list[Path]:
    """Return the images of a folder or its audio files, whichever are more."""
    found = [file for file in sorted(folder.iterdir()) if media_kind(file) is not None]
    kind = common_kind(found)
    return [file for file in found if kind is not None and kind.has(file)]


def locate(data: Sequence[str | Path], finder: Finder) -> tuple[list[Path], list[Copy]]:
    """Return the paths, those that patterns such as *.png match, and the local copies of URLs.

    Of a remote folder, files of known formats are copied, or all, if it has none. An empty path,
    which would be the working folder, is refused.
    """
    if not all(str(item).strip() for item in data):
        raise UsageError("The path of the data is empty.", "Pass a file, a folder or a hub id.")
    paths: list[Path] = []
    copies: list[Copy] = []

    def is_data(name: str) -> bool:
        path = Path(name)
        bare = not path.suffix or path.suffix[1:].isdecimal()  # texts in class folders
        return bare or path.name == CARD or finder.knows(path) or media_kind(path) is not None

    names = ([str(item)] if Path(item).exists() else expand_ranges(str(item)) for item in data)
    for name in chain.from_iterable(names):
        if not is_url(name):
            paths += _matched(Path(name))
        elif protocol_of(name) == "file":
            paths += _matched(_local_path(name))
        else:
            copies.append(open_url(name, is_data))
            paths += copies[-1].paths
    return paths, copies


def _local_path(url: str) -> Path:
    parts = urlsplit(clean_url(url))
    if parts.netloc not in ("", "localhost"):
        message = f"{url} names the host {parts.netloc}; expected file:///PATH."
        raise UsageError(message, "Write three slashes before an absolute path.")
    return Path(unquote(parts.path))


def _matched(path: Path) -> list[Path]:
    """Return the path, or the files that it matches as a pattern, sorted."""
    if not has_magic(str(path)) or path.exists():
        return [path]
    found = [Path(name) for name in sorted(glob(str(path), recursive=True))]
    if not found:
        raise UsageError(f"No file matches {path}.", "Check the pattern, or pass a folder.")
    return found


def expand_ranges(name: str) -> list[str]:
    """Return the names that `{000..099}` stands for, as lists of shards are written.

    >>> expand_ranges("train-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    parts = _RANGE.split(name)
    choices, count = [], 1
    for first, last in zip(parts[1::3], parts[2::3], strict=True):
        count *= max(0, int(last) - int(first) + 1)
        if not 0 < count <= MOST_NAMES:
            message = f"{{{first}..{last}}} stands for {count:,} names"
            raise UsageError(f"{message}; expected 1 to {MOST_NAMES:,}.", "Correct the range.")
        width = len(first) if first.startswith("0") else 0
        choices.append([f"{number:0{width}}" for number in range(int(first), int(last) + 1)])
    fixed = parts[::3]
    return [
        "".join([fixed[0], *(a + b for a, b in zip(chosen, fixed[1:], strict=True))])
        for chosen in product(*choices)
    ]
