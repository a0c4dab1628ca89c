"""Only regular files are opened: a pipe would wait for a writer, a device might never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from surefit.errors import UsageError

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def special_kind(path: str | Path) -> str | None:
    """What a path is that is neither file nor folder; None for those, and if there is nothing."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return None


def refuse_special(path: str | Path) -> None:
    """Refuse a path that is a pipe, a socket or a device."""
    kind = special_kind(path)
    if kind is not None:
        raise UsageError(f"{path} is {kind}; expected a regular file.", "Pass a file or a folder.")


def refuse_special_inside(folder: str | Path) -> None:
    """Refuse a folder of a model or run that has a pipe, a socket or a device in it."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            kind = special_kind(path)
            if kind is not None:
                message = f"{path} is {kind}; expected a regular file."
                raise UsageError(message, "Remove it, or copy the folder again from its source.")
