"""The cache folder: where it is, the keys of its entries, and which of them are in use.

A folder is used as the cache if it has surefit's tag, is empty, or does not exist. In a folder with
other files, the cache is a subfolder.

A process that writes an entry holds the entry's lock, and others wait for it. A process that uses
an entry has a byte of the file `in-use` locked, which the entry's name chooses, as long as it
lives. What a killed process left half written is removed by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from surefit.core import digests, files, locks
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, rule

DAMAGED_ENTRY = rule(
    "SF820",
    "warning",
    "damaged cache entry rebuilt",
    why="The file is not what surefit wrote: a disk fault, or another program changed it. The "
    "entry was made again from the data, so the run is not affected.",
    fix="Nothing to do if it happens once; if it happens again, check the disk.",
    accept="The entry is rebuilt all the same.",
)

TAG = "CACHEDIR.TAG"
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of surefit.\n"
INSIDE = "surefit-cache"
USES = "in-use"
SCRATCH = "scratch"
QUIET_SECONDS = 2.0
"""How long a process waits for another one before it says so."""
_LOCK = re.compile(r"\.(?P<name>[0-9a-f]{32}.*)\.lock")
"""The lock of an entry, whose name begins with a fingerprint."""

_chosen: ContextVar[tuple[Path | None, float | None]] = ContextVar("cache", default=(None, None))
"""The folder, and its limit in GB."""
_damage: ContextVar[list[Finding] | None] = ContextVar("damaged_entries", default=None)
_uses: dict[Path, int] = {}
"""The file `in-use` of each cache that this process has opened: closing it ends all uses."""
_used: set[Path] = set()


@contextmanager
def use_cache(folder: str | None, limit_gb: float | None = None) -> Iterator[None]:
    """Use `folder` as the cache while the block runs; None for the default.

    Entries that are worth making only if they can stay are made up to `limit_gb`.

    >>> with use_cache("/tmp/elsewhere"):
    ...     str(cache_folder())
    '/tmp/elsewhere'
    """
    before = _chosen.set((Path(folder).absolute() if folder else None, limit_gb))
    try:
        yield
    finally:
        _chosen.reset(before)


def cache_limit_gb() -> float | None:
    """Return the limit of the cache in use; None if it has none."""
    return _chosen.get()[1]


def cache_folder() -> Path:
    """Return the config's `cache`, else `$SUREFIT_CACHE`, else `~/.cache/surefit`; or inside it."""
    named = os.environ.get("SUREFIT_CACHE")
    folder = _chosen.get()[0] or (
        Path(named) if named else files.home_folder() / ".cache" / "surefit"
    )
    return folder / INSIDE if holds_other_files(folder) else folder


