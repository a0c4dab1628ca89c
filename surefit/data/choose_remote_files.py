"""Which files of a remote folder are read: the rules of local folders, tried on its names."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from surefit.data.cache_use import scratch_in_cache
from surefit.data.data_rules import FILES_DO_NOT_MATCH
from surefit.data.find_files import Finder
from surefit.data.formats import class_folders, idx, label_files, paired_folders
from surefit.data.formats.file_rows import media_kind
from surefit.data.official_splits import NO_TRAINING_PART
from surefit.data.remote.remote_copy import data_folder, make_placeholders
from surefit.data.remote.remote_file import Listing
from surefit.errors import FindingError, UsageError
from surefit.shown_places import show_as

BY_NAME = (FILES_DO_NOT_MATCH.code, NO_TRAINING_PART.code)
"""Faults that the names of files alone show."""
DATASET_FILES = ("dataset_dict.json", "state.json")
"""Which files belong to a `datasets` folder is written in these."""


def choose_files(listing: Listing, finder: Finder) -> Listing:
    """The listing of a folder with the files that are read; the others are left.

    All of them, where that depends on the content of files.
    """
    names = {posixpath.basename(file.path) for file in listing.files}
    if listing.kind != "folder" or not names.isdisjoint(DATASET_FILES):
        return listing
    with scratch_in_cache() as scratch:
        folder = data_folder(scratch, listing.root)
        make_placeholders(folder, listing.files)
        show_as(folder, listing.root)
        try:
            chosen = [*_read_files(folder, finder)]
        except FindingError as error:
            if error.findings[0].code in BY_NAME and _shows_formats(error, finder):
                raise
            return listing
        except UsageError:
            return listing
        if not all(path.is_dir() or _has_format(path, finder) for path in chosen):
            return listing
        names = {file.relative_to(folder).as_posix() for file in files_inside(chosen)}
    names |= {label for name in names for label in label_names(name)}
    taken = tuple(file for file in listing.files if file.path in names)
    left = tuple(file for file in listing.files if file.path not in names)
    return replace(listing, files=taken, left=left)


def _read_files(folder: Path, finder: Finder) -> Iterator[Path]:
    """The files and class folders that are read for the part that the finder takes.

    With training rows, these are also the validation rows of official splits.
    """
    yield from finder.files_of([folder])[0]
    splits = finder.splits_in(folder) if finder.part == "train" else None
    validation = splits.parts.get("validation", ()) if splits is not None else ()
    yield from replace(finder, part="validation").files_of(validation)[0]


def files_inside(paths: Iterable[Path]) -> Iterator[Path]:
    """The files, and those that are read of class folders, or of images with their masks."""
    for path in paths:
        if not path.is_dir():
            yield path
        elif paired_folders.find_pair(path) is None:
            yield from class_folders.files_read(path)
        else:
            yield from (inner for inner in path.rglob("*") if inner.is_file())


def _has_format(path: Path, finder: Finder) -> bool:
    """Whether the ending of a file decides that it is read; others are, if they hold text."""
    return finder.ending_of(path) in finder.endings or media_kind(path) is not None


def _shows_formats(error: FindingError, finder: Finder) -> bool:
    return _has_format(Path(str(error.findings[0].where.get("file", ""))), finder)


def label_names(name: str) -> list[str]:
    """Files that are read with a file of this name, if they are beside it."""
    folder, base = posixpath.split(name)
    is_idx = idx.NAME.fullmatch(base.lower().removesuffix(".gz"))
    names = idx.label_names(base) if is_idx else label_files.label_names(base)
    return [posixpath.join(folder, each) for each in names]
