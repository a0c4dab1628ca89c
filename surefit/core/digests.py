"""Digests of the files of a folder: written when it is complete, checked when it is read."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "digests.json"
MARK = ".surefit"
"""A file that says that surefit made a folder (`files.mark`); it has no digest."""
ALGORITHM = "xxh3_128"
BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and in what it differs."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


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
    about = {name: {"bytes": size, ALGORITHM: digest} for name, (size, digest) in files.items()}
    return {"format_version": 1, "files": about}


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
        files = json.loads((folder / FILE).read_text(encoding="utf-8"))["files"]
        return {str(name) for name in files}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
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
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        expected = {name: (int(of["bytes"]), str(of[ALGORITHM])) for name, of in files.items()}
    except FileNotFoundError:
        return [Damage(path, "is missing")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [Damage(path, "is not the list of digests that was written")]
    names = expected if only is None else [name for name in only if name in expected]
    found = [_compare(folder / name, *expected[name], hash_of) for name in names]
    return [damage for damage in found if damage is not None]


def _compare(
    path: Path, num_bytes: int, digest: str, hash_of: Callable[[Path], str]
) -> Damage | None:
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
