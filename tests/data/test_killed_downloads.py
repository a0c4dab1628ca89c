"""A download that is killed or stopped leaves nothing half, and the next one keeps whole files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from http_server import Site, serve

pytestmark = pytest.mark.slow
CONTENT = b"".join(
    json.dumps({"text": f"row {k} " * 20, "label": k % 2}).encode() + b"\n" for k in range(400)
)
SHARDS = {"d/a.jsonl": CONTENT.splitlines(keepends=True)[0]}
SHARDS |= {f"d/{name}.jsonl": CONTENT for name in ("b", "c")}


def start(site: Site, cache: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from surefit.data.open_data import open_table; "
        "print(open_table(sys.argv[1]).num_rows)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, f"{site.url}/d/*.jsonl"],
        env={**os.environ, "SUREFIT_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_files(cache: Path) -> None:
    """Wait until the short shard is there, and some of each long one."""
    for _ in range(4800):
        sizes = sorted(part.stat().st_size for part in cache.glob("remote/*/parts/*"))
        if len(sizes) == 3 and sizes[0] == len(SHARDS["d/a.jsonl"]) < sizes[1]:
            return
        time.sleep(0.05)
    raise AssertionError("no download began")


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_the_next_process_reads_only_what_is_not_whole(
    with_signal: signal.Signals, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with serve(SHARDS, held=threading.Event()) as site:
        child = start(site, cache)
        wait_for_files(cache)
        child.send_signal(with_signal)
        child.communicate(timeout=280)
        site.held.set()
        assert not list(cache.rglob("*.jsonl"))
        site.asked.clear()
        second = start(site, cache)
        out, problem = second.communicate(timeout=280)
        assert out == "801\n", problem
        assert sorted(site.gets()) == ["/d/b.jsonl", "/d/c.jsonl"]
    files = sorted(path.name for path in cache.glob("remote/*/data/d/*.jsonl"))
    assert files == ["a.jsonl", "b.jsonl", "c.jsonl"]


def test_two_processes_at_once_read_the_same(tmp_path: Path) -> None:
    with serve(SHARDS, chunk_seconds=0.02) as site:
        both = [start(site, tmp_path / "cache") for _ in range(2)]
        assert [child.communicate(timeout=280)[0] for child in both] == ["801\n"] * 2
        assert sorted(site.gets()) == ["/d/a.jsonl", "/d/b.jsonl", "/d/c.jsonl"]
