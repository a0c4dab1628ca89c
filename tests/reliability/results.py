"""The figures of docs/reliability.md: one JSON file that the scripts of this folder add to."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def store_results(path: Path, name: str, figures: dict[str, Any]) -> None:
    """Put the figures of one script into the file, with the machine and the day.

    Figures of other configurations of the same script stay, so that they can be run one by one.
    """
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = json.loads(file.read() or "{}")
        known[name] = _merge(known.get(name, {}), {"machine": machine(), **figures})
        file.truncate(0)
        file.write(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new figures, and the groups (dicts of dicts or lists) of the old ones that they lack."""
    grouped = [key for key in new if key in GROUPS]
    return new | {key: {**old.get(key, {}), **new[key]} for key in grouped}


GROUPS = ("configurations", "scenarios", "faults", "jobs")


def machine() -> dict[str, Any]:
    """Where and when figures were measured."""
    import torch

    import surefit

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "surefit": surefit.__version__,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
