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
ALGORITHM = "xxh3_128"
BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and in what it differs."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def hash_file(path: Path, num_bytes: int | None = None) -> str:
    """The digest of a file's content, or of its first `num_bytes`."""
    import xxhash

    digest, buffer = xxhash.xxh3_128(), bytearray(BUFFER_BYTES)
    left = os.stat(path).st_size if num_bytes is None else num_bytes
    with path.open("rb", buffering=0) as file:
        while left > 0 and (read := file.readinto(memoryview(buffer)[:left])):
            digest.update(memoryview(buffer)[:read])
            left -= read
    return digest.hexdigest()


def describe(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Size and digest of the named files of a folder, as its digests.json has them."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, ALGORITHM: hash_file(folder / name)}
        for name in names
    }
    return {"format_version": 1, "files": files}


def describe_contents(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """The same of files that are yet to be written, by name."""
    import xxhash

    files = {
        name: {"bytes": len(content), ALGORITHM: xxhash.xxh3_128(content).hexdigest()}
        for name, content in contents.items()
    }
    return {"format_version": 1, "files": files}


def seal(folder: Path) -> None:
    """Write the digests of all files of a folder that nobody reads yet into its digests.json."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in found if path != folder / FILE]
    text = json.dumps(describe(folder, names), indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def is_sealed(folder: Path) -> bool:
    """Whether a folder has digests."""
    return (folder / FILE).exists()


def find_damage(
    folder: Path,
    only: Sequence[str] | None = None,
    hash_of: Callable[[Path], str] = hash_file,
) -> list[Damage]:
    """The files of a sealed folder (or those of `only`) that are not as they were written.

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
