"""What the user passes as data to local paths: patterns and ranges of names, and URLs.

Of a remote folder, those files are fetched that a local one's would be read, and those that a table
names.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain, product
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.data.cell_files import holds_files, kind_of, unwrapped
from surefit.data.data_rules import FILES_DO_NOT_MATCH
from surefit.data.dataset_card import CARD
from surefit.data.find_files import Finder
from surefit.data.formats import label_files
from surefit.data.formats.class_folders import files_read
from surefit.data.formats.file_rows import media_kind
from surefit.data.official_splits import NO_TRAINING_PART
from surefit.data.remote.remote_copy import TRIED, Copy, open_url
from surefit.data.remote.remote_url import clean_url, is_url, protocol_of
from surefit.data.table import Table
from surefit.errors import FindingError, UsageError

BY_NAME = (FILES_DO_NOT_MATCH.code, NO_TRAINING_PART.code)
"""Faults that the names of files alone show."""
DESCRIBING = (CARD, "dataset_dict.json", "state.json")
"""Files that say which others are read."""
MOST_NAMES = 100_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Located:
    """The paths of some data, and the copies of remote files among them."""

    paths: list[Path]
    copies: tuple[Copy, ...] = ()

    def complete(self, table: Table) -> Table:
        """The table of these paths, with the remote files that it names, and what was found."""
        found = []
        for copy in self.copies:
            copy.fetch(_named(table, copy.folder), if_there=True)
            found += copy.findings
            copy.findings.clear()  # a command says it once
        return replace(table, findings=(*found, *table.findings))


def locate(data: Sequence[str | Path], finder: Finder) -> Located:
    """The paths, those that patterns such as *.png match, and the local copies of URLs.

    Of a remote folder, the files are copied that the finder takes. An empty path, which would be
    the working folder, is refused.
    """
    if not all(str(item).strip() for item in data):
        raise UsageError("The path of the data is empty.", "Pass a file, a folder or a hub id.")
    paths: list[Path] = []
    copies: list[Copy] = []
    names = ([str(item)] if Path(item).exists() else expand_ranges(str(item)) for item in data)
    for name in chain.from_iterable(names):
        if not is_url(name):
            paths += _matched(Path(name))
        elif protocol_of(name) == "file":
            paths += _matched(_local_path(name))
        else:
            copies.append(open_url(name))
            _fetch_read_files(copies[-1], finder)
            paths += copies[-1].paths
    return Located(paths, tuple(copies))


def _local_path(url: str) -> Path:
    parts = urlsplit(clean_url(url))
    if parts.netloc not in ("", "localhost"):
        message = f"{url} names the host {parts.netloc}; expected file:///PATH."
        raise UsageError(message, "Write three slashes before an absolute path.")
    return Path(unquote(parts.path))


def _matched(path: Path) -> list[Path]:
    """The path, or the files that it matches as a pattern, sorted."""
    if not has_magic(str(path)) or path.exists():
        return [path]
    found = [Path(name) for name in sorted(glob(str(path), recursive=True))]
    if not found:
        raise UsageError(f"No file matches {path}.", "Check the pattern, or pass a folder.")
    return found


def expand_ranges(name: str) -> list[str]:
    """The names that `{000..099}` stands for, as lists of shards are written.

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


def _fetch_read_files(copy: Copy, finder: Finder) -> None:
    """Fetch the files of a URL; of a folder, those that would be read of a local one.

    All of them, where that depends on their content.
    """
    names = [*copy.listing.files]
    if copy.listing.kind != "folder":
        copy.fetch(names)
        copy.fetch(_label_names(names[0]) if copy.listing.kind == "file" else (), if_there=True)
        return
    copy.fetch(name for name in names if posixpath.basename(name) in DESCRIBING)
    copy.fetch(_chosen(copy, finder), if_there=True)
    if not copy.fetched >= {*_chosen(copy, finder)} & {*names}:
        copy.fetch(names)


def _chosen(copy: Copy, finder: Finder) -> list[str]:
    """The names of the files that the finder takes, with the labels that may be beside them.

    With training rows, these are also the validation rows of official splits.
    """
    try:
        chosen = finder.files_of([copy.folder])[0]
        splits = finder.splits_in(copy.folder) if finder.part == "train" else None
        validation = splits.parts.get("validation", ()) if splits is not None else ()
        chosen += replace(finder, part="validation").files_of(validation)[0]
    except FindingError as error:
        place = Path(str(error.findings[0].where.get("file", "")))
        if error.findings[0].code in BY_NAME and _has_format(place, finder):
            raise
        return [*copy.listing.files]
    except UsageError:
        return [*copy.listing.files]
    if not all(path.is_dir() or _has_format(path, finder) for path in chosen):
        return [*copy.listing.files]
    files = [f for path in chosen for f in (files_read(path) if path.is_dir() else [path])]
    names = [file.relative_to(copy.folder).as_posix() for file in files]
    return [*names, *(label for name in names for label in _label_names(name))]


def _has_format(path: Path, finder: Finder) -> bool:
    """Whether the ending of a file decides that it is read; others are, if they hold text."""
    return finder.knows(path) or media_kind(path) is not None


def _label_names(name: str) -> list[str]:
    """Files that are read with a file of this name, if they are beside it."""
    folder, base = posixpath.split(name)
    return [posixpath.join(folder, each) for each in label_files.label_names(base)]


def _named(table: Table, folder: Path) -> Iterator[str]:
    """Paths below a folder that cells name, relative to the file they are in."""
    for column in table.columns:
        if not holds_files(table.column_type(column)):
            continue
        plain = replace(table, arrow=table.arrow.select([column]), files=())
        for number, row in enumerate(plain.rows()):
            text = unwrapped(row[column])
            if text and not _is_path(text):
                if number < TRIED:  # a column of other texts
                    break
            elif text:
                beside = Path(str(table.where(number)["file"])).parent
                place = Path(os.path.normpath(beside / text))
                if place.is_relative_to(folder):
                    yield place.relative_to(folder).as_posix()


def _is_path(text: object) -> bool:
    if not isinstance(text, str) or len(text) >= 1024 or "\n" in text or is_url(text):
        return False
    return not text.startswith("/") and kind_of(text) is not None
