"""A download that is killed or stopped leaves nothing half, and the next one goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from http_server import Site, serve
from surefit.data.cache_use import open_cache

pytestmark = pytest.mark.slow
CONTENT = b"".join(
    json.dumps({"text": f"row {k} " * 20, "label": k % 2}).encode() + b"\n" for k in range(400)
)
SHARDS = {f"d/{name}.jsonl": CONTENT for name in ("a", "b", "c")}


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


def wait_for_parts(cache: Path) -> None:
    """Wait until some of each shard is on disk."""
    for _ in range(600):
        parts = list(cache.glob("remote/.*.half/data/d/.parts/*"))
        if len(parts) == 3 and all(part.stat().st_size for part in parts):
            return
        time.sleep(0.05)
    raise AssertionError("no download began")


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_the_next_process_reads_only_the_rest(
    with_signal: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with serve(SHARDS, chunk_seconds=0.1) as site:
        child = start(site, cache)
        wait_for_parts(cache)
        child.send_signal(with_signal)
        child.communicate(timeout=60)
        assert not list(cache.glob("remote/[!.]*"))  # nothing is there in part
        site.chunk_seconds = 0
        site.asked.clear()
        second = start(site, cache)
        out, problem = second.communicate(timeout=120)
        assert out == "1200\n", problem
        ranges = [
            asked for method, path, asked in site.asked if method == "GET" and path in site.files
        ]
        assert len(ranges) == 3
        assert all(asked.startswith("bytes=") for asked in ranges)
    monkeypatch.setenv("SUREFIT_CACHE", str(cache))
    files = sorted(path.name for path in open_cache().glob("remote/*/data/d/*"))
    assert files == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert not list(cache.glob("remote/.*"))


def test_two_processes_at_once_read_the_same(tmp_path: Path) -> None:
    with serve(SHARDS, chunk_seconds=0.02) as site:
        both = [start(site, tmp_path / "cache") for _ in range(2)]
        assert [child.communicate(timeout=120)[0] for child in both] == ["1200\n"] * 2
    assert len(list((tmp_path / "cache" / "remote").glob("[!.]*"))) == 1
