"""Files and folders that surefit owns: written whole or not at all, and only these are deleted.

A file or folder gets its name when it is complete: a temporary beside it, fsync, rename. Every
read, write, replacement and deletion in the folders of runs, of the cache and of records goes
through here, from the handle of its folder and never through a link; `digests` and `locks` beside
it are parts of this one door.

A folder is deleted only if surefit can prove that it made it. A temporary folder and an entry of
the cache hold a mark, the file `.surefit`; checkpoints and saved models hold the digests of their
files. A folder with a file that the digests do not list is kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from surefit.core import digests
from surefit.errors import UsageError

Later = Callable[[Callable[[], None]], None]
"""Takes what is to be done, and does it when it suits."""
MARK = digests.MARK
MARK_TEXT = "surefit made this folder ({}), and deletes it when it is no longer needed.\n"
"""With the name of the folder itself, so that a copy of the mark proves nothing elsewhere."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp")
"""The name of what is being written: that of the file or folder to be, and eight digits."""
EARLIER = ".earlier"
"""How the name of a folder ends that was in the way, and that surefit did not make alone."""
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
AT_NO_FOLDER, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2: the paths are absolute; exchange the two."""
_waits: ContextVar[bool] = ContextVar("waits_for_the_disk", default=True)


def home_folder() -> Path:
    """Return the home folder of this user; refuse a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            f"The user {os.getuid()} has no home folder: HOME is not set, and the system does not "
            "know the user.",
            "Set HOME, or SUREFIT_CACHE and XDG_STATE_HOME to folders that this user may write.",
        ) from None


def special_kind(path: str | Path) -> str | None:
    """Name what a path is that is neither file nor folder; None for those, and for nothing.

    Only regular files are opened: a pipe would wait for a writer, a device might never end.
    """
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return None


def refuse_special(path: str | Path, fix: str = "Pass a file or a folder.") -> None:
    """Refuse a path that is a pipe, a socket or a device."""
    kind = special_kind(path)
    if kind is not None:
        raise UsageError(f"{path} is {kind}; expected a regular file.", fix)


def refuse_special_inside(folder: str | Path) -> None:
    """Refuse a folder of a model or run that has a pipe, a socket or a device in it."""
    for place, _, names in os.walk(folder):
        for name in names:
            fix = "Remove it, or copy the folder again from its source."
            refuse_special(os.path.join(place, name), fix)


def refuse_links(paths: Iterable[Path]) -> None:
    """Refuse a path that is a link: what surefit would write or delete there lies elsewhere."""
    for path in paths:
        if os.path.islink(path):  # False where it may not be looked at
            raise UsageError(
                f"{path} is a link to {os.readlink(path)}; expected a file or folder of surefit, "
                "which follows no link where it writes.",
                "Remove the link, or put what it leads to in its place.",
            )


def open_own(path: Path, flags: int) -> int:
    """Open a file or folder that surefit owns; a link is refused."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        refuse_links([path])
        raise


@contextmanager
def _handle(folder: Path) -> Iterator[int]:
    """Give the handle of a folder that surefit owns."""
    descriptor = open_own(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Do not wait for the disk while the block runs: what it writes may be lost."""
    before = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(before)


def _sync(path: Path) -> None:
    if not _waits.get():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _marks_of(folder: Path) -> list[bytes]:
    """Return the marks that a folder may have: with its name, or the one it is about to have."""
    named = TEMPORARY.fullmatch(folder.name)
    names = [folder.name, *([named["name"]] if named else [])]
    return [MARK_TEXT.format(name).encode() for name in names]


def mark(folder: Path, name: str | None = None) -> None:
    """Mark a folder that surefit has just made, and may name so, as one that it may delete."""
    if name is None and is_marked(folder):  # a full disk must not take the mark away
        return
    descriptor = open_own(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, MARK_TEXT.format(name or folder.name).encode())
    finally:
        os.close(descriptor)


def is_marked(folder: Path) -> bool:
    """Return whether a folder, which is no link, has the mark of surefit."""
    return not folder.is_symlink() and read_own(folder / MARK) in _marks_of(folder)


def read_own(path: Path, most_bytes: int = 1024) -> bytes:
    """Read the beginning of a file that surefit owns; empty if there is no plain file."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except (OSError, UsageError):
        return b""
    try:
        return os.read(descriptor, most_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def is_own(folder: Path) -> bool:
    """Return whether surefit made a folder and every file in it, by its mark or its digests.

    A folder with nothing but the beginning of a mark was left by a process that was killed there.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    text, expected = read_own(folder / MARK), _marks_of(folder)
    if {*os.listdir(folder)} <= {MARK} and any(each.startswith(text) for each in expected):
        return True
    listed = digests.listed_files(folder)
    if listed is None or (text in expected and TEMPORARY.fullmatch(folder.name)):
        return text in expected
    known = {*listed, digests.FILE, MARK}
    return all(
        Path(place, name).relative_to(folder).as_posix() in known
        for place, folders, names in os.walk(folder)
        for name in (*names, *(n for n in folders if Path(place, n).is_symlink()))
    )


def delete(folder: Path) -> None:
    """Delete a folder with a mark. The mark goes last: what a kill leaves, `sweep` deletes."""
    with suppress(OSError), _handle(folder) as inside:  # of another process, or of the disk
        for name in os.listdir(inside):
            if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=inside)
            elif name != MARK:
                os.unlink(name, dir_fd=inside)
        if {*os.listdir(inside)} <= {MARK}:
            with suppress(FileNotFoundError):
                os.unlink(MARK, dir_fd=inside)
            os.rmdir(folder)