def holds_other_files(folder: Path) -> bool:
    """Return whether a folder holds something, and is not the cache of surefit by its tag."""
    try:
        text = (folder / TAG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if text == SIGNATURE:
        return False
    try:  # another process may just have made the folder, and not yet written the tag
        return any(path.name != TAG or text for path in folder.iterdir())
    except OSError:  # there is none, or it cannot be used, which is reported elsewhere
        return False


def fingerprint(*parts: Any) -> str:
    """Return a short key that changes when any of the JSON-like parts changes."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def hash_bytes(buffer: Any) -> str:
    """Return a key of some bytes."""
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


@cache
def module_fingerprint(name: str) -> str:
    """Return a key of the source of a loaded module, by its name."""
    return fingerprint(inspect.getsource(sys.modules[name]))


def open_cache() -> Path:
    """Return the cache folder, ready for use: made and swept; or refuse it clearly."""
    root = cache_folder()
    if root in _uses and not os.fstat(_uses[root]).st_nlink:  # the user has deleted the cache
        os.close(_uses.pop(root))
        _used.difference_update([each for each in _used if each.is_relative_to(root)])
    if root not in _uses:
        try:
            _make_root(root)
            sweep(root)
            _uses[root] = files.open_own(root / USES, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _unwritable(root, error) from None
    return root


def _make_root(root: Path) -> None:
    """Make the cache folder with its tag; refuse one with other files, which is a user's."""
    root.mkdir(parents=True, exist_ok=True)
    if root.name == INSIDE and (root.is_symlink() or holds_other_files(root)):
        raise UsageError(
            f"{root} is in the place of the cache, and surefit did not make it.",
            "Choose another folder with --set cache=FOLDER or the environment variable "
            "SUREFIT_CACHE.",
        )
    if not (root / TAG).is_file() or not (root / TAG).stat().st_size:
        with open(files.open_own(root / TAG, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.write(SIGNATURE)


def _unwritable(root: Path, error: OSError) -> UsageError:
    return UsageError(
        f"The cache folder {root} cannot be written to: {error.strerror or error}.",
        "Choose another with --set cache=FOLDER or the environment variable SUREFIT_CACHE.",
    )


@contextmanager
def writing() -> Iterator[None]:
    """Report a cache that cannot be written to, or whose disk is full."""
    root = cache_folder()
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailedError(
                f"The disk of the cache folder {root} is full.",
                "Free some space (surefit cache clean), or choose a folder on another disk with "
                "--set cache=FOLDER or the environment variable SUREFIT_CACHE.",
            ) from None
        inside = error.filename is not None and str(error.filename).startswith(str(root))
        if inside and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _unwritable(root, error) from None
        raise


def kinds(root: Path) -> list[Path]:
    """Return the folders of the cache that hold entries of a kind; a link is not followed."""
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]


def sweep(root: Path) -> list[Path]:
    """Remove what killed processes left half written; what a living one writes is locked."""
    swept = []
    for path in [path for kind in kinds(root) for path in kind.glob(".*")]:
        lock = _LOCK.fullmatch(path.name)
        named = lock or (files.is_own(path) and files.TEMPORARY.fullmatch(path.name))
        if named:
            with (
                suppress(locks.HeldError, UsageError),  # in work, or not a lock of surefit
                locks.locked(_lock_of(path.with_name(named["name"])), 0),
            ):
                if not lock and files.is_own(path):
                    files.mark(path)
                    files.delete(path)
                    swept.append(path)
    return swept


def entry_folder(kind: str, key: str) -> Path:
    """Return the folder of an entry, which is in use from now on."""
    if Path(key).name != key:  # of a stranger's plan
        raise UsageError(f"{key!r} is not the name of a cache entry.", "Restore plan.json.")
    folder = open_cache() / kind / key
    use_entry(folder)
    return folder


def use_entry(folder: Path) -> None:
    """Keep other processes from removing an entry as long as this one lives."""
    root = open_cache()
    files.refuse_links([folder.parent, folder])
    if folder not in _used:
        _used.add(folder)
        locks.share_byte(_uses[root], _byte_of(folder))


def release_entries() -> None:
    """Use no entry any more."""
    while _uses:
        os.close(_uses.popitem()[1])
    _used.clear()


def in_use(folder: Path, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Whether a process uses an entry; if none does, `meanwhile` is called, and none begins to."""
    root = open_cache()
    if folder in _used:
        return True
    with locks.byte_alone(_uses[root], _byte_of(folder)) as is_alone:
        if is_alone:
            meanwhile()
    return not is_alone


def _byte_of(folder: Path) -> int:
    return int(fingerprint(folder.parent.name, folder.name)[:15], 16)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def lock_entry(folder: Path) -> Iterator[None]:
    """Be the only process that writes an entry; wait for another one that does."""
    with writing(), ExitStack() as held:
        folder.parent.mkdir(exist_ok=True)
        try:
            held.enter_context(locks.locked(_lock_of(folder), QUIET_SECONDS))
        except locks.HeldError as error:
            message = "Waiting for %s, which writes the same entry of the cache (%s)."
            logging.getLogger(__name__).warning(message, error, folder.parent.name)
            held.enter_context(locks.locked(_lock_of(folder), -1))
        yield


@contextmanager
def new_entry(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to fill, which becomes the entry; its lock must be held."""
    with writing(), files.new_folder(folder, sealed=True, keeps_mark=True) as temporary:
        yield temporary


@contextmanager
def scratch_in_cache() -> Iterator[Path]:
    """Make a folder that is removed when the block ends; that of a killed process is swept later.

    In the system's folder for temporary files, a killed process would leave it for ever.
    """
    place = open_cache() / SCRATCH / uuid.uuid4().hex
    files.refuse_links([place.parent])
    with lock_entry(place):
        folder = files.temporary_folder(place)
        try:
            yield folder
        finally:
            files.delete(folder)


def verify_entry(folder: Path, hash_of: Callable[[Path], str] = digests.hash_file) -> bool:
    """Return whether an entry is there as it was written; a damaged one is reported and removed."""
    if not files.is_marked(folder):  # none, or one that surefit did not make
        return False
    damage = digests.find_damage(folder, hash_of=hash_of)
    if damage:
        for each in damage[:3]:
            note_damage(each.path, each.reason)
        files.remove_folder(folder)
        return False
    with suppress(OSError):
        os.utime(folder / digests.FILE)  # when it was last used
    return True


@contextmanager
def collect_damage() -> Iterator[list[Finding]]:
    """Collect what is found damaged while the block runs, for the plan; else it is logged."""
    found: list[Finding] = []
    before = _damage.set(found)
    try:
        yield found
    finally:
        _damage.reset(before)


def note_damage(path: Path, reason: str) -> None:
    """Report a damaged file of the cache, whose entry is rebuilt."""
    finding = DAMAGED_ENTRY.finding(
        f"The cache file {path} was damaged ({reason}); its entry is rebuilt.", file=str(path)
    )
    found = _damage.get()
    if found is not None:
        found.append(finding)
    else:
        logging.getLogger(__name__).warning("%s", finding.message)
