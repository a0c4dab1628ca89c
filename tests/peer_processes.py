"""Starts two processes that meet on this machine, as a launcher would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def start_two(folder: Path, source: str, *arguments: object) -> list[subprocess.Popen[str]]:
    """Two processes that run the source, with the variables of torchrun."""
    (folder / "peer.py").write_text(source)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    root = str(Path(__file__).resolve().parents[1])
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": port}
    shared |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    return [
        subprocess.Popen(
            [sys.executable, "peer.py", *map(str, arguments)],
            cwd=folder,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
