"""What the user passes as data to local paths: patterns and ranges of names, and URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain, product
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.data.dataset_card import CARD
from surefit.data.find_files import Finder
from surefit.data.formats.file_rows import media_kind
from surefit.data.remote_data import Copy, open_url
from surefit.data.remote_url import clean_url, is_url, protocol_of
from surefit.data.table import Table
from surefit.errors import UsageError

MOST_NAMES = 100_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Located:
    """The paths of some data, and the copies of remote files among them."""

    paths: list[Path]
    copies: tuple[Copy, ...] = ()

    def complete(self, table: Table) -> Table:
        """Return the table with what was found about its URLs, which a command says once."""
        found = [each for copy in self.copies for each in copy.findings]
        for copy in self.copies:
            copy.findings.clear()
        return replace(table, findings=(*found, *table.findings))


def locate(data: Sequence[str | Path], finder: Finder) -> Located:
    """The paths, those that patterns such as *.png match, and the local copies of URLs.

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
