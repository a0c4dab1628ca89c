"""Who uses the cache: what a process has in use, what a killed one left, and what is damaged.

Each process has a lease: a file in `leases/` that it keeps locked while it lives, with a line for
every entry it reads or writes. What no living process has in use may be removed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from surefit.data.cache import cache_folder
from surefit.errors import UsageError
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

LEASES = "leases"
SCRATCH = "scratch"
TAG = "CACHEDIR.TAG"
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of surefit.\n"
HALF_SECONDS = 24 * 3600
"""How long the half-written entry of a killed process is kept for the next one to finish."""
LEASE_ATTEMPTS = 20
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp")
_HALF = re.compile(r"\.(?P<name>.+)\.(half|lock)")

_leases: dict[tuple[Path, int], Lease] = {}
_damage: ContextVar[list[Finding] | None] = ContextVar("damaged_entries", default=None)


class Lease:
    """The locked file of this process in a cache, and the entries written into it."""

    def __init__(self, root: Path) -> None:
        folder = root / LEASES
        folder.mkdir(exist_ok=True)
        self.names: set[str] = set()
        for _ in range(LEASE_ATTEMPTS):
            self.file = (folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}").open("w")
            if lock(self.file) and os.path.exists(self.file.name):
                return
            self.file.close()  # another process took it for that of a dead one, and removes it
        self.file = (folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}").open("w")  # without locks

    def add(self, name: str) -> None:
        """Note that an entry is in use."""
        if name not in self.names:
            self.names.add(name)
            self.file.write(name + "\n")
            self.file.flush()


def open_cache() -> Path:
    """The cache folder, ready for use: made, swept, and with a lease; or a clear refusal."""
    root = cache_folder()
    known = (root, os.getpid())
    if known in _leases:
        return root
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / TAG).exists():
            (root / TAG).write_text(SIGNATURE, encoding="utf-8")
        sweep(root)
        _leases[known] = Lease(root)
    except OSError as error:
        raise unwritable(root, error) from None
    return root


def is_cache(folder: Path) -> bool:
    """Whether a folder is a cache of surefit."""
    return (folder / TAG).is_file()


def unwritable(root: Path, error: OSError) -> UsageError:
    """The error about a cache folder that cannot be written to."""
    return UsageError(
        f"The cache folder {root} cannot be written to: {error.strerror or error}.",
        "Choose another with --set cache=FOLDER or the environment variable SUREFIT_CACHE.",
    )


def use_entry(folder: Path) -> None:
    """Note that this process uses an entry, before it is opened or written."""
    root = open_cache()
    _leases[root, os.getpid()].add(folder.relative_to(root).as_posix())


@contextmanager
def scratch_in_cache() -> Iterator[Path]:
    """A folder that is removed when the block ends; that of a killed process is swept later.

    In the system's folder for temporary files, a killed process would leave it for ever.
    """
    root, name = open_cache(), uuid.uuid4().hex
    use_entry(root / SCRATCH / name)
    folder = root / SCRATCH / f".{name}.{name[:8]}.tmp"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def release_leases() -> None:
    """Use no entry any more: close the leases of this process."""
    for known in [known for known in _leases if known[1] == os.getpid()]:
        _leases.pop(known).file.close()


def in_use(root: Path) -> set[str]:
    """The entries that living processes use; leases of dead ones are removed."""
    found: set[str] = set()
    for path in (root / LEASES).glob("*"):
        with suppress(FileNotFoundError), path.open("r+") as file:  # another one may remove it
            if lock(file):
                path.unlink(missing_ok=True)
            else:
                found.update(file.read().split("\n"))
    for (place, process), lease in _leases.items():
        if place == root and process == os.getpid():
            found |= lease.names
    return found - {""}


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed, unless another process has it locked."""
    try:
        import fcntl
    except ImportError:  # not on this system: nothing is known to be unused
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(root: Path) -> list[Path]:
    """Remove what killed processes left half written; what a living one writes stays."""
    kinds = [path for path in root.iterdir() if path.is_dir() and path.name != LEASES]
    half_written = [(kind.name, path) for kind in kinds for path in kind.glob(".*")]
    used, swept = in_use(root), []  # asked afterwards: an entry is noted before it is written
    for kind, path in half_written:
        matched = _TEMPORARY.fullmatch(path.name)
        if matched and f"{kind}/{matched['name']}" not in used:
            swept.append(path)
        half = _HALF.fullmatch(path.name)
        if half and f"{kind}/{half['name']}" not in used:
            is_kept = path.with_name(f".{half['name']}.half").exists()
            swept += [path] if not is_kept or _is_old(path) else []
    for path in swept:
        remove(path)
    return swept


def remove(path: Path) -> None:
    """Delete a file or folder; one that another process deletes meanwhile is deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    import time

    try:
        return time.time() - path.stat().st_mtime > HALF_SECONDS
    except FileNotFoundError:
        return False


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
