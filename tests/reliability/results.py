"""The figures of docs/reliability.md: one JSON file that the scripts of this folder add to."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def store_results(path: Path, name: str, figures: dict[str, Any]) -> None:
    """Put the figures of one script into the file, with the machine and the day."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[name] = {"machine": machine(), **figures}
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Where and when figures were measured."""
    import torch

    head = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": subprocess.run(head, capture_output=True, text=True).stdout.strip(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