def remove_folder(path: Path) -> bool:
    """Delete a folder if it is surefit's own: its name is gone at once, so no reader meets half."""
    if not is_own(path):
        return False
    retired = _new_name(path)
    os.replace(path, retired)
    mark(retired)
    delete(retired)
    return True


def remove_file(path: Path) -> None:
    """Delete a file that surefit wrote; a link in its place is deleted, not what it leads to."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def sweep(folder: Path, older_than_seconds: float = 0) -> list[Path]:
    """Delete what killed writes left in a folder; nobody else may be writing there.

    Where others may, only what is older than any write takes is deleted.
    """
    found = [path for path in folder.glob(".*.tmp") if TEMPORARY.fullmatch(path.name)]
    left = [path for path in found if _is_older(path, older_than_seconds) and is_own(path)]
    for path in left:
        mark(path)
        delete(path)
    for path in folder.glob("[!.]*"):  # a kill left the mark in a folder that has got its name
        if MARK not in (digests.listed_files(path) or (MARK,)) and is_marked(path):
            remove_file(path / MARK)
    return left


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return seconds <= 0 or time.time() - path.lstat().st_mtime > seconds
    except FileNotFoundError:  # it has just got its name
        return False


def _new_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def temporary_folder(path: Path) -> Path:
    """Make a marked folder beside `path`, which is empty otherwise."""
    folder = _new_name(path)
    folder.mkdir()
    mark(folder)
    return folder


def encode_text(text: str) -> bytes:
    """Return the text as files have it; a lone surrogate is escaped."""
    return text.encode(errors="backslashreplace")


def encode_json(value: Any) -> bytes:
    """Return the content of a JSON file; NaN and infinities are refused."""
    return encode_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; a reader sees the old file or the new one, never half of one."""
    write_bytes(path, encode_text(text))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON; NaN and infinities are refused rather than written."""
    write_bytes(path, encode_json(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a reader sees the old file or the new one."""
    refuse_links([path])
    folder = temporary_folder(path)
    try:
        with _handle(folder) as inside:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path.name, flags, 0o666, dir_fd=inside), "wb") as file:
                file.write(content)
                file.flush()
                if _waits.get():
                    os.fsync(file.fileno())
            os.replace(path.name, path, src_dir_fd=inside)
    finally:
        delete(folder)
    _sync(path.parent)


@contextmanager
def new_folder(
    path: Path,
    later: Later | None = None,
    sealed: bool = False,
    keeps_mark: bool = False,
    inside: Path | None = None,
) -> Iterator[Path]:
    """Give a temporary folder to fill, beside `path` or inside another folder of its disk; it
    becomes `path` only when the block ends well.

    A folder that is already at `path` is replaced. `later` is given what waits for the disk, to be
    done when it suits; without it, that is done here. A sealed folder has the digests of its files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_folder(inside / path.name if inside else path)
    try:
        yield temporary
    except BaseException:
        delete(temporary)
        raise
    publish = partial(_publish, temporary, path, sealed, keeps_mark)
    if later is None:
        publish()
    else:
        later(publish)


def _publish(temporary: Path, path: Path, sealed: bool = False, keeps_mark: bool = False) -> None:
    try:
        if sealed:
            digests.seal(temporary)
        if keeps_mark:
            mark(temporary, path.name)
        follow_umask(temporary)
        for file in sorted(temporary.rglob("*")):
            _sync(file)
        if sealed and not keeps_mark:  # from now on, the digests prove that it is surefit's
            remove_file(temporary / MARK)
        _sync(temporary)
        _replace_folder(temporary, path, is_own(path) and (is_marked(path) or not keeps_mark))
    except BaseException:
        delete(temporary)
        raise
    if not keeps_mark:
        remove_file(path / MARK)
    _sync(path.parent)


def follow_umask(folder: Path) -> None:
    """Give the files of a folder that was just made the permissions that the umask allows.

    Libraries write some files for their owner only (safetensors does). The folder's own mode is
    what the umask left of 0777; to ask for the umask itself would change it for all threads.
    """
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _replace_folder(temporary: Path, path: Path, own: bool) -> None:
    """Give a folder its name. An own folder that has it is deleted, another one gets a new name."""
    if not os.path.lexists(path):
        os.replace(temporary, path)
        return
    retired = _new_name(path)
    if _exchange(temporary, path):
        retired = temporary
    else:  # for a moment, there is no folder of that name
        os.replace(path, retired)
        os.replace(temporary, path)
    if own:
        mark(retired)
        delete(retired)
    else:
        set_aside(retired, path.with_name(path.name + EARLIER))


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    names = (ctypes.c_char_p(os.fsencode(os.path.abspath(path))) for path in (one, other))
    first, second = names
    return bool(rename(AT_NO_FOLDER, first, AT_NO_FOLDER, second, RENAME_EXCHANGE) == 0)


def set_aside(path: Path, name: Path) -> None:
    """Give a file or folder another name, or one with a number behind it that nothing has yet."""
    tries = (name.with_name(name.name + (f"-{n}" if n else "")) for n in range(1000))
    os.replace(path, next(each for each in tries if not os.path.lexists(each)))


def move_inside(source: Path, target: Path) -> None:
    """Move a file of a folder that is being written to another name or another such folder."""
    refuse_links([target])
    os.replace(source, target)
