"""Which column each member of a WebDataset sample becomes, by its extension."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from surefit.data.column_types import AUDIO_ENDINGS, IMAGE_ENDINGS

Kind = Literal["image", "audio", "text", "class", "json", "array", "pickle", "unknown"]

_KINDS: dict[Kind, tuple[str, ...]] = {
    "image": tuple(ending[1:] for ending in (*IMAGE_ENDINGS, ".pbm")),
    "audio": tuple(ending[1:] for ending in AUDIO_ENDINGS),
    "text": ("txt", "text", "transcript"),
    "class": ("cls", "cls2", "class", "count", "index", "inx", "id"),
    "json": ("json", "jsn"),
    "array": ("npy",),
    "pickle": ("pyd", "pickle", "pkl", "pth", "pt"),
}
_KIND_OF: dict[str, Kind] = {ending: kind for kind, all_ in _KINDS.items() for ending in all_}
_NAMES: dict[Kind, str] = {
    "image": "image",
    "audio": "audio",
    "text": "text",
    "array": "features",
}
"""The usual name of a column, for the one extension of its kind."""
READ: tuple[Kind, ...] = ("image", "audio", "text", "class", "json", "array")
PLAIN_JSON = ("json", "jsn")
"""Columns of objects whose values become columns of their own."""
MOST_EXTENSIONS = 100
"""More extensions than this are parts of names: a dot in a key, not before an extension."""
_AT_FIRST = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_AT_LAST = re.compile(r"(.*[^/])\.([^./]+)")


@dataclass(frozen=True)
class Naming:
    """Where names are divided, and the column of each extension that is read."""

    columns: dict[str, str]
    at_first_dot: bool = True

    def divide(self, name: str) -> tuple[str, str] | None:
        """Key and extension of a member; None without an extension."""
        return divide(name, self.at_first_dot)


def divide(name: str, at_first_dot: bool = True) -> tuple[str, str] | None:
    """Key and extension of a name: the extension begins at the first dot.

    >>> divide("a/0001.seg.PNG"), divide("a/0001.seg.PNG", at_first_dot=False), divide("README")
    (('a/0001', 'seg.png'), ('a/0001.seg', 'png'), None)
    """
    matched = (_AT_FIRST if at_first_dot else _AT_LAST).fullmatch(name)
    return None if matched is None else (matched[1], matched[2].lower())


def kind_of_extension(extension: str) -> Kind:
    """What a member holds, by the last part of its extension."""
    return _KIND_OF.get(extension.rpartition(".")[2], "unknown")


def choose_names(names: Collection[str]) -> Naming:
    """The columns of the members of a file.

    `jpg` becomes `image`, `cls` becomes `label`, `txt` becomes `text`, and so on, if no sample has
    two of a kind; else the extensions are the names.
    """
    at_first = _extensions(names, True)
    at_first_dot = len({*at_first}) <= MOST_EXTENSIONS
    divided = [parts for name in names if (parts := divide(name, at_first_dot)) is not None]
    by_kind: dict[Kind, list[str]] = {}
    for extension in dict.fromkeys(extension for _, extension in divided):
        by_kind.setdefault(kind_of_extension(extension), []).append(extension)
    columns: dict[str, str] = {}
    for kind in READ:
        extensions = by_kind.get(kind, [])
        usual = _NAMES.get(kind)
        plain = [each for each in extensions if "." not in each]
        if kind == "class":
            columns |= {each: "label" if each == "cls" else each for each in extensions}
        elif usual is not None and plain and _one_each(divided, {*plain}):
            columns |= {each: usual if each in plain else each for each in extensions}
        else:
            columns |= {each: each for each in extensions}
    return Naming(columns, at_first_dot)


def _extensions(names: Iterable[str], at_first_dot: bool) -> list[str]:
    return [parts[1] for name in names if (parts := divide(name, at_first_dot)) is not None]


def _one_each(divided: Iterable[tuple[str, str]], extensions: Collection[str]) -> bool:
    """Whether no sample has two of these extensions."""
    seen: set[str] = set()
    for key, extension in divided:
        if extension in extensions:
            if key in seen:
                return False
            seen.add(key)
    return True
