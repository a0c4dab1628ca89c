"""Digests of the files of a folder: written when it is complete, checked when it is read."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefit.core.foreign import check_names, parse_json, read_json
from surefit.errors import UsageError

FILE = "digests.json"
MARK = ".surefit"
"""A file that says that surefit made a folder (`files.mark`); it has no digest."""
BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and in what it differs."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


@dataclass(frozen=True)
class Listed:
    """What digests.json has about a file."""

    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Listing:
    """What digests.json holds."""

    format_version: int
    files: dict[str, Listed]

    def __post_init__(self) -> None:
        check_names(self.files)


def hash_file(path: Path) -> str:
    """Return the digest of a file's content."""
    import xxhash

    digest, buffer = xxhash.xxh3_128(), bytearray(BUFFER_BYTES)
    left = os.stat(path).st_size
    with path.open("rb", buffering=0) as file:
        while left > 0 and (read := file.readinto(memoryview(buffer)[:left])):
            digest.update(memoryview(buffer)[:read])
            left -= read
    return digest.hexdigest()


def describe_contents(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what digests.json has about files that are yet to be written, by name."""
    import xxhash

    digests = {name: xxhash.xxh3_128(content).hexdigest() for name, content in contents.items()}
    return _listing({name: (len(contents[name]), digest) for name, digest in digests.items()})


def _listing(files: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    return asdict(Listing(1, {name: Listed(*about) for name, about in files.items()}))


def seal(folder: Path) -> None:
    """Write the digests of all files of a folder that nobody reads yet into its digests.json."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    files = {
        name: (path.stat().st_size, hash_file(path))
        for name, path in sorted(found.items())
        if path.is_file() and name not in (FILE, MARK)
    }
    text = json.dumps(_listing(files), indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def listed_files(folder: Path) -> set[str] | None:
    """Return the files that a folder's digests.json lists; None if it cannot be read."""
    try:
        if (folder / FILE).is_symlink():
            return None
        return {*read_json(folder / FILE, Listing).files}
    except UsageError:
        return None


def find_damage(
    folder: Path,
    only: Sequence[str] | None = None,
    hash_of: Callable[[Path], str] = hash_file,
) -> list[Damage]:
    """Find the files of a sealed folder (or those of `only`) that are not as they were written.

    `hash_of` returns the digest of a file. A file that may not be read is no damage: it raises
    PermissionError.
    """
    path = folder / FILE
    try:
        expected = parse_json(path.read_bytes(), Listing, str(path)).files
    except FileNotFoundError:
        return [Damage(path, "is missing")]
    except UsageError:
        return [Damage(path, "is not the list of digests that was written")]
    names = expected if only is None else [name for name in only if name in expected]
    found = [_compare(folder / name, expected[name], hash_of) for name in names]
    return [damage for damage in found if damage is not None]


def _compare(path: Path, listed: Listed, hash_of: Callable[[Path], str]) -> Damage | None:
    num_bytes, digest = listed.bytes, listed.xxh3_128
    if path.is_symlink():
        return Damage(path, "is a link, and was written as a file")
    try:
        size = path.stat().st_size
        if size != num_bytes:
            return Damage(path, f"has {size:,} bytes, and was written with {num_bytes:,}")
        found = hash_of(path)
    except FileNotFoundError:
        return Damage(path, "is missing")
    except PermissionError:
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return Damage(path, f"cannot be read ({error.strerror})")
    if found != digest:
        return Damage(path, f"has the digest {found}, and was written with {digest}")
    return None
